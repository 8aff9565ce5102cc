"""Processes that have left: what they held is summed up and freed in bounded steps, one process after the other."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from ttmesh.tracking.holders import Process
from ttmesh.tracking.leftovers import Ended, LeftoverSums
from ttmesh.tracking.weights import weigh
from ttmesh.tracking.wire import Who

ENDED_KEPT = 64
ENDED_BYTES = 16 << 20
LEAVING_BYTES = 128 << 20  # of processes that are not freed yet; beyond it the oldest ones are freed at once
FREED_AT_ONCE = 2000  # buffers per step

Gone = Callable[[Who, int, int], None]  # a process, its buffers over all chips, their bytes


class Departures:
    """Ended processes, the newest last. A small process is freed as soon as it leaves."""

    def __init__(self, gone: Gone | None = None) -> None:
        self.ended: deque[Ended] = deque()
        self.ended_bytes = 0
        self.begun = self.finished = 0  # numbers of processes
        self._gone = gone
        self._leaving: deque[tuple[int, Iterator[None]]] = deque()
        self._leaving_bytes = 0

    @property
    def has_work(self) -> bool:
        """Whether `advance` has something to do."""
        return bool(self._leaving)

    def add(self, process: Process, *, orderly: bool, now_s: float) -> None:
        """A process has left; its totals are not counted any more."""
        ended = Ended(process.who, process.name, now_s, orderly, [], process.leftovers, process.next, process.missed)
        self._remember(ended)
        self.begun += 1
        size_bytes, process.counted_bytes = process.counted_bytes, 0
        self._leaving_bytes += size_bytes
        self._leaving.append((size_bytes, self._free(process, ended)))
        while self._leaving_bytes > LEAVING_BYTES and len(self._leaving) > 1:
            self.advance()
        if len(self._leaving) == 1 and len(process.held) < FREED_AT_ONCE:
            self.advance()

    def advance(self) -> None:
        """Free a bounded number of buffers of the process that left first."""
        if self._leaving:
            size_bytes, job = self._leaving[0]
            if next(job, self) is self:
                self._leaving.popleft()
                self._leaving_bytes -= size_bytes
                self.finished += 1

    def take(self, who: Who) -> list[Ended]:
        """Remove what is known of earlier connections of a process that is back."""
        back = [ended for ended in self.ended if ended.who == who]
        for ended in back:
            self.ended.remove(ended)
            self.ended_bytes -= weigh(ended)
        return back

    def _free(self, process: Process, ended: Ended) -> Iterator[None]:
        sums = LeftoverSums("exit" if ended.orderly else "death")
        buffers = size_bytes = 0
        while process.held:
            for _ in range(min(FREED_AT_ONCE, len(process.held))):
                record = process.held.popitem()[1]
                sums.add(record)
                buffers += len(record.chips)
                size_bytes += record.size_bytes * len(record.chips)
            if process.held:
                yield
        while process.routes:
            for key in list(itertools.islice(process.routes, FREED_AT_ONCE // 8)):
                del process.routes[key]
            if process.routes:
                yield
        held = sums.list_leftovers()
        if held and any(known is ended for known in self.ended):
            self._replace(ended, msgspec.structs.replace(ended, held=held))
        if self._gone and buffers:
            self._gone(process.who, buffers, size_bytes)

    def _replace(self, ended: Ended, whole: Ended) -> None:
        self.ended = deque(whole if known is ended else known for known in self.ended)
        self.ended_bytes += weigh(whole) - weigh(ended)
        self._bound()

    def _remember(self, ended: Ended) -> None:
        self.ended.append(ended)
        self.ended_bytes += weigh(ended)
        self._bound()

    def _bound(self) -> None:
        while len(self.ended) > ENDED_KEPT or self.ended_bytes > ENDED_BYTES:
            self.ended_bytes -= weigh(self.ended.popleft())
