"""Direct: every chip sends to every other one, in one round."""

from __future__ import annotations

from ttmesh.ccl.planning.transfer_plan import ChipGroup, Transfer, TransferPlan, forward_along_paths

LINE_ONLY = False


def unsupported_reason(group: ChipGroup) -> str | None:
    """None: data is routed if two chips have no link, so every group works."""
    return None


def reduce_scatter(group: ChipGroup) -> TransferPlan:
    """Each owner gets all terms of its chunk and adds them in chip order, rounding once."""
    n = group.size
    return TransferPlan(n, n, (tuple(Transfer(i, c, c, reduce=True) for c in range(n) for i in range(n) if i != c),))


def all_gather(group: ChipGroup) -> TransferPlan:
    """Each chip sends its chunk to all others."""
    n = group.size
    return TransferPlan(n, n, (tuple(Transfer(c, i, c) for c in range(n) for i in range(n) if i != c),))


def all_reduce(group: ChipGroup) -> TransferPlan:
    """reduce_scatter, then all_gather."""
    return reduce_scatter(group).concat(all_gather(group))


def broadcast(group: ChipGroup, root: int) -> TransferPlan:
    """The root sends to all others."""
    n = group.size
    return TransferPlan(n, 1, (tuple(Transfer(root, i, 0) for i in range(n) if i != root),))


def all_to_all(group: ChipGroup) -> TransferPlan:
    """Every chunk in one transfer."""
    n = group.size
    return forward_along_paths(n, n * n, {i * n + j: [i, j] for i in range(n) for j in range(n) if i != j})
