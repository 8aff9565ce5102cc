"""all_to_all: a tensor cut along one dim over the chips of an axis becomes one cut along another."""

from __future__ import annotations

from typing import Any

import torch

from ttmesh.base.errors import ShapeError
from ttmesh.ccl.planning import plan_executor
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, mesh_of, run
from ttmesh.ccl.planning.group_plan import Placed, check_axis, find_groups, normal_dim, scattered_topology
from ttmesh.ccl.planning.lane_groups import split_dim
from ttmesh.ccl.planning.rank_exchange import to_targets
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor


def exchange(
    name: str,
    tensor: Tensor,
    in_dim: int,
    out_dim: int,
    *,
    cluster_axis: int | None = None,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
    num_links: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    mode: str | None = None,
    algorithm: str | None = None,
    output: Tensor | None = None,
) -> Tensor:
    """all_to_all: a tensor cut along in_dim becomes one cut along out_dim."""
    mesh = mesh_of(name, [tensor])
    check_axis(mesh, cluster_axis)
    rank = len(tensor.shape)
    dims = {
        key: normal_dim(tensor, dim, f"AllToAllAsync: {key} must be in range [0, {rank}), but is {dim}")
        for key, dim in (("in_dim", in_dim), ("out_dim", out_dim))
    }
    options: dict[str, Any] = {
        **dims, "axis": cluster_axis, "memory_config": memory_config, "topology": topology, "algorithm": algorithm,
        "mode": check_common(mesh, mode, num_links, subdevice_id),
    }  # fmt: skip
    result: Tensor = run(name, decide_all_to_all, [tensor], options, [output] if output is not None else [])
    return result


def all_to_all(
    tensor: Tensor,
    in_dim: int,
    out_dim: int,
    *,
    cluster_axis: int | None = None,
    memory_config: MemoryConfig | None = None,
    mode: str | None = None,
    algorithm: str | None = None,
) -> Tensor:
    """A tensor cut along in_dim over an axis becomes one cut along out_dim."""
    return exchange(
        "ttmesh.all_to_all", tensor, in_dim, out_dim, cluster_axis=cluster_axis, memory_config=memory_config, mode=mode,
        algorithm=algorithm,
    )  # fmt: skip


def decide_all_to_all(request: Request) -> Decision:
    """What all_to_all does."""
    where, spec = find_groups(request, request["axis"]), request.tensor.spec
    in_dim, out_dim, n = request["in_dim"], request["out_dim"], where.members
    extent = spec.shape[out_dim]
    if extent % n:
        raise ShapeError(
            f"AllToAllAsync: out_dim {out_dim} of extent {extent} must be divisible by the number of devices {n}",
            expected=f"a multiple of {n}",
            fix="Choose another out_dim or pad the tensor.",
        )
    shape = [*spec.shape]
    shape[out_dim] //= n
    shape[in_dim] *= n
    size = spec.packed_size_bytes
    plan = where.plan("all_to_all", size)
    rank = len(shape)

    def parts(lanes: torch.Tensor) -> torch.Tensor:
        """[groups, members, targets, *local with out_dim / n]."""
        return split_dim(every(where, lanes), out_dim - rank, n).movedim(out_dim - rank - 1, 2)

    def merge_arrivals(arrived: torch.Tensor) -> tuple[torch.Tensor]:
        """[groups, targets, origins, *local] joined along in_dim."""
        at = arrived.dim() - rank + in_dim - 1
        return (where.arrangement.spread(arrived.movedim(2, at).flatten(at, at + 1)),)

    def fast(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        return merge_arrivals(parts(lanes).transpose(1, 2))

    def run_plan(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        return merge_arrivals(plan_executor.run_all_to_all(parts(lanes), plan))

    part, across = request.mesh.rank_block, where.across

    def sent(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        assert part is not None, "asked for only then"
        assert across is not None, "asked for only then"
        members = where.arrangement.gather(lanes)
        own = members.expand(members.shape[0], part.block_shape[across[0]], *members.shape[2:])
        targets = split_dim(own, out_dim - rank, n).movedim(out_dim - rank - 1, 2)
        return merge_arrivals(to_targets(part, across[0], targets))

    return Decision(
        (request.result_spec(shape),),
        run_plan if request["algorithm"] else fast,
        where.loads(plan, size * n, up=[size] * n, down=[size] * n),
        scattered_topology(request.tensor, out_dim, request["axis"]),
        presence=request.tensor.kind.presence,
        across=across,
        over_ranks=None if across is None or request["algorithm"] else sent,
    )


def every(where: Placed, lanes: torch.Tensor) -> torch.Tensor:
    """[groups, members, *local], every member there."""
    members = where.arrangement.gather(lanes)
    return members.expand(members.shape[0], where.members, *members.shape[2:])
