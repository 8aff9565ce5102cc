"""all_reduce, reduce_scatter and all_gather: what every group of chips ends with, and what it sends."""

from __future__ import annotations

import logging
from dataclasses import replace
from math import prod
from typing import Any

import torch

from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.ccl.planning import plan_executor
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import (
    by_axis,
    check_axis,
    find_groups,
    gathered_topology,
    normal_dim,
    replicated_topology,
    scattered_topology,
)
from ttmesh.ccl.planning.lane_groups import split_dim
from ttmesh.ccl.planning.reduction_terms import (
    ReduceType,
    chip_adder,
    combiner,
    finish_reduction,
    over_members,
    reduction_name,
)
from ttmesh.fabric.fabric_config import Topology, is_2d
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

log = logging.getLogger("ttmesh.ccl")
_said: set[str] = set()


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
) -> Tensor:
    """The sum of all members on every member; without an axis on a mesh with several, one axis after the other."""
    mesh = mesh_of(name, [tensor])
    check_axis(mesh, cluster_axis)
    options = {
        "memory_config": memory_config, "topology": topology, "dtype": dtype, "algorithm": algorithm,
        "reduction": reduction_name(reduction), "mode": check_common(mesh, mode, num_links, subdevice_id),
    }  # fmt: skip
    axes: list[int | None] = [cluster_axis] if (each := by_axis(mesh, cluster_axis, algorithm)) is None else [*each]
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
) -> Tensor:
    """Part i of the sum on member i; without an axis device (r, c) gets part r * cols + c."""
    mesh = mesh_of(name, [tensor])
    check_axis(mesh, cluster_axis)
    at = normal_dim(tensor, dim, f"Invalid scatter dim {dim} for rank {len(tensor.shape)} tensor")
    options = {
        "dim": at, "memory_config": memory_config, "topology": topology, "algorithm": algorithm,
        "reduction": reduction_name(reduction), "mode": check_common(mesh, mode, num_links, subdevice_id),
    }  # fmt: skip
    axes: list[int | None] = [cluster_axis] if (each := by_axis(mesh, cluster_axis, algorithm)) is None else [*each]
    result = tensor
    for axis in axes:
        last = axis == axes[-1]
        result = run(
            name, decide_reduce_scatter, [result], {"axis": axis, **options}, [output] if last and output else []
        )
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
    whole_axis: bool = False,
    reverse: bool = False,
) -> Tensor:
    """All parts joined along a dim, on every member; `whole_axis` follows the async forms' output topology."""
    mesh = mesh_of(name, [tensor])
    check_axis(mesh, cluster_axis)
    at = normal_dim(tensor, dim, f"Invalid gather dim {dim} for {len(tensor.shape)}D input tensor")
    chosen = check_common(mesh, mode, num_links, subdevice_id)
    flat = mesh.shape.is_line_topology() or tensor.kind.presence is not None
    if chosen == "fabric" and cluster_axis is None and not flat and not is_2d(get_fabric_config()):
        raise MeshError(
            "1D fabric on a 2D mesh_device requires cluster_axis to be set",
            expected="cluster_axis 0 or 1, or a 2D fabric",
            fix="Pass cluster_axis, or configure FABRIC_2D before opening the mesh.",
        )
    options = {
        "axis": cluster_axis, "dim": at, "memory_config": memory_config, "topology": topology, "algorithm": algorithm,
        "mode": chosen, "whole_axis": whole_axis, "reverse": reverse,
    }  # fmt: skip
    result: Tensor = run(name, decide_all_gather, [tensor], options, [output] if output is not None else [])
    return result


def decide_all_reduce(request: Request) -> Decision:
    """What all_reduce does over one axis."""
    where, name = find_groups(request, request["axis"]), request["reduction"]
    n, size = where.members, request.tensor.spec.packed_size_bytes
    plan = where.plan("all_reduce", size)
    add = chip_adder(request.tensor.dtype, request.mesh.arch())
    combine, crossing = combiner(name, add), where.crossing
    reduce = None if crossing is None else crossing.reducer(n, name)

    def fast(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        return (where.arrangement.spread(over_members(where.arrangement.gather(lanes), n, name, add)),)

    along_last = where.arrangement.axis == 1 and len(where.arrangement.mesh) == 2  # lanes are groups of members

    def run_across_ranks(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        assert reduce is not None, "asked for only then"
        if along_last:
            return (reduce(lanes),)
        return (where.arrangement.spread(reduce(where.arrangement.gather(lanes))),)

    def run_plan(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        members = where.arrangement.gather(lanes)
        total = plan_executor.run_reduce(members.expand(members.shape[0], n, *members.shape[2:]), plan, combine, None)
        return (where.arrangement.spread(finish_reduction(total, n, name)),)

    return Decision(
        (request.result_spec(request.tensor.shape),),
        run_plan if request["algorithm"] else fast,
        where.loads(plan, size, up=[size] * n, down=[size] * n),
        replicated_topology(request.tensor, request["axis"]),
        programs=2 if request.tensor.memory_config().interleaved else 1,  # TT-NN: reduce_scatter, then all_gather
        presence=request.tensor.kind.presence,
        across=where.across,
        over_ranks=run_across_ranks if reduce else None,
    )


def decide_reduce_scatter(request: Request) -> Decision:
    """What reduce_scatter does over one axis."""
    where, name, dim = find_groups(request, request["axis"]), request["reduction"], request["dim"]
    n, spec = where.members, request.tensor.spec
    extent = spec.shape[dim]
    if n == 1:
        raise MeshError(
            f"reduce_scatter op will only work for num_devices > 1, but has {n}",
            expected="an axis of two chips or more",
            fix="Choose another cluster_axis.",
        )
    if extent % n:
        raise ShapeError(
            f"Error, input tensor dimension {dim} should be divisible by ring_size but is {extent} and the ring_size is {n}",
            expected=f"a multiple of {n}",
            fix="Scatter another dim or pad the tensor.",
        )
    size = spec.packed_size_bytes
    plan = where.plan("reduce_scatter", size)
    add = chip_adder(spec.dtype, request.mesh.arch())
    combine, back, crossing = combiner(name, add), dim - len(spec.shape), where.crossing
    shape = [*spec.shape]
    shape[dim] = extent // n

    in_order = prod(shape[:dim]) == 1  # the parts already lie one after the other
    cut = (-1, n, *shape)

    def fast(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        total = over_members(where.arrangement.gather(lanes), n, name, add)
        if in_order:
            return (where.arrangement.spread(total.view(cut)),)
        parts = split_dim(total[:, 0], back, n).movedim(back - 1, 1)
        return (where.arrangement.spread(parts.contiguous()),)

    def run_across_ranks(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        assert crossing is not None, "asked for only then"
        own = crossing.reduce_scatter(where.arrangement.gather(lanes), n, name, back)
        return (where.arrangement.spread(own),)

    def run_plan(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        members = where.arrangement.gather(lanes)
        total = plan_executor.run_reduce(members.expand(members.shape[0], n, *members.shape[2:]), plan, combine, back)
        return (where.arrangement.spread(finish_reduction(total, n, name)),)

    return Decision(
        (request.result_spec(shape),),
        run_plan if request["algorithm"] else fast,
        where.loads(plan, size, up=[size] * n, down=[size // n] * n),
        scattered_topology(request.tensor, dim, request["axis"]),
        presence=request.tensor.kind.presence,
        across=where.across,
        over_ranks=run_across_ranks if crossing else None,
    )


def decide_all_gather(request: Request) -> Decision:
    """What all_gather does."""
    where, dim = find_groups(request, request["axis"]), request["dim"]
    n, spec = where.members, request.tensor.spec
    if n == 1:
        raise MeshError(
            f"{request.name.rpartition('.')[2]} collective will only work for num_devices > 1, got {n}",
            expected="an axis of two chips or more",
            fix="Choose another cluster_axis.",
        )
    size = spec.packed_size_bytes
    plan = where.plan("all_gather", size)
    shape = [*spec.shape]
    shape[dim] *= n
    back, backwards = dim - len(spec.shape), request["reverse"]

    def fast(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        members = where.arrangement.gather(lanes)
        return (where.arrangement.spread(_concat_members(members, n, back, backwards)[:, None]),)

    def run_plan(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        members = where.arrangement.gather(lanes)
        every = plan_executor.run_gather(members.expand(members.shape[0], n, *members.shape[2:]), plan)
        joined = [_concat_members(every[:, receiver], n, back, backwards) for receiver in range(n)]
        return (where.arrangement.spread(torch.stack(joined, 1)),)

    tensor = request.tensor
    topology = replicated_topology(tensor, request["axis"]) if request["whole_axis"] else gathered_topology(tensor, dim)
    return Decision(
        (request.result_spec(shape),),
        run_plan if request["algorithm"] else fast,
        where.loads(plan, size * n, up=[size] * n, down=[size * n] * n),
        topology,
        presence=tensor.kind.presence,
        across=where.across,
    )


def others_gathered(request: Request) -> Decision:
    """all_gather into a tensor that keeps what it holds where a member's own part would stand."""
    whole, where, dim = decide_all_gather(request), find_groups(request, request["axis"]), request["dim"]
    extent = request.tensor.shape[dim]

    def compute(lanes: torch.Tensor, held: torch.Tensor) -> tuple[torch.Tensor]:
        (joined,) = whole.compute(lanes)
        own, every = where.arrangement.gather(held), where.arrangement.gather(joined)
        result = every.expand(every.shape[0], where.members, *every.shape[2:]).clone()
        for member in range(where.members):
            kept = own[:, member if own.shape[1] > 1 else 0].narrow(dim + 1, member * extent, extent)
            result[:, member].narrow(dim + 1, member * extent, extent).copy_(kept)
        return (where.arrangement.spread(result),)

    return replace(whole, compute=compute)


def _concat_members(members: torch.Tensor, n: int, back: int, backwards: bool) -> torch.Tensor:
    """[groups, n, *local] → [groups, *local with n times the dim]; one stored member stands for n equal ones."""
    every = members if members.shape[1] == n else members.expand(members.shape[0], n, *members.shape[2:])
    if backwards:
        every = every.flip(1)
    at = every.dim() + back - 1
    return every.movedim(1, at).flatten(at, at + 1)


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
    mode: str | None = None,
    algorithm: str | None = None,
    reduction: str = "sum",
) -> Tensor:
    """The sum over an axis, cut along a dim: part i on device i."""
    return scatter(
        "ttnn.reduce_scatter", input_tensor, dim, cluster_axis=cluster_axis, memory_config=memory_config,
        topology=topology, num_links=num_links, subdevice_id=subdevice_id, reduction=reduction, mode=mode,
        algorithm=algorithm, output=output_tensor,
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
    mode: str | None = None,
    algorithm: str | None = None,
) -> Tensor:
    """All parts along an axis joined along a dim, on every device of it."""
    old = (num_links, topology, chunks_per_sync, num_workers_per_link, num_buffers_per_channel)
    if use_l1_small_for_semaphores or any(value is not None for value in old):
        say_once(
            "The following ttnn.all_gather args are deprecated and will be removed in September-2026: num_links, "
            "topology, chunks_per_sync, num_workers_per_link, num_buffers_per_channel, use_l1_small_for_semaphores."
        )
    return gather(
        "ttnn.all_gather", input_tensor, dim, cluster_axis=cluster_axis, memory_config=memory_config,
        subdevice_id=subdevice_id, mode=mode, algorithm=algorithm, output=output_tensor,
    )  # fmt: skip


def say_once(text: str) -> None:
    """Log a line the first time it comes up in a process."""
    if text not in _said:
        _said.add(text)
        log.info(text)
