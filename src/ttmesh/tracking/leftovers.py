"""Buffers that were still allocated when a process or mesh ended, summed by call site."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ttmesh.base.records import Allocated
from ttmesh.tracking.weights import weigh
from ttmesh.tracking.wire import Who

PLACES_KEPT = 256
PLACES_BYTES = 128 << 10  # of all call sites together
LARGEST = 2**63 - 1


class Leftover(Struct, frozen=True):
    """Buffers of one call site that were never freed; bytes over all chips."""

    end: str
    site: str
    label: str
    buffer_type: str
    buffers: int
    chips: int
    size_bytes: int


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


def sum_up(end: str, buffers: Iterable[Allocated]) -> list[Leftover]:
    """Leftovers by call site, the largest first; beyond the limit the rest is one entry."""
    sums: dict[tuple[str, str, str, int], list[int]] = {}
    for record in buffers:
        key = (record.site, record.label, record.buffer_type, len(record.chips))
        total = sums.setdefault(key, [0, 0])
        total[0] += 1
        total[1] += record.size_bytes * len(record.chips)
    places = [
        Leftover(end, site, label, kind, count, chips, min(size, LARGEST))
        for (site, label, kind, chips), (count, size) in sums.items()
    ]
    places.sort(key=lambda place: place.size_bytes, reverse=True)
    kept = keep_largest(places)
    rest = places[len(kept) :]
    if rest:
        count, size = sum(p.buffers for p in rest), sum(p.size_bytes for p in rest)
        kept.append(Leftover(end, "", f"{len(rest)} more places", "", count, 0, min(size, LARGEST)))
    return kept


def keep_largest(places: list[Leftover]) -> list[Leftover]:
    """The first entries, up to the limit."""
    kept, size = [], 0
    for place in places[:PLACES_KEPT]:
        size += weigh(place)
        if size > PLACES_BYTES:
            break
        kept.append(place)
    return kept
