"""Writing only the shards of chosen cores."""

from __future__ import annotations

import torch

from ttmesh.base.cores import CoreRangeSet
from ttmesh.base.errors import MeshError
from ttmesh.mesh.functions.queue_functions import takes_queue
from ttmesh.mesh.queue.command_queue import Cells, Command
from ttmesh.tensor.distribution.lane_transfers import on_present, writable_queue
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import lanes_for


@takes_queue
def copy_host_to_device_tensor_partial(
    host_tensor: Tensor, device_tensor: Tensor, logical_core_filter: CoreRangeSet, cq_id: int | None = None
) -> None:
    """Overwrite the shards on the given cores; all others keep their values. An empty set of cores changes nothing."""
    mesh, lanes = lanes_for(host_tensor, device_tensor)
    spec = device_tensor.spec
    layout = spec.shard_layout
    if layout is None:
        raise MeshError(
            "copy_host_to_device_tensor_partial requires a sharded device tensor",
            expected="a sharded memory config",
            fix="Use copy_host_to_device_tensor.",
        )
    chosen = set(logical_core_filter.cores())
    pages = sorted(
        page
        for core, held in zip(layout.cores, layout.page_map(), strict=True)
        if core in chosen
        for page in held
        if page is not None
    )
    if not pages:
        return
    queue, cell = writable_queue(mesh, cq_id), device_tensor.buffer.cell
    index = torch.tensor(pages, device=mesh.backend.device, dtype=torch.int64)
    axes = mesh.shape.dims()
    new = spec.to_bytes(lanes.to(mesh.backend.device), axes)

    def body(reads: Cells, writes: Cells) -> None:
        old = writes[0].read_bytes()[..., : spec.packed_size_bytes]
        lanes_shape = [max(a, b) for a, b in zip(old.shape, new.shape, strict=True)]
        mixed = old.expand(lanes_shape).reshape(*lanes_shape[:-1], spec.num_pages, spec.page_size_bytes).clone()
        fresh = new.expand(lanes_shape).reshape(mixed.shape)
        mixed.index_copy_(axes, index, fresh.index_select(axes, index))
        writes[0].write(spec.from_bytes(mixed.reshape(lanes_shape), axes), spec)

    queue.enqueue(Command("write", on_present(mesh, body, device_tensor.kind.presence), (), (cell,)))
