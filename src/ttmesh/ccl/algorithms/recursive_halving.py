"""Recursive halving and doubling: partners half the group apart, then a quarter, and so on."""

from __future__ import annotations

from ttmesh.ccl.planning.transfer_plan import ChipGroup, Transfer, TransferPlan, forward_along_paths

ONE_LINE = False


def refuses(group: ChipGroup) -> str | None:
    """Partners differ in one bit of their number, so the group must have a power of two members."""
    n = group.size
    return None if n & (n - 1) == 0 else f"{n} members are not a power of two"


def reduce_scatter(group: ChipGroup) -> TransferPlan:
    """Each round hands the partner the half of what is left that lies on its side: (n-1)/n of the data per member."""
    n = group.size
    rounds, distance = [], n // 2
    while distance:
        rounds.append(tuple(Transfer(i, i ^ distance, c, True) for i in range(n) for c in _side(i, distance, n)))
        distance //= 2
    return TransferPlan(n, n, tuple(rounds))


def all_gather(group: ChipGroup) -> TransferPlan:
    """The same rounds backwards: what a member has doubles."""
    n = group.size
    rounds, distance = [], 1
    while distance < n:
        held = [[c for c in range(n) if c // distance == i // distance] for i in range(n)]
        rounds.append(tuple(Transfer(i, i ^ distance, c) for i in range(n) for c in held[i]))
        distance *= 2
    return TransferPlan(n, n, tuple(rounds))


def all_reduce(group: ChipGroup) -> TransferPlan:
    """Halving, then doubling: 2(n-1)/n of the data per member."""
    return reduce_scatter(group).concat(all_gather(group))


def broadcast(group: ChipGroup, root: int) -> TransferPlan:
    """What has the data doubles every round."""
    n = group.size
    rounds, distance = [], n // 2
    while distance:
        senders = [root ^ i for i in range(0, n, 2 * distance)]
        rounds.append(tuple(Transfer(i, i ^ distance, 0) for i in senders))
        distance //= 2
    return TransferPlan(n, 1, tuple(rounds))


def all_to_all(group: ChipGroup) -> TransferPlan:
    """Every chunk corrects one bit of its place per hop, the highest first."""
    n = group.size
    return forward_along_paths(n, n * n, {i * n + j: _bitwise(i, j, n) for i in range(n) for j in range(n)})


def _side(member: int, distance: int, n: int) -> list[int]:
    """The chunks that the partner keeps: those that agree with it in this bit and with both in all higher ones."""
    partner = member ^ distance
    return [c for c in range(n) if c // distance == partner // distance]


def _bitwise(start: int, end: int, n: int) -> list[int]:
    path, distance = [start], n // 2
    while distance:
        if (path[-1] ^ end) & distance:
            path.append(path[-1] ^ distance)
        distance //= 2
    return path
