"""Answers to monitors' queries from the ledger, with bounded size and bounded work per turn."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from sys import getsizeof
from typing import TypeVar

from ttmesh.base.records import Allocated
from ttmesh.tracking.free_space import FreeSpace
from ttmesh.tracking.history import HistoryWindow, Point
from ttmesh.tracking.holders import Account, Device, Process, RecordRoute
from ttmesh.tracking.ledger import Ledger
from ttmesh.tracking.leftovers import LARGEST, Ended
from ttmesh.tracking.spans import Span
from ttmesh.tracking.state import (
    POOLS,
    Answer,
    Buffers,
    BufferState,
    DeviceKey,
    DeviceState,
    Histories,
    HistoryState,
    Leaks,
    LinkState,
    Mark,
    Pool,
    ProcessState,
    ServerState,
    State,
    Usage,
)
from ttmesh.tracking.weights import weigh
from ttmesh.tracking.wire import Query

REPLY_BYTES = 4 << 20  # about; entries that do not fit are left out and counted
USAGE_BYTES, POINT_BYTES, DEVICE_BYTES, BUFFER_BYTES = 24, 24, 900, 160  # estimated size when encoded, rather too high
MESHES_SHOWN = 64  # of one process
CLOSED_SHOWN = 64  # devices that no process has open any more, with their histories
AT_ONCE = 4096  # buffers visited per turn
BYTES_AT_ONCE = 1 << 17  # of histories that are compared per turn; making points of them takes ten times as long

T = TypeVar("T")


class Answers:
    """Answers queries; a reply is at most REPLY_BYTES and says how much it leaves out."""

    def __init__(self, ledger: Ledger) -> None:
        self.free_space = FreeSpace(ledger)
        self._ledger = ledger

    def answer(self, query: Query, server: ServerState) -> Iterator[Answer | None]:
        """Yields None at every pause, then the reply."""
        if query.what == "state":
            yield self.state(server)
        elif query.what == "buffers":
            yield from self._find_buffers(query)
        elif query.what == "history":
            yield from self._find_histories(query, server.now_s)
        else:
            departures = self._ledger.departures
            before = departures.begun
            while departures.finished < before:  # what they held is not summed up yet
                departures.advance()
                yield None
            yield self.leaks()

    def state(self, server: ServerState) -> State:
        """Every device and process; if not all fit, the processes with the smallest entries."""
        self.free_space.refresh(server.now_s)
        devices = [self._device(device) for _, device in sorted(self._ledger.devices.items()) if device.is_open]
        room = REPLY_BYTES - DEVICE_BYTES * len(devices)
        processes = self._ledger.processes.values()
        shown: set[int] = set()
        for process in sorted(processes, key=_process_bytes):
            room -= _process_bytes(process)
            if room < 0:
                break
            shown.add(id(process))
        listed = [_process(process) for process in processes if id(process) in shown]
        return State(server, devices, listed, len(processes) - len(listed))

    def buffers(self, query: Query) -> Buffers:
        """The largest buffers of a device."""
        return next(answer for answer in self._find_buffers(query) if answer is not None)

    def histories(self, query: Query, now_s: float) -> Histories:
        """Bytes held of each pool over time, of devices that are open and of those that were."""
        return next(answer for answer in self._find_histories(query, now_s) if answer is not None)

    def leaks(self) -> Leaks:
        """What processes and meshes still held at their end."""
        living = [
            Ended(p.who, p.name, 0.0, True, [], p.leftovers, p.next, p.missed)
            for p in sorted(self._ledger.processes.values(), key=lambda p: len(p.leftovers))
            if p.leftovers
        ]
        ended = list(self._ledger.departures.ended)
        shown_ended = _fit(ended[::-1], REPLY_BYTES // 2)[::-1]
        shown_living = _fit(living, REPLY_BYTES // 2)
        left_out = len(ended) + len(living) - len(shown_ended) - len(shown_living)
        return Leaks(shown_ended, shown_living, left_out)

    def _find_histories(self, query: Query, now_s: float) -> Iterator[Histories | None]:
        series: list[HistoryState] = []
        curves: list[list[Point]] = []
        numbers: dict[HistoryWindow, int] = {}
        room, left_out, visited_bytes = REPLY_BYTES, 0, 0
        for key, device in self._list_devices_with_past(query):
            for pool, account in device.pools.items():
                if account.history is None:
                    continue
                if room <= 0:
                    left_out += 1
                    continue
                window = account.history.window(now_s=now_s, length_s=query.window_s)
                visited_bytes += 500 + len(window.values)
                number = numbers.setdefault(window, len(curves))
                if number == len(curves):
                    curves.append(window.points(query.points))
                    room -= POINT_BYTES * len(curves[number])
                    visited_bytes += 240 * window.steps
                room -= 2 * (len(device.host) + len(device.system)) + 50
                series.append(HistoryState(*key, pool, device.is_open, number))
            if visited_bytes >= BYTES_AT_ONCE:
                visited_bytes = 0
                yield None
        yield Histories(series, curves, left_out)

    def _list_devices_with_past(self, query: Query) -> list[tuple[DeviceKey, Device]]:
        """The device that was asked for; else open ones and those that were closed last, shortest names first."""
        if query.device >= 0:
            key = query.host, query.system, query.device
            return [(key, self._ledger.devices[key])] if key in self._ledger.devices else []
        found = sorted(self._ledger.devices.items(), key=lambda each: (len(each[0][0]) + len(each[0][1]), each[0]))
        closed = [device for _, device in found if not device.is_open]
        shown = {device.key for device in heapq.nlargest(CLOSED_SHOWN, closed, key=lambda one: one.unused_since_s)}
        return [(key, device) for key, device in found if device.is_open or key in shown]

    def _find_buffers(self, query: Query) -> Iterator[Buffers | None]:
        wanted = [p for p in list(self._ledger.processes.values()) if p.who.host == query.host]
        limit = min(query.limit, REPLY_BYTES * 3 // 4 // BUFFER_BYTES)  # more do not fit
        largest: list[tuple[Allocated, Process]] = []
        count = smallest = 0
        for process in wanted:
            groups: set[int] = set()  # records share the tuple of their route
            routes = iter(list(process.routes.values()))
            while some := list(itertools.islice(routes, AT_ONCE // 16)):
                groups |= {id(r.chips) for r in some if query.device < 0 or _is_on(r, query)}
                yield None
            if not groups:
                continue
            held = iter(list(process.held.values()))
            while lot := list(itertools.islice(held, AT_ONCE)):
                here = [r for r in lot if id(r.chips) in groups]
                count += len(here)
                largest += [(r, process) for r in here if r.size_bytes > smallest]
                yield None
                if len(largest) > limit + 2 * AT_ONCE:
                    largest, smallest = _keep_largest(largest, limit)
                    yield None
        largest.sort(key=_size, reverse=True)
        del largest[limit:]
        yield None
        reserved: list[tuple[str, str, int]] = []
        for process in wanted:
            if process.reserved:
                reserved += [
                    (r.label, r.buffer_type, r.size_bytes)
                    for r in process.reserved.values()
                    if query.device < 0 or _is_on(process.route_of[id(r.chips)], query)
                ]
                yield None
        fitting = iter(_fit_pairs(largest, REPLY_BYTES * 3 // 4))
        buffers: list[BufferState] = []
        while shown := [_buffer(r, p) for r, p in itertools.islice(fitting, AT_ONCE // 4)]:
            buffers += shown
            yield None
        yield Buffers(buffers, count - len(buffers), _fit(reserved, REPLY_BYTES // 4))

    def _device(self, device: Device) -> DeviceState:
        facts = device.facts
        return DeviceState(
            host=device.host,
            physical_id=device.physical_id,
            logical_id=facts.logical_id if facts else device.physical_id,
            coord=facts.coord if facts else (),
            arch=facts.arch if facts else "",
            system=device.system,
            is_remote=facts.is_remote if facts else False,
            is_coordinator=device.coordinates > 0,
            usage={kind: _usage(account) for kind, account in device.accounts.items()},
            pools={name: self._pool(device, name) for name in POOLS},
            position=facts.position if facts else (),
            links=facts.links if facts else (),
        )

    def _pool(self, device: Device, name: str) -> Pool:
        used, peak = device.pools[name].used, device.pools[name].peak
        facts = device.facts
        if facts is None:
            return Pool(name, 0, used, peak, 0, Span(0, 0), 0, 0, 0.0)
        if name == "DRAM":
            banks, size, base, extra = facts.dram_banks, facts.dram_bank_bytes, facts.dram_base, facts.trace_bytes
        else:
            banks, size, base, extra = facts.l1_banks, facts.l1_bank_bytes, facts.l1_base, facts.l1_small_bytes
        bank = Span(base, base + size + extra)
        free = self.free_space.of(device.key, name, Span(base, base + size))
        # The banks' whole memory: what the system keeps for itself is below their first address for buffers.
        return Pool(name, banks * bank.end, used, peak, banks, bank, *free, free.fragmentation)


def _is_on(route: RecordRoute, query: Query) -> bool:
    return query.device in route.chips and route.system == query.system


def _keep_largest(pairs: list[tuple[Allocated, Process]], limit: int) -> tuple[list[tuple[Allocated, Process]], int]:
    """The largest pairs in their order, and the size of the smallest of them."""
    if not limit:
        return [], LARGEST
    smallest = sorted([record.size_bytes for record, _ in pairs])[-limit]
    kept = [pair for pair in pairs if pair[0].size_bytes > smallest]
    equal = (pair for pair in pairs if pair[0].size_bytes == smallest)
    return [*kept, *itertools.islice(equal, limit - len(kept))], smallest


def _size(pair: tuple[Allocated, Process]) -> int:
    return pair[0].size_bytes


def _fit(values: list[T], room_bytes: int) -> list[T]:
    """The first values that fit into this many bytes."""
    for number, value in enumerate(values):
        room_bytes -= weigh(value)
        if room_bytes < 0:
            return values[:number]
    return values


def _fit_pairs(pairs: list[tuple[Allocated, Process]], room_bytes: int) -> list[tuple[Allocated, Process]]:
    for number, (record, _) in enumerate(pairs):
        room_bytes -= BUFFER_BYTES + getsizeof(record.label) + getsizeof(record.site)
        if room_bytes < 0:
            return pairs[:number]
    return pairs


def _process_bytes(process: Process) -> int:
    names = 4 * len(process.name) + sum(4 * len(mark.label) + 10 for mark in process.marks)
    return 200 + USAGE_BYTES * len(process.accounts) + names + _links_bytes(process)


def _links_bytes(process: Process) -> int:
    return sum(4 * len(system) + 16 * len(links) for system, links in process.links.items())


def _usage(account: Account) -> Usage:
    return Usage(account.used, account.count, account.peak)


def _process(process: Process) -> ProcessState:
    usage: dict[str, dict[int, dict[str, Usage]]] = {}
    for (system, chip, kind), account in process.accounts.items():
        if account.count or account.used or (system, chip) in process.open_chips:
            usage.setdefault(system, {}).setdefault(chip, {})[kind] = _usage(account)
    return ProcessState(
        host=process.who.host,
        pid=process.who.pid,
        started=process.who.started,
        name=process.name,
        joined_s=process.joined_s,
        in_step=process.in_step,
        records=process.next,
        missed=process.missed,
        meshes=[mesh.shape for mesh in itertools.islice(process.meshes.values(), MESHES_SHOWN)],
        usage=usage,
        marks=[Mark(m.label, m.time_ns) for m in process.marks],
        links={s: [LinkState(n.source, n.target, n.size_bytes) for n in links] for s, links in process.links.items()},
    )


def _buffer(record: Allocated, process: Process) -> BufferState:
    return BufferState(
        pid=process.who.pid,
        mesh_id=record.mesh_id,
        buffer_id=record.buffer_id,
        buffer_type=record.buffer_type,
        address=record.address,
        size_bytes=record.size_bytes,
        bank_bytes=record.bank_bytes,
        label=record.label,
        site=record.site,
        time_ns=record.time_ns,
    )
