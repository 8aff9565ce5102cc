"""Bidirectional ring: half of every shard travels forward, the other half backward."""

from __future__ import annotations

from ttmesh.ccl.algorithms import ring
from ttmesh.ccl.planning.transfer_plan import ChipGroup, Transfer, TransferPlan, forward_along_paths, run_in_parallel

LINE_ONLY = True
unsupported_reason = ring.unsupported_reason


def reduce_scatter(group: ChipGroup) -> TransferPlan:
    """(n-1)/2n of the data per link and direction."""
    return _mirror_odd_chunks(ring.reduce_scatter(group))


def all_gather(group: ChipGroup) -> TransferPlan:
    """(n-1)/2n of the result per link and direction."""
    return _mirror_odd_chunks(ring.all_gather(group))


def all_reduce(group: ChipGroup) -> TransferPlan:
    """(n-1)/n of the data per link and direction."""
    return _mirror_odd_chunks(ring.all_reduce(group))


def broadcast(group: ChipGroup, root: int) -> TransferPlan:
    """Half of the ring in each direction."""
    n = group.size
    paths = [[(root + i) % n for i in range(n // 2 + 1)], [(root - i) % n for i in range((n + 1) // 2)]]
    return run_in_parallel([forward_along_paths(n, 1, {0: path}) for path in paths], n, 1)


def all_to_all(group: ChipGroup) -> TransferPlan:
    """Every chunk takes the shorter direction; forward if both are equal."""
    n = group.size
    paths = {}
    for i in range(n):
        for j in range(n):
            ahead, step = (j - i) % n, 1
            if ahead > n - ahead:
                ahead, step = n - ahead, -1
            paths[i * n + j] = [(i + step * s) % n for s in range(ahead + 1)]
    return forward_along_paths(n, n * n, paths)


def _mirror_odd_chunks(plan: TransferPlan) -> TransferPlan:
    """Even chunks take the plan's path, odd ones its mirror image."""
    n = plan.group_size
    forward = [[_half(t, 0) for t in round_] for round_ in plan.rounds]
    backward = [[_half(_mirror(t, n), 1) for t in round_] for round_ in plan.rounds]
    return TransferPlan(n, 2 * n, tuple(tuple(a + b) for a, b in zip(forward, backward, strict=True)))


def _mirror(transfer: Transfer, n: int) -> Transfer:
    flip = [(-i) % n for i in range(n)]
    return Transfer(flip[transfer.source], flip[transfer.target], flip[transfer.chunk], transfer.reduce)


def _half(transfer: Transfer, index: int) -> Transfer:
    return Transfer(transfer.source, transfer.target, 2 * transfer.chunk + index, transfer.reduce)
