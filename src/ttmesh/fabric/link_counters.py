"""Counters of the bytes that crossed each link, in each direction, and went to and from the host."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from ttmesh.base.errors import MeshError
from ttmesh.base.link_notation import HOST
from ttmesh.base.records import LinkTransfer
from ttmesh.base.signals import signals
from ttmesh.fabric.chip_topology import Fabric


class Tally:
    """Loads that repeat, and how often they were counted."""

    __slots__ = ("loads", "records", "times")

    def __init__(self, loads: Mapping[tuple[int, int], int]) -> None:
        self.loads = dict(loads)
        self.records: tuple[frozenset[int] | None, list[LinkTransfer]] | None = None  # whose, and what listeners get
        self.times = 0


class LinkCounters:
    """Bytes by (from, to); the host is chip -1. Several links between two chips count as one: they share the load.

    Where ranks divide a mesh, each counts all of it, but reports to trackers only what its `own` chips sent. Trackers
    get the system's name and the ids of the full system, of which some chips may be hidden.
    """

    def __init__(
        self,
        fabric: Fabric,
        own: frozenset[int] | None = None,
        *,
        system: str = "",
        original_ids: Sequence[int] = (),
    ) -> None:
        self._fabric = fabric
        self.own = own
        self._system = system
        self._reported_id = {HOST: HOST, **dict(enumerate(original_ids))}
        self._bytes: dict[tuple[int, int], int] = {}
        self._tallies: list[Tally] = []
        self._lock = threading.Lock()  # queue workers count at the same time

    def send(self, route: Sequence[int], size_bytes: int) -> None:
        """Count bytes over every link of a route."""
        self.add(dict.fromkeys(pairwise(route), size_bytes))

    def add(self, loads: Mapping[tuple[int, int], int]) -> None:
        """Count bytes by (from, to), the host being -1, all at once."""
        self._check(loads)
        self._count(loads)

    def tally(self, loads: Mapping[tuple[int, int], int]) -> Tally:
        """Loads to be counted many times by `count`, checked once."""
        self._check(loads)
        made = Tally(loads)
        with self._lock:
            self._tallies.append(made)
        return made

    def count(self, tally: Tally) -> None:
        """Count the loads of a tally once more."""
        with self._lock:
            tally.times += 1
        if signals.listening:
            if tally.records is None or tally.records[0] is not self.own:
                tally.records = self.own, self._make_records(tally.loads)
            signals.emit_crossings(tally.records[1])

    def _make_records(self, loads: Mapping[tuple[int, int], int]) -> list[LinkTransfer]:
        names = self._reported_id
        return [
            LinkTransfer(names.get(source, source), names.get(target, target), size_bytes, self._system)
            for (source, target), size_bytes in loads.items()
            if self.own is None or (target if source == HOST else source) in self.own
        ]

    def _check(self, loads: Mapping[tuple[int, int], int]) -> None:
        """Refuse loads between chips without a link."""
        for source, target in loads:
            if HOST not in (source, target) and not self._fabric.link_count(source, target):
                raise MeshError(
                    f"no link from chip {source} to chip {target}",
                    expected=f"one of {list(self._fabric.neighbours(source))}",
                    fix="Send along a route, hop by hop.",
                )

    def to_host(self, chips: Iterable[int], size_bytes: int) -> None:
        """Count bytes that the host read from each of these chips."""
        self._count({(chip, HOST): size_bytes for chip in chips})

    def from_host(self, chips: Iterable[int], size_bytes: int) -> None:
        """Count bytes that the host wrote to each of these chips."""
        self._count({(HOST, chip): size_bytes for chip in chips})

    def _count(self, loads: Mapping[tuple[int, int], int]) -> None:
        with self._lock:
            for hop, size_bytes in loads.items():
                self._bytes[hop] = self._bytes.get(hop, 0) + size_bytes
        if signals.listening:
            signals.emit_crossings(self._make_records(loads))

    def get_bytes(self, source: int, target: int) -> int:
        """Bytes so far from one chip to a neighbour, or between a chip and the host (-1)."""
        return self.loads().get((source, target), 0)

    def loads(self) -> dict[tuple[int, int], int]:
        """Bytes so far by (from, to); pairs that never carried any are absent."""
        with self._lock:
            total = dict(self._bytes)
            for tally in self._tallies:
                if tally.times:
                    for hop, size_bytes in tally.loads.items():
                        total[hop] = total.get(hop, 0) + tally.times * size_bytes
            return total

    def fabric_bytes(self) -> int:
        """Everything that crossed a link between chips."""
        return sum(size for hop, size in self.loads().items() if HOST not in hop)

    def host_bytes(self) -> int:
        """Everything that went between host and chips."""
        return sum(size for hop, size in self.loads().items() if HOST in hop)

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self._bytes.clear()
            for tally in self._tallies:
                tally.times = 0
