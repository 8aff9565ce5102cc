"""Sums along a mesh axis that several ranks share: added here, once between the ranks, and kept where they belong."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ttmesh.ccl.reductions import finished, partial_sum
from ttmesh.mesh.part import Part


@dataclass(frozen=True)
class Crossing:
    """The ranks along one axis of a divided mesh.

    Each rank adds its own chips in order, the engine adds the ranks' sums in float32, and the result is rounded once:
    with two ranks (x0 + x1) + (x2 + x3), where one process gives ((x0 + x1) + x2) + x3.
    """

    part: Part
    axis: int

    def reduce(self, members: torch.Tensor, n: int, name: str) -> torch.Tensor:
        """[groups, this rank's members, ...] reduced over all ranks' to [groups, 1, ...]."""
        total = partial_sum(members, self.part.block[self.axis], name)
        op = name if name in ("max", "min") else "sum"
        group = self.part.group(self.axis)
        return finished(group.all_reduce(total, op, out=total).to(members.dtype), n, name)

    def reduce_scatter(self, members: torch.Tensor, n: int, name: str, dim: int) -> torch.Tensor:
        """The same cut along a dim counted from the back: [groups, this rank's members, ... with dim / n]."""
        total = partial_sum(members, self.part.block[self.axis], name)[:, 0]
        at, shape, own = total.dim() + dim, total.shape, self.part.block[self.axis]
        ranks = n // own
        split = total.view(*shape[:at], ranks, own, shape[at] // n, *shape[at + 1 :])
        rows = split.movedim((at, at + 1), (0, 2)).contiguous()  # [ranks, groups, own members, ...]
        group = self.part.group(self.axis)
        rows = self.part.in_group_order(rows, self.axis)
        op = name if name in ("max", "min") else "sum"
        return finished(group.reduce_scatter(rows, op).to(members.dtype), n, name)
