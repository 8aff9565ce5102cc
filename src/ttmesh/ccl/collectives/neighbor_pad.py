"""neighbor_pad_async, which exchanges halos, and slice_reshard_async."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import MeshError, require
from ttmesh.ccl.planning.collective_call import (
    Decision,
    Request,
    check_common,
    collective,
    mesh_of,
    require_routers,
    run,
)
from ttmesh.ccl.planning.group_plan import ChipGroups, find_groups, normalize_tensor_dim
from ttmesh.ccl.planning.lane_groups import split_dim
from ttmesh.ccl.planning.plan_traffic import Loads, add_loads, count_link_bytes
from ttmesh.ccl.planning.transfer_plan import Transfer, TransferPlan
from ttmesh.fabric.fabric_config import Topology
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

MODES = ("zeros", "replicate")


@collective("ttnn.experimental.neighbor_pad_async")
def neighbor_pad_async(
    input_tensor: Tensor,
    dim: Sequence[int],
    padding_left: Sequence[int],
    padding_right: Sequence[int],
    padding_mode: str,
    cluster_axis: Sequence[int],
    num_links: Sequence[int] | None = None,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
    persistent_output_buffer: Tensor | None = None,
    logical_h: int = 0,
    t_front_pad: int = 0,
) -> Tensor:
    """Every shard padded with its neighbours' edges along each dim; at the borders with zeros or copies of the edge."""
    name = "ttnn.experimental.neighbor_pad_async"
    mesh = mesh_of(name, [input_tensor])
    if logical_h or t_front_pad:
        raise MeshError(
            f"neighbor_pad_async with logical_h={logical_h}, t_front_pad={t_front_pad} is not emulated",
            expected="0 for both",
            fix="Mask and pad the tensor with other operations.",
        )
    result = input_tensor
    for step, (pad_dim, left, right, axis) in enumerate(
        zip(dim, padding_left, padding_right, cluster_axis, strict=True)
    ):
        _check_shards(name, input_tensor, pad_dim, input_tensor.shape[pad_dim % len(input_tensor.shape)] + left + right)
        _check_padding(input_tensor, pad_dim, (left, right), padding_mode, axis)
        last = step == len(dim) - 1
        options = {
            "axis": axis, "dim": normalize_tensor_dim(input_tensor, pad_dim, f"dim {pad_dim} is not a dim of the input"),
            "left": left, "right": right, "padding_mode": padding_mode, "memory_config": memory_config, "topology": topology,
            "mode": check_common(mesh, None, num_links[step] if num_links else None),
        }  # fmt: skip
        output = [persistent_output_buffer] if last and persistent_output_buffer is not None else []
        result = run(name, _decide_neighbor_pad, [result], options, output)
    return result


@collective("ttnn.experimental.slice_reshard_async")
def slice_reshard_async(
    input_tensor: Tensor,
    dim: int,
    output_dim_offset: int,
    output_dim_shape: int,
    cluster_axis: int,
    num_links: int = 1,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
) -> Tensor:
    """A slice of the full tensor along a dim, sharded again into equal shards; zeros after its end."""
    name = "ttnn.experimental.slice_reshard_async"
    mesh = mesh_of(name, [input_tensor])
    if cluster_axis in (0, 1) and dim == 0:
        _check_shards(name, input_tensor, dim, output_dim_shape // mesh.shape[cluster_axis])
    else:
        _check_rows(input_tensor.spec, "Slice reshard does not support sharded input tensors.")
        _check_cluster_axis(cluster_axis)
    options = {
        "axis": cluster_axis, "dim": normalize_tensor_dim(input_tensor, dim, f"dim {dim} is not a dim of the input"),
        "offset": output_dim_offset, "length": output_dim_shape, "memory_config": memory_config, "topology": topology,
        "mode": check_common(mesh, None, num_links),
    }  # fmt: skip
    result: Tensor = run(name, _decide_slice_reshard, [input_tensor], options)
    return result


def _check_rows(spec: TensorSpec, sharded_text: str) -> None:
    """Raise for tiles and shards: the rows of neighbours are copied in their stored order."""
    if spec.layout is not Layout.ROW_MAJOR:
        raise MeshError(
            f"Unsupported input tensor layout Layout::{spec.layout.name}.",
            expected="ROW_MAJOR",
            fix="Convert it with ttnn.to_layout first.",
        )
    if spec.memory_config.is_sharded():
        raise MeshError(
            sharded_text, expected="an interleaved tensor", fix="Convert it with ttnn.to_memory_config first."
        )


def _check_shards(name: str, tensor: Tensor, dim: int, length: int) -> None:
    """Raise if the shards of a tensor do not fit its result: TT-NN makes the result's spec first."""
    mesh = tensor.device()
    if mesh is None or not tensor.memory_config().is_sharded():
        return
    shape = list(tensor.shape)
    shape[dim % len(shape)] = max(1, length)
    Request(name, mesh, (tensor,), (), {}).result_spec(shape)


def _check_cluster_axis(axis: int) -> None:
    require(axis in (0, 1), f"Unsupported cluster axis {axis}.", "0 or 1", "Change cluster_axis.")


def _check_padding(tensor: Tensor, dim: int, padding: tuple[int, int], mode: str, axis: int) -> None:
    """Raise for what neighbor_pad_async refuses, in TT-NN's order."""
    rank = len(tensor.shape)
    require(
        0 <= dim < rank - 1,
        f"Error, neighbor pad only supports padding non-last dim, provided dim={dim} for rank-{rank} tensor",
        f"a dim below {rank - 1}",
        "Change dim.",
    )
    _check_rows(tensor.spec, "Neighbor pad does not support sharded input tensors.")
    require(mode in MODES, f"Unsupported padding mode {mode}.", f"one of {list(MODES)}", "Change padding_mode.")
    require(
        max(padding) <= tensor.shape[dim],
        f"One of the padding values {padding[0]} or {padding[1]} exceeds the shape of the input tensor in that dim "
        f"{tensor.shape[dim]}.",
        f"at most {tensor.shape[dim]}",
        "Pad less.",
    )
    _check_cluster_axis(axis)


def _decide_neighbor_pad(request: Request) -> Decision:
    groups, dim, spec = find_groups(request, request["axis"]), request["dim"], request.tensor.spec
    require_routers(request)
    left, right = request["left"], request["right"]
    shape = [*spec.shape]
    extent = shape[dim]
    shape[dim] += left + right
    zeros = request["padding_mode"] == "zeros"

    def compute(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        return (pad_with_neighbours(groups, lanes, dim, left, right, zeros=zeros),)

    loads = count_edge_bytes(groups, spec.packed_size_bytes // extent, left, right)
    return Decision((request.result_spec(shape),), compute, loads, request.tensor.tensor_topology())


def pad_with_neighbours(
    groups: ChipGroups, lanes: torch.Tensor, dim: int, left: int, right: int, *, zeros: bool
) -> torch.Tensor:
    """Every chip's shard between its neighbours' edges along a dim; at the borders zeros or copies of its own edge."""
    group_lanes = groups.lane_groups.split(lanes)
    expanded = group_lanes.expand(group_lanes.shape[0], groups.group_size, *group_lanes.shape[2:])
    dim_position, extent = dim + 2, group_lanes.shape[dim + 2]
    before = (
        torch.roll(expanded.narrow(dim_position, extent - left, left), 1, 1)
        if left
        else expanded.narrow(dim_position, 0, 0)
    )
    after = torch.roll(expanded.narrow(dim_position, 0, right), -1, 1)
    if left:
        before[:, 0] = 0 if zeros else expanded[:, 0].narrow(dim_position - 1, 0, 1)
    if right:
        after[:, -1] = 0 if zeros else expanded[:, -1].narrow(dim_position - 1, extent - 1, 1)
    return groups.lane_groups.merge(torch.cat([before, expanded, after], dim_position))


def count_edge_bytes(groups: ChipGroups, row_bytes: int, left: int, right: int) -> Loads:
    """The bytes of the edges on the links: `left` rows go forward, `right` rows backward."""
    n, routes = groups.group_size, groups.request.mesh.traffic.routes
    forward = TransferPlan(n, 1, (tuple(Transfer(i, i + 1, 0) for i in range(n - 1)),))
    backward = TransferPlan(n, 1, (tuple(Transfer(i + 1, i, 0) for i in range(n - 1)),))
    loads = add_loads(
        [
            count_link_bytes(plan, rows * row_bytes, groups.chip_ids, routes)
            for plan, rows in ((forward, left), (backward, right))
        ]
    )
    return {hop: size for hop, size in loads.items() if size}


def _decide_slice_reshard(request: Request) -> Decision:
    groups, dim, spec = find_groups(request, request["axis"]), request["dim"], request.tensor.spec
    n, offset, length = groups.group_size, request["offset"], request["length"]
    extent = spec.shape[dim]
    if n == 1:
        raise MeshError(
            f"slice_reshard_async op will only work for num_devices > 1, but has {n}",
            expected="an axis of two chips or more",
            fix="Choose another cluster_axis.",
        )
    if dim:
        raise MeshError(
            f"Error, neighbor pad currently only supports sharding dim 0, provided {dim}",
            expected="0",
            fix="Change dim.",
        )
    _check_rows(spec, "Slice reshard does not support sharded input tensors.")
    if length % n:
        raise MeshError(
            "Output dim shape must be divisible by num devices on cluster axis",
            expected=f"a multiple of {n}, not {length}",
            fix="Change output_dim_shape.",
        )
    shard_extent = length // n
    shape = [*spec.shape]
    shape[dim] = shard_extent

    def compute(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        group_lanes = groups.lane_groups.split(lanes)
        expanded = group_lanes.expand(group_lanes.shape[0], n, *group_lanes.shape[2:])
        dim_position = dim + 1
        full = expanded.movedim(1, dim_position).flatten(
            dim_position, dim_position + 1
        )  # [groups, *local with the full dim]
        begin = min(offset, n * extent)  # what lies behind the tensor is not defined
        sliced = full.narrow(dim_position, begin, min(length, n * extent - begin))
        missing = length - sliced.shape[dim_position]
        if missing:
            zeros_shape = list(sliced.shape)
            zeros_shape[dim_position] = missing
            sliced = torch.cat([sliced, sliced.new_zeros(zeros_shape)], dim_position)
        return (groups.lane_groups.merge(split_dim(sliced, dim - len(shape), n).movedim(dim - len(shape) - 1, 1)),)

    row = spec.packed_size_bytes // extent
    moved_bytes: dict[tuple[int, int], int] = {}
    for i in range(length):
        source = (offset + i) // extent
        if source < n and source != i // shard_extent:
            moved_bytes[source, i // shard_extent] = moved_bytes.get((source, i // shard_extent), 0) + row
    loads: dict[tuple[int, int], int] = {}
    for (source, target), size in moved_bytes.items():
        plan = TransferPlan(n, 1, ((Transfer(source, target, 0),),))
        for hop, hop_bytes in count_link_bytes(plan, size, groups.chip_ids, request.mesh.traffic.routes).items():
            loads[hop] = loads.get(hop, 0) + hop_bytes
    return Decision((request.result_spec(shape),), compute, loads, request.tensor.tensor_topology())
