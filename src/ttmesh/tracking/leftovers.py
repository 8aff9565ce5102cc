"""Buffers that were still allocated when a process or mesh ended, summed by call site."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ttmesh.base.records import Allocated
from ttmesh.tracking.weights import weigh
from ttmesh.tracking.wire import Who

PLACES_KEPT = 256
PLACES_SUMMED = 8192  # different ones before the largest are chosen
PLACES_BYTES = 128 << 10  # of all call sites together
LARGEST = 2**63 - 1


class Leftover(Struct, frozen=True):
    """Buffers of one call site that were never freed; bytes over all chips.

    `end` is "close" if their mesh was closed, which freed them, and "exit" or "death" if they were lost with a process.
    """

    end: str
    site: str
    label: str
    buffer_type: str
    buffers: int
    chips: int
    size_bytes: int
    times: int = 1  # how many meshes or processes left the same


class Ended(Struct, frozen=True):
    """A process that has ended, what it still held, and what its meshes held when they closed."""

    who: Who
    name: str
    time_s: float
    orderly: bool
    held: list[Leftover]
    at_close: list[Leftover]
    next: int
    missed: int


class LeftoverSums:
    """Sums buffers by call site; beyond PLACES_SUMMED sites the rest is one entry."""

    def __init__(self, end: str) -> None:
        self._end = end
        self._sums: dict[tuple[str, str, str, int], list[int]] = {}
        self._others = [0, 0]

    def add(self, record: Allocated) -> None:
        """One more buffer."""
        key = (record.site, record.label, record.buffer_type, len(record.chips))
        total = self._sums.get(key, self._others)
        if total is self._others and len(self._sums) < PLACES_SUMMED:
            total = self._sums[key] = [0, 0]
        total[0] += 1
        total[1] += record.size_bytes * len(record.chips)

    def list_leftovers(self) -> list[Leftover]:
        """Leftovers by call site, the largest first; those beyond the limits are one entry."""
        places = [
            Leftover(self._end, site, label, kind, count, chips, min(size, LARGEST))
            for (site, label, kind, chips), (count, size) in self._sums.items()
        ]
        places.sort(key=lambda place: place.size_bytes, reverse=True)
        kept = keep_largest(places)
        rest = places[len(kept) :]
        count = sum(p.buffers for p in rest) + self._others[0]
        size = sum(p.size_bytes for p in rest) + self._others[1]
        if count:
            number = f"{len(rest)} more places" if not self._others[0] else f"more than {len(rest)} more places"
            kept.append(Leftover(self._end, "", number, "", count, 0, min(size, LARGEST)))
        return kept


def merge_leftovers(places: list[Leftover]) -> list[Leftover]:
    """Equal places as one, the largest first, up to the limit."""
    merged: dict[tuple[str, str, str, str, int], Leftover] = {}
    for place in places:
        key = (place.end, place.site, place.label, place.buffer_type, place.chips)
        known = merged.get(key)
        merged[key] = place if known is None else _add_leftovers(known, place)
    return keep_largest(sorted(merged.values(), key=lambda place: place.size_bytes, reverse=True))


def _add_leftovers(a: Leftover, b: Leftover) -> Leftover:
    size_bytes, buffers = min(a.size_bytes + b.size_bytes, LARGEST), min(a.buffers + b.buffers, LARGEST)
    return msgspec.structs.replace(a, size_bytes=size_bytes, buffers=buffers, times=a.times + b.times)


def keep_largest(places: list[Leftover]) -> list[Leftover]:
    """The first entries, up to the limit."""
    kept, size = [], 0
    for place in places[:PLACES_KEPT]:
        size += weigh(place)
        if size > PLACES_BYTES:
            break
        kept.append(place)
    return kept
