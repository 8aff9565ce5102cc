"""Binomial tree: data goes up to chip 0 and down again, in log n rounds each."""

from __future__ import annotations

from ttmesh.ccl.planning.transfer_plan import ChipGroup, Transfer, TransferPlan, forward_along_paths, group_into_rounds

LINE_ONLY = False


def unsupported_reason(group: ChipGroup) -> str | None:
    """None: any number of chips forms a tree."""
    return None


def reduce_scatter(group: ChipGroup) -> TransferPlan:
    """All sums at chip 0, then every chunk down to its owner."""
    n = group.size
    down = forward_along_paths(n, n, {c: _path(c)[::-1] for c in range(n)})
    return _plan_reduce(n, n).concat(down)


def all_gather(group: ChipGroup) -> TransferPlan:
    """Every chunk up to chip 0, then all of them down to every chip."""
    n = group.size
    return forward_along_paths(n, n, {c: _path(c) for c in range(n)}).concat(_plan_broadcast(n, n))


def all_reduce(group: ChipGroup) -> TransferPlan:
    """The sum at chip 0, then down to every chip: all data over every edge, in both directions."""
    n = group.size
    return _plan_reduce(n, 1).concat(_plan_broadcast(n, 1))


def broadcast(group: ChipGroup, root: int) -> TransferPlan:
    """Down a tree whose numbering starts at the root."""
    n = group.size
    rounds = (
        tuple(Transfer((t.source + root) % n, (t.target + root) % n, 0) for t in round_)
        for round_ in _plan_broadcast(n, 1).rounds
    )
    return TransferPlan(n, 1, tuple(rounds))


def all_to_all(group: ChipGroup) -> TransferPlan:
    """Up to the first common parent, then down."""
    n = group.size
    paths = {}
    for i in range(n):
        for j in range(n):
            up, down = _path(i), _path(j)
            ancestor = next(chip for chip in up if chip in down)
            paths[i * n + j] = up[: up.index(ancestor)] + down[: down.index(ancestor) + 1][::-1]
    return forward_along_paths(n, n * n, paths)


def _parent(chip: int) -> int:
    return chip & (chip - 1)  # without its lowest bit


def _path(chip: int) -> list[int]:
    path = [chip]
    while path[-1]:
        path.append(_parent(path[-1]))
    return path


def _level(chip: int) -> int:
    return (chip & -chip).bit_length() - 1


def _plan_reduce(n: int, chunks: int) -> TransferPlan:
    hops = ((_level(m), Transfer(m, _parent(m), c, reduce=True)) for m in range(1, n) for c in range(chunks))
    return TransferPlan(n, chunks, group_into_rounds(hops))


def _plan_broadcast(n: int, chunks: int) -> TransferPlan:
    hops = ((-_level(m), Transfer(_parent(m), m, c)) for m in range(1, n) for c in range(chunks))
    return TransferPlan(n, chunks, group_into_rounds(hops))
