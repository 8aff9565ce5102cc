"""Processes that hold memory, with their accounts and their cost in the server's own memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from sys import getsizeof

from msgspec import Struct

from ttmesh.base.records import Allocated, Event, Marked, Opened, Reserved
from ttmesh.tracking.device_table import Account
from ttmesh.tracking.leftovers import Leftover
from ttmesh.tracking.weights import LINK_BYTES, PROCESS_BYTES, weigh
from ttmesh.tracking.wire import Link, Who

MARKS_KEPT = 100
LONGEST_NAME = 500
MAX_SYSTEMS = 64  # of one process, of which link traffic is kept
MAX_TEXTS_BYTES = 32 << 20  # of one process
SYSTEM_BYTES = 256  # of a system besides its name and links
TEXT_BYTES = 160  # of a text besides its characters: its reference count and its row in a table
SPARSE = 8  # a table that is this many times too large is copied

BufferKey = tuple[int, int]
ReservationKey = tuple[int, tuple[int, ...], str, str]


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
