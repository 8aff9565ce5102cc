"""How much every chip holds of each memory, and the most it held; chips with the same history are counted once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Peak(NamedTuple):
    """The most that a chip held of one memory."""

    size_bytes: int  # circular buffers of the running operation included
    event: int  # so many allocations and frees had happened
    circular_buffer_bytes: int
    operation: str  # that ran, or was to run


NO_PEAK = Peak(0, 0, 0, "")


class ChipSet:
    """Chips that took and gave back the same memory so far."""

    __slots__ = ("chips", "peaks", "used")

    def __init__(self, chips: frozenset[int]) -> None:
        self.chips = chips
        self.used: dict[str, int] = {}  # by memory
        self.peaks: dict[str, Peak] = {}

    def add(self, memory: str, size_bytes: int, event: int, operation: str) -> None:
        """Count memory that was taken."""
        used = self.used[memory] = self.used.get(memory, 0) + size_bytes
        if used > self.peaks.get(memory, NO_PEAK).size_bytes:
            self.peaks[memory] = Peak(used, event, 0, operation)

    def note_circular_buffers(self, size_bytes: int, event: int, operation: str) -> None:
        """Count what an operation takes in L1 while it runs."""
        whole = self.used.get("L1", 0) + size_bytes
        if whole > self.peaks.get("L1", NO_PEAK).size_bytes:
            self.peaks["L1"] = Peak(whole, event, size_bytes, operation)

    def copy_for(self, chips: frozenset[int]) -> ChipSet:
        """Some of the chips, from now on counted by themselves."""
        part = ChipSet(chips)
        part.used, part.peaks = dict(self.used), dict(self.peaks)
        return part


class ChipPeaks:
    """The memory of all chips."""

    def __init__(self) -> None:
        self.sets: list[ChipSet] = []
        self._by_chips: dict[tuple[int, ...], list[ChipSet]] = {}

    def sets_of(self, chips: tuple[int, ...]) -> list[ChipSet]:
        """The sets that these chips are divided into; sets that hold other chips too are split first."""
        found = self._by_chips.get(chips)
        if found is None:
            self._split(frozenset(chips))
            found = self._by_chips[chips] = [held for held in self.sets if held.chips <= set(chips)]
        return found

    def by_chip(self) -> Iterator[tuple[int, str, Peak]]:
        """The peaks as chip, memory, peak."""
        for held in self.sets:
            for memory, peak in held.peaks.items():
                for chip in sorted(held.chips):
                    yield chip, memory, peak

    def _split(self, chips: frozenset[int]) -> None:
        self.sets = [
            part
            for held in self.sets
            for part in (_divide(held, chips) if held.chips & chips and held.chips - chips else [held])
        ]
        new = chips.difference(*(held.chips for held in self.sets))
        if new:
            self.sets.append(ChipSet(new))
        self._by_chips.clear()


def _divide(held: ChipSet, chips: frozenset[int]) -> Iterable[ChipSet]:
    return held.copy_for(held.chips & chips), held.copy_for(held.chips - chips)
