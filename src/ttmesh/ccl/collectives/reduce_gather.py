"""all_reduce, reduce_scatter and all_gather: what every group of chips computes and sends."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from ttmesh.base.errors import MeshError
from ttmesh.ccl.collectives.collective_semaphores import brings_semaphores
from ttmesh.ccl.collectives.composed_gather import (
    all_gather_stages,
    gather_spec,
    is_composed_gather,
    is_joined_inside_tiles,
    refuse_block_floats,
)
from ttmesh.ccl.collectives.composed_reduce import (
    all_reduce_stages,
    check_all_reduce,
    check_buffered_reduce,
    check_line_over_mesh,
)
from ttmesh.ccl.collectives.composed_scatter import fused_scatter_stages, is_composed_scatter, reduce_scatter_stages
from ttmesh.ccl.collectives.gather_checks import check_all_gather
from ttmesh.ccl.collectives.line_checks import check_closed_ring, check_ring, check_routes, require_ring
from ttmesh.ccl.collectives.scatter_checks import check_reduce_scatter
from ttmesh.ccl.planning import plan_executor
from ttmesh.ccl.planning.collective_call import (
    Decision,
    Request,
    collective,
    common_options,
    drop_memory,
    mesh_of,
    require_routers,
    run,
)
from ttmesh.ccl.planning.group_plan import (
    check_axis,
    count_group,
    find_groups,
    list_axes_in_turn,
)
from ttmesh.ccl.planning.lane_groups import split_dim
from ttmesh.ccl.planning.reduction_terms import (
    ReduceType,
    chip_adder,
    finish_reduction,
    make_combine,
    reduce_group,
    reduction_name,
)
from ttmesh.ccl.planning.tensor_dims import find_tensor_dim
from ttmesh.ccl.planning.topology_changes import gathered_topology, replicated_topology, scattered_topology
from ttmesh.chip.formats.kernels.lane_sum import lane_sum, move_lanes, scatter_lane_sum
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

log = logging.getLogger("ttmesh.ccl")
_logged: set[str] = set()


def reduce_all(
    name: str,
    tensor: Tensor,
    *,
    cluster_axis: int | None = None,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
    num_links: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    dtype: Any = None,
    reduction: str | ReduceType = "sum",
    mode: str | None = None,
    algorithm: str | None = None,
    output: Tensor | None = None,
    brings_semaphores: bool = False,
    semaphores: Sequence[int] = (),
    buffer: Tensor | None = None,
) -> Tensor:
    """The reduction over a group on every chip; without an axis on a mesh with several, one axis after the other."""
    mesh = mesh_of(name, [tensor])
    check_axis(mesh, cluster_axis, _name_axis_check(name, topology))
    options = {
        "memory_config": memory_config, "topology": topology, "dtype": dtype, "algorithm": algorithm,
        "reduction": reduction_name(reduction), "brings_semaphores": brings_semaphores, "semaphores": semaphores,
        "buffer": None if buffer is None else drop_memory(buffer),
        **common_options(name, mesh, mode, num_links, subdevice_id),
    }  # fmt: skip
    axes: list[int | None] = (
        [cluster_axis] if (axis_list := list_axes_in_turn(mesh, cluster_axis, algorithm)) is None else [*axis_list]
    )
    if name.startswith("ttnn.experimental.") and len(axes) > 1:
        check_line_over_mesh(Request(name, mesh, (tensor,), (), {"axis": None, **options}))
        axes = [None]
    result = tensor
    for axis in axes:
        last = axis == axes[-1]
        result = run(name, decide_all_reduce, [result], {"axis": axis, **options}, [output] if last and output else [])
    return result


def scatter(
    name: str,
    tensor: Tensor,
    dim: int,
    *,
    cluster_axis: int | None = None,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
    num_links: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    reduction: str | ReduceType = "sum",
    mode: str | None = None,
    algorithm: str | None = None,
    output: Tensor | None = None,
    use_l1_small_for_semaphores: bool = False,
    multi_device_global_semaphore: Sequence[object] | None = None,
    barrier_semaphore: object = None,
    intermediate: Tensor | None = None,
    intermediate_memory_config: MemoryConfig | None = None,
    chunks_per_sync: int | None = None,
    num_workers_per_link: int | None = None,
    num_buffers_per_channel: int | None = None,
    compute_kernel_config: object = None,
    fused: str | None = None,
) -> Tensor:
    """Shard i of the reduction on chip i; without an axis device (r, c) gets shard r * cols + c.

    `fused`: how a fused form takes memory: "buffered" (only the result), "strided" (room for what arrives on a ring),
    "strided matmul" (the same, inside the program of a matmul). Their results keep the tensor's topology.
    """
    mesh = mesh_of(name, [tensor])
    check_axis(mesh, cluster_axis, _name_axis_check(name, topology))
    no_barrier = multi_device_global_semaphore is not None and barrier_semaphore is None
    tuning = (
        chunks_per_sync, num_workers_per_link, num_buffers_per_channel, _key(compute_kernel_config),
        _key(intermediate_memory_config), no_barrier or None, None if output is None else True,
    )  # fmt: skip
    options = {
        "dim": find_tensor_dim(name, tensor, dim), "memory_config": memory_config, "topology": topology,
        "algorithm": algorithm, "reduction": reduction_name(reduction), "tuning": tuning,
        "use_l1_small_for_semaphores": use_l1_small_for_semaphores,
        "intermediate": None if intermediate is None else drop_memory(intermediate),
        "semaphores": _count_semaphores(multi_device_global_semaphore),
        **common_options(name, mesh, mode, num_links, subdevice_id), "fused": fused,
    }  # fmt: skip
    request = Request(name, mesh, (tensor,), (), {"axis": cluster_axis, **options})
    if name.startswith("ttnn.experimental.") and mode is None and algorithm is None:
        if cluster_axis is None and not mesh.shape.is_line_topology():
            check_reduce_scatter(request, request["dim"], len(tensor.coords()))
        check_routes(request)
    if name.endswith("reduce_scatter_minimal_direct"):
        check_ring(request)
    if name.endswith("strided_reduce_scatter_async") and fused == "strided":
        require_ring(topology or Topology.Ring, "strided_reduce_scatter_async currently only supports Ring topology")
        check_closed_ring(mesh, cluster_axis, topology)
    axes: list[int | None] = (
        [cluster_axis] if (axis_list := list_axes_in_turn(mesh, cluster_axis, algorithm)) is None else [*axis_list]
    )
    result = tensor
    for axis in axes:
        asked = {"axis": axis, **options}
        given = axis == axes[-1] and output is not None
        given = given and (fused is not None or not _ignores_scatter_output(name, mesh, result, asked))
        result = run(name, decide_reduce_scatter, [result], asked, [output] if given else [])
    return result


def gather(
    name: str,
    tensor: Tensor,
    dim: int,
    *,
    cluster_axis: int | None = None,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
    num_links: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    mode: str | None = None,
    algorithm: str | None = None,
    output: Tensor | None = None,
    replicates_axis: bool = False,
    reverse: bool = False,
    multi_device_global_semaphore: Sequence[object] | None = None,
    barrier_semaphore: object = None,
    chunks_per_sync: int | None = None,
    num_workers_per_link: int | None = None,
    num_buffers_per_channel: int | None = None,
    sub_core_grids: object = None,
    fused: bool | str = False,
) -> Tensor:
    """All shards concatenated along a dim, on every chip.

    `replicates_axis`: the output topology of the async forms; `fused`: part of another operation, as its one program or,
    with "inside", within another's, whose result keeps the tensor's topology.
    """
    mesh = mesh_of(name, [tensor])
    check_axis(mesh, cluster_axis, name)
    no_barrier = multi_device_global_semaphore is not None and barrier_semaphore is None
    tuning = (
        chunks_per_sync, num_workers_per_link, num_buffers_per_channel, _key(sub_core_grids), no_barrier or None,
        None if output is None else True,
    )  # fmt: skip
    options = {
        "axis": cluster_axis, "dim": find_tensor_dim(name, tensor, dim), "memory_config": memory_config,
        "topology": topology, "algorithm": algorithm, "replicates_axis": replicates_axis, "reverse": reverse,
        "tuning": tuning,
        "semaphores": _count_semaphores(multi_device_global_semaphore),
        **common_options(name, mesh, mode, num_links, subdevice_id),
        "fused": fused,
    }  # fmt: skip
    if name.endswith("strided_all_gather_async"):
        check_closed_ring(mesh, cluster_axis, topology)
    if output is not None and _ignores_output(Request(name, mesh, (tensor,), (), options)):
        output = None
    result: Tensor = run(name, decide_all_gather, [tensor], options, [output] if output is not None else [])
    return result


def _name_axis_check(name: str, topology: Topology | None) -> str:
    """Whose words an axis out of range gets: for a ring TT-NN first asks for the length of the axis."""
    asks_length = name in ("ttnn.reduce_scatter", "ttnn.all_reduce") and topology is Topology.Ring
    return "ttnn.all_gather" if asks_length else name


def _count_semaphores(given: Sequence[object] | object) -> int | None:
    """How many semaphores a caller brings: TT-NN takes one alone, too, where it expects several."""
    return None if given is None else len(given) if isinstance(given, Sequence) else 1


def _key(value: object) -> Hashable:
    return None if value is None else key_of(value)


def _ignores_scatter_output(name: str, mesh: MeshDevice, tensor: Tensor, options: dict[str, Any]) -> bool:
    """Whether TT-NN composes a reduce_scatter, which then makes its own result."""
    n = count_group(Request(name, mesh, (tensor,), (), options), options["axis"])
    return is_composed_scatter(tensor.spec, options["dim"], n)


def _ignores_output(request: Request) -> bool:
    """Whether TT-NN composes an all_gather, which then makes its own result."""
    shape, dim = [*request.tensor.shape], request["dim"]
    shape[dim] *= count_group(request, request["axis"])
    return is_composed_gather(request, dim, shape)


def decide_all_reduce(request: Request) -> Decision:
    """Decide what all_reduce computes and sends over one axis."""
    groups, name = find_groups(request, request["axis"]), request["reduction"]
    n, size = groups.group_size, request.tensor.spec.packed_size_bytes
    buffer = request["buffer"]
    if buffer is None:
        check_all_reduce(request, n)
    else:
        check_buffered_reduce(request, buffer, n)
    plan = groups.plan("all_reduce", size)
    add = chip_adder(request.tensor.dtype, request.mesh.arch())
    combine, rank_reduction = make_combine(name, add), groups.rank_reduction
    reduce = None if rank_reduction is None else rank_reduction.make_reduce(n, name)

    along_last = groups.lane_groups.is_stored_so
    sums_axis = groups.lane_groups.axis if name == "sum" and add is None and len(groups.lane_groups.mesh) == 2 else None

    def compute(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        if sums_axis is not None and lanes.shape[sums_axis] == n:  # nearly every call: four frames less
            return (lane_sum(lanes, (sums_axis,)),)
        return (groups.lane_groups.merge(reduce_group(groups.lane_groups.split(lanes), n, name, add)),)

    def run_across_ranks(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        assert reduce is not None, "used only if ranks share the axis"
        if along_last:
            return (reduce(lanes),)
        return (groups.lane_groups.merge(reduce(groups.lane_groups.split(lanes))),)

    def run_plan(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        group_lanes = groups.lane_groups.split(lanes)
        total = plan_executor.run_reduce(
            group_lanes.expand(group_lanes.shape[0], n, *group_lanes.shape[2:]), plan, combine, None
        )
        return (groups.lane_groups.merge(finish_reduction(total, n, name)),)

    return Decision(
        (request.result_spec(request.tensor.shape),),
        run_plan if request["algorithm"] else compute,
        groups.loads(plan, size, up=[size] * n, down=[size] * n),
        replicated_topology(request.tensor, request["axis"]),
        stages=all_reduce_stages(request, n) if buffer is None else None,
        exchange_axes=groups.exchange_axes,
        compute_on_rank=run_across_ranks if reduce and add is None else None,
    )


def decide_reduce_scatter(request: Request) -> Decision:
    """Decide what reduce_scatter computes and sends over one axis."""
    groups, name, dim = find_groups(request, request["axis"]), request["reduction"], request["dim"]
    n, spec = groups.group_size, request.tensor.spec
    extent = spec.shape[dim]
    shape = [*spec.shape]
    shape[dim] = extent // n
    if brings_semaphores(request) and not request.outputs:
        request.result_spec(shape)
    check_reduce_scatter(request, dim, n)
    size = spec.packed_size_bytes
    plan = groups.plan("reduce_scatter", size)
    add = chip_adder(spec.dtype, request.mesh.arch())
    combine, negative_dim, rank_reduction = make_combine(name, add), dim - len(spec.shape), groups.rank_reduction
    in_order = prod(shape[:dim]) == 1  # the shards are already contiguous
    sharded_shape = (-1, n, *shape)
    scatters_sums = name == "sum" and add is None and not in_order
    along_last = groups.lane_groups.is_stored_so

    def compute(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        group_lanes = lanes if along_last else groups.lane_groups.split(lanes)
        if scatters_sums and group_lanes.shape[1] == n:
            scattered = scatter_lane_sum(group_lanes, dim)
            return (scattered if along_last else groups.lane_groups.merge(scattered),)
        total = reduce_group(group_lanes, n, name, add)
        if in_order:
            return (groups.lane_groups.merge(total.view(sharded_shape)),)
        shards = split_dim(total[:, 0], negative_dim, n).movedim(negative_dim - 1, 1)
        return (groups.lane_groups.merge(shards.contiguous()),)

    def run_across_ranks(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        assert rank_reduction is not None, "used only if ranks share the axis"
        local_shards = rank_reduction.reduce_scatter(groups.lane_groups.split(lanes), n, name, negative_dim)
        return (groups.lane_groups.merge(local_shards),)

    def run_plan(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        group_lanes = groups.lane_groups.split(lanes)
        total = plan_executor.run_reduce(
            group_lanes.expand(group_lanes.shape[0], n, *group_lanes.shape[2:]), plan, combine, negative_dim
        )
        return (groups.lane_groups.merge(finish_reduction(total, n, name)),)

    return Decision(
        (request.result_spec(shape),),
        run_plan if request["algorithm"] else compute,
        groups.loads(plan, size, up=[size] * n, down=[size // n] * n),
        request.tensor.tensor_topology()
        if request["fused"]
        else scattered_topology(request.tensor, dim, request["axis"]),
        exchange_axes=groups.exchange_axes,
        compute_on_rank=run_across_ranks if rank_reduction and add is None else None,
        stages=fused_scatter_stages(request, dim, request.result_spec(shape))
        if request["fused"]
        else reduce_scatter_stages(request, dim, request.result_spec(shape), n),
    )


def decide_all_gather(request: Request) -> Decision:
    """Decide what all_gather computes and sends."""
    groups, dim = find_groups(request, request["axis"]), request["dim"]
    n, spec = groups.group_size, request.tensor.spec
    shape = [*spec.shape]
    shape[dim] *= n
    composed = not request.outputs and is_composed_gather(request, dim, shape)
    result = gather_spec(request, dim, shape)
    if n == 1:
        name, shape_of = request.name.rpartition(".")[2], request.tensor.tensor_topology().distribution_shape()
        text = f"{name} collective will only work for num_devices > 1, got {n}"
        if composed:
            text = f"all_broadcast op will only work for num_devices > 1, but has {n}, shape: {shape_of!r}"
        elif brings_semaphores(request):
            text = f"{name} op will only work for num_devices > 1, but has {n}"
        raise MeshError(
            text,
            expected="an axis of two chips or more",
            fix="Choose another cluster_axis.",
        )
    if not composed:
        check_all_gather(request, dim, n)
    elif is_joined_inside_tiles(request.tensor.spec, dim):
        refuse_block_floats(request, n)
    if request.outputs:
        result = request.result_spec(shape)
    size = spec.packed_size_bytes
    plan = groups.plan("all_gather", size)
    negative_dim, reverse = dim - len(spec.shape), request["reverse"]
    along_last = groups.lane_groups.is_stored_so

    def compute(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        group_lanes = lanes if along_last else groups.lane_groups.split(lanes)
        gathered = _concat_group(group_lanes, n, negative_dim, reverse)[:, None]
        return (gathered if along_last else groups.lane_groups.merge(gathered),)

    def run_plan(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        group_lanes = groups.lane_groups.split(lanes)
        gathered = plan_executor.run_gather(group_lanes.expand(group_lanes.shape[0], n, *group_lanes.shape[2:]), plan)
        concatenated = [_concat_group(gathered[:, receiver], n, negative_dim, reverse) for receiver in range(n)]
        return (groups.lane_groups.merge(torch.stack(concatenated, 1)),)

    tensor = request.tensor
    return Decision(
        (result,),
        run_plan if request["algorithm"] else compute,
        groups.loads(plan, size * n, up=[size] * n, down=[size * n] * n),
        tensor.tensor_topology()
        if request.name.endswith("strided_all_gather_async") or request["fused"] == "inside"
        else request.outputs[0].tensor_topology()
        if request["fused"] == "into the output"
        and request.outputs[0]
        and tensor.tensor_topology().distribution_shape().dims() == 1
        else replicated_topology(tensor, request["axis"])
        if composed
        else gathered_topology(tensor, dim, request["axis"]),
        exchange_axes=groups.exchange_axes,
        stages=all_gather_stages(request, dim, result, n),
    )


def decide_gather_of_others(request: Request) -> Decision:
    """Decide an all_gather into a tensor whose slice for a chip's own shard is not written."""
    require_routers(request)
    decision = decide_all_gather(replace(request, outputs=()))
    groups, dim = find_groups(request, request["axis"]), request["dim"]
    extent, buffer = request.tensor.shape[dim], request.tensors[1]
    length = extent * groups.group_size

    def compute(lanes: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor]:
        (gathered,) = decision.compute(lanes)
        kept_lanes, gathered_lanes = groups.lane_groups.split(output), groups.lane_groups.split(gathered)
        result = kept_lanes.expand(
            max(kept_lanes.shape[0], gathered_lanes.shape[0]), groups.group_size, *kept_lanes.shape[2:]
        ).clone()
        result.narrow(dim + 2, 0, length).copy_(gathered_lanes)
        for chip in range(groups.group_size):
            own_shard = kept_lanes[:, chip if kept_lanes.shape[1] > 1 else 0].narrow(dim + 1, chip * extent, extent)
            result[:, chip].narrow(dim + 1, chip * extent, extent).copy_(own_shard)
        return (groups.lane_groups.merge(result),)

    topology = request.tensor.tensor_topology()
    return replace(decision, specs=(buffer.spec,), compute=compute, stages=None, topology=topology)


def _concat_group(group_lanes: torch.Tensor, n: int, negative_dim: int, reverse: bool) -> torch.Tensor:
    """[groups, n, *local] → [groups, *local with n times the dim]; one stored lane represents n equal ones."""
    expanded = (
        group_lanes
        if group_lanes.shape[1] == n
        else group_lanes.expand(group_lanes.shape[0], n, *group_lanes.shape[2:])
    )
    if reverse:
        expanded = expanded.flip(1)
    dim_position = expanded.dim() + negative_dim - 1
    return move_lanes(expanded, 1, dim_position).flatten(dim_position, dim_position + 1)


@collective("ttnn.all_reduce", direct=True)
def all_reduce(
    input_tensor: Tensor,
    cluster_axis: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    memory_config: MemoryConfig | None = None,
    num_links: int | None = None,
    topology: Topology | None = None,
    mode: str | None = None,
    algorithm: str | None = None,
    reduction: str = "sum",
) -> Tensor:
    """The sum over an axis, on every device of it."""
    return reduce_all(
        "ttnn.all_reduce", input_tensor, cluster_axis=cluster_axis, memory_config=memory_config, topology=topology,
        num_links=num_links, subdevice_id=subdevice_id, reduction=reduction, mode=mode, algorithm=algorithm,
    )  # fmt: skip


@collective("ttnn.reduce_scatter", direct=True)
def reduce_scatter(
    input_tensor: Tensor,
    dim: int,
    cluster_axis: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    memory_config: MemoryConfig | None = None,
    output_tensor: Tensor | None = None,
    num_links: int | None = None,
    topology: Topology | None = None,
    use_l1_small_for_semaphores: bool = False,
    intermediate_memory_config: MemoryConfig | None = None,
    chunks_per_sync: int | None = None,
    num_workers_per_link: int | None = None,
    num_buffers_per_channel: int | None = None,
    compute_kernel_config: object = None,
    mode: str | None = None,
    algorithm: str | None = None,
    reduction: str = "sum",
) -> Tensor:
    """The sum over an axis, sharded along a dim: shard i on device i."""
    return scatter(
        "ttnn.reduce_scatter", input_tensor, dim, cluster_axis=cluster_axis, memory_config=memory_config,
        topology=topology, num_links=num_links, subdevice_id=subdevice_id, reduction=reduction, mode=mode,
        algorithm=algorithm, output=output_tensor, use_l1_small_for_semaphores=use_l1_small_for_semaphores,
        intermediate_memory_config=intermediate_memory_config, chunks_per_sync=chunks_per_sync,
        num_workers_per_link=num_workers_per_link, num_buffers_per_channel=num_buffers_per_channel,
        compute_kernel_config=compute_kernel_config,
    )  # fmt: skip


@collective("ttnn.all_gather", direct=True)
def all_gather(
    input_tensor: Tensor,
    dim: int,
    cluster_axis: int | None = None,
    memory_config: MemoryConfig | None = None,
    output_tensor: Tensor | None = None,
    subdevice_id: SubDeviceId | None = None,
    num_links: int | None = None,
    topology: Topology | None = None,
    chunks_per_sync: int | None = None,
    num_workers_per_link: int | None = None,
    num_buffers_per_channel: int | None = None,
    use_l1_small_for_semaphores: bool = False,
    sub_core_grids: object = None,
    mode: str | None = None,
    algorithm: str | None = None,
) -> Tensor:
    """All shards along an axis concatenated along a dim, on every device of it."""
    deprecated = (num_links, topology, chunks_per_sync, num_workers_per_link, num_buffers_per_channel)
    if use_l1_small_for_semaphores or any(value is not None for value in deprecated):
        log_once(
            "The following ttnn.all_gather args are deprecated and will be removed in September-2026: num_links, "
            "topology, chunks_per_sync, num_workers_per_link, num_buffers_per_channel, use_l1_small_for_semaphores."
        )
    return gather(
        "ttnn.all_gather", input_tensor, dim, cluster_axis=cluster_axis, memory_config=memory_config,
        subdevice_id=subdevice_id, mode=mode, algorithm=algorithm, output=output_tensor, sub_core_grids=sub_core_grids,
    )  # fmt: skip


def log_once(text: str) -> None:
    """Log a line the first time it occurs in a process."""
    if text not in _logged:
        _logged.add(text)
        log.info(text)
