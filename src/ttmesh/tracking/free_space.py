"""Free memory and fragmentation of every bank, computed from all buffers in small steps."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Generator, Iterable, Iterator

from ttmesh.tracking.ledger import POOL_OF, Ledger
from ttmesh.tracking.spans import Free, Span
from ttmesh.tracking.state import DeviceKey

EVERY_S = 1.0  # between two updates
AT_ONCE = 4096  # buffers per turn
SMALL = 4096  # with fewer buffers all are read at once
SHARE = 0.1  # share of the server's time, if reading takes long

PoolKey = tuple[DeviceKey, str]  # device, pool
Group = tuple[str, str, frozenset[int], str]  # host, system, chips, pool


class FreeSpace:
    """Free memory of every pool as of `time_s`; chips with the same buffers share one calculation."""

    def __init__(self, ledger: Ledger) -> None:
        self.time_s = float("-inf")
        self._ledger = ledger
        self._known: dict[PoolKey, Free] = {}
        self._reading: Iterator[None] | None = None
        self._seen: tuple[int, ...] = ()
        self._not_before_s = float("-inf")
        self._spent_s = 0.0

    def of(self, device: DeviceKey, pool: str, bank: Span) -> Free:
        """The free memory of one bank of a pool; all of it if no buffer is known."""
        return self._known.get((device, pool), Free(bank.length, bank.length))

    def refresh(self, now_s: float) -> None:
        """Start an update when it is due, and finish it at once if there are few buffers."""
        seen = (self._ledger.records_seen, self._ledger.bytes_held, len(self._ledger.processes))
        due = now_s - self.time_s >= EVERY_S and now_s >= self._not_before_s
        if self._reading is None and due and seen != self._seen:
            self._seen, self._spent_s = seen, 0.0
            self._reading = self._read(now_s)
        if self._is_small():
            while self._reading is not None:
                self.advance()

    @property
    def has_work(self) -> bool:
        """Whether an update is running."""
        return self._reading is not None

    def advance(self) -> None:
        """Run the update for one turn."""
        if self._reading is None:
            return
        began_s = time.monotonic()
        if next(self._reading, self) is self:
            self._reading = None
        self._spent_s += time.monotonic() - began_s

    def _is_small(self) -> bool:
        processes = self._ledger.processes.values()
        return sum(len(p.held) + len(p.routes) + p.group_chips // 8 for p in processes) <= SMALL

    def _read(self, now_s: float) -> Iterator[None]:
        lists: dict[Group, list[tuple[int, int]]] = {}
        known: dict[frozenset[int], frozenset[int]] = {}  # the same chips in another order
        for process in list(self._ledger.processes.values()):
            groups: dict[int, tuple[str, frozenset[int]]] = {}  # records share the tuple of their route
            routes = iter(list(process.routes.values()))
            while some := list(itertools.islice(routes, AT_ONCE // 8)):
                for route in some:
                    chips = frozenset(route.chips)
                    groups[id(route.chips)] = route.system, known.setdefault(chips, chips)
                yield
            buffers = iter(list(process.held.values()))
            while lot := list(itertools.islice(buffers, AT_ONCE)):
                for r in lot:
                    found = groups.get(id(r.chips))
                    if found is None:  # it came while this was read
                        route = process.route_of[id(r.chips)]
                        found = groups[id(r.chips)] = route.system, frozenset(route.chips)
                    key = (process.who.host, *found, POOL_OF[r.buffer_type])
                    lists.setdefault(key, []).append((r.address, r.address + r.bank_bytes))
                yield
        unions: dict[Group, list[Span]] = {}
        for key, spans in lists.items():
            unions[key] = yield from _union(spans)
        groups_of: dict[PoolKey, list[Group]] = {}
        for group in unions:
            host, system, members, pool = group
            for chip in members:
                groups_of.setdefault(((host, system, chip), pool), []).append(group)
            yield
        yield from self._find_free(unions, groups_of)
        self.time_s = now_s
        self._not_before_s = now_s + self._spent_s / SHARE

    def _find_free(self, unions: dict[Group, list[Span]], groups_of: dict[PoolKey, list[Group]]) -> Iterator[None]:
        known: dict[PoolKey, Free] = {}
        found: dict[tuple[object, ...], Free] = {}  # chips of one group have the same holes
        for (key, pool), groups in groups_of.items():
            device = self._ledger.devices.get(key)
            if device is None or device.facts is None:
                continue
            facts = device.facts
            base, size = (
                (facts.dram_base, facts.dram_bank_bytes) if pool == "DRAM" else (facts.l1_base, facts.l1_bank_bytes)
            )
            bank = Span(base, base + size)
            same = (bank, *map(id, groups))
            if same not in found:
                taken = yield from _union(span for group in groups for span in unions[group])
                found[same] = yield from _measure(bank, taken)
            known[key, pool] = found[same]
            yield
        self._known = known


def _union(spans: Iterable[tuple[int, int]]) -> Generator[None, None, list[Span]]:
    """The same addresses in as few spans as possible, in order; a generator that pauses and returns them at the end."""
    rest = iter(spans)
    lots: list[list[tuple[int, int]]] = []
    while lot := sorted(itertools.islice(rest, AT_ONCE)):
        lots.append(lot)
        yield
    merged: list[Span] = []
    start, end = 0, 0
    for number, (low, high) in enumerate(heapq.merge(*lots)):
        if low > end or number == 0:
            if end > start:
                merged.append(Span(start, end))
            start, end = low, high
        elif high > end:
            end = high
        if number % AT_ONCE == AT_ONCE - 1:
            yield
    if end > start:
        merged.append(Span(start, end))
    return merged


def _measure(bank: Span, taken: list[Span]) -> Generator[None, None, Free]:
    """What is free between spans in order that do not touch; a generator that pauses and returns it at the end."""
    total = largest = 0
    at = bank.start
    for number, (start, end) in enumerate([*taken, Span(bank.end, bank.end)]):
        hole = min(start, bank.end) - at
        if hole > 0:
            total += hole
            largest = max(largest, hole)
        at = max(at, end)
        if number % AT_ONCE == AT_ONCE - 1:
            yield
    return Free(total, largest)
