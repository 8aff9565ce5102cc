"""The first path of neighbours on a grid in TT-Metal's search order, found without its exponential search."""

from __future__ import annotations

Position = tuple[int, int]

MAX_STEPS = 50_000  # under 1 s; only rings over nearly all of a mesh beyond 6x6 from an inner offset need more


def find_path(length: int, rows: int, cols: int, start: Position, *, ring: bool) -> list[Position] | None:
    """The path of this many positions that a depth-first search trying right, down, left, up finds first, or None.

    With `ring` its last position must be a neighbour of the first. Branches that cannot succeed are pruned, so the result
    is that of the plain search (tt-metal mesh_device_view.cpp), which would take too long; MAX_STEPS bounds this one.
    """
    if length > rows * cols or (ring and length > 1 and length % 2):  # neighbours differ in colour: rings are even
        return None
    search = _Search(length, rows, cols, start, ring=ring)
    return search.path if search.extend(search.everything & ~search.bit(start)) else None


class _Search:
    """One search; sets of positions are bits of an integer, so flooding a region is a few shifts."""

    def __init__(self, length: int, rows: int, cols: int, start: Position, *, ring: bool) -> None:
        self.length, self.rows, self.cols, self.ring = length, rows, cols, ring
        self.path = [start]
        self.steps_left = MAX_STEPS
        self.everything = (1 << rows * cols) - 1
        self.not_first = sum(((1 << cols) - 2) << row * cols for row in range(rows))
        self.not_last = self.not_first >> 1
        self.even = sum(1 << r * cols + c for r in range(rows) for c in range(cols) if (r + c) % 2 == 0)
        self.home = self.find_neighbours(self.bit(start))

    def bit(self, position: Position) -> int:
        return 1 << position[0] * self.cols + position[1]

    def find_neighbours(self, positions: int) -> int:
        """Every neighbour of some positions, which may include some of these positions."""
        sideways = (positions & self.not_last) << 1 | (positions & self.not_first) >> 1
        return (sideways | positions << self.cols | positions >> self.cols) & self.everything

    def extend(self, free: int) -> bool:
        remaining = self.length - len(self.path)
        if remaining == 0:
            return True
        self.steps_left -= 1
        if self.steps_left < 0 or not self.can_succeed(free, remaining):
            return False
        row, col = self.path[-1]
        for position in ((row, col + 1), (row + 1, col), (row, col - 1), (row - 1, col)):
            if not (0 <= position[0] < self.rows and 0 <= position[1] < self.cols):
                continue
            bit = self.bit(position)
            if not bit & free or (self.ring and remaining == 1 and not bit & self.home):
                continue
            self.path.append(position)
            if self.extend(free & ~bit):
                return True
            self.path.pop()
        return False

    def can_succeed(self, free: int, remaining: int) -> bool:
        """Whether the free positions within reach could hold the rest of the path."""
        here = self.bit(self.path[-1])
        region, steps, edge = 0, 0, self.find_neighbours(here) & free
        while edge:
            steps += 1
            region |= edge
            if self.ring and steps == remaining and not region & self.home:
                return False  # too far to come back
            edge = self.find_neighbours(edge) & free & ~region
        spare = region.bit_count() - remaining
        if spare < 0 or (self.ring and not region & self.home):
            return False
        next_colour = region & (~self.even if here & self.even else self.even)
        of_next = next_colour.bit_count()
        if of_next < (remaining + 1) // 2 or region.bit_count() - of_next < remaining // 2:
            return False
        return self.count_dead_ends(region, here) <= spare + (not self.ring)

    def count_dead_ends(self, region: int, here: int) -> int:
        """The number of positions that a path could enter but not leave: each must be its end, or not on it."""
        exits = region | here
        right, left = (exits & self.not_first) >> 1, (exits & self.not_last) << 1
        down, up = exits >> self.cols, exits << self.cols
        two_or_more = right & left | (right | left) & (down | up) | down & up
        if self.ring:
            two_or_more |= self.home & (right | left | down | up)
        return (region & ~two_or_more).bit_count()
