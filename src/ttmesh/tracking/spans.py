"""Address arithmetic of one bank: used spans, free spans, fragmentation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """Addresses from `start` up to, not including, `end`."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Size in bytes."""
        return self.end - self.start


class Free(NamedTuple):
    """Free memory of a bank; fragmentation is 1 - largest / free, and 0 when nothing is free."""

    free_bytes: int
    largest_bytes: int

    @property
    def fragmentation(self) -> float:
        """0 when all free memory is in one piece, towards 1 the more it is scattered."""
        return 1 - self.largest_bytes / self.free_bytes if self.free_bytes else 0.0


def union(spans: Iterable[Span]) -> list[Span]:
    """The same addresses in as few spans as possible, in order."""
    merged: list[Span] = []
    for span in sorted(spans):
        if span.length <= 0:
            continue
        if merged and span.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


def holes(region: Span, taken: Iterable[Span]) -> list[Span]:
    """The spans of the region that are not in use, in order."""
    found = []
    at = region.start
    for span in union(taken):
        if span.start > at:
            found.append(Span(at, min(span.start, region.end)))
        at = max(at, span.end)
        if at >= region.end:
            break
    if at < region.end:
        found.append(Span(at, region.end))
    return [hole for hole in found if hole.length > 0]
