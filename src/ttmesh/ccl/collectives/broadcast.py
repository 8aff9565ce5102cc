"""Collectives that only copy: broadcast, all_broadcast, mesh_partition."""

from __future__ import annotations

import torch

from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.ccl.collectives.all_to_all import every
from ttmesh.ccl.planning import plan_executor
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import (
    Placed,
    check_axis,
    find_groups,
    normal_dim,
    replicated_topology,
    scattered_topology,
)
from ttmesh.ccl.planning.lane_groups import split_dim
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.tensor.spec.memory_config import MemoryConfig
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
    """The sender's part on every device of the axis."""
    mesh = mesh_of("ttnn.broadcast", [input_tensor])
    check_axis(mesh, cluster_axis)
    _check_linear("broadcast", input_tensor, cluster_axis)
    options = {
        "axis": cluster_axis, "sender": tuple(sender_coord), "memory_config": memory_config, "topology": topology,
        "algorithm": algorithm, "mode": check_common(mesh, mode, num_links, subdevice_id),
    }  # fmt: skip
    result: Tensor = run("ttnn.broadcast", _broadcast, [input_tensor], options)
    return result


@collective("ttnn.all_broadcast", direct=True)
def all_broadcast(
    input_tensor: Tensor,
    cluster_axis: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    memory_config: MemoryConfig | None = None,
    num_links: int = 1,
    topology: Topology | None = None,
    mode: str | None = None,
    algorithm: str | None = None,
) -> list[Tensor]:
    """One tensor per device of the axis: its part, on all of them."""
    mesh = mesh_of("ttnn.all_broadcast", [input_tensor])
    check_axis(mesh, cluster_axis)
    _check_linear("all_broadcast", input_tensor, cluster_axis)
    options = {
        "axis": cluster_axis, "memory_config": memory_config, "topology": topology, "algorithm": algorithm,
        "mode": check_common(mesh, mode, num_links, subdevice_id),
    }  # fmt: skip
    results: list[Tensor] = run("ttnn.all_broadcast", _all_broadcast, [input_tensor], options)
    return results


@collective("ttnn.mesh_partition", direct=True)
def mesh_partition(
    input_tensor: Tensor, dim: int, cluster_axis: int | None = None, memory_config: MemoryConfig | None = None
) -> Tensor:
    """Part i along a dim of what device i of the axis holds; nothing moves between chips."""
    mesh = mesh_of("ttnn.mesh_partition", [input_tensor])
    if cluster_axis not in (None, 0, 1):
        raise MeshError(
            "Only support cluster axis of None, 0 or 1",
            expected="None, 0 or 1",
            fix="Pass one of these as cluster_axis.",
        )
    at = normal_dim(input_tensor, dim, "dim must be less than the rank of the input tensor")
    if (mesh.get_num_devices() if cluster_axis is None else mesh.shape[cluster_axis]) == 1:
        return input_tensor
    options = {"axis": cluster_axis, "dim": at, "memory_config": memory_config, "mode": "local"}
    result: Tensor = run("ttnn.mesh_partition", decide_mesh_partition, [input_tensor], options)
    return result


def _broadcast(request: Request) -> Decision:
    where = find_groups(request, request["axis"])
    root = _position(where, request["sender"])
    _check_several("broadcast", where)
    n, size = where.members, request.tensor.spec.packed_size_bytes
    plan = where.plan("broadcast", size, root=root)

    def fast(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        members = where.arrangement.gather(lanes)
        return (where.arrangement.spread(members if members.shape[1] == 1 else members[:, root : root + 1]),)

    def run_plan(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        return (where.arrangement.spread(plan_executor.spread(every(where, lanes), plan, root)),)

    crossing = where.crossing

    def run_across_ranks(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        assert crossing is not None, "asked for only then"
        return (where.arrangement.spread(crossing.broadcast(where.arrangement.gather(lanes), root)),)

    up = [size if i == root else 0 for i in range(n)]
    return Decision(
        (request.result_spec(request.tensor.shape),),
        run_plan if request["algorithm"] else fast,
        where.loads(plan, size, up=up, down=[size - read for read in up]),
        request.tensor.tensor_topology(),
        presence=request.tensor.kind.presence,
        across=where.across,
        over_ranks=run_across_ranks if crossing else None,
    )


def _all_broadcast(request: Request) -> Decision:
    where = find_groups(request, request["axis"])
    _check_several("all_broadcast", where)
    n, size = where.members, request.tensor.spec.packed_size_bytes
    plan = where.plan("all_gather", size)

    def fast(lanes: torch.Tensor) -> list[torch.Tensor]:
        members = where.arrangement.gather(lanes)
        if members.shape[1] == 1:
            return [where.arrangement.spread(members)] * n
        return [where.arrangement.spread(members[:, i : i + 1]) for i in range(n)]

    def run_plan(lanes: torch.Tensor) -> list[torch.Tensor]:
        gathered = plan_executor.run_gather(every(where, lanes), plan)
        return [where.arrangement.spread(gathered[:, :, i]) for i in range(n)]

    return Decision(
        (request.result_spec(request.tensor.shape),) * n,
        run_plan if request["algorithm"] else fast,
        where.loads(plan, size * n, up=[size] * n, down=[size * n] * n),
        replicated_topology(request.tensor, request["axis"]),
        single=False,
        presence=request.tensor.kind.presence,
        across=where.across,
    )


def decide_mesh_partition(request: Request) -> Decision:
    """What mesh_partition does."""
    where, dim, spec = find_groups(request, request["axis"]), request["dim"], request.tensor.spec
    n, extent = where.members, spec.shape[dim]
    if extent % n:
        raise ShapeError(
            f"input shape {spec.shape!r} must be divisible by cluster axis size {n}",
            expected=f"a multiple of {n} along dim {dim}",
            fix="Partition another dim or pad the tensor.",
        )
    shape = [*spec.shape]
    shape[dim] = extent // n
    back = dim - len(shape)

    def compute(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        members = where.arrangement.gather(lanes)
        parts = split_dim(members, back, n)  # [groups, members, ..., part, extent / n, ...]
        if members.shape[1] == 1:
            return (where.arrangement.spread(parts[:, 0].movedim(back - 1, 1).contiguous()),)
        own = parts.diagonal(0, 1, parts.dim() + back - 1).movedim(-1, 1)
        return (where.arrangement.spread(own.contiguous()),)

    part, across = request.mesh.rank_block, where.across

    def own_parts(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        assert part is not None, "asked for only then"
        assert across is not None, "asked for only then"
        first, count = part.start[across[0]], part.block_shape[across[0]]
        members = where.arrangement.gather(lanes)
        parts = split_dim(members, back, n).narrow(back - 1, first, count)
        all_parts = parts.expand(parts.shape[0], count, *parts.shape[2:])
        own = all_parts.diagonal(0, 1, parts.dim() + back - 1).movedim(-1, 1)
        return (where.arrangement.spread(own.contiguous()),)

    return Decision(
        (request.result_spec(shape),),
        compute,
        {},
        scattered_topology(request.tensor, dim, request["axis"]),
        presence=request.tensor.kind.presence,
        across=across,
        over_ranks=own_parts if across is not None else None,
    )


def _position(where: Placed, coord: tuple[int, ...]) -> int:
    """Where the chip at a coordinate stands in its group."""
    axis, tensor = where.axis, where.request.tensor
    if len(coord) != where.request.mesh.shape.dims() or coord not in tensor.coords():
        raise MeshError(
            f"sender {list(coord)} does not hold the tensor",
            expected=f"one of {[list(c) for c in tensor.coords()]}",
            fix="Change sender_coord.",
        )
    return coord[axis] if axis is not None else tensor.coords().index(coord)


def _check_linear(name: str, tensor: Tensor, axis: int | None) -> None:
    """Without an axis TT-NN wants a tensor distributed along one line."""
    if axis is None and not tensor.tensor_topology().distribution_shape().is_line_topology():
        raise MeshError(
            f"{name} op is only supported for a linear tensor topology shape",
            expected="cluster_axis for a tensor distributed over two axes",
            fix="Pass cluster_axis.",
        )


def _check_several(name: str, where: Placed) -> None:
    if where.members < 2:
        shape = where.request.tensor.tensor_topology().distribution_shape()
        raise MeshError(
            f"{name} op will only work for num_devices > 1, but has {where.members}, shape: {shape!r}",
            expected="an axis of two chips or more",
            fix="Choose another cluster_axis.",
        )
