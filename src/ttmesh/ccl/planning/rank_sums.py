"""Reductions along a mesh axis that several ranks share: first on each rank, then once between the ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ttmesh.ccl.planning.reduction_terms import finish_reduction, reduce_group, sum_local_chips
from ttmesh.chip.formats.kernels.lane_sum import kernel_for
from ttmesh.fabric.messaging.transport import PersistentSum, Transport
from ttmesh.mesh.queue.command_queue import worker
from ttmesh.mesh.ranks.rank_block import RankBlock

Reduce = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class RankReduction:
    """A reduction over the ranks along one axis of a mesh that several ranks share.

    Each rank adds its own chips in order, the engine adds the ranks' sums in float32, and the result is rounded once:
    with two ranks (x0 + x1) + (x2 + x3), where one process gives ((x0 + x1) + x2) + x3.
    """

    rank_block: RankBlock
    axis: int

    def make_reduce(self, n: int, name: str) -> Reduce:
        """A function from [groups, this rank's chips, ...] to the sum over all ranks, [groups, 1, ...]; made once."""
        local_chips, group, axis = self.rank_block.block_shape[self.axis], self.rank_block.group, self.axis
        if name in ("max", "min"):
            return lambda lanes: _all_reduce(group(axis), reduce_group(lanes, local_chips, name), name)

        reduces: dict[tuple[object, ...], Reduce] = {}
        persistent_sums: dict[tuple[object, ...], PersistentSum | None] = {}

        def reduce(lanes: torch.Tensor) -> torch.Tensor:
            key = (worker.queue, lanes.shape, lanes.stride())
            reduce_lanes = reduces.get(key)
            if reduce_lanes is None:
                # Ranks may store their chips' lanes with different strides, or one lane for equal chips: the persistent
                # sum, which all ranks make together, depends on the shape of the sum only.
                shape = (lanes.shape[0], 1, *lanes.shape[2:])
                if (worker.queue, shape) not in persistent_sums:
                    persistent_sums[worker.queue, shape] = _make_persistent_sum(group(axis), shape, lanes)
                reduce_lanes = reduces[key] = _make_reduce(
                    group(axis), persistent_sums[worker.queue, shape], lanes, local_chips
                )
            return reduce_lanes(lanes)

        return reduce if name == "sum" else lambda lanes: finish_reduction(reduce(lanes), n, name)

    def reduce_scatter(self, lanes: torch.Tensor, n: int, name: str, dim: int) -> torch.Tensor:
        """The reduction sharded along a negative dim: [groups, this rank's chips, ... with dim / n]."""
        local_chips, op = self.rank_block.block_shape[self.axis], name if name in ("max", "min") else "sum"
        total = (sum_local_chips(lanes, local_chips) if op == "sum" else reduce_group(lanes, local_chips, name))[:, 0]
        index, shape = total.dim() + dim, total.shape
        ranks = n // local_chips
        split = total.view(*shape[:index], ranks, local_chips, shape[index] // n, *shape[index + 1 :])
        rows = split.movedim((index, index + 1), (0, 2)).contiguous()  # [ranks, groups, local chips, ...]
        group = self.rank_block.group(self.axis)
        rows = self.rank_block.order_by_group(rows, self.axis)
        scattered = rows[0] if rows.is_meta else group.reduce_scatter(rows, op)
        return finish_reduction(scattered.to(lanes.dtype), n, name)

    def broadcast(self, lanes: torch.Tensor, root: int) -> torch.Tensor:
        """The root's lanes of [groups, this rank's chips, ...] on every rank: [groups, 1, ...]."""
        rank, position = divmod(root, self.rank_block.block_shape[self.axis])
        root_lanes = lanes[:, :1] if lanes.shape[1] == 1 else lanes[:, position : position + 1]
        group = self.rank_block.group(self.axis)
        buffer = root_lanes.clone(memory_format=torch.contiguous_format)  # other ranks receive into it
        source = group.ranks.index(self.rank_block.list_ranks_along(self.axis)[rank])
        return buffer if buffer.is_meta else group.broadcast(buffer, source)


def _make_persistent_sum(group: Transport, shape: tuple[int, ...], template: torch.Tensor) -> PersistentSum | None:
    supported = template.is_cpu and template.is_floating_point()
    return group.make_persistent_sum(shape, torch.float32, template.dtype) if supported else None


def _make_reduce(
    group: Transport, persistent_sum: PersistentSum | None, template: torch.Tensor, local_chips: int
) -> Reduce:
    """A function that sums lanes like these over a group of ranks, with a persistent sum if there is one."""
    if persistent_sum is None:

        def reduce(lanes: torch.Tensor) -> torch.Tensor:
            total = _all_reduce(group, sum_local_chips(lanes, local_chips))
            return total if total.dtype is lanes.dtype else total.to(lanes.dtype)

        return reduce
    memory, run = persistent_sum
    add = kernel_for(template, (1,), torch.float32) if template.shape[1] == local_chips else None

    def reduce_in_place(lanes: torch.Tensor) -> torch.Tensor:
        if add is None:
            memory.copy_(sum_local_chips(lanes, local_chips))
        else:
            add(lanes, memory)
        return run()

    return reduce_in_place


def _all_reduce(group: Transport, total: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """The engine's sum of each rank's total; on the meta backend there are no values to add."""
    return total if total.is_meta else group.all_reduce_given(total, op)
