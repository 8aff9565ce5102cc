"""Binomial tree: everything goes up to member 0 and down again, in log n rounds each."""

from __future__ import annotations

from ttmesh.ccl.planning.transfer_plan import ChipGroup, Transfer, TransferPlan, forward_along_paths, rounds_of

ONE_LINE = False


def refuses(group: ChipGroup) -> str | None:
    """Any number of members forms a tree."""
    return None


def reduce_scatter(group: ChipGroup) -> TransferPlan:
    """All sums at member 0, then every chunk down to its owner."""
    n = group.size
    down = forward_along_paths(n, n, {c: _path(c)[::-1] for c in range(n)})
    return _plan_reduce(n, n).concat(down)


def all_gather(group: ChipGroup) -> TransferPlan:
    """Every chunk up to member 0, then all of them down to everybody."""
    n = group.size
    return forward_along_paths(n, n, {c: _path(c) for c in range(n)}).concat(_spread(n, n))


def all_reduce(group: ChipGroup) -> TransferPlan:
    """The sum at member 0, then down to everybody: the whole data over every edge, both ways."""
    n = group.size
    return _plan_reduce(n, 1).concat(_spread(n, 1))


def broadcast(group: ChipGroup, root: int) -> TransferPlan:
    """Down a tree whose numbers start at the root."""
    n = group.size
    rounds = (
        tuple(Transfer((t.source + root) % n, (t.target + root) % n, 0) for t in round_)
        for round_ in _spread(n, 1).rounds
    )
    return TransferPlan(n, 1, tuple(rounds))


def all_to_all(group: ChipGroup) -> TransferPlan:
    """Up to the first common parent, then down."""
    n = group.size
    paths = {}
    for i in range(n):
        for j in range(n):
            up, down = _path(i), _path(j)
            meet = next(member for member in up if member in down)
            paths[i * n + j] = up[: up.index(meet)] + down[: down.index(meet) + 1][::-1]
    return forward_along_paths(n, n * n, paths)


def _parent(member: int) -> int:
    return member & (member - 1)  # without its lowest bit


def _path(member: int) -> list[int]:
    path = [member]
    while path[-1]:
        path.append(_parent(path[-1]))
    return path


def _level(member: int) -> int:
    return (member & -member).bit_length() - 1


def _plan_reduce(n: int, chunks: int) -> TransferPlan:
    hops = ((_level(m), Transfer(m, _parent(m), c, reduce=True)) for m in range(1, n) for c in range(chunks))
    return TransferPlan(n, chunks, rounds_of(hops))


def _spread(n: int, chunks: int) -> TransferPlan:
    hops = ((-_level(m), Transfer(_parent(m), m, c)) for m in range(1, n) for c in range(chunks))
    return TransferPlan(n, chunks, rounds_of(hops))
