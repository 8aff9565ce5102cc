"""Mesh and torus: along rows, then along columns, with the ring or the line algorithm for each axis."""

from __future__ import annotations

from collections.abc import Callable

from ttmesh.ccl.algorithms import bidirectional_ring, line
from ttmesh.ccl.planning.transfer_plan import ChipGroup, Transfer, TransferPlan, forward_along_paths, run_in_parallel

LINE_ONLY = False
CHUNKS_PER_SHARD = 2  # a ring sends half of each shard in either direction


def unsupported_reason(group: ChipGroup) -> str | None:
    """A reason if an axis has length 1."""
    return "the chips form one line" if group.is_line else None


def reduce_scatter(group: ChipGroup) -> TransferPlan:
    """Along each row to the owner's column, then along each column to the owner."""
    return _rows(group, "reduce_scatter").concat(_columns(group, "reduce_scatter"))


def all_gather(group: ChipGroup) -> TransferPlan:
    """Along each column, then along each row."""
    return _columns(group, "all_gather").concat(_rows(group, "all_gather"))


def all_reduce(group: ChipGroup) -> TransferPlan:
    """reduce_scatter, then all_gather."""
    return reduce_scatter(group).concat(all_gather(group))


def broadcast(group: ChipGroup, root: int) -> TransferPlan:
    """Along the root's row, then along every column."""
    rows, cols = group.shape
    row, col = divmod(root, cols)
    along = _renumber(_broadcast(cols, group.closes[1], col), [row * cols + c for c in range(cols)], [0], group.size, 1)
    down = [
        _renumber(_broadcast(rows, group.closes[0], row), [r * cols + c for r in range(rows)], [0], group.size, 1)
        for c in range(cols)
    ]
    return along.concat(run_in_parallel(down, group.size, 1))


def all_to_all(group: ChipGroup) -> TransferPlan:
    """Every chunk along its row, then along the column."""
    n, (rows, cols) = group.size, group.shape
    paths = {}
    for i in range(n):
        for j in range(n):
            (r, c), (to_r, to_c) = divmod(i, cols), divmod(j, cols)
            along = [r * cols + index for index in _find_path(c, to_c, cols, group.closes[1])]
            down = [index * cols + to_c for index in _find_path(r, to_r, rows, group.closes[0])]
            paths[i * n + j] = along + down[1:]
    return forward_along_paths(n, n * n, paths)


def _rows(group: ChipGroup, collective: str) -> TransferPlan:
    """One plan per row; its shard j holds the shards of column j."""
    rows, cols = group.shape
    plan = _axis_plan(cols, group.closes[1], collective)
    shards = [[r * cols + c for r in range(rows)] for c in range(cols)]
    lines = [[r * cols + c for c in range(cols)] for r in range(rows)]
    return run_in_parallel(
        [_lift_line_plan(plan, line_, shards, group.size) for line_ in lines], group.size, group.size * CHUNKS_PER_SHARD
    )


def _columns(group: ChipGroup, collective: str) -> TransferPlan:
    """One plan per column, over the shards of that column."""
    rows, cols = group.shape
    plan = _axis_plan(rows, group.closes[0], collective)
    lines = [[r * cols + c for r in range(rows)] for c in range(cols)]
    lifted = [_lift_line_plan(plan, line_, [[chip] for chip in line_], group.size) for line_ in lines]
    return run_in_parallel(lifted, group.size, group.size * CHUNKS_PER_SHARD)


def _axis_plan(n: int, closes: bool, collective: str) -> TransferPlan:
    algorithm = bidirectional_ring if closes else line
    make: Callable[[ChipGroup], TransferPlan] = getattr(algorithm, collective)
    return make(ChipGroup((1, n), (False, closes)))


def _lift_line_plan(plan: TransferPlan, chips: list[int], shards: list[list[int]], total: int) -> TransferPlan:
    """Turn the plan of one line into one of the mesh: chips are renumbered, each chunk becomes those it contains."""
    chunks = [
        [
            CHUNKS_PER_SHARD * shard + half
            for shard in shards[c // plan.chunks_per_shard]
            for half in _halves(c, plan.chunks_per_shard)
        ]
        for c in range(plan.chunks)
    ]
    rounds = tuple(
        tuple(Transfer(chips[t.source], chips[t.target], chunk, t.reduce) for t in round_ for chunk in chunks[t.chunk])
        for round_ in plan.rounds
    )
    return TransferPlan(total, total * CHUNKS_PER_SHARD, rounds)


def _halves(chunk: int, chunks_per_shard: int) -> list[int]:
    return [chunk % chunks_per_shard] if chunks_per_shard == CHUNKS_PER_SHARD else list(range(CHUNKS_PER_SHARD))


def _broadcast(n: int, closes: bool, root: int) -> TransferPlan:
    algorithm = bidirectional_ring if closes else line
    make: Callable[[ChipGroup, int], TransferPlan] = algorithm.broadcast
    return make(ChipGroup((1, n), (False, closes)), root)


def _renumber(plan: TransferPlan, chips: list[int], chunks: list[int], total: int, count: int) -> TransferPlan:
    rounds = (tuple(Transfer(chips[t.source], chips[t.target], chunks[t.chunk]) for t in r) for r in plan.rounds)
    return TransferPlan(total, count, tuple(rounds))


def _find_path(start: int, end: int, n: int, closes: bool) -> list[int]:
    ahead = (end - start) % n
    if not closes:
        return list(range(start, end + 1) if end >= start else range(start, end - 1, -1))
    if ahead <= n - ahead:
        return [(start + s) % n for s in range(ahead + 1)]
    return [(start - s) % n for s in range(n - ahead + 1)]
