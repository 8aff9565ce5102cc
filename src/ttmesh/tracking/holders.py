"""Processes and devices that hold memory, with their accounts and their cost in the server's own memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from sys import getsizeof

from msgspec import Struct

from ttmesh.base.records import Allocated, ChipFacts, Event, Marked, Opened, Reserved
from ttmesh.tracking.history import DAY, History
from ttmesh.tracking.leftovers import Leftover
from ttmesh.tracking.state import POOLS, DeviceKey
from ttmesh.tracking.weights import LINK_BYTES, PROCESS_BYTES, weigh
from ttmesh.tracking.wire import Link, Who

MARKS_KEPT = 100
LONGEST_NAME = 500
MAX_DEVICES = 1024
MAX_SERIES = 2 * MAX_DEVICES  # histories of 121 KB, of all devices together
FORGET_S = float(DAY)  # how long the history of an unused device is kept
MAX_SYSTEMS = 64  # of one process, of which link traffic is kept
MAX_TEXTS_BYTES = 32 << 20  # of one process
SYSTEM_BYTES = 256  # of a system besides its name and links
TEXT_BYTES = 160  # of a text besides its characters: its reference count and its row in a table
SPARSE = 8  # a table that is this many times too large is copied

BufferKey = tuple[int, int]
ReservationKey = tuple[int, tuple[int, ...], str, str]


class Account:
    """Bytes and buffers of one class of memory, or of a pool, on one device: now, and the extremes since a tick."""

    __slots__ = ("_peak", "count", "high", "history", "low", "used")

    def __init__(self, history: History | None = None) -> None:
        self.used = self.count = self.low = self.high = self._peak = 0
        self.history = history

    @property
    def peak(self) -> int:
        """The most bytes held since the device was opened."""
        return max(self._peak, self.high)

    def tick(self, now_s: float) -> None:
        """Store the extremes in the history, which repeats the last value where nothing is stored, and reset them."""
        if self.low != self.high or self.high > self._peak or (self.history and self.history.seconds.oldest_s < 0):
            if self.history:
                self.history.push(now_s, self.low, self.high, self.used)
            self._peak = self.peak
            self.low = self.high = self.used

    def restart(self, now_s: float) -> None:
        """Begin a new peak."""
        if self.low != self.high:  # of this second, by those who had it open before
            self.tick(now_s)
        self._peak = self.used

    def add(self, size_bytes: int, count: int) -> None:
        """Add to the bytes held."""
        self.used += size_bytes
        self.count += count
        self.low = min(self.low, self.used)
        self.high = max(self.high, self.used)


class Device:
    """One physical chip of one system of one host."""

    __slots__ = (
        "accounts",
        "coordinates",
        "facts",
        "host",
        "openers",
        "physical_id",
        "pools",
        "system",
        "unused_since_s",
        "users",
    )

    def __init__(self, key: DeviceKey) -> None:
        self.host, self.system, self.physical_id = key
        self.facts: ChipFacts | None = None
        self.accounts: dict[str, Account] = {}
        self.pools = {name: Account() for name in POOLS}
        self.users = 0  # processes that named it, whose records may still refer to its accounts
        self.openers = 0  # processes with an open mesh on it
        self.coordinates = 0  # meshes that it coordinates
        self.unused_since_s = float("inf")

    @property
    def key(self) -> DeviceKey:
        """Its unique name."""
        return self.host, self.system, self.physical_id

    @property
    def is_open(self) -> bool:
        """Whether a process has it open or holds something on it; otherwise only its history is left."""
        return self.openers > 0 or any(pool.count or pool.used for pool in self.pools.values())

    @property
    def series(self) -> int:
        """The number of its histories."""
        return sum(pool.history is not None for pool in self.pools.values())

    def find_account(self, kind: str) -> Account:
        """The account of one class of memory, which is added if it is new."""
        account = self.accounts.get(kind)
        if account is None:
            account = self.accounts[kind] = Account()
        return account

    def open(self, now_s: float) -> None:
        """One more process has it open; the first one resets the peaks."""
        if not self.is_open:
            for account in (*self.accounts.values(), *self.pools.values()):
                account.restart(now_s)
        self.openers += 1

    def tick(self, now_s: float) -> None:
        """Update the history."""
        for account in self.accounts.values():
            account.tick(now_s)
        for pool in self.pools.values():
            pool.tick(now_s)


class DeviceTable(dict[DeviceKey, Device]):
    """Devices by host, system and physical id, kept while a process uses them and for a while afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.series = 0  # histories of all devices

    @property
    def is_full(self) -> bool:
        """Whether no device can be added unless one is forgotten."""
        return len(self) >= MAX_DEVICES

    def add(self, key: DeviceKey) -> Device:
        """A new device, with histories if there is room for them."""
        while self.series + len(POOLS) > MAX_SERIES and self.forget_oldest():
            pass
        device = self[key] = Device(key)
        if self.series + len(POOLS) <= MAX_SERIES:
            for pool in device.pools.values():
                pool.history = History()
            self.series += device.series
        return device

    def forget_oldest(self) -> bool:
        """Drop the device that is unused for the longest time; False if all are used."""
        unused = [device for device in self.values() if not device.users]
        if not unused:
            return False
        self._forget(min(unused, key=lambda device: device.unused_since_s))
        return True

    def tick(self, now_s: float) -> None:
        """Update histories once per second."""
        for device in list(self.values()):
            device.tick(now_s)
            if not device.users and now_s - device.unused_since_s > FORGET_S:
                self._forget(device)

    def _forget(self, device: Device) -> None:
        self.series -= device.series
        del self[device.key]


class RecordRoute:
    """The accounts that a buffer of one class on some chips of a system counts in.

    All its chips change in the same way: changes are summed here and added to the accounts when another route is used.
    Its records refer to it by their `chips`, a tuple that no other route has.
    """

    __slots__ = ("accounts", "change", "chips", "count", "high", "low", "system")

    def __init__(self, system: str, chips: tuple[int, ...], accounts: list[Account]) -> None:
        self.system = system
        self.chips = chips
        self.accounts = accounts
        self.change = self.count = self.low = self.high = 0

    def settle(self) -> int:
        """Add the pending changes to the accounts; returns how many accounts there are."""
        if not (self.change or self.count or self.low or self.high):
            return 0
        change, count, low, high = self.change, self.count, min(self.low, self.change), max(self.high, self.change)
        for account in self.accounts:  # as `Account.add`, which would take most of the server's time
            used = account.used
            if used + low < account.low:
                account.low = used + low
            if used + high > account.high:
                account.high = used + high
            account.used = used + change
            account.count += count
        self.change = self.count = self.low = self.high = 0
        return len(self.accounts)


class HeldMesh(Struct, frozen=True, gc=False):
    """What is kept of an `Opened` record; its facts about chips are kept with the devices."""

    shape: tuple[int, ...]
    parent_id: int | None
    chips: tuple[int, ...]
    system: str


class Text:
    """A label or a call site, and how many buffers share it."""

    __slots__ = ("text", "users")

    def __init__(self, text: str) -> None:
        self.text = text
        self.users = 0


class Texts:
    """Labels and call sites of one process: each is kept once, and all together take at most MAX_TEXTS_BYTES."""

    __slots__ = ("_known", "size_bytes")

    def __init__(self) -> None:
        self._known: dict[str, Text] = {}
        self.size_bytes = 0

    def keep(self, text: str) -> str:
        """The stored text for one more buffer; shared with others, empty if there is no space."""
        known = self._known.get(text)
        if known is None:
            cost = getsizeof(text) + TEXT_BYTES
            if self.size_bytes + cost > MAX_TEXTS_BYTES:
                return ""
            self.size_bytes += cost
            known = self._known[text] = Text(text)
        known.users += 1
        return known.text

    def release(self, text: str) -> None:
        """Drop one buffer's reference."""
        known = self._known.get(text)
        if known is not None:
            known.users -= 1
            if not known.users:
                self.size_bytes -= getsizeof(text) + TEXT_BYTES
                del self._known[text]


class StagedSnapshot:
    """A snapshot of which some messages have not arrived yet."""

    def __init__(self) -> None:
        self.opened: dict[int, Opened] = {}
        self.held: dict[BufferKey, Allocated] = {}
        self.reserved: dict[ReservationKey, Reserved] = {}
        self.size_bytes = 0

    def add(self, records: list[Event], work: int) -> int:
        """Add records until this much work is done, at least one; returns how many."""
        taken = 0
        for record in records:
            if work <= 0 and taken:
                break
            taken += 1
            work -= 2
            if isinstance(record, Allocated):
                self.held[record.mesh_id, record.buffer_id] = record
                work -= len(record.chips) // 8
            elif isinstance(record, Opened):
                self.opened[record.mesh_id] = record
                work -= 4 * len(record.chips)
            elif isinstance(record, Reserved):
                self.reserved[reservation_key(record)] = record
                work -= len(record.chips) // 8
            self.size_bytes += weigh(record) + 160  # a row and a key
        return taken


class Process:
    """What one connected process holds."""

    def __init__(self, who: Who, name: str, now_s: float) -> None:
        self.who = who
        self.name = name
        self.joined_s = now_s
        self.next = 0
        self.missed = 0
        self.in_step = False
        self.owners: set[object] = set()  # the connections of this process
        self.meshes: dict[int, HeldMesh] = {}
        self.held: dict[BufferKey, Allocated] = {}
        self.reserved: dict[ReservationKey, Reserved] = {}
        self.accounts: dict[tuple[str, int, str], Account] = {}  # by system, physical id and class
        self.routes: dict[tuple[str, tuple[int, ...], str], RecordRoute] = {}  # by system, chips and class
        self.route_of: dict[int, RecordRoute] = {}  # by the identity of its tuple of chips
        self.chips: set[tuple[str, int]] = set()
        self.open_chips: dict[tuple[str, int], int] = {}  # how many of its meshes contain each
        self.marks: deque[Marked] = deque(maxlen=MARKS_KEPT)
        self.links: dict[str, list[Link]] = {}  # by system
        self.leftovers: list[Leftover] = []
        self.texts = Texts()
        self.staged: StagedSnapshot | None = None
        self.unfinished: Iterator[None] | None = None  # what a record began, such as the end of a large mesh
        self.group_chips = 0  # in all groups together
        self.values_bytes = PROCESS_BYTES + weigh(name)  # of the tables' content
        self.counted_bytes = 0  # of everything, at the ledger's last count

    @property
    def size_bytes(self) -> int:
        """Bytes of the server's memory that this process takes."""
        tables = (
            self.meshes,
            self.held,
            self.reserved,
            self.accounts,
            self.routes,
            self.route_of,
            self.chips,
            self.open_chips,
        )
        staged = self.staged.size_bytes if self.staged else 0
        return self.values_bytes + self.texts.size_bytes + staged + sum(map(getsizeof, tables))

    def compact(self) -> None:
        """Copy tables that have become too large, as dicts do not shrink."""
        if getsizeof(self.held) > 4096 + SPARSE * 100 * len(self.held):
            self.held = dict(self.held)

    def mark(self, record: Marked) -> None:
        """Store a mark and drop the oldest."""
        if len(self.marks) == MARKS_KEPT:
            self.values_bytes -= weigh(self.marks[0])
        kept = Marked(record.label[:LONGEST_NAME], record.time_ns)
        self.marks.append(kept)
        self.values_bytes += weigh(kept)

    def set_links(self, system: str, links: list[Link]) -> None:
        """Store the traffic totals of a system."""
        known = self.links.get(system)
        if known is None:
            if len(self.links) >= MAX_SYSTEMS:
                return
            self.values_bytes += weigh(system) + SYSTEM_BYTES
        self.values_bytes += LINK_BYTES * (len(links) - len(known or ()))
        self.links[system] = links

    def set_leftovers(self, leftovers: list[Leftover]) -> None:
        """Store what its meshes still held when they closed."""
        self.values_bytes += weigh(leftovers) - weigh(self.leftovers)
        self.leftovers = leftovers


def reservation_key(record: Reserved) -> ReservationKey:
    """The key by which a later reservation replaces this one."""
    return (record.mesh_id, record.chips, record.buffer_type, record.label)
