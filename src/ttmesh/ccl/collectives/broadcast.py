"""broadcast, all_broadcast and mesh_partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange
from ttmesh.base.placement import Replicate
from ttmesh.ccl.collectives.all_to_all import expand_group
from ttmesh.ccl.collectives.collective_semaphores import program_stages
from ttmesh.ccl.collectives.collective_stages import list_broadcast_axes, run_all_broadcast
from ttmesh.ccl.collectives.line_checks import check_directions, check_routes
from ttmesh.ccl.planning import plan_executor
from ttmesh.ccl.planning.collective_call import Decision, Request, collective, common_options, mesh_of, run
from ttmesh.ccl.planning.group_plan import ChipGroups, check_axis, find_fabric_topology, find_groups
from ttmesh.ccl.planning.lane_groups import split_dim
from ttmesh.ccl.planning.link_limits import check_links, get_num_links
from ttmesh.ccl.planning.tensor_dims import find_tensor_dim
from ttmesh.ccl.planning.topology_changes import partitioned_topology, replicated_topology
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor


@collective("ttnn.broadcast", direct=True)
def broadcast(
    input_tensor: Tensor,
    sender_coord: MeshCoordinate,
    num_links: int | None = None,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
    cluster_axis: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    mode: str | None = None,
    algorithm: str | None = None,
) -> Tensor:
    """The sender's tensor on every device of the axis."""
    mesh = mesh_of("ttnn.broadcast", [input_tensor])
    check_axis(mesh, cluster_axis, "broadcast")
    _check_linear("broadcast", input_tensor, cluster_axis)
    options = {
        "axis": cluster_axis, "sender": tuple(sender_coord), "memory_config": memory_config, "topology": topology,
        "algorithm": algorithm, **common_options("broadcast", mesh, mode, num_links, subdevice_id),
    }  # fmt: skip
    result: Tensor = run("ttnn.broadcast", _decide_broadcast, [input_tensor], options)
    return result


@collective("ttnn.all_broadcast", direct=True)
def all_broadcast(
    input_tensor: Tensor,
    cluster_axis: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    memory_config: MemoryConfig | None = None,
    num_links: int = 1,
    topology: Topology | None = None,
    use_l1_small_for_semaphores: bool = False,
    mode: str | None = None,
    algorithm: str | None = None,
) -> list[Tensor]:
    """One tensor per device of the axis: its shard, on all of them."""
    mesh = mesh_of("ttnn.all_broadcast", [input_tensor])
    check_axis(mesh, cluster_axis, "all_broadcast")
    if mesh.shape.is_line_topology():
        _check_linear("all_broadcast", input_tensor, cluster_axis)
    options = {
        "axis": cluster_axis, "memory_config": memory_config, "topology": topology, "algorithm": algorithm,
        **common_options("all_broadcast", mesh, mode, num_links, subdevice_id),
        "use_l1_small_for_semaphores": use_l1_small_for_semaphores,
    }  # fmt: skip
    results: list[Tensor] = run("ttnn.all_broadcast", _decide_all_broadcast, [input_tensor], options)
    return results


@collective("ttnn.mesh_partition", direct=True)
def mesh_partition(
    input_tensor: Tensor, dim: int, cluster_axis: int | None = None, memory_config: MemoryConfig | None = None
) -> Tensor:
    """Slice i along a dim of the tensor on device i of the axis; no data moves between chips."""
    mesh = mesh_of("ttnn.mesh_partition", [input_tensor])
    if cluster_axis not in (None, 0, 1):
        raise MeshError(
            "Only support cluster axis of None, 0 or 1",
            expected="None, 0 or 1",
            fix="Pass one of these as cluster_axis.",
        )
    dim_position = find_tensor_dim("mesh_partition", input_tensor, dim)
    if (mesh.get_num_devices() if cluster_axis is None else mesh.shape[cluster_axis]) == 1:
        return input_tensor
    options = {"axis": cluster_axis, "dim": dim_position, "memory_config": memory_config, "mode": "local"}
    result: Tensor = run("ttnn.mesh_partition", decide_mesh_partition, [input_tensor], options)
    return result


def _decide_broadcast(request: Request) -> Decision:
    groups = find_groups(request, request["axis"])
    root = _find_position(groups, request["sender"])
    _check_several("broadcast", groups)
    if request["num_links"] is not None and not request.over_host:
        check_links(request.name, request.mesh, request.tensor.coords(), request["axis"], request["num_links"])
    check_routes(request)
    n, size = groups.group_size, request.tensor.spec.packed_size_bytes
    plan = groups.plan("broadcast", size, root=root)

    def compute(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        group_lanes = groups.lane_groups.split(lanes)
        return (
            groups.lane_groups.merge(group_lanes if group_lanes.shape[1] == 1 else group_lanes[:, root : root + 1]),
        )

    def run_plan(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        return (groups.lane_groups.merge(plan_executor.run_broadcast(expand_group(groups, lanes), plan, root)),)

    rank_reduction = groups.rank_reduction

    def run_across_ranks(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        assert rank_reduction is not None, "used only if ranks share the axis"
        return (groups.lane_groups.merge(rank_reduction.broadcast(groups.lane_groups.split(lanes), root)),)

    up = [size if i == root else 0 for i in range(n)]
    links = request["num_links"] or get_num_links(request.mesh, request["axis"])
    topology = find_fabric_topology(request, request["axis"])
    used = replace(request, options={**request.options, "topology": topology, "num_links": links})
    return Decision(
        (request.result_spec(request.tensor.shape),),
        run_plan if request["algorithm"] else compute,
        groups.loads(plan, size, up=up, down=[size - read for read in up]),
        replicated_topology(request.tensor, request["axis"]),
        exchange_axes=groups.exchange_axes,
        compute_on_rank=run_across_ranks if rank_reduction else None,
        stages=program_stages(used, "broadcast", [request.result_spec(request.tensor.shape)]),
    )


def _decide_all_broadcast(request: Request) -> Decision:
    groups = find_groups(request, request["axis"])
    _check_several("all_broadcast", groups)
    check_directions(request, groups.group_size)
    n, size = groups.group_size, request.tensor.spec.packed_size_bytes
    plan = groups.plan("all_gather", size)

    def compute(lanes: torch.Tensor) -> list[torch.Tensor]:
        group_lanes = groups.lane_groups.split(lanes)
        if group_lanes.shape[1] == 1:
            return [groups.lane_groups.merge(group_lanes)] * n
        return [groups.lane_groups.merge(group_lanes[:, i : i + 1]) for i in range(n)]

    def run_plan(lanes: torch.Tensor) -> list[torch.Tensor]:
        gathered = plan_executor.run_gather(expand_group(groups, lanes), plan)
        return [groups.lane_groups.merge(gathered[:, :, i]) for i in range(n)]

    return Decision(
        (request.result_spec(request.tensor.shape),) * n,
        run_plan if request["algorithm"] else compute,
        groups.loads(plan, size * n, up=[size] * n, down=[size * n] * n),
        _all_broadcast_topology(request, n),
        single=False,
        exchange_axes=groups.exchange_axes,
        stages=_all_broadcast_stages(request, n),
    )


def _all_broadcast_topology(request: Request, n: int) -> TensorTopology:
    """Along one axis, every axis gets its own placement; over all chips, a flat distribution stays flat."""
    mesh_shape = request.mesh.shape
    if len(list_broadcast_axes(request, n)) == 1:
        return replicated_topology(request.tensor, request["axis"])
    return TensorTopology(mesh_shape, [Replicate(), Replicate()], MeshCoordinateRange(mesh_shape).coords())


def _all_broadcast_stages(request: Request, n: int) -> tuple[Composition, Sequence[PlannedTensor]]:
    spec = request.result_spec(request.tensor.shape)
    c = Composition()
    return c, run_all_broadcast(c, request, PlannedTensor(request.tensor.spec), spec, list_broadcast_axes(request, n))


def decide_mesh_partition(request: Request) -> Decision:
    """Decide what mesh_partition computes."""
    groups = find_groups(request, request["axis"], whole_mesh=True)  # a chip's part depends on its place in the mesh
    dim, spec = request["dim"], request.tensor.spec
    n, extent = groups.group_size, spec.shape[dim]
    shape = [*spec.shape]
    shape[dim] = extent // n
    request.result_spec(shape)
    if extent % n:
        raise ShapeError(
            f"input shape {spec.shape!r} must be divisible by cluster axis size {n}",
            expected=f"a multiple of {n} along dim {dim}",
            fix="Partition another dim or pad the tensor.",
        )
    negative_dim = dim - len(shape)
    if n > 1 and spec.layout is Layout.TILE and negative_dim >= -2 and shape[dim] % spec.tile.tile_shape[negative_dim]:
        side = "width" if negative_dim == -1 else "height"
        raise ShapeError(
            f"Can only slice tilized tensor with {side} begin index aligned to tiles",
            expected=f"parts of whole tiles, not {shape[dim]} of {extent} elements",
            fix="Partition another dim, or convert it with ttnn.to_layout to ROW_MAJOR first.",
        )

    def compute(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        group_lanes = groups.lane_groups.split(lanes)
        slices = split_dim(group_lanes, negative_dim, n)  # [groups, chips, ..., slice, extent / n, ...]
        if group_lanes.shape[1] == 1:
            return (groups.lane_groups.merge(slices[:, 0].movedim(negative_dim - 1, 1).contiguous()),)
        own_slices = slices.diagonal(0, 1, slices.dim() + negative_dim - 1).movedim(-1, 1)
        return (groups.lane_groups.merge(own_slices.contiguous()),)

    rank_block, exchange_axes = request.mesh.rank_block, groups.exchange_axes

    def compute_on_rank(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        assert rank_block is not None, "used only if ranks share the axis"
        assert exchange_axes is not None, "used only if ranks share the axis"
        first, count = rank_block.start[exchange_axes[0]], rank_block.block_shape[exchange_axes[0]]
        group_lanes = groups.lane_groups.split(lanes)
        slices = split_dim(group_lanes, negative_dim, n).narrow(negative_dim - 1, first, count)
        all_slices = slices.expand(slices.shape[0], count, *slices.shape[2:])
        own_slices = all_slices.diagonal(0, 1, slices.dim() + negative_dim - 1).movedim(-1, 1)
        return (groups.lane_groups.merge(own_slices.contiguous()),)

    return Decision(
        (request.result_spec(shape),),
        compute,
        {},
        partitioned_topology(request.tensor, dim, request["axis"]),
        exchange_axes=exchange_axes,
        compute_on_rank=compute_on_rank if exchange_axes is not None else None,
    )


def _find_position(groups: ChipGroups, coord: tuple[int, ...]) -> int:
    """The index of the chip at a coordinate in its group."""
    axis, tensor = groups.axis, groups.request.tensor
    if len(coord) != groups.request.mesh.shape.dims() or coord not in tensor.coords():
        raise MeshError(
            f"sender {list(coord)} does not hold the tensor",
            expected=f"one of {[list(c) for c in tensor.coords()]}",
            fix="Change sender_coord.",
        )
    return coord[axis] if axis is not None else tensor.coords().index(coord)


def _check_linear(name: str, tensor: Tensor, axis: int | None) -> None:
    """Raise TT-NN's error if no axis is given and the tensor is not distributed along one line."""
    if axis is None and not tensor.tensor_topology().distribution_shape().is_line_topology():
        raise MeshError(
            f"{name} op is only supported for a linear tensor topology shape",
            expected="cluster_axis for a tensor distributed over two axes",
            fix="Pass cluster_axis.",
        )


def _check_several(name: str, groups: ChipGroups) -> None:
    if groups.group_size < 2:
        shape = groups.request.tensor.tensor_topology().distribution_shape()
        raise MeshError(
            f"{name} op will only work for num_devices > 1, but has {groups.group_size}, shape: {shape!r}",
            expected="an axis of two chips or more",
            fix="Choose another cluster_axis.",
        )
