"""Who holds what: a state machine over the clients' records, without sockets, clocks or printing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import msgspec

from ttmesh.base.records import Allocated, Closed, Event, Freed, Marked, Opened, Reserved
from ttmesh.tracking.holders import (
    LONGEST_NAME,
    Account,
    BufferKey,
    HeldMesh,
    Process,
    RecordRoute,
    ReservationKey,
    StagedSnapshot,
    reservation_key,
)
from ttmesh.tracking.leftovers import LeftoverSums, merge_leftovers
from ttmesh.tracking.process_table import Evict, Gone, LedgerError, ProcessTable
from ttmesh.tracking.state import POOLS
from ttmesh.tracking.weights import ACCOUNT_BYTES, RECORD_BYTES, ROUTE_BYTES, SHORT, weigh

# Limits of what processes can make the server store; docs/reliability.md adds them up.
MAX_MESHES = 4096  # of one process; also groups of chips, and reservations
MAX_GROUP_CHIPS = 1 << 20  # of one process, in all its groups together
LARGEST = 2**63 - 1  # largest counter that a peer can cause
WORK_AT_ONCE = 4000  # records and account changes per turn, some milliseconds
LEFTOVERS_WORK = 500  # of a mesh that is closed with buffers

POOL_OF = {kind: pool for pool, kinds in POOLS.items() for kind in kinds}
SYSTEM_CLASS = {"DRAM": "SYSTEM_DRAM", "TRACE": "SYSTEM_DRAM"}  # every other reservation is in L1


Watcher = Callable[[Process, bool, Allocated], None]


class Ledger(ProcessTable):
    """The memory of all processes and devices. `watch` is called for each buffer allocated (True) or freed (False).

    When all processes together exceed the limit, `evict` closes the connection of the largest one; `gone` is called
    when the buffers of a process that left are freed.
    """

    def __init__(self, watch: Watcher | None = None, evict: Evict | None = None, gone: Gone | None = None) -> None:
        super().__init__(evict, gone)
        self.records_seen = 0
        self._watch = watch
        self._work = 0  # work left in this turn
        self._route = RecordRoute("", (), [])  # the route with pending changes

    def leave(self, process: Process, *, orderly: bool, now_s: float) -> None:
        """Remove a process and everything it held from the totals; `departures` frees it."""
        self._settle()  # it may leave because of a record in the middle of a batch
        process.unfinished = None
        for mesh in process.meshes.values():
            self._count_coordinator(process, mesh, -1)
        process.meshes = {}
        for (system, chip, kind), account in process.accounts.items():
            device = self.devices[process.who.host, system, chip]
            for total in (device.accounts[kind], device.pools[POOL_OF[kind]]):
                total.add(-account.used, -account.count)
        for system, chip in process.chips:
            device = self.devices[process.who.host, system, chip]
            device.users -= 1
            device.openers -= (system, chip) in process.open_chips
            device.unused_since_s = now_s
        process.accounts, process.chips, process.open_chips, process.staged = {}, set(), {}, None
        self._remove(process)
        self.departures.add(process, orderly=orderly, now_s=now_s)

    def stage(self, process: Process, records: list[Event], *, first_part: bool) -> int:
        """Collect as many records of a snapshot as one turn allows; nothing changes until `apply_staged`."""
        if first_part or process.staged is None:
            process.staged = StagedSnapshot()
        taken = process.staged.add(records, WORK_AT_ONCE)
        self._count(process)
        return taken

    def apply_staged(self, process: Process, following: int, *, time_ns: int = 0) -> Iterator[None]:
        """Replace a process's buffers by the snapshot taken just before record `following`; a generator with pauses."""
        staged = process.staged or StagedSnapshot()
        process.in_step = False
        self._work = -WORK_AT_ONCE
        for mesh_id in process.meshes.keys() - staged.opened.keys():
            self._forget_mesh(process, mesh_id)
            yield from self._pause(process)
        for mesh in staged.opened.values():
            self._open(process, mesh)
            while process.unfinished is not None:
                yield from self._pause(process)
                self._run_unfinished(process)
            yield from self._pause(process)
        for key in [k for k in process.reserved if k not in staged.reserved]:
            self._unreserve(process, key)
            yield from self._pause(process)
        for reservation in staged.reserved.values():
            self._reserve(process, reservation)
            yield from self._pause(process)
        for buffer in [k for k in process.held if k not in staged.held]:
            self._free(process, buffer)
            yield from self._pause(process)
        for record in staged.held.values():
            self._allocate(process, record, time_ns)
            yield from self._pause(process)
        process.staged = None
        process.missed = min(LARGEST, process.missed + max(0, following - process.next))
        process.next = following
        process.in_step = True
        self._finish(process)

    def snapshot(self, process: Process, following: int, records: list[Event], *, time_ns: int = 0) -> None:
        """Apply a full snapshot at once."""
        taken = self.stage(process, records, first_part=True)
        while taken < len(records):
            taken += self.stage(process, records[taken:], first_part=False)
        for _ in self.apply_staged(process, following, time_ns=time_ns):
            pass

    def events(self, process: Process, first: int, records: list[Event], *, time_ns: int = 0) -> bool:
        """Apply records in order; False if earlier records are missing, so that a snapshot is needed."""
        taken = self.take_events(process, first, records, time_ns=time_ns)
        while taken < len(records) or process.unfinished:
            self.advance(process)
            taken += self.take_events(process, first + taken, records[taken:], time_ns=time_ns)
        return process.in_step

    def advance(self, process: Process) -> None:
        """Continue the work that a process's last record began, before any other of its records."""
        self._work = -WORK_AT_ONCE
        self._run_unfinished(process)
        self._finish(process)

    def take_events(self, process: Process, first: int, records: list[Event], *, time_ns: int = 0) -> int:
        """Apply as many records as one turn allows, at least one unless something is unfinished; returns how many."""
        if process.unfinished is not None:
            return 0
        skipped = 0
        if first > process.next:
            process.missed = min(LARGEST, process.missed + first - process.next)
            process.in_step = False
        elif first < process.next:
            skipped = min(process.next - first, len(records))
        self._work = -skipped - WORK_AT_ONCE  # plus the account changes that they cause
        at = skipped
        try:
            for record in records[skipped:] if skipped else records:
                if (self._work + at >= 0 and at > skipped) or process.unfinished:
                    break
                at += 1
                if isinstance(record, Allocated):
                    self._allocate(process, record, time_ns)
                elif isinstance(record, Freed):
                    self._free(process, (record.mesh_id, record.buffer_id))
                else:
                    self._take_rare(process, record)
        finally:
            process.next = max(process.next, first + at) if skipped else first + at
            self.records_seen += at - skipped
        self._finish(process)
        return at

    def tick(self, now_s: float) -> None:
        """Update histories once per second."""
        self._now_s = now_s
        self.devices.tick(now_s)

    def count(self, process: Process) -> None:
        """Count the memory of a process after a change outside its records."""
        self._finish(process)

    def _take_rare(self, process: Process, record: Event) -> None:
        if isinstance(record, Opened):
            self._open(process, record)
        elif isinstance(record, Closed):
            process.unfinished = self._close(process, record.mesh_id)
            self._run_unfinished(process)
        elif isinstance(record, Reserved):
            self._reserve(process, record)
        elif isinstance(record, Marked):
            process.mark(record)

    def _run_unfinished(self, process: Process) -> None:
        if process.unfinished is not None and next(process.unfinished, self) is self:
            process.unfinished = None

    def _pause(self, process: Process) -> Iterator[None]:
        self._work += 1
        if self._work >= 0:
            self._finish(process)
            yield
            self._work = -WORK_AT_ONCE

    def _finish(self, process: Process) -> None:
        """End a turn: update the totals and count the memory of the process."""
        self._settle()
        process.compact()
        self._count(process)

    def _open(self, process: Process, record: Opened) -> None:
        known = process.meshes.get(record.mesh_id)
        if known is None and len(process.meshes) >= MAX_MESHES:
            raise LedgerError(f"more than {MAX_MESHES} meshes are open in one process")
        chips = tuple(chip.physical_id for chip in record.chips)
        mesh = HeldMesh(record.shape, record.parent_id, chips, record.system[:LONGEST_NAME])
        self._charge(process, weigh(mesh))
        devices = [self._device(process, mesh.system, chip) for chip in chips]
        for device, facts in zip(devices, record.chips, strict=True):
            if mesh.parent_id is None or device.facts is None:  # coordinates are those of the full mesh
                device.facts = facts
            at = (device.system, device.physical_id)
            if at not in process.open_chips:
                device.open(self._now_s)
            process.open_chips[at] = process.open_chips.get(at, 0) + 1
        self._work += len(chips)
        self._forget_mesh(process, record.mesh_id)  # after the new one: a reshape closes no device
        process.meshes[record.mesh_id] = mesh
        self._count_coordinator(process, mesh, 1)
        if known is not None and known.chips != chips:  # after a reshape its reservations may be on other chips
            process.unfinished = self._unreserve_all(process, record.mesh_id)
            self._run_unfinished(process)

    def _forget_mesh(self, process: Process, mesh_id: int) -> None:
        mesh = process.meshes.pop(mesh_id, None)
        if mesh is not None:
            process.values_bytes -= weigh(mesh)
            self._count_coordinator(process, mesh, -1)
            for chip in mesh.chips:
                process.open_chips[mesh.system, chip] -= 1
                if not process.open_chips[mesh.system, chip]:
                    del process.open_chips[mesh.system, chip]
                    self.devices[process.who.host, mesh.system, chip].openers -= 1
            self._work += len(mesh.chips)

    def _count_coordinator(self, process: Process, mesh: HeldMesh, change: int) -> None:
        if mesh.parent_id is None and mesh.chips:
            self.devices[process.who.host, mesh.system, mesh.chips[0]].coordinates += change

    def _close(self, process: Process, mesh_id: int) -> Iterator[None]:
        """Free what a mesh still holds; a generator with pauses."""
        self._forget_mesh(process, mesh_id)
        lost = [key for key in process.held if key[0] == mesh_id]
        self._work += len(process.held) // 8
        sums = LeftoverSums("close")
        for key in lost:
            record = process.held.get(key)
            if record is not None:
                sums.add(record)
                self._free(process, key)
            yield from self._pause(process)
        if lost:
            self._work += LEFTOVERS_WORK
            process.set_leftovers(merge_leftovers([*process.leftovers, *sums.list_leftovers()]))
            self.departures.left += 1
        yield from self._unreserve_all(process, mesh_id)

    def _allocate(self, process: Process, record: Allocated, time_ns: int) -> None:
        key = (record.mesh_id, record.buffer_id)
        held = process.held
        mesh = process.meshes.get(record.mesh_id)
        system = mesh.system if mesh is not None else ""
        if (known := held.get(key)) is not None:  # a snapshot and the records around it may both contain it
            if record.site and not known.site:  # the record is queued after the table that a snapshot reads was changed
                known.site = process.texts.keep(record.site)
            if process.route_of[id(known.chips)].system != system:
                self._move(process, known, system)
            return
        route = process.routes.get((system, record.chips, record.buffer_type))
        if route is None:
            route = self._add_route(process, system, record.chips, record.buffer_type)
        record.chips = route.chips
        record.time_ns = record.time_ns or time_ns
        if len(record.label) > SHORT or not record.label.isascii():
            record.label = process.texts.keep(record.label[:LONGEST_NAME])
        if record.site:
            record.site = process.texts.keep(record.site)
        self._charge(process, RECORD_BYTES)
        held[key] = record
        if route is not self._route:
            self._settle(route)
        route.count += 1
        route.change = change = route.change + record.size_bytes
        if change > route.high:
            route.high = change
        if self._watch:
            self._watch(process, True, record)

    def _move(self, process: Process, record: Allocated, system: str) -> None:
        """Count a buffer on another system: it came before its mesh was known."""
        old, new = process.route_of[id(record.chips)], process.routes.get((system, record.chips, record.buffer_type))
        if new is None:
            new = self._add_route(process, system, record.chips, record.buffer_type)
        self._settle()
        for route, count in ((old, -1), (new, 1)):
            for account in route.accounts:
                account.add(count * record.size_bytes, count)
        self._work += len(old.accounts) + len(new.accounts)
        record.chips = new.chips

    def _free(self, process: Process, key: BufferKey) -> None:
        record = process.held.pop(key, None)
        if record is None:
            return
        process.values_bytes -= RECORD_BYTES
        if len(record.label) > SHORT or not record.label.isascii():
            process.texts.release(record.label)
        if record.site:
            process.texts.release(record.site)
        route = process.route_of[id(record.chips)]
        if route is not self._route:
            self._settle(route)
        route.count -= 1
        route.change = change = route.change - record.size_bytes
        if change < route.low:
            route.low = change
        if self._watch:
            self._watch(process, False, record)

    def _reserve(self, process: Process, record: Reserved) -> None:
        if len(record.label) > LONGEST_NAME:
            record = Reserved(
                record.mesh_id,
                record.chips,
                record.buffer_type,
                record.size_bytes,
                record.label[:LONGEST_NAME],
                record.time_ns,
            )
        key = reservation_key(record)
        mesh = process.meshes.get(record.mesh_id)
        system, kind = mesh.system if mesh is not None else "", SYSTEM_CLASS.get(record.buffer_type, "SYSTEM_L1")
        known = process.reserved.get(key)
        if known == record and known is not None and process.route_of[id(known.chips)].system == system:
            return
        self._unreserve(process, key)
        if len(process.reserved) >= MAX_MESHES:
            raise LedgerError(f"one process makes more than {MAX_MESHES} reservations")
        self._charge(process, weigh(record) + sys.getsizeof(key))
        route = process.routes.get((system, record.chips, kind))
        if route is None:
            route = self._add_route(process, system, record.chips, kind)
        process.reserved[key] = msgspec.structs.replace(record, chips=route.chips)
        self._add_system(route, record.size_bytes)

    def _unreserve(self, process: Process, key: ReservationKey) -> None:
        record = process.reserved.pop(key, None)
        if record is not None:
            process.values_bytes -= weigh(record) + sys.getsizeof(key)
            self._add_system(process.route_of[id(record.chips)], -record.size_bytes)

    def _unreserve_all(self, process: Process, mesh_id: int) -> Iterator[None]:
        self._work += len(process.reserved)
        for reservation in [key for key in process.reserved if key[0] == mesh_id]:
            self._unreserve(process, reservation)
            yield from self._pause(process)

    def _add_system(self, route: RecordRoute, size_bytes: int) -> None:
        self._settle()
        for account in route.accounts:
            account.add(size_bytes, 0)
            self._work += 1

    def _settle(self, following: RecordRoute | None = None) -> None:
        self._work += self._route.settle()
        if following is not None:
            self._route = following

    def _add_route(self, process: Process, system: str, chips: tuple[int, ...], kind: str) -> RecordRoute:
        process.group_chips += len(chips)
        if len(process.routes) >= MAX_MESHES or process.group_chips > MAX_GROUP_CHIPS:
            raise LedgerError(
                f"one process uses more than {MAX_MESHES} different groups of chips, or {MAX_GROUP_CHIPS} chips in them"
            )
        kind = sys.intern(kind)
        new = sum((system, chip, kind) not in process.accounts for chip in chips)
        self._charge(process, ROUTE_BYTES + weigh(system) + weigh(chips) + 24 * len(chips) + ACCOUNT_BYTES * new)
        self._work += len(chips)
        devices = [self._device(process, system, chip) for chip in chips]
        accounts = [device.find_account(kind) for device in devices]
        accounts += [device.pools[POOL_OF[kind]] for device in devices]
        for device in devices:
            key = (device.system, device.physical_id, kind)
            known = process.accounts.get(key)
            if known is None:
                known = process.accounts[key] = Account()
            accounts.append(known)
        chips = (*chips,)  # an object of its own, which the records of this route share
        route = RecordRoute(
            devices[0].system if devices else system, chips, accounts[:]
        )  # a copy has no spare capacity
        process.routes[route.system, chips, kind] = process.route_of[id(chips)] = route
        return route
