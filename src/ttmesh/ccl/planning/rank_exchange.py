"""Exchanges between the ranks along a mesh axis, in which each rank gets only what its chips need."""

from __future__ import annotations

import torch

from ttmesh.ccl.planning.lane_groups import split_dim
from ttmesh.mesh.ranks.rank_block import RankBlock


def exchange_rows(rank_block: RankBlock, axis: int, rows: torch.Tensor) -> torch.Tensor:
    """Exchange [ranks along the axis, ...], a row for each rank: returns the rows for this rank, by their source rank."""
    if rows.is_meta or not rank_block.is_divided(axis):
        return rows
    group, ranks_along = rank_block.group(axis), rank_block.list_ranks_along(axis)
    received = group.all_to_all(rank_block.order_by_group(rows, axis).contiguous())
    return received if group.ranks == ranks_along else received[[group.ranks.index(rank) for rank in ranks_along]]


def exchange_by_target(rank_block: RankBlock, axis: int, shards: torch.Tensor) -> torch.Tensor:
    """[groups, this rank's chips, targets, ...] → [groups, this rank's chips as targets, origins, ...]."""
    groups, local_chips = shards.shape[:2]
    by_rank = split_dim(
        shards, 2 - shards.dim(), rank_block.grid[axis]
    )  # [groups, local chips, ranks, targets there, ...]
    received = exchange_rows(
        rank_block, axis, by_rank.movedim(2, 0).contiguous()
    )  # [ranks, groups, chips there, local chips, ...]
    return received.movedim((0, 3), (2, 1)).reshape(
        groups, rank_block.block_shape[axis], rank_block.grid[axis] * local_chips, *shards.shape[3:]
    )


def find_local_groups(rank_block: RankBlock, axis: int) -> slice:
    """Which groups along an axis of a two-dimensional mesh have chips of this rank."""
    other = 1 - axis
    return slice(rank_block.start[other], rank_block.start[other] + rank_block.block_shape[other])
