"""Answers to monitors' questions, read off the ledger."""

from __future__ import annotations

import heapq

from ttmesh.base.records import Allocated
from ttmesh.tracking import spans
from ttmesh.tracking.ledger import Account, Device, Ledger, Process
from ttmesh.tracking.leftovers import Ended
from ttmesh.tracking.spans import Span
from ttmesh.tracking.state import (
    POOLS,
    Answer,
    Buffers,
    BufferState,
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
from ttmesh.tracking.wire import Query

HOLES_EVERY_S = 1.0  # the map of holes reads every buffer; more often is not needed


class Answers:
    """Answers queries; keeps the map of free space for a second."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._taken: dict[tuple[str, tuple[int, ...], str], list[Span]] = {}
        self._taken_s = float("-inf")

    def answer(self, query: Query, server: ServerState) -> Answer:
        """What the query asks for."""
        if query.what == "state":
            return self.state(server)
        if query.what == "buffers":
            return self.buffers(query)
        if query.what == "history":
            return self.histories(query, server.now_s)
        return self.leaks()

    def state(self, server: ServerState) -> State:
        """Every device and every process."""
        if server.now_s - self._taken_s >= HOLES_EVERY_S:
            self._taken = self._read_taken()
            self._taken_s = server.now_s
        coordinators = {
            (process.who.host, mesh.chips[0].physical_id)
            for process in self._ledger.processes.values()
            for mesh in process.meshes.values()
            if mesh.parent_id is None and mesh.chips
        }
        free: dict[tuple[object, ...], spans.Free] = {}  # chips in lock-step have the same holes: find them once
        devices = [self._device(d, key in coordinators, free) for key, d in sorted(self._ledger.devices.items())]
        return State(server, devices, [_process(p) for p in self._ledger.processes.values()])

    def buffers(self, query: Query) -> Buffers:
        """The largest buffers of a device."""
        found = [
            (record, process)
            for process in self._ledger.processes.values()
            if process.who.host == query.host
            for record in process.held.values()
            if query.device in record.chips or query.device < 0
        ]
        largest = heapq.nlargest(query.limit, found, key=lambda pair: pair[0].size_bytes)
        reserved: list[tuple[str, str, int]] = [
            (r.label, r.buffer_type, r.size_bytes)
            for process in self._ledger.processes.values()
            if process.who.host == query.host
            for r in process.reserved.values()
            if query.device in r.chips or query.device < 0
        ]
        return Buffers([_buffer(r, p) for r, p in largest], len(found) - len(largest), reserved)

    def histories(self, query: Query, now_s: float) -> Histories:
        """How much each class of memory held, second by second."""
        return Histories(
            [
                HistoryState(
                    device.host,
                    device.physical_id,
                    kind,
                    account.history.window(now_s=now_s, length_s=query.window_s),
                )
                for (host, physical_id), device in sorted(self._ledger.devices.items())
                if query.device < 0 or (host, physical_id) == (query.host, query.device)
                for kind, account in device.accounts.items()
                if account.history
            ]
        )

    def leaks(self) -> Leaks:
        """What processes and meshes still held at their end."""
        living = [
            Ended(p.who, p.name, 0.0, True, [], p.leftovers, p.next, p.missed)
            for p in self._ledger.processes.values()
            if p.leftovers
        ]
        return Leaks(list(self._ledger.ended), living)

    def _read_taken(self) -> dict[tuple[str, tuple[int, ...], str], list[Span]]:
        taken: dict[tuple[str, tuple[int, ...], str], list[Span]] = {}
        pool_of = {kind: pool for pool, kinds in POOLS.items() for kind in kinds}
        for process in self._ledger.processes.values():
            for record in process.held.values():
                key = (process.who.host, record.chips, pool_of[record.buffer_type])
                taken.setdefault(key, []).append(Span(record.address, record.address + record.bank_bytes))
        return {key: spans.union(found) for key, found in taken.items()}

    def _device(self, device: Device, coordinates: bool, free: dict[tuple[object, ...], spans.Free]) -> DeviceState:
        facts = device.facts
        return DeviceState(
            host=device.host,
            physical_id=device.physical_id,
            logical_id=facts.logical_id if facts else device.physical_id,
            coord=facts.coord if facts else (),
            arch=facts.arch if facts else "",
            system=device.system,
            is_remote=facts.is_remote if facts else False,
            is_coordinator=coordinates,
            usage={kind: _usage(account) for kind, account in device.accounts.items()},
            pools={name: self._pool(device, name, free) for name in POOLS},
        )

    def _pool(self, device: Device, name: str, known: dict[tuple[object, ...], spans.Free]) -> Pool:
        used, peak = device.pools[name].used, device.pools[name].peak
        facts = device.facts
        if facts is None:
            return Pool(name, 0, used, peak, 0, Span(0, 0), 0, 0, 0.0)
        if name == "DRAM":
            banks, size, base, apart = facts.dram_banks, facts.dram_bank_bytes, facts.dram_base, facts.trace_bytes
        else:
            banks, size, base, apart = facts.l1_banks, facts.l1_bank_bytes, facts.l1_base, facts.l1_small_bytes
        bank = Span(base, base + size + apart)
        groups = tuple(
            key for key in self._taken if key[0] == device.host and key[2] == name and device.physical_id in key[1]
        )
        key = (groups, bank, size)
        if key not in known:
            taken = [span for group in groups for span in self._taken[group]]
            known[key] = spans.free(Span(base, base + size), taken)
        return Pool(name, banks * bank.length, used, peak, banks, bank, *known[key], known[key].fragmentation)


def _usage(account: Account) -> Usage:
    return Usage(account.used, account.count, account.peak)


def _process(process: Process) -> ProcessState:
    usage: dict[int, dict[str, Usage]] = {}
    for (chip, kind), account in process.accounts.items():
        usage.setdefault(chip, {})[kind] = _usage(account)
    return ProcessState(
        host=process.who.host,
        pid=process.who.pid,
        started=process.who.started,
        name=process.name,
        joined_s=process.joined_s,
        in_step=process.in_step,
        records=process.next,
        missed=process.missed,
        meshes=[mesh.shape for mesh in process.meshes.values()],
        usage=usage,
        marks=[Mark(m.label, m.time_ns) for m in process.marks],
        links=[LinkState(link.source, link.target, link.size_bytes) for link in process.links],
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
