"""Line: data flows between neighbours in both directions, without a link between the ends."""

from __future__ import annotations

from ttmesh.ccl.planning.transfer_plan import (
    ChipGroup,
    Transfer,
    TransferPlan,
    forward_along_paths,
    group_into_rounds,
    run_in_parallel,
)

LINE_ONLY = True


def unsupported_reason(group: ChipGroup) -> str | None:
    """None: chips in any order form a line."""
    return None


def reduce_scatter(group: ChipGroup) -> TransferPlan:
    """Sums flow from both ends to the owner: link (i, i+1) carries (n-1-i)/n forward and (i+1)/n backward."""
    n = group.size
    hops = []
    for c in range(n):
        hops += [(i, Transfer(i, i + 1, c, reduce=True)) for i in range(c)]
        hops += [(n - 1 - i, Transfer(i, i - 1, c, reduce=True)) for i in range(n - 1, c, -1)]
    return TransferPlan(n, n, group_into_rounds(hops))


def all_gather(group: ChipGroup) -> TransferPlan:
    """Every chunk travels in both directions: link (i, i+1) carries (i+1)/n of the result forward and (n-1-i)/n backward."""
    n = group.size
    return run_in_parallel([_send_outward(n, n, c, c) for c in range(n)], n, n)


def all_reduce(group: ChipGroup) -> TransferPlan:
    """reduce_scatter, then all_gather: all data per link and direction."""
    return reduce_scatter(group).concat(all_gather(group))


def broadcast(group: ChipGroup, root: int) -> TransferPlan:
    """From the root to both ends."""
    return _send_outward(group.size, 1, root, 0)


def all_to_all(group: ChipGroup) -> TransferPlan:
    """Every chunk along the line to its target."""
    n = group.size
    paths = {i * n + j: list(range(i, j + 1) if j >= i else range(i, j - 1, -1)) for i in range(n) for j in range(n)}
    return forward_along_paths(n, n * n, paths)


def _send_outward(n: int, chunks: int, start: int, chunk: int) -> TransferPlan:
    paths = [list(range(start, n)), list(range(start, -1, -1))]
    return run_in_parallel([forward_along_paths(n, chunks, {chunk: path}) for path in paths], n, chunks)
