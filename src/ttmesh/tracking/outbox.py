"""What a client has to tell: numbers the records, sums up traffic, and finds what is held. No sockets, no threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from ttmesh.base.records import Allocated, Closed, Crossed, Freed, Marked, Opened, Record, Reserved
from ttmesh.tracking import wire

BATCH = 1024  # records per frame: encoding them holds the interpreter for 0.3 ms
BATCH_WITH_SITES = 64  # a call site has up to 4000 characters of up to 4 bytes; 64 of them fit into wire.MAX_BODY
WITH_SITE = 13  # fields of a row that has one
LABEL = 500  # wire.Name allows a little more
TRIES = 5
NOTHING_YET = 2**63  # above every id

Row = tuple[object, ...]
Holdings = Callable[[], object]


class Outbox:
    """Turns records into frames. `queue` is filled by the program's threads, everything else is the sender's.

    A `forked` child finds its parent's tables in its memory, but the chips hold that only once: it tells of what it
    allocated itself.
    """

    def __init__(self, holdings: Holdings, sites: dict[tuple[int, int], str], *, forked: bool) -> None:
        self.queue: deque[Record] = deque()
        self.next = 0
        self._taken = 0
        self._holdings = holdings
        self._sites = sites
        self._first_mesh = self._first_buffer = NOTHING_YET if forked else 0
        self._links: dict[tuple[int, int], int] = {}
        self._traffic_told = 0

    def take(self) -> list[bytes]:
        """Frames with the oldest records, none when only crossings were waiting."""
        first = self.next
        rows = self._rows(BATCH)
        return [wire.frame(wire.EVENTS, (first + at, part)) for at, part in _parts(rows)]

    def discard(self) -> None:
        """Nobody listens: forget the records, but not that they were."""
        while self.queue:
            self._rows(BATCH)

    def skip(self, lost: int) -> None:
        """Records that never reached the queue have numbers too."""
        self.next += lost

    def snapshot(self) -> list[bytes]:
        """Everything that is held, as frames; call `take` until the queue is empty first. RuntimeError: try again."""
        for _ in range(TRIES):  # best with no record in between: the ledger would see it twice, and a false peak
            seen = self._taken + len(self.queue)
            held = self._held()
            if self._taken + len(self.queue) == seen:
                break
        alive = {(r.mesh_id, r.buffer_id) for r in held if isinstance(r, Allocated)}
        for key in [key for key in list(self._sites) if key not in alive]:
            self._sites.pop(key, None)
        rows = [self._row(r) for r in held]
        parts = [part for _, part in _parts(rows)] or [[]]
        return [wire.frame(wire.SNAPSHOT, (self.next, i, i == len(parts) - 1, part)) for i, part in enumerate(parts)]

    def traffic(self) -> bytes:
        """Bytes over every link since the program began, empty when they were told already."""
        total = sum(self._links.values())
        if total == self._traffic_told:
            return b""
        self._traffic_told = total
        return wire.frame(wire.TRAFFIC, ([(*ends, size) for ends, size in self._links.items()],))

    def retell_traffic(self) -> None:
        """The next server has not heard it."""
        self._traffic_told = 0

    def _held(self) -> list[Record]:
        answer = self._holdings()
        if not isinstance(answer, list):
            return []  # no runtime yet
        return [r for r in answer if self._is_ours(r)]

    def _is_ours(self, record: Record) -> bool:
        if isinstance(record, Allocated):
            return record.buffer_id >= self._first_buffer
        return not isinstance(record, Reserved) or record.mesh_id >= self._first_mesh

    def _rows(self, most: int) -> list[Row]:
        rows: list[Row] = []
        queue = self.queue
        while queue and len(rows) < most:
            record = queue.popleft()
            self._taken += 1
            if isinstance(record, Crossed):
                ends = (record.source, record.target)
                self._links[ends] = self._links.get(ends, 0) + record.size_bytes
            elif type(record) in wire.TAGS:  # commands are not for the allocation server
                rows.append(self._row(record))
                if self._sites and isinstance(record, (Freed, Closed)):
                    self._forget_sites(record)
                elif self._first_buffer == NOTHING_YET and isinstance(record, Allocated):
                    self._first_buffer = record.buffer_id
                elif self._first_mesh == NOTHING_YET and isinstance(record, Opened):
                    self._first_mesh = record.mesh_id
        self.next += len(rows)
        return rows

    def _row(self, record: Record) -> Row:
        if isinstance(record, (Allocated, Reserved, Marked)) and len(record.label) > LABEL:
            record = record._replace(label=record.label[:LABEL])
        row = wire.TAGS[type(record)] + record
        if self._sites and isinstance(record, Allocated):
            row += (self._sites.get((record.mesh_id, record.buffer_id), ""),)
        return row

    def _forget_sites(self, record: Freed | Closed) -> None:
        if isinstance(record, Freed):
            self._sites.pop((record.mesh_id, record.buffer_id), None)
        else:
            for key in [key for key in list(self._sites) if key[0] == record.mesh_id]:
                self._sites.pop(key, None)


def _parts(rows: list[Row]) -> Iterator[tuple[int, list[Row]]]:
    """Rows in lots that fit into a frame, each with its place."""
    lot = BATCH if all(len(row) < WITH_SITE for row in rows) else BATCH_WITH_SITES
    for at in range(0, len(rows), lot):
        yield at, rows[at : at + lot]
