"""Unidirectional ring: every chip sends to the next one."""

from __future__ import annotations

from ttmesh.ccl.planning.transfer_plan import ChipGroup, Transfer, TransferPlan, forward_along_paths

LINE_ONLY = True


def unsupported_reason(group: ChipGroup) -> str | None:
    """A reason if the group does not form a ring."""
    return None if group.is_ring or group.size == 1 else "the chips do not form a ring"


def reduce_scatter(group: ChipGroup) -> TransferPlan:
    """Chunk c goes around the ring to its owner, and every chip adds a term: (n-1)/n of the data per link."""
    n = group.size
    return TransferPlan(n, n, tuple(tuple(_send_term(i, (i - s - 1) % n, n) for i in range(n)) for s in range(n - 1)))


def all_gather(group: ChipGroup) -> TransferPlan:
    """Every chunk goes around the ring: (n-1)/n of the result per link."""
    n = group.size
    rounds = (tuple(Transfer(i, (i + 1) % n, (i - s) % n) for i in range(n)) for s in range(n - 1))
    return TransferPlan(n, n, tuple(rounds))


def all_reduce(group: ChipGroup) -> TransferPlan:
    """reduce_scatter, then all_gather: 2(n-1)/n of the data per link."""
    return reduce_scatter(group).concat(all_gather(group))


def broadcast(group: ChipGroup, root: int) -> TransferPlan:
    """From the root around the ring."""
    n = group.size
    return forward_along_paths(n, 1, {0: [(root + i) % n for i in range(n)]})


def all_to_all(group: ChipGroup) -> TransferPlan:
    """Chunk i*n + j goes from i forward to j."""
    n = group.size
    paths = {i * n + j: [(i + s) % n for s in range((j - i) % n + 1)] for i in range(n) for j in range(n)}
    return forward_along_paths(n, n * n, paths)


def _send_term(chip: int, chunk: int, n: int) -> Transfer:
    return Transfer(chip, (chip + 1) % n, chunk, reduce=True)
