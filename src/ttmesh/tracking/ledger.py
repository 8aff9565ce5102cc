"""Who holds what: a state machine over the clients' records, without sockets, clocks or printing."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable

from ttmesh.base.records import Allocated, ChipFacts, Closed, Event, Freed, Marked, Opened, Reserved
from ttmesh.tracking.history import History
from ttmesh.tracking.leftovers import Ended, Leftover, sum_up
from ttmesh.tracking.state import POOLS
from ttmesh.tracking.wire import Link, Who

# The bounds of the server's memory, together with wire.MAX_BODY and server.MAX_CONNECTIONS.
MAX_HELD = 250_000  # buffers of one process; 0.62 KB each (measured with 8 chips and a short label)
MAX_HELD_BY_ALL = 1_000_000
MAX_DEVICES = 256  # each has up to 8 histories of 121 KB
MAX_MESHES = 4096  # of one process
LONGEST_LABEL = 500
MARKS_KEPT = 100
ENDED_KEPT = 64

POOL_OF = {kind: pool for pool, kinds in POOLS.items() for kind in kinds}
SYSTEM_CLASS = {"DRAM": "SYSTEM_DRAM", "TRACE": "SYSTEM_DRAM"}  # every other reservation lies in L1

BufferKey = tuple[int, int]


class LedgerError(Exception):
    """A client asks for more than the server keeps; the text says what."""


class Account:
    """Bytes and buffers of one class of memory, or of a pool, on one device: now, and the extremes since a tick."""

    __slots__ = ("_peak", "count", "high", "history", "low", "used")

    def __init__(self, history: History | None = None) -> None:
        self.used = self.count = self.low = self.high = self._peak = 0
        self.history = history

    @property
    def peak(self) -> int:
        """The most that was ever held."""
        return max(self._peak, self.high)

    def tick(self, now_s: float) -> None:
        """Write the extremes down and start anew."""
        if self.history:
            self.history.push(now_s, self.low, self.high, self.used)
        self._peak = self.peak
        self.low = self.high = self.used

    def add(self, size_bytes: int, count: int, *, low: int = 0, high: int = 0) -> None:
        """Change what is held; `low` and `high` are the furthest that it went on the way."""
        used = self.used
        self.low = min(self.low, used + min(low, size_bytes))
        self.high = max(self.high, used + max(high, size_bytes))
        self.used = used + size_bytes
        self.count += count


class Route:
    """The accounts that a buffer of one class on some chips counts in.

    Chips in lock-step change alike: the changes are summed here and reach the accounts when another route's turn comes.
    """

    __slots__ = ("accounts", "change", "count", "high", "low")

    def __init__(self, accounts: list[Account]) -> None:
        self.accounts = accounts
        self.change = self.count = self.low = self.high = 0

    def settle(self) -> None:
        """Tell the accounts."""
        for account in self.accounts:
            account.add(self.change, self.count, low=self.low, high=self.high)
        self.change = self.count = self.low = self.high = 0


class Device:
    """One physical chip of one host."""

    __slots__ = ("accounts", "facts", "host", "physical_id", "pools", "system")

    def __init__(self, host: str, physical_id: int) -> None:
        self.host = host
        self.physical_id = physical_id
        self.facts: ChipFacts | None = None
        self.system = ""
        self.accounts: dict[str, Account] = {}
        self.pools = {name: Account() for name in POOLS}


class Process:
    """What one connected process holds."""

    def __init__(self, who: Who, name: str, now_s: float) -> None:
        self.who = who
        self.name = name
        self.joined_s = now_s
        self.next = 0
        self.missed = 0
        self.in_step = False
        self.owner: object = None  # the connection that speaks for it
        self.meshes: dict[int, Opened] = {}
        self.held: dict[BufferKey, Allocated] = {}
        self.reserved: dict[tuple[int, tuple[int, ...], str, str], Reserved] = {}
        self.accounts: dict[tuple[int, str], Account] = {}
        self.routes: dict[tuple[tuple[int, ...], str], Route] = {}
        self.marks: deque[Marked] = deque(maxlen=MARKS_KEPT)
        self.links: list[Link] = []
        self.leftovers: list[Leftover] = []


Watcher = Callable[[Process, bool, Allocated], None]


class Ledger:
    """Every process, every device. `watch` is told of each buffer that comes (True) or goes (False)."""

    def __init__(self, watch: Watcher | None = None) -> None:
        self.processes: dict[Who, Process] = {}
        self.devices: dict[tuple[str, int], Device] = {}
        self.ended: deque[Ended] = deque(maxlen=ENDED_KEPT)
        self.records_seen = 0
        self._watch = watch
        self._route = Route([])  # the one whose changes are not settled yet

    def join(self, who: Who, name: str, now_s: float) -> Process:
        """A process connects; one that was thought dead goes on where it was."""
        process = self.processes.get(who)
        if process is None:
            process = self.processes[who] = Process(who, name, now_s)
            for ended in [e for e in self.ended if e.who == who]:
                process.next, process.missed, process.leftovers = ended.next, ended.missed, ended.at_close
                self.ended.remove(ended)
        process.in_step = False
        return process

    def leave(self, process: Process, *, orderly: bool, now_s: float) -> Ended:
        """A process is gone and so is everything it held."""
        self._settle()  # it may leave because of a record in the middle of a batch
        held = sum_up("exit" if orderly else "death", process.held.values())
        ended = Ended(process.who, process.name, now_s, orderly, held, process.leftovers, process.next, process.missed)
        self.ended.append(ended)
        for (chip, kind), account in process.accounts.items():
            device = self.devices[process.who.host, chip]
            for total in (device.accounts[kind], device.pools[POOL_OF[kind]]):
                total.add(-account.used, -account.count)
        if self.processes.get(process.who) is process:
            del self.processes[process.who]
        return ended

    def snapshot(self, process: Process, following: int, records: list[Event], *, time_ns: int = 0) -> None:
        """Replace what a process holds by a full account of it, taken just before record number `following`."""
        self._check_room()
        opened = {r.mesh_id: r for r in records if isinstance(r, Opened)}
        held = {(r.mesh_id, r.buffer_id): r for r in records if isinstance(r, Allocated)}
        reserved = {_reservation(r): r for r in records if isinstance(r, Reserved)}
        for mesh_id in process.meshes.keys() - opened.keys():
            del process.meshes[mesh_id]
        for mesh in opened.values():
            self._open(process, mesh)
        for key in [k for k in process.reserved if k not in reserved]:
            self._unreserve(process, key)
        for reservation in reserved.values():
            self._reserve(process, reservation)
        for buffer in [k for k in process.held if k not in held]:
            self._free(process, buffer)
        for record in held.values():
            self._allocate(process, record, time_ns)
        self._settle()
        process.missed += max(0, following - process.next)
        process.next = following
        process.in_step = True

    def events(self, process: Process, first: int, records: list[Event], *, time_ns: int = 0) -> bool:
        """Take records in order; False when some before them never came, and a snapshot is needed."""
        if first > process.next:
            process.missed += first - process.next
            process.in_step = False
        elif first < process.next:
            records = records[process.next - first :]
            first = process.next
        process.next = first + len(records)
        self.records_seen += len(records)
        self._check_room()
        for record in records:
            if isinstance(record, Allocated):
                self._allocate(process, record, time_ns)
            elif isinstance(record, Freed):
                self._free(process, (record.mesh_id, record.buffer_id))
            elif isinstance(record, Opened):
                self._open(process, record)
            elif isinstance(record, Closed):
                self._close(process, record.mesh_id)
            elif isinstance(record, Reserved):
                self._reserve(process, record)
            else:
                process.marks.append(record)
        self._settle()
        return process.in_step

    def tick(self, now_s: float) -> None:
        """A second has passed."""
        for device in self.devices.values():
            for account in (*device.accounts.values(), *device.pools.values()):
                account.tick(now_s)

    def device(self, host: str, physical_id: int) -> Device:
        """The device of that name, known from now on."""
        device = self.devices.get((host, physical_id))
        if device is None:
            if len(self.devices) >= MAX_DEVICES:
                raise LedgerError(f"device {physical_id} would be one more than the {MAX_DEVICES} that are kept")
            device = self.devices[host, physical_id] = Device(host, physical_id)
        return device

    def _check_room(self) -> None:
        if sum(len(process.held) for process in self.processes.values()) > MAX_HELD_BY_ALL:
            raise LedgerError(f"all processes together hold more than {MAX_HELD_BY_ALL} buffers")

    def _open(self, process: Process, mesh: Opened) -> None:
        known = process.meshes.get(mesh.mesh_id)
        if known is None and len(process.meshes) >= MAX_MESHES:
            raise LedgerError(f"more than {MAX_MESHES} meshes are open in one process")
        process.meshes[mesh.mesh_id] = mesh
        for chip in mesh.chips:
            device = self.device(process.who.host, chip.physical_id)
            if mesh.parent_id is None or device.facts is None:  # coordinates are those of the whole mesh
                device.facts, device.system = chip, mesh.system
        if known is not None and known.chips != mesh.chips:  # reshaped: its reservations follow, on other chips maybe
            self._unreserve_all(process, mesh.mesh_id)

    def _close(self, process: Process, mesh_id: int) -> None:
        process.meshes.pop(mesh_id, None)
        lost = [key for key in process.held if key[0] == mesh_id]
        left = sum_up(f"close of mesh {mesh_id}", (process.held[key] for key in lost))
        process.leftovers = [*process.leftovers, *left][-256:]
        for key in lost:
            self._free(process, key)
        self._unreserve_all(process, mesh_id)

    def _allocate(self, process: Process, record: Allocated, time_ns: int) -> None:
        key = (record.mesh_id, record.buffer_id)
        held = process.held
        if (known := held.get(key)) is not None:  # a snapshot and the records around it may both tell of it
            known.site = known.site or record.site  # it is written down after the table that a snapshot reads
            return
        if len(held) >= MAX_HELD:
            raise LedgerError(f"one process holds more than {MAX_HELD} buffers")
        route = self._route_of(process, record.chips, record.buffer_type)
        record.time_ns = record.time_ns or time_ns
        if len(record.label) > LONGEST_LABEL:
            record.label = record.label[:LONGEST_LABEL]
        held[key] = record
        if route is not self._route:
            self._settle(route)
        route.count += 1
        route.change = change = route.change + record.size_bytes
        if change > route.high:
            route.high = change
        if self._watch:
            self._watch(process, True, record)

    def _free(self, process: Process, key: BufferKey) -> None:
        record = process.held.pop(key, None)
        if record is None:
            return
        route = process.routes[record.chips, record.buffer_type]
        if route is not self._route:
            self._settle(route)
        route.count -= 1
        route.change = change = route.change - record.size_bytes
        if change < route.low:
            route.low = change
        if self._watch:
            self._watch(process, False, record)

    def _reserve(self, process: Process, record: Reserved) -> None:
        key = _reservation(record)
        if process.reserved.get(key) == record:
            return
        self._unreserve(process, key)
        if len(process.reserved) >= MAX_MESHES:
            raise LedgerError(f"one process makes more than {MAX_MESHES} reservations")
        process.reserved[key] = record
        self._system(process, record, record.size_bytes)

    def _unreserve(self, process: Process, key: tuple[int, tuple[int, ...], str, str]) -> None:
        record = process.reserved.pop(key, None)
        if record is not None:
            self._system(process, record, -record.size_bytes)

    def _unreserve_all(self, process: Process, mesh_id: int) -> None:
        for reservation in [key for key in process.reserved if key[0] == mesh_id]:
            self._unreserve(process, reservation)

    def _system(self, process: Process, record: Reserved, size_bytes: int) -> None:
        self._settle()
        for account in self._route_of(
            process, record.chips, SYSTEM_CLASS.get(record.buffer_type, "SYSTEM_L1")
        ).accounts:
            account.add(size_bytes, 0)

    def _settle(self, following: Route | None = None) -> None:
        self._route.settle()
        if following is not None:
            self._route = following

    def _route_of(self, process: Process, chips: tuple[int, ...], kind: str) -> Route:
        route = process.routes.get((chips, kind))
        if route is not None:
            return route
        if len(process.routes) >= MAX_MESHES:
            raise LedgerError(f"one process uses more than {MAX_MESHES} different groups of chips")
        kind = sys.intern(kind)
        devices = [self.device(process.who.host, chip) for chip in chips]
        accounts = [d.accounts.setdefault(kind, Account(History())) for d in devices]
        accounts += [d.pools[POOL_OF[kind]] for d in devices]
        accounts += [process.accounts.setdefault((chip, kind), Account()) for chip in chips]
        route = process.routes[chips, kind] = Route(accounts)
        return route


def _reservation(record: Reserved) -> tuple[int, tuple[int, ...], str, str]:
    return (record.mesh_id, record.chips, record.buffer_type, record.label)
