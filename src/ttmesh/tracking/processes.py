"""One connected process as the ledger keeps it, and the bytes that it takes."""

from __future__ import annotations

from collections import deque
from sys import getsizeof

from msgspec import Struct

from ttmesh.base.records import Allocated, Event, Marked, Opened, Reserved
from ttmesh.tracking.accounts import Account, Route
from ttmesh.tracking.leftovers import Leftover
from ttmesh.tracking.weights import PROCESS_BYTES, weigh
from ttmesh.tracking.wire import Link, Who

MARKS_KEPT = 100
LONGEST_NAME = 500
SPARSE = 8  # a table with so many times the room that it needs is made anew

BufferKey = tuple[int, int]
ReservationKey = tuple[int, tuple[int, ...], str, str]


class Mesh(Struct, frozen=True, gc=False):
    """What is kept of an `Opened`; what it says of its chips is kept with the devices."""

    shape: tuple[int, ...]
    parent_id: int | None
    chips: tuple[int, ...]


class Staged:
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
        self.owner: object = None  # the connection that speaks for it
        self.meshes: dict[int, Mesh] = {}
        self.held: dict[BufferKey, Allocated] = {}
        self.reserved: dict[ReservationKey, Reserved] = {}
        self.accounts: dict[tuple[int, str], Account] = {}
        self.routes: dict[tuple[tuple[int, ...], str], Route] = {}
        self.chips: set[int] = set()
        self.marks: deque[Marked] = deque(maxlen=MARKS_KEPT)
        self.links: list[Link] = []
        self.leftovers: list[Leftover] = []
        self.staged: Staged | None = None
        self.group_chips = 0  # in all groups together
        self.values_bytes = PROCESS_BYTES + weigh(name)  # of what the tables hold
        self.counted_bytes = 0  # of all of it, as the ledger counted it last

    @property
    def size_bytes(self) -> int:
        """Bytes of the server's memory that this process takes."""
        tables = (self.meshes, self.held, self.reserved, self.accounts, self.routes, self.chips)
        staged = self.staged.size_bytes if self.staged else 0
        return self.values_bytes + staged + sum(map(getsizeof, tables))

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
