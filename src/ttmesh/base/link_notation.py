"""The notation of links between chips: two physical ids and the number of links between them."""

from __future__ import annotations

from collections.abc import Mapping

Pair = tuple[int, int]  # two physical chip ids, the smaller one first
Links = Mapping[Pair, int]

HOST = -1  # the host's place among chip ids in `LinkTransfer` records and link counters


def pair(a: int, b: int) -> Pair:
    """The key of the links between two chips."""
    return (a, b) if a < b else (b, a)
