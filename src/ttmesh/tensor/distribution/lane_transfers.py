"""Lanes between host and cells, through the command queue."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ttmesh.base.errors import MeshError
from ttmesh.chip.cells import Cell
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.queue.command_queue import Body, Cells, Command, CommandQueue
from ttmesh.mesh.queue.partial_writes import restrict_to_chips
from ttmesh.mesh.queue.trace import make_capture_error
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.tensor.spec.distribution_shape import Coord
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Presence = frozenset[Coord]


def write(
    mesh: MeshDevice,
    cell: Cell,
    spec: TensorSpec,
    values: torch.Tensor,
    presence: Presence | None,
    cq_id: int | None = None,
) -> torch.Tensor:
    """Enqueue a write of whole lanes and return them as the cell gets them; with a presence only those chips change."""
    return write_on(writable_queue(mesh, cq_id), mesh, cell, spec, values, presence)


def write_on(
    queue: CommandQueue,
    mesh: MeshDevice,
    cell: Cell,
    spec: TensorSpec,
    values: torch.Tensor,
    presence: Presence | None = None,
) -> torch.Tensor:
    """The same on a queue that was checked."""
    lanes = values.to(mesh.backend.device)

    def body(reads: Cells, writes: Cells) -> None:
        writes[0].write(lanes, spec)

    queue.enqueue(Command("write", on_present(mesh, body, presence), (), (cell,)))
    return lanes


def on_present(mesh: MeshDevice, body: Body, presence: Presence | None) -> Body:
    """A command's body that writes the chips at these coordinates alone; None: every chip."""
    return body if presence is None else restrict_to_chips(body, present_chips(mesh, presence), mesh.lane_shape)


def present_chips(mesh: MeshDevice, presence: Presence) -> Presence:
    """The positions of these coordinates among the lanes of this process."""
    return presence if mesh.rank_block is None else mesh.rank_block.find_local_positions(presence)


def read(
    mesh: MeshDevice, cell: Cell, spec: TensorSpec, arrived: Callable[[torch.Tensor], None], cq_id: int | None = None
) -> tuple[CommandQueue, Command]:
    """Enqueue a read of whole lanes; `arrived` gets them when the command runs. They must not be changed."""
    queue = _queue(mesh, cq_id, "Reads are not supported during trace capture.")
    if mesh.rank_block is not None and mesh.rank_block.position is None:
        raise mesh.rank_block.make_absence_error()
    on_host = mesh.backend.device.type in ("cpu", "meta")  # meta lanes have no values to bring

    def body(reads: Cells, writes: Cells) -> None:
        lanes = reads[0].read(spec)
        if not on_host:
            lanes = lanes.cpu()
            mesh.backend.check_indices()
        arrived(lanes)

    command = Command("read", body, (cell,), ())
    queue.enqueue(command)
    return queue, command


def lanes_on(mesh: MeshDevice, lanes: torch.Tensor, held: RankBlock | None) -> torch.Tensor:
    """Host lanes as a mesh of the same shape takes them: this rank's where ranks divide it."""
    block = mesh.rank_block
    if held is None:
        return lanes if block is None else block.narrow_to_block(lanes).clone()
    if block is None or not block.is_same_block(held):
        raise MeshError(
            f"this host tensor holds {held.local_range!r} of {mesh.shape!r}, which {mesh!r} divides otherwise",
            expected="the mesh that the mapper was made from",
            fix="Make the mapper from the mesh the tensor goes to.",
        )
    return lanes


def writable_queue(mesh: MeshDevice, cq_id: int | None = None) -> CommandQueue:
    """The queue for a write; refused while a trace is captured on it."""
    return _queue(mesh, cq_id, "Writes are not supported during trace capture.")


def _queue(mesh: MeshDevice, cq_id: int | None, text: str) -> CommandQueue:
    queue = mesh.queue(cq_id)
    if queue.recording is not None:
        trace = next(trace.id for trace in mesh.traces.values() if trace.commands is queue.recording)
        raise make_capture_error(text, trace)
    return queue
