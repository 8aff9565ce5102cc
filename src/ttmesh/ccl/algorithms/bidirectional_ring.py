"""Ring, both ways at once: half of every piece travels forward, the other half backward."""

from __future__ import annotations

from ttmesh.ccl.algorithms import ring
from ttmesh.ccl.planning.transfer_plan import ChipGroup, Transfer, TransferPlan, forward_along_paths, run_side_by_side

ONE_LINE = True
refuses = ring.refuses


def reduce_scatter(group: ChipGroup) -> TransferPlan:
    """(n-1)/2n of the data per link and direction."""
    return _both_ways(ring.reduce_scatter(group))


def all_gather(group: ChipGroup) -> TransferPlan:
    """(n-1)/2n of the result per link and direction."""
    return _both_ways(ring.all_gather(group))


def all_reduce(group: ChipGroup) -> TransferPlan:
    """(n-1)/n of the data per link and direction."""
    return _both_ways(ring.all_reduce(group))


def broadcast(group: ChipGroup, root: int) -> TransferPlan:
    """Halfway round in each direction."""
    n = group.size
    ways = [[(root + i) % n for i in range(n // 2 + 1)], [(root - i) % n for i in range((n + 1) // 2)]]
    return run_side_by_side([forward_along_paths(n, 1, {0: way}) for way in ways], n, 1)


def all_to_all(group: ChipGroup) -> TransferPlan:
    """Every chunk the shorter way round; forward where both are as long."""
    n = group.size
    paths = {}
    for i in range(n):
        for j in range(n):
            ahead, step = (j - i) % n, 1
            if ahead > n - ahead:
                ahead, step = n - ahead, -1
            paths[i * n + j] = [(i + step * s) % n for s in range(ahead + 1)]
    return forward_along_paths(n, n * n, paths)


def _both_ways(plan: TransferPlan) -> TransferPlan:
    """Even chunks follow the plan, odd ones its mirror image."""
    n = plan.members
    there = [[_half(t, 0) for t in round_] for round_ in plan.rounds]
    back = [[_half(_mirror(t, n), 1) for t in round_] for round_ in plan.rounds]
    return TransferPlan(n, 2 * n, tuple(tuple(a + b) for a, b in zip(there, back, strict=True)))


def _mirror(transfer: Transfer, n: int) -> Transfer:
    flip = [(-i) % n for i in range(n)]
    return Transfer(flip[transfer.source], flip[transfer.target], flip[transfer.chunk], transfer.reduce)


def _half(transfer: Transfer, part: int) -> Transfer:
    return Transfer(transfer.source, transfer.target, 2 * transfer.chunk + part, transfer.reduce)
