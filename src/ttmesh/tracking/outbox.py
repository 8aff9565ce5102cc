"""What a client sends: numbered records, summed traffic, and snapshots of what is held. No sockets, no threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec
from msgspec import Raw

from ttmesh.base.records import Allocated, Closed, Event, Freed, LinkTransfer, Marked, Record, Reserved
from ttmesh.tracking import wire

MOST_QUEUED = 131_072  # records waiting for the sender; about 30 MB
AT_ONCE = 16_384  # records taken from the queue at once
BATCH = 2048  # records per frame: encoding them holds the interpreter for 0.2 ms
ROOM = wire.MAX_BODY - 64  # for records in a frame; the rest is for the numbers before them
LABEL = 500  # characters of a label that must be shortened to fit into a frame
TRIES = 5

Holdings = Callable[[], object]


class Outbox:
    """Turns records into frames. `queue` and `crossings` are filled by the program's threads, the rest is the sender's.

    The program only appends; the sender keeps the queue short with `bound` whenever it has to wait.
    A forked child finds its parent's tables in its memory, but the chips hold that only once: it reports what it
    allocated itself, from the ids in `first` (mesh, buffer) on.
    """

    def __init__(
        self, holdings: Holdings, sites: dict[tuple[int, int], str], *, first: tuple[int, int] = (0, 0)
    ) -> None:
        self.queue: list[Event] = []
        self.crossings: list[LinkTransfer] = []
        self.next = 0
        self.gap = False  # records were dropped since the last snapshot
        self._taken = 0
        self._holdings = holdings
        self._sites = sites
        self._first_mesh, self._first_buffer = first
        self._links: dict[str, dict[tuple[int, int], int]] = {}  # by system
        self._traffic_sent: dict[str, int] = {}

    def take(self) -> Iterator[bytes]:
        """Frames with the oldest records."""
        pulled = self._pull(AT_ONCE)
        first, now = self.next, time.time_ns()
        self.next += len(pulled)
        for count, raw in _split_records(pulled):
            yield wire.frame(wire.EVENTS, (first, now, raw))
            first += count

    def drop(self) -> None:
        """Drop the waiting records and remember that a snapshot must follow."""
        while pulled := len(self._pull(AT_ONCE)):
            self.next += pulled
            self.gap = True
        self._sum_up()

    def limit(self) -> None:
        """Drop the waiting records if there are too many."""
        if len(self.queue) > MOST_QUEUED:
            self.drop()
        self._sum_up()

    def snapshot(self) -> list[bytes]:
        """Everything that is held, as frames; best when the queue is empty. RuntimeError: try again."""
        self.gap = False
        for _ in range(TRIES):  # best with no record in between: the ledger would see it twice, and a false peak
            seen = self._taken + len(self.queue)
            held = self._list_holdings()
            if self._taken + len(self.queue) == seen:
                break
        alive = {(r.mesh_id, r.buffer_id): r for r in held if isinstance(r, Allocated)}
        for key in list(self._sites):
            if record := alive.get(key):
                record.site = self._sites.get(key, "")
            else:
                self._sites.pop(key, None)
        lots = list(_split_records(held)) or [(0, wire.pack_records([]))]
        now, last = time.time_ns(), len(lots) - 1
        return [wire.frame(wire.SNAPSHOT, (self.next, now, i, i == last, raw)) for i, (_, raw) in enumerate(lots)]

    def traffic(self) -> bytes:
        """Bytes over every link since the program began, one frame per system; empty if they were sent already."""
        self._sum_up()
        frames = []
        for system, links in self._links.items():
            total = sum(links.values())
            if total != self._traffic_sent.get(system):
                self._traffic_sent[system] = total
                frames.append(wire.frame(wire.TRAFFIC, ([(*ends, size) for ends, size in links.items()], system)))
        return b"".join(frames)

    def resend_traffic(self) -> None:
        """Send the totals again, to the next server."""
        self._traffic_sent.clear()

    def _list_holdings(self) -> list[Event]:
        answer = self._holdings()
        if not isinstance(answer, list):
            return []  # no runtime yet
        return [r for r in answer if self._is_ours(r)]

    def _is_ours(self, record: Record) -> bool:
        if isinstance(record, Allocated):
            return record.buffer_id >= self._first_buffer
        return not isinstance(record, Reserved) or record.mesh_id >= self._first_mesh

    def _pull(self, most: int) -> list[Event]:
        pulled = self.queue[:most]
        del self.queue[: len(pulled)]
        self._taken += len(pulled)
        if self._sites:
            for record in pulled:
                if isinstance(record, Freed):
                    self._sites.pop((record.mesh_id, record.buffer_id), None)
                elif isinstance(record, Closed):
                    self._forget_sites(record.mesh_id)
        return pulled

    def _forget_sites(self, mesh_id: int) -> None:
        for key in [key for key in list(self._sites) if key[0] == mesh_id]:
            self._sites.pop(key, None)

    def _sum_up(self) -> None:
        crossed = self.crossings[:]
        del self.crossings[: len(crossed)]
        for record in crossed:
            links = self._links.setdefault(record.system, {})
            ends = (record.source, record.target)
            links[ends] = links.get(ends, 0) + record.size_bytes


def _split_records(records: list[Event]) -> Iterator[tuple[int, Raw]]:
    """Records in groups that fit into a frame, each with its count."""
    for at in range(0, len(records), BATCH):
        yield from _fit_records(records[at : at + BATCH])


def _fit_records(records: list[Event]) -> Iterator[tuple[int, Raw]]:
    try:
        raw = wire.pack_records(records)
    except (
        TypeError,
        ValueError,
        OverflowError,
    ):  # a number beyond 64 bits or a name that is not text: leave that record out
        if len(records) == 1:
            yield 1, wire.pack_records([])
            return
        raw = None
    if raw is not None and len(memoryview(raw)) <= ROOM:
        yield len(records), raw
    elif len(records) > 1:
        half = len(records) // 2
        yield from _fit_records(records[:half])
        yield from _fit_records(records[half:])
    else:
        yield 1, wire.pack_records([_shorten_names(records[0])])


def _shorten_names(record: Event) -> Event:
    """The same record with names short enough for a frame."""
    if isinstance(record, Allocated | Reserved | Marked):
        return msgspec.structs.replace(record, label=record.label[:LABEL])
    return record
