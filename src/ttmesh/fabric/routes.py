"""Routes of data between two chips over links."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from ttmesh.base.errors import MeshError
from ttmesh.base.link_notation import Links
from ttmesh.fabric.chip_topology import Fabric


class Routes:
    """Shortest routes over the links of a system, always the same one for the same two chips.

    On a grid they go along the column first and then along the row, as tt-metal's routing tables do; where that path is
    not linked or not shortest, breadth first with the lower id preferred.
    """

    def __init__(self, grid: Sequence[Sequence[int]], links: Links) -> None:
        self.fabric = Fabric(links)
        self._grid = tuple(tuple(row) for row in grid)
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}

    @cached_property
    def _positions(self) -> dict[int, tuple[int, int]]:
        return {chip: (r, c) for r, row in enumerate(self._grid) for c, chip in enumerate(row)}

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """The chips of the route, both ends included."""
        found = self._known.get((source, target))
        if found is None:
            found = self._known[source, target] = self._find(source, target)
        return found

    def hops(self, source: int, target: int) -> int:
        """The number of links of the route."""
        return len(self.route(source, target)) - 1

    def _find(self, source: int, target: int) -> tuple[int, ...]:
        for chip in (source, target):
            if chip not in self._positions:
                raise MeshError(
                    f"chip {chip} is not in the fabric",
                    expected=f"one of {sorted(self._positions)}",
                    fix="Pass the physical id of a chip of this system.",
                )
        shortest = self._breadth_first(source, target)
        if shortest is None:
            raise MeshError(
                f"no route from chip {source} to chip {target}",
                expected="chips connected by links",
                fix="Use a system whose chips are linked, or move the data through the host.",
            )
        straight = self._dimension_order(source, target)
        return straight if straight is not None and len(straight) == len(shortest) else shortest

    def _dimension_order(self, source: int, target: int) -> tuple[int, ...] | None:
        (row, col), (to_row, to_col) = self._positions[source], self._positions[target]
        rows, cols = len(self._grid), len(self._grid[0])
        # On a tie the tables prefer north (towards row 0), then east.
        down = _find_steps(row, to_row, rows, closes=self._closes([line[col] for line in self._grid]), tie=-1)
        along = _find_steps(col, to_col, cols, closes=self._closes(self._grid[to_row]), tie=+1)
        route = [self._grid[r][col] for r in down] + [self._grid[to_row][c] for c in along[1:]]
        linked = all(self.fabric.link_count(a, b) for a, b in pairwise(route))
        return tuple(route) if linked else None

    def _closes(self, line: Sequence[int]) -> bool:
        return len(line) > 2 and self.fabric.link_count(line[-1], line[0]) > 0

    def _breadth_first(self, source: int, target: int) -> tuple[int, ...] | None:
        came_from, waiting = {source: source}, deque([source])
        while waiting and target not in came_from:
            chip = waiting.popleft()
            for near in self.fabric.neighbours(chip):
                if near not in came_from:
                    came_from[near] = chip
                    waiting.append(near)
        if target not in came_from:
            return None
        route = [target]
        while route[-1] != source:
            route.append(came_from[route[-1]])
        return tuple(reversed(route))


def _find_steps(start: int, end: int, size: int, *, closes: bool, tie: int) -> list[int]:
    """The positions from start to end along one line, in the shorter direction where it closes."""
    forward, backward = (end - start) % size, (start - end) % size
    if not closes:
        step = 1 if end >= start else -1
    elif forward == backward:
        step = tie
    else:
        step = 1 if forward < backward else -1
    count = abs(end - start) if not closes else min(forward, backward)
    return [(start + step * i) % size for i in range(count + 1)]
