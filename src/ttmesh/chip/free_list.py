"""First-fit allocation in one address range, the same in every bank, as TT-Metal's free list does it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Block(NamedTuple):
    """A span of the range, free or taken."""

    address: int
    size: int
    allocated: bool


class FreeList:
    """Free spans in address order and taken blocks by address; sizes are rounded up to the alignment.

    TT-Metal searches size classes but takes the lowest (or highest) address that fits, which is plain first fit
    (tt-metal e4f9f0b, free_list_opt.cpp, SearchPolicy FIRST).
    """

    __slots__ = ("_ends", "_mask", "_starts", "alignment", "end", "live", "peak", "start", "used")

    def __init__(self, start: int, size: int, alignment: int) -> None:
        self.start, self.end, self.alignment = start, start + size, alignment
        self._mask = alignment - 1
        self._starts, self._ends = ([start], [start + size]) if size else ([], [])
        self.live: dict[int, int] = {}
        self.used = 0
        self.peak = 0

    @property
    def size(self) -> int:
        """The length of the whole range."""
        return self.end - self.start

    def allocate(self, size: int, bottom_up: bool) -> int | None:
        """The address of a new block at the lowest (or highest) place that fits, or None."""
        size = (size + self._mask) & ~self._mask or self.alignment
        starts, ends = self._starts, self._ends
        if bottom_up:
            for i, address in enumerate(starts):
                room = ends[i] - address
                if room >= size:
                    if room > size:
                        starts[i] = address + size
                    else:
                        del starts[i], ends[i]
                    break
            else:
                return None
        else:
            for i in range(len(starts) - 1, -1, -1):
                address = ends[i] - size
                if address >= starts[i]:
                    if address > starts[i]:
                        ends[i] = address
                    else:
                        del starts[i], ends[i]
                    break
            else:
                return None
        self.live[address] = size
        self.used = used = self.used + size
        if used > self.peak:
            self.peak = used
        return address

    def allocate_with_temporary(self, temporary_size: int, size: int, outlives: bool) -> tuple[int, int] | None:
        """The addresses of a temporary block and of the block allocated after it, both at the lowest place that fits.

        outlives: the temporary is freed after the second allocation, not before it. The same as allocate, allocate and
        free, without what freeing undoes; None, and nothing is changed, where one of them does not fit.
        """
        mask = self._mask
        before = (temporary_size + mask) & ~mask or self.alignment
        size = (size + mask) & ~mask or self.alignment
        starts, ends = self._starts, self._ends
        if outlives and starts and ends[0] - starts[0] > before + size:  # nearly always; 0.6 µs less than the search
            temporary = starts[0]
            address = temporary + before
            starts.insert(1, address + size)
            ends.insert(0, address)
        else:
            found = self._find_with_temporary(before, size, outlives)
            if found is None:
                return None
            temporary, address = found
        self.live[address] = size
        most = self.used + (before + size if outlives else max(before, size))
        self.used += size
        if most > self.peak:
            self.peak = most
        return temporary, address

    def _find_with_temporary(self, before: int, size: int, outlives: bool) -> tuple[int, int] | None:
        """The same in any span; what stays free is entered, what is taken is not."""
        starts, ends = self._starts, self._ends
        temporary = address = place = -1
        for i, start in enumerate(starts):
            room = ends[i] - start
            if temporary < 0 and room >= before:
                temporary = start
                if outlives:
                    if address < 0 and room >= before + size:  # both lie in this span
                        address = start + before
                        break
                    room = 0
            if address < 0 and room >= size:
                address, place = start, i
            if temporary >= 0 <= address:
                break
        else:
            return None
        if place < 0:
            if room > before + size:
                starts.insert(i + 1, address + size)
                ends.insert(i + 1, ends[i])
            ends[i] = address
        elif ends[place] - address > size:
            starts[place] = address + size
        else:
            del starts[place], ends[place]
        return temporary, address

    def run_steps(self, steps: Sequence[int], sizes: Sequence[int], result: int) -> tuple[int, int] | None:
        """Take and give back blocks from below in order: n takes block n, ~n gives it back; all but the result go back.

        The address of the result and the highest end of the others; None, and nothing is changed, where one does not fit.
        The same as allocate and free for every step, in one function: a call's temporaries cost no frames.
        """
        starts, ends, mask = self._starts.copy(), self._ends.copy(), self._mask
        places: dict[int, tuple[int, int]] = {}
        used, peak, highest = self.used, self.peak, 0
        for step in steps:
            if step < 0:
                address, size = places.pop(~step)
                highest = max(highest, address + sizes[~step])
                used -= size
                i = bisect_right(starts, address)
                end = address + size
                if i < len(starts) and starts[i] == end:
                    if i and ends[i - 1] == address:
                        ends[i - 1] = ends[i]
                        del starts[i], ends[i]
                    else:
                        starts[i] = address
                elif i and ends[i - 1] == address:
                    ends[i - 1] = end
                else:
                    starts.insert(i, address)
                    ends.insert(i, end)
                continue
            size = (sizes[step] + mask) & ~mask or self.alignment
            for i, address in enumerate(starts):
                room = ends[i] - address
                if room >= size:
                    if room > size:
                        starts[i] = address + size
                    else:
                        del starts[i], ends[i]
                    break
            else:
                return None
            places[step] = address, size
            used += size
            peak = max(peak, used)
        address, size = places[result]
        self._starts, self._ends, self.used, self.peak = starts, ends, used, peak
        self.live[address] = size
        return address, highest

    def allocate_at(self, address: int, size: int) -> bool:
        """Take exactly this span; False when any of it is taken."""
        size = self._round_up(size)
        i = bisect_right(self._starts, address) - 1
        if i < 0 or self._ends[i] < address + size:
            return False
        start, end = self._starts[i], self._ends[i]
        pieces = [(a, b) for a, b in ((start, address), (address + size, end)) if b > a]
        self._starts[i : i + 1] = [a for a, _ in pieces]
        self._ends[i : i + 1] = [b for _, b in pieces]
        self.live[address] = size
        self.used += size
        self.peak = max(self.peak, self.used)
        return True

    def free(self, address: int) -> None:
        """Free a block and merge it with its free neighbours."""
        size = self.live.pop(address)
        self.used -= size
        starts, ends = self._starts, self._ends
        end = address + size
        i = 0 if starts and starts[0] >= end else bisect_right(starts, address)
        joins_right = i < len(starts) and starts[i] == end
        if i and ends[i - 1] == address:
            if joins_right:
                ends[i - 1] = ends[i]
                del starts[i], ends[i]
            else:
                ends[i - 1] = end
        elif joins_right:
            starts[i] = address
        else:
            starts.insert(i, address)
            ends.insert(i, end)

    def fit_at_or_above(self, address: int, size: int) -> int | None:
        """The lowest address from `address` on where a block would fit."""
        size = self._round_up(size)
        for start, end in zip(self._starts, self._ends, strict=True):
            low = max(start, address)
            if end - low >= size:
                return low
        return None

    def fit_at_or_below(self, address: int, size: int) -> int | None:
        """The highest address up to `address` where a block would fit."""
        size = self._round_up(size)
        for start, end in zip(reversed(self._starts), reversed(self._ends), strict=True):
            high = min(end - size, address)
            if high >= start:
                return high
        return None

    def spans(self) -> list[tuple[int, int]]:
        """Free spans as (start, end), in address order."""
        return list(zip(self._starts, self._ends, strict=True))

    def largest_free(self) -> int:
        """The length of the longest free span."""
        return max((end - start for start, end in self.spans()), default=0)

    def lowest_used(self) -> int | None:
        """The lowest taken address, or None when nothing is taken."""
        if not self.live:
            return None
        # Free spans never touch, so what follows the one at the bottom is taken.
        return self._ends[0] if self._starts and self._starts[0] == self.start else self.start

    def blocks(self) -> list[Block]:
        """Every span, free and taken, in address order."""
        taken = [Block(address, size, True) for address, size in self.live.items()]
        free = [Block(start, end - start, False) for start, end in self.spans()]
        return sorted(taken + free)

    def copy(self) -> FreeList:
        """An independent list in the same state."""
        twin = FreeList(self.start, 0, self.alignment)
        twin.end = self.end
        twin._starts, twin._ends, twin.live = list(self._starts), list(self._ends), dict(self.live)
        twin.used, twin.peak = self.used, self.peak
        return twin

    def _round_up(self, size: int) -> int:
        return (size + self._mask) & ~self._mask or self.alignment
