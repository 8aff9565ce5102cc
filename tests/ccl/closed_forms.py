"""What each algorithm sends from chip to chip, by arithmetic: (source, target) → bytes.

`size` is what a device holds before the collective. Nothing here looks at plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import log2

Loads = Counter[tuple[int, int]]
Form = Callable[[int, int, int], Loads]  # chips, size, root


def _loads(items: list[tuple[int, int, int]]) -> Loads:
    total: Loads = Counter()
    for source, target, size in items:
        total[source, target] += size
    return +total


def _ring(collective: str, n: int, size: int, root: int) -> Loads:
    each = {
        "all_reduce": 2 * (n - 1) * size // n, "reduce_scatter": (n - 1) * size // n, "all_gather": (n - 1) * size,
        "all_to_all": (n - 1) * size // 2,
    }  # fmt: skip
    if collective == "broadcast":
        return _loads([((root + i) % n, (root + i + 1) % n, size) for i in range(n - 1)])
    return _loads([(i, (i + 1) % n, each[collective]) for i in range(n)])


def _bidirectional_ring(collective: str, n: int, size: int, root: int) -> Loads:
    ahead, back = n // 2, (n - 1) // 2
    if collective == "broadcast":
        there = [((root + i) % n, (root + i + 1) % n, size) for i in range(ahead)]
        return _loads(there + [((root - i) % n, (root - i - 1) % n, size) for i in range(back)])
    if collective == "all_to_all":
        forward, backward = (k * (k + 1) // 2 * size // n for k in (ahead, back))
    else:
        total = {"all_reduce": 2 * size // n, "reduce_scatter": size // n, "all_gather": size}[collective]
        forward = backward = (n - 1) * total // 2
    return _loads([hop for i in range(n) for hop in ((i, (i + 1) % n, forward), ((i + 1) % n, i, backward))])


def _line(collective: str, n: int, size: int, root: int) -> Loads:
    items = []
    for i in range(n - 1):
        before, after = i + 1, n - 1 - i  # chips on either side of the link
        forward, backward = {
            "all_reduce": (size, size),
            "reduce_scatter": (after * size // n, before * size // n),
            "all_gather": (before * size, after * size),
            "broadcast": (size if i >= root else 0, size if i < root else 0),
            "all_to_all": (before * after * size // n, before * after * size // n),
        }[collective]
        items += [(i, i + 1, forward), (i + 1, i, backward)]
    return _loads(items)


def _direct(collective: str, n: int, size: int, root: int) -> Loads:
    each = {
        "all_reduce": 2 * size // n, "reduce_scatter": size // n, "all_gather": size, "all_to_all": size // n,
        "broadcast": size,
    }[collective]  # fmt: skip
    sources = [root] if collective == "broadcast" else range(n)
    return _loads([(i, j, each) for i in sources for j in range(n) if i != j])


def _recursive_halving(collective: str, n: int, size: int, root: int) -> Loads:
    distances = [1 << bit for bit in range(int(log2(n)))]
    if collective == "broadcast":
        return _loads([(root ^ m, root ^ m ^ k, size) for k in distances for m in range(0, n, 2 * k)])

    def each(distance: int) -> int:
        return {
            "all_reduce": 2 * distance * size // n, "reduce_scatter": distance * size // n,
            "all_gather": distance * size, "all_to_all": size // 2,
        }[collective]  # fmt: skip

    return _loads([(i, i ^ k, each(k)) for i in range(n) for k in distances])


def _tree(collective: str, n: int, size: int, root: int) -> Loads:
    items = []
    for m in range(1, n):
        parent, below = m & (m - 1), min(m & -m, n - m)  # the chips of m's subtree
        if collective == "broadcast":
            items.append(((parent + root) % n, (m + root) % n, size))
            continue
        up, down = {
            "all_reduce": (size, size),
            "reduce_scatter": (size, below * size // n),
            "all_gather": (below * size, n * size),
            "all_to_all": (below * (n - below) * size // n, below * (n - below) * size // n),
        }[collective]
        items += [(m, parent, up), (parent, m, down)]
    return _loads(items)


LINES = {
    "ring": _ring, "bidirectional_ring": _bidirectional_ring, "line": _line, "direct": _direct,
    "recursive_halving": _recursive_halving, "tree": _tree,
}  # fmt: skip


def on_line(algorithm: str, collective: str, n: int, size: int, root: int = 0) -> Loads:
    """Members in one line, or any group for algorithms that do not care."""
    return LINES[algorithm](collective, n, size, root)


def on_grid(collective: str, shape: tuple[int, int], closes: tuple[bool, bool], size: int, root: int = 0) -> Loads:
    """mesh2d: along rows and along columns, each by the ring or the line it is."""
    rows, cols = shape
    down, along = (_bidirectional_ring if ring else _line for ring in closes)
    total: Loads = Counter()

    def add(form: Callable[[str, int, int, int], Loads], what: str, line: list[int], each: int, start: int = 0) -> None:
        for (a, b), load in form(what, len(line), each, start).items():
            total[line[a], line[b]] += load

    every_row = [[r * cols + c for c in range(cols)] for r in range(rows)]
    every_column = [[r * cols + c for r in range(rows)] for c in range(cols)]
    if collective == "broadcast":
        add(along, collective, every_row[root // cols], size, root % cols)
        for line in every_column:
            add(down, collective, line, size, root // cols)
        return total
    # What a line's chips hold when it starts: columns of a sum follow rows, rows of a gathering follow columns.
    in_rows, in_columns = {
        "all_reduce": (size, size // cols), "reduce_scatter": (size, size // cols),
        "all_gather": (size * rows, size), "all_to_all": (size, size),
    }[collective]  # fmt: skip
    for line in every_row:
        add(along, collective, line, in_rows)
    for line in every_column:
        add(down, collective, line, in_columns)
    return total
