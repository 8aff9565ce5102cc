"""Recursive halving and doubling: partners at a distance of half the group, then a quarter, and so on."""

from __future__ import annotations

from ttmesh.ccl.planning.transfer_plan import ChipGroup, Transfer, TransferPlan, forward_along_paths

LINE_ONLY = False


def unsupported_reason(group: ChipGroup) -> str | None:
    """A reason if the size is not a power of two: partners differ in one bit of their index."""
    n = group.size
    return None if n & (n - 1) == 0 else f"{n} chips are not a power of two"


def reduce_scatter(group: ChipGroup) -> TransferPlan:
    """Each round sends the partner the half of the remaining chunks that it keeps: (n-1)/n of the data per chip."""
    n = group.size
    rounds, distance = [], n // 2
    while distance:
        rounds.append(
            tuple(Transfer(i, i ^ distance, c, True) for i in range(n) for c in _find_partner_chunks(i, distance, n))
        )
        distance //= 2
    return TransferPlan(n, n, tuple(rounds))


def all_gather(group: ChipGroup) -> TransferPlan:
    """The rounds of reduce_scatter in reverse: the chunks of a chip double."""
    n = group.size
    rounds, distance = [], 1
    while distance < n:
        held = [[c for c in range(n) if c // distance == i // distance] for i in range(n)]
        rounds.append(tuple(Transfer(i, i ^ distance, c) for i in range(n) for c in held[i]))
        distance *= 2
    return TransferPlan(n, n, tuple(rounds))


def all_reduce(group: ChipGroup) -> TransferPlan:
    """Halving, then doubling: 2(n-1)/n of the data per chip."""
    return reduce_scatter(group).concat(all_gather(group))


def broadcast(group: ChipGroup, root: int) -> TransferPlan:
    """The number of chips with the data doubles every round."""
    n = group.size
    rounds, distance = [], n // 2
    while distance:
        senders = [root ^ i for i in range(0, n, 2 * distance)]
        rounds.append(tuple(Transfer(i, i ^ distance, 0) for i in senders))
        distance //= 2
    return TransferPlan(n, 1, tuple(rounds))


def all_to_all(group: ChipGroup) -> TransferPlan:
    """Every hop of a chunk corrects one bit of its position, the highest first."""
    n = group.size
    return forward_along_paths(n, n * n, {i * n + j: _find_path(i, j, n) for i in range(n) for j in range(n)})


def _find_partner_chunks(chip: int, distance: int, n: int) -> list[int]:
    """The chunks that the partner keeps: their index equals the partner's in this bit and all higher ones."""
    partner = chip ^ distance
    return [c for c in range(n) if c // distance == partner // distance]


def _find_path(start: int, end: int, n: int) -> list[int]:
    path, distance = [start], n // 2
    while distance:
        if (path[-1] ^ end) & distance:
            path.append(path[-1] ^ distance)
        distance //= 2
    return path
