"""The first path of neighbours on a grid in TT-Metal's search order, found without its exponential detours."""

from __future__ import annotations

Place = tuple[int, int]

PATIENCE = 50_000  # steps, under 1 s; only rings over nearly all of a mesh beyond 6x6 from an inner offset need more


def walk(length: int, rows: int, cols: int, start: Place, *, ring: bool) -> list[Place] | None:
    """The path of so many places that a depth-first search trying right, down, left, up finds first, or None.

    With `ring` its last place must be a neighbour of the first. Branches that cannot succeed are cut, so the result is
    the plain search's (tt-metal mesh_device_view.cpp) where that would not end in a lifetime; patience ends as well.
    """
    if length > rows * cols or (ring and length > 1 and length % 2):  # neighbours differ in colour: rings are even
        return None
    search = _Search(length, rows, cols, start, ring=ring)
    return search.path if search.extend(search.everything & ~search.bit(start)) else None


class _Search:
    """One search; sets of places are bits of an integer, so flooding a region is a few shifts."""

    def __init__(self, length: int, rows: int, cols: int, start: Place, *, ring: bool) -> None:
        self.length, self.rows, self.cols, self.ring = length, rows, cols, ring
        self.path = [start]
        self.patience = PATIENCE
        self.everything = (1 << rows * cols) - 1
        self.not_first = sum(((1 << cols) - 2) << row * cols for row in range(rows))
        self.not_last = self.not_first >> 1
        self.even = sum(1 << r * cols + c for r in range(rows) for c in range(cols) if (r + c) % 2 == 0)
        self.home = self.around(self.bit(start))

    def bit(self, place: Place) -> int:
        return 1 << place[0] * self.cols + place[1]

    def around(self, places: int) -> int:
        """Every neighbour of the places; some of the places may be among them."""
        sideways = (places & self.not_last) << 1 | (places & self.not_first) >> 1
        return (sideways | places << self.cols | places >> self.cols) & self.everything

    def extend(self, free: int) -> bool:
        remaining = self.length - len(self.path)
        if remaining == 0:
            return True
        self.patience -= 1
        if self.patience < 0 or not self.promising(free, remaining):
            return False
        row, col = self.path[-1]
        for place in ((row, col + 1), (row + 1, col), (row, col - 1), (row - 1, col)):
            if not (0 <= place[0] < self.rows and 0 <= place[1] < self.cols):
                continue
            bit = self.bit(place)
            if not bit & free or (self.ring and remaining == 1 and not bit & self.home):
                continue
            self.path.append(place)
            if self.extend(free & ~bit):
                return True
            self.path.pop()
        return False

    def promising(self, free: int, remaining: int) -> bool:
        """Whether the free places within reach could hold the rest of the path."""
        here = self.bit(self.path[-1])
        region, steps, edge = 0, 0, self.around(here) & free
        while edge:
            steps += 1
            region |= edge
            if self.ring and steps == remaining and not region & self.home:
                return False  # too far to come back
            edge = self.around(edge) & free & ~region
        spare = region.bit_count() - remaining
        if spare < 0 or (self.ring and not region & self.home):
            return False
        next_colour = region & (~self.even if here & self.even else self.even)
        of_next = next_colour.bit_count()
        if of_next < (remaining + 1) // 2 or region.bit_count() - of_next < remaining // 2:
            return False
        return self.dead_ends(region, here) <= spare + (not self.ring)

    def dead_ends(self, region: int, here: int) -> int:
        """Places one could enter but not leave: each must be left out of the path, or be its end."""
        ways = region | here
        right, left = (ways & self.not_first) >> 1, (ways & self.not_last) << 1
        down, up = ways >> self.cols, ways << self.cols
        two_or_more = right & left | (right | left) & (down | up) | down & up
        if self.ring:
            two_or_more |= self.home & (right | left | down | up)
        return (region & ~two_or_more).bit_count()
