"""What ranks along a mesh axis send each other: to every one only what its chips need."""

from __future__ import annotations

import torch

from ttmesh.ccl.planning.lane_groups import split_dim
from ttmesh.mesh.ranks.rank_block import RankBlock


def exchange_rows(part: RankBlock, axis: int, rows: torch.Tensor) -> torch.Tensor:
    """[ranks along the axis, ...], a row for each of them: the rows for this rank, by the rank they come from."""
    if rows.is_meta or not part.is_divided(axis):
        return rows
    group, along = part.group(axis), part.list_ranks_along(axis)
    got = group.all_to_all(part.order_by_group(rows, axis).contiguous())
    return got if group.ranks == along else got[[group.ranks.index(rank) for rank in along]]


def to_targets(part: RankBlock, axis: int, parts: torch.Tensor) -> torch.Tensor:
    """[groups, this rank's members, targets, ...] → [groups, this rank's members as targets, origins, ...]."""
    groups, own = parts.shape[:2]
    by_rank = split_dim(parts, 2 - parts.dim(), part.grid[axis])  # [groups, own, ranks, targets there, ...]
    got = exchange_rows(part, axis, by_rank.movedim(2, 0).contiguous())  # [ranks, groups, members there, own, ...]
    return got.movedim((0, 3), (2, 1)).reshape(groups, part.block_shape[axis], part.grid[axis] * own, *parts.shape[3:])


def own_groups(part: RankBlock, axis: int) -> slice:
    """Which groups along an axis of a two-dimensional mesh have chips of this rank."""
    other = 1 - axis
    return slice(part.start[other], part.start[other] + part.block_shape[other])
