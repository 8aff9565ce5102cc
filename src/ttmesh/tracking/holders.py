"""Who holds memory: processes and devices, with their accounts and the bytes that they take of the server's own."""

from __future__ import annotations

from collections import deque
from sys import getsizeof

from msgspec import Struct

from ttmesh.base.records import Allocated, ChipFacts, Event, Marked, Opened, Reserved
from ttmesh.tracking.history import History
from ttmesh.tracking.leftovers import Leftover
from ttmesh.tracking.state import POOLS
from ttmesh.tracking.weights import PROCESS_BYTES, weigh
from ttmesh.tracking.wire import Link, Who

MARKS_KEPT = 100
LONGEST_NAME = 500
MAX_TEXTS_BYTES = 32 << 20  # of one process
TEXT_BYTES = 160  # of a text besides itself: how many share it, and its row in a table
SPARSE = 8  # a table with so many times the room that it needs is made anew

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


class RecordRoute:
    """The accounts that a buffer of one class on some chips counts in.

    Chips in lock-step change alike: the changes are summed here and reach the accounts when another route's turn comes.
    """

    __slots__ = ("accounts", "change", "chips", "count", "high", "low")

    def __init__(self, chips: tuple[int, ...], accounts: list[Account]) -> None:
        self.chips = chips
        self.accounts = accounts
        self.change = self.count = self.low = self.high = 0

    def settle(self) -> int:
        """Tell the accounts; returns how many there were to tell."""
        if not (self.change or self.count or self.low or self.high):
            return 0
        for account in self.accounts:
            account.add(self.change, self.count, low=self.low, high=self.high)
        self.change = self.count = self.low = self.high = 0
        return len(self.accounts)


class Device:
    """One physical chip of one host, kept while a process uses it and for a while afterwards."""

    __slots__ = (
        "accounts",
        "coordinates",
        "facts",
        "host",
        "physical_id",
        "pools",
        "system",
        "unused_since_s",
        "users",
    )

    def __init__(self, host: str, physical_id: int) -> None:
        self.host = host
        self.physical_id = physical_id
        self.facts: ChipFacts | None = None
        self.system = ""
        self.accounts: dict[str, Account] = {}
        self.pools = {name: Account() for name in POOLS}
        self.users = 0  # processes
        self.coordinates = 0  # meshes that are led by it
        self.unused_since_s = float("inf")

    @property
    def series(self) -> int:
        """How many histories it has."""
        return sum(account.history is not None for account in self.accounts.values())


class HeldMesh(Struct, frozen=True, gc=False):
    """What is kept of an `Opened`; what it says of its chips is kept with the devices."""

    shape: tuple[int, ...]
    parent_id: int | None
    chips: tuple[int, ...]


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
        """The text to store with one more buffer: the one that others have, or none where there is no room."""
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
        """One buffer less has it."""
        known = self._known.get(text)
        if known is not None:
            known.users -= 1
            if not known.users:
                self.size_bytes -= getsizeof(text) + TEXT_BYTES
                del self._known[text]


class StagedSnapshot:
    """A snapshot whose parts are still coming."""

    def __init__(self) -> None:
        self.opened: dict[int, Opened] = {}
        self.held: dict[BufferKey, Allocated] = {}
        self.reserved: dict[ReservationKey, Reserved] = {}
        self.size_bytes = 0

    def add(self, records: list[Event]) -> None:
        """One more part."""
        for record in records:
            if isinstance(record, Allocated):
                self.held[record.mesh_id, record.buffer_id] = record
            elif isinstance(record, Opened):
                self.opened[record.mesh_id] = record
            elif isinstance(record, Reserved):
                self.reserved[reservation_key(record)] = record
        self.size_bytes += sum(map(weigh, records)) + 160 * len(records)  # a row and a key each


class Process:
    """What one connected process holds."""

    def __init__(self, who: Who, name: str, now_s: float) -> None:
        self.who = who
        self.name = name
        self.joined_s = now_s
        self.next = 0
        self.missed = 0
        self.in_step = False
        self.owners: set[object] = set()  # the connections that speak for it
        self.meshes: dict[int, HeldMesh] = {}
        self.held: dict[BufferKey, Allocated] = {}
        self.reserved: dict[ReservationKey, Reserved] = {}
        self.accounts: dict[tuple[int, str], Account] = {}
        self.routes: dict[tuple[tuple[int, ...], str], RecordRoute] = {}
        self.chips: set[int] = set()
        self.marks: deque[Marked] = deque(maxlen=MARKS_KEPT)
        self.links: list[Link] = []
        self.leftovers: list[Leftover] = []
        self.texts = Texts()
        self.staged: StagedSnapshot | None = None
        self.group_chips = 0  # in all groups together
        self.values_bytes = PROCESS_BYTES + weigh(name)  # of what the tables hold
        self.counted_bytes = 0  # of all of it, as the ledger counted it last

    @property
    def size_bytes(self) -> int:
        """Bytes of the server's memory that this process takes."""
        tables = (self.meshes, self.held, self.reserved, self.accounts, self.routes, self.chips)
        staged = self.staged.size_bytes if self.staged else 0
        return self.values_bytes + self.texts.size_bytes + staged + sum(map(getsizeof, tables))

    def compact(self) -> None:
        """A table does not shrink by itself when what it held is gone."""
        if getsizeof(self.held) > 4096 + SPARSE * 100 * len(self.held):
            self.held = dict(self.held)

    def mark(self, record: Marked) -> None:
        """Remember a named moment, and forget the oldest."""
        if len(self.marks) == MARKS_KEPT:
            self.values_bytes -= weigh(self.marks[0])
        kept = Marked(record.label[:LONGEST_NAME], record.time_ns)
        self.marks.append(kept)
        self.values_bytes += weigh(kept)

    def set_links(self, links: list[Link]) -> None:
        """The traffic so far."""
        self.values_bytes += weigh(links) - weigh(self.links)
        self.links = links

    def set_leftovers(self, leftovers: list[Leftover]) -> None:
        """What its meshes held when they closed."""
        self.values_bytes += weigh(leftovers) - weigh(self.leftovers)
        self.leftovers = leftovers


def reservation_key(record: Reserved) -> ReservationKey:
    """What a later reservation must share to replace this one."""
    return (record.mesh_id, record.chips, record.buffer_type, record.label)
