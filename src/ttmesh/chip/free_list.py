"""First-fit allocation in one address range, the same in every bank, as TT-Metal's free list does it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_OUTCOMES = 32  # kept of a call's steps
MOST_SPANS = 64  # comparing more takes longer than following the steps


class Block(NamedTuple):
    """A span of the range, free or taken."""

    address: int
    size: int
    allocated: bool


class StepsOutcome(NamedTuple):
    """What a call's steps do to some free spans: those that are left, the block that stays, and the way there."""

    starts: list[int]
    ends: list[int]
    address: int
    size: int
    highest: int  # end of the blocks that went back, as they were asked for
    most: int  # bytes taken at once


@dataclass(frozen=True)
class BlockSteps:
    """Blocks that one call takes from below and gives back in order: n takes block n, ~n gives it back.

    All but the result's go back. `outcomes`: by the free spans they began with; a program's calls find the same again.
    """

    steps: tuple[int, ...]
    sizes: tuple[int, ...]
    result: int
    outcomes: dict[tuple[int, ...] | None, StepsOutcome] = field(default_factory=dict, compare=False)


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

    def run_steps(self, blocks: BlockSteps) -> tuple[int, int] | None:
        """Take and give back a call's blocks as allocate and free would, once for the same free spans.

        The address of the result and the highest end of the others; None, and nothing is changed, where one does not fit.
        """
        spans = (*self._starts, *self._ends) if len(self._starts) <= MOST_SPANS else None
        outcome = blocks.outcomes.get(spans)
        if outcome is None:
            outcome = self._follow_steps(blocks)
            if outcome is None:
                return None
            if spans is not None:
                if len(blocks.outcomes) >= MOST_OUTCOMES:
                    blocks.outcomes.clear()
                blocks.outcomes[spans] = outcome
        starts, ends, address, size, highest, most = outcome
        self._starts, self._ends = starts.copy(), ends.copy()
        self.live[address] = size
        if self.used + most > self.peak:
            self.peak = self.used + most
        self.used += size
        return address, highest

    def _follow_steps(self, blocks: BlockSteps) -> StepsOutcome | None:
        """What the steps would do to the free spans, changing nothing; None where a block does not fit."""
        trial = FreeList(self.start, 0, self.alignment)
        trial._starts, trial._ends = self._starts.copy(), self._ends.copy()
        places: dict[int, int] = {}
        for step in blocks.steps:
            if step < 0:
                trial.free(places[~step])
            else:
                address = trial.allocate(blocks.sizes[step], True)
                if address is None:
                    return None
                places[step] = address
        address = places.pop(blocks.result)
        highest = max((place + blocks.sizes[n] for n, place in places.items()), default=0)
        return StepsOutcome(trial._starts, trial._ends, address, trial.live[address], highest, trial.peak)

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
