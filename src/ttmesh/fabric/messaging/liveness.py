"""Heartbeats between ranks, so that an error can name the rank that died, stopped, lost its connection or is elsewhere.

rank_job.py finds the rank at fault and words the error; launch/watch.py ends the other ranks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

INTERVAL_S = 0.25  # one small write per rank and interval; reads happen only while an operation is late
SILENCE_S = 10.0  # a process in which no thread runs for this long counts as stopped
STORE_S = 3.0  # on a busy host a connected store may take this long to answer before rank 0 is blamed
MISSED = 3  # this many reads must have found no new heartbeat, because a busy host slows the reader as well
ABSENT = "absent"  # the activity of a rank that has not sent a heartbeat yet
LEAVING = "leaving"  # in the last barrier, or freeing the engine's resources
LEFT = "left"  # finalised, waiting until all other ranks are
GONE = "gone"
SOON_S = 0.02  # between two checks whether all others have left
LEFT_S = 2.0  # a rank that has finished may leave while others still finish the same operation


class Store(Protocol):
    """The methods of torch's TCPStore that are used here."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Read the values of existing keys."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Write unless another rank has written; returns the stored value."""


@dataclass(frozen=True)
class Heartbeat:
    """The last heartbeat of a rank: its counter, the rank's activity, when it was received and when that activity began.

    `missed`: how many reads since then found no new heartbeat.
    """

    count: int
    doing: str
    heard_s: float
    since_s: float
    missed: int = 0


class Liveness:
    """A thread that writes this rank's heartbeats to rank 0's store, and after `watch()` reads those of other ranks.

    Nothing here blocks the caller: store calls may hang when rank 0 is stopped, and then this thread hangs, not the program.
    """

    def __init__(self, connect: Callable[[], Store], rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.doing: object = "starting"  # formatted when a heartbeat is written, not at every operation
        self._connect = connect
        self._watching = threading.Event()
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._ready = threading.Event()
        self._signs: dict[int, Heartbeat] = {}
        self._watched_s = self._answered_s = time.monotonic()
        self._lost = False  # the connection to the store broke
        self._failure = ""
        self._failure_to_report = ""
        self._reported = threading.Event()
        self._leaving = ""
        self._keep_until_s = 0.0
        self._thread = threading.Thread(target=self._beat, name="ttmesh-liveness", daemon=True)

    def start(self, timeout_s: float) -> bool:
        """Start the thread; False if the first heartbeat could not be written in time."""
        self.begin()
        return self._ready.wait(timeout_s) and not self._lost

    def begin(self) -> None:
        """Start the thread without waiting for the store."""
        self._thread.start()

    @property
    def has_begun(self) -> bool:
        """Whether the first heartbeat was written or has failed."""
        return self._ready.is_set()

    @property
    def is_lost(self) -> bool:
        """Whether the store cannot be reached (any more)."""
        return self._lost

    def watch(self) -> None:
        """Start reading the other ranks' heartbeats."""
        if not self._watching.is_set():
            self._signs = {}
            self._watched_s = self._answered_s = time.monotonic()
            self._watching.set()
            self._wake.set()

    @property
    def watched_s(self) -> float:
        """For how long this rank has been reading heartbeats."""
        return time.monotonic() - self._watched_s if self._watching.is_set() else 0.0

    @property
    def has_answer(self) -> bool:
        """Whether the store has answered since `watch()`, or is lost."""
        return self._lost or self.rank == 0 or self._answered_s > self._watched_s

    def relax(self) -> None:
        """Stop reading heartbeats, because the late operation has finished."""
        self._watching.clear()

    def report_failure(self, text: str) -> None:
        """Publish the cause of a failure to all ranks; the first one stays. Returns when it is stored, or cannot be."""
        self._failure_to_report = self._failure_to_report or text
        self._wake.set()
        if self._failure:
            return  # another rank has published a cause already
        if not self.find_silent([], 4 * INTERVAL_S):  # otherwise the store is silent and cannot be written
            self._reported.wait(4 * INTERVAL_S)

    @property
    def failure(self) -> str:
        """The first cause that a rank published, or ''."""
        return self._failure

    def find_silent(self, ranks: Sequence[int], limit_s: float = SILENCE_S) -> dict[int, float]:
        """Ranks without a heartbeat for longer than the limit, with the time; rank 0 if its store does not answer."""
        now = time.monotonic()
        if not self._watching.is_set():
            return {}
        unanswered_s = now - self._answered_s
        if self.rank != 0 and unanswered_s > (limit_s if self._lost else max(limit_s, STORE_S)):
            return {0: unanswered_s}
        excused = (ABSENT, LEFT, GONE)
        signs = {r: s for r, s in self._signs.items() if r in ranks and r != self.rank and s.doing not in excused}
        quiet = {r: now - sign.heard_s for r, sign in signs.items() if sign.missed >= MISSED}
        return {r: s for r, s in quiet.items() if s > limit_s}

    def list_activities(self, ranks: Sequence[int]) -> dict[int, str]:
        """The activities in the last heartbeats of the other ranks."""
        return {r: s.doing for r, s in self._signs.items() if r in ranks and r != self.rank}

    def find_absent(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """The ranks that have not sent a heartbeat yet."""
        return tuple(sorted(r for r, s in self._signs.items() if r in ranks and s.doing == ABSENT))

    def has_left(self, ranks: Sequence[int]) -> bool:
        """Whether a rank left so long ago that its last operation must have finished everywhere."""
        limit = time.monotonic() - LEFT_S
        gone = (LEAVING, LEFT, GONE)
        return any(s.doing in gone and s.since_s < limit for r, s in self._signs.items() if r in ranks)

    def leave(self) -> None:
        """Report in heartbeats that this rank is leaving and starts no more operations."""
        self._leaving = LEAVING
        self._wake.set()

    def finish(self) -> None:
        """Report in heartbeats that this rank has freed its resources."""
        self._leaving = LEFT
        self._wake.set()

    def has_last_left(self) -> bool:
        """Whether every rank has freed its resources."""
        others = [s.doing for r, s in self._signs.items() if r != self.rank]
        return len(others) >= self.size - 1 and all(doing in (LEFT, GONE) for doing in others)

    def stop(self, keep_s: float) -> None:
        """Stop the thread; rank 0 keeps the store for `keep_s`, or until every other rank has left or is silent."""
        self._leaving = GONE
        self.watch()
        self._keep_until_s = time.monotonic() + (keep_s if self.rank == 0 else 0.0)
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout=keep_s + 2 * INTERVAL_S)

    def _beat(self) -> None:
        count = 0
        try:
            store = self._connect()
            keys = [f"sign/{r}" for r in range(self.size)]
            while True:
                count += 1
                store.set(keys[self.rank], f"{count} {self._leaving or self.doing}")
                self._ready.set()
                if self._failure_to_report and not self._failure:
                    self._failure = store.compare_set("failure", "", self._failure_to_report).decode()
                    self._reported.set()
                if self._stopping.is_set() and (time.monotonic() >= self._keep_until_s or self._is_alone()):
                    return
                if self._watching.is_set():
                    self._listen(store, keys)
                self._wake.wait(SOON_S if self._leaving in (LEFT, GONE) else INTERVAL_S)
                self._wake.clear()
        except Exception:
            # The store ended with rank 0, which shows as several exception types; `find_silent` reports it by its age.
            self._lost = True
            self._reported.set()
            self._ready.set()

    def _is_alone(self) -> bool:
        gone = {r for r, s in self._signs.items() if s.doing == GONE} | self.find_silent(range(self.size)).keys() | {0}
        return len(gone) == self.size

    def _listen(self, store: Store, keys: list[str]) -> None:
        answers = store.multi_get(keys)
        now = time.monotonic()
        signs = dict(self._signs)
        for rank, answer in enumerate(answers):
            count, _, doing = answer.decode().partition(" ")
            known = signs.get(rank)
            if known is None or known.count != int(count):
                since_s = known.since_s if known is not None and known.doing == doing else now
                signs[rank] = Heartbeat(int(count), doing, now, since_s)
            else:
                signs[rank] = replace(known, missed=known.missed + 1)
        self._signs, self._answered_s = signs, now
        if not self._failure:
            self._failure = store.compare_set("failure", "", "").decode()
