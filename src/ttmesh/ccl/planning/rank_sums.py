"""Sums along a mesh axis that several ranks share: added here, once between the ranks, and kept where they belong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ttmesh.ccl.planning.reduction_terms import finish_reduction, over_members, partial_sum
from ttmesh.chip.formats.kernels.lane_sum import kernel_for
from ttmesh.fabric.messaging.transport import PersistentSum, Transport
from ttmesh.mesh.queue.command_queue import worker
from ttmesh.mesh.ranks.rank_block import RankBlock

Reduce = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Crossing:
    """The ranks along one axis of a divided mesh.

    Each rank adds its own chips in order, the engine adds the ranks' sums in float32, and the result is rounded once:
    with two ranks (x0 + x1) + (x2 + x3), where one process gives ((x0 + x1) + x2) + x3.
    """

    part: RankBlock
    axis: int

    def reducer(self, n: int, name: str) -> Reduce:
        """What turns [groups, this rank's members, ...] into all ranks' [groups, 1, ...]; made once, called often."""
        own, group, axis = self.part.block_shape[self.axis], self.part.group, self.axis
        if name in ("max", "min"):
            return lambda members: _all_reduce(group(axis), over_members(members, own, name), name)

        ways: dict[tuple[object, ...], Reduce] = {}
        ready: dict[tuple[object, ...], PersistentSum | None] = {}

        def reduce(members: torch.Tensor) -> torch.Tensor:
            key = (worker.queue, members.shape, members.stride())
            way = ways.get(key)
            if way is None:
                # Ranks may hold their members in other strides or as one that stands for all: what stands ready between
                # them, which they make together, follows from the shape of the sum alone.
                shape = (members.shape[0], 1, *members.shape[2:])
                if (worker.queue, shape) not in ready:
                    ready[worker.queue, shape] = _standing(group(axis), shape, members)
                way = ways[key] = _way(group(axis), ready[worker.queue, shape], members, own)
            return way(members)

        return reduce if name == "sum" else lambda members: finish_reduction(reduce(members), n, name)

    def reduce_scatter(self, members: torch.Tensor, n: int, name: str, dim: int) -> torch.Tensor:
        """The same cut along a dim counted from the back: [groups, this rank's members, ... with dim / n]."""
        own, op = self.part.block_shape[self.axis], name if name in ("max", "min") else "sum"
        total = (partial_sum(members, own) if op == "sum" else over_members(members, own, name))[:, 0]
        at, shape = total.dim() + dim, total.shape
        ranks = n // own
        split = total.view(*shape[:at], ranks, own, shape[at] // n, *shape[at + 1 :])
        rows = split.movedim((at, at + 1), (0, 2)).contiguous()  # [ranks, groups, own members, ...]
        group = self.part.group(self.axis)
        rows = self.part.order_by_group(rows, self.axis)
        scattered = rows[0] if rows.is_meta else group.reduce_scatter(rows, op)
        return finish_reduction(scattered.to(members.dtype), n, name)

    def broadcast(self, members: torch.Tensor, root: int) -> torch.Tensor:
        """The root's part of [groups, this rank's members, ...] on every rank: [groups, 1, ...]."""
        rank, place = divmod(root, self.part.block_shape[self.axis])
        own = members[:, :1] if members.shape[1] == 1 else members[:, place : place + 1]
        group = self.part.group(self.axis)
        sent = own.clone(memory_format=torch.contiguous_format)  # the others' is filled
        source = group.ranks.index(self.part.list_ranks_along(self.axis)[rank])
        return sent if sent.is_meta else group.broadcast(sent, source)


def _standing(group: Transport, shape: tuple[int, ...], like: torch.Tensor) -> PersistentSum | None:
    ours = like.is_cpu and like.is_floating_point()
    return group.make_persistent_sum(shape, torch.float32, like.dtype) if ours else None


def _way(group: Transport, standing: PersistentSum | None, like: torch.Tensor, own: int) -> Reduce:
    """How members that look like these are summed over a group: in memory that stands ready, if there is some."""
    if standing is None:

        def reduce(members: torch.Tensor) -> torch.Tensor:
            total = _all_reduce(group, partial_sum(members, own))
            return total if total.dtype is members.dtype else total.to(members.dtype)

        return reduce
    memory, run = standing
    add = kernel_for(like, (1,), torch.float32) if like.shape[1] == own else None

    def short(members: torch.Tensor) -> torch.Tensor:
        if add is None:
            memory.copy_(partial_sum(members, own))
        else:
            add(members, memory)
        return run()

    return short


def _all_reduce(group: Transport, total: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """The engine's sum of what each rank made for it; in a dry run (backend meta) there is nothing to add."""
    return total if total.is_meta else group.all_reduce_given(total, op)
