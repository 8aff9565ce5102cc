"""Signs of life between ranks, so that an error can name the rank that died, stopped, was cut off or is elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

INTERVAL_S = 0.25  # one small write per rank and interval; reads happen only while an operation is late
SILENCE_S = 10.0  # a process that lets no thread run for this long counts as stopped
STORE_S = 3.0  # a store that is still connected may answer so late on a busy host before rank 0 is blamed
MISSED = 3  # so many looks must have found no new sign: a busy host slows the one who looks as well
ABSENT = "absent"  # the sign of a rank before it has shown any
LEAVING = "leaving"  # in the last barrier, or freeing what the engine holds
LEFT = "left"  # finalised; it stays until all others are
GONE = "gone"
SOON_S = 0.02  # between two looks at whether all others have left
LEFT_S = 2.0  # a rank that finished its part may leave while others still finish theirs


class Store(Protocol):
    """The part of torch's TCPStore that is used here."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Read values that exist."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Write unless somebody else has written."""


@dataclass(frozen=True)
class Sign:
    """The last thing a rank said: a counter, what it was doing, when this rank last heard it and when it began.

    `missed`: how many looks since then found nothing new.
    """

    count: int
    doing: str
    heard_s: float
    since_s: float
    missed: int = 0


class Liveness:
    """A thread that says "I am here, doing this" in a store kept by rank 0, and listens while `watch()` is asked for.

    Nothing here blocks the caller: store calls may hang when rank 0 is stopped, and then this thread hangs, not the program.
    """

    def __init__(self, connect: Callable[[], Store], rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.doing: object = "starting"  # its text is asked for when a sign is written, not at every operation
        self._connect = connect
        self._watching = threading.Event()
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._ready = threading.Event()
        self._signs: dict[int, Sign] = {}
        self._watched_s = self._answered_s = time.monotonic()
        self._lost = False  # the store's connection broke
        self._failure = ""
        self._failure_to_tell = ""
        self._told = threading.Event()
        self._leaving = ""
        self._keep_until_s = 0.0
        self._thread = threading.Thread(target=self._beat, name="ttmesh-liveness", daemon=True)

    def start(self, timeout_s: float) -> bool:
        """Begin; False when the first sign could not be written in time."""
        self.begin()
        return self._ready.wait(timeout_s) and not self._lost

    def begin(self) -> None:
        """Begin, without waiting for the store."""
        self._thread.start()

    @property
    def has_begun(self) -> bool:
        """Whether the first sign was written, or cannot be."""
        return self._ready.is_set()

    @property
    def is_lost(self) -> bool:
        """Whether the store cannot be reached, or not any more."""
        return self._lost

    def watch(self) -> None:
        """Listen to the others from now on."""
        if not self._watching.is_set():
            self._signs = {}
            self._watched_s = self._answered_s = time.monotonic()
            self._watching.set()
            self._wake.set()

    @property
    def watched_s(self) -> float:
        """For how long this rank has been listening."""
        return time.monotonic() - self._watched_s if self._watching.is_set() else 0.0

    @property
    def answered(self) -> bool:
        """Whether the store has answered since this rank began to listen, or cannot any more."""
        return self._lost or self.rank == 0 or self._answered_s > self._watched_s

    def relax(self) -> None:
        """The late operation has finished: stop listening."""
        self._watching.clear()

    def tell_failure(self, text: str) -> None:
        """Let every rank know the first cause; the earliest one wins. Returns once it is told, or cannot be."""
        self._failure_to_tell = self._failure_to_tell or text
        self._wake.set()
        if self._failure:
            return  # told by another rank, so that all know
        if not self.silent([], 4 * INTERVAL_S):  # else the store itself is silent, and nobody can be told
            self._told.wait(4 * INTERVAL_S)

    @property
    def failure(self) -> str:
        """The first cause some rank told, or ''."""
        return self._failure

    def silent(self, members: Sequence[int], limit_s: float = SILENCE_S) -> dict[int, float]:
        """The members not heard of for longer than the limit, with how long; rank 0 speaks for its store."""
        now = time.monotonic()
        if not self._watching.is_set():
            return {}
        unanswered_s = now - self._answered_s
        if self.rank != 0 and unanswered_s > (limit_s if self._lost else max(limit_s, STORE_S)):
            return {0: unanswered_s}
        excused = (ABSENT, LEFT, GONE)
        signs = {r: s for r, s in self._signs.items() if r in members and r != self.rank and s.doing not in excused}
        quiet = {r: now - sign.heard_s for r, sign in signs.items() if sign.missed >= MISSED}
        return {r: s for r, s in quiet.items() if s > limit_s}

    def elsewhere(self, members: Sequence[int]) -> dict[int, str]:
        """What the other members were doing when they last said so."""
        return {r: s.doing for r, s in self._signs.items() if r in members and r != self.rank}

    def absent(self, members: Sequence[int]) -> tuple[int, ...]:
        """The members that have not shown any sign yet."""
        return tuple(sorted(r for r, s in self._signs.items() if r in members and s.doing == ABSENT))

    def left(self, members: Sequence[int]) -> bool:
        """Whether a member left long enough ago for its last operation to have finished everywhere."""
        limit = time.monotonic() - LEFT_S
        gone = (LEAVING, LEFT, GONE)
        return any(s.doing in gone and s.since_s < limit for r, s in self._signs.items() if r in members)

    def leave(self) -> None:
        """Say from now on that this rank takes part in nothing any more but in leaving."""
        self._leaving = LEAVING
        self._wake.set()

    def finish(self) -> None:
        """Say from now on that this rank has freed everything."""
        self._leaving = LEFT
        self._wake.set()

    def has_last_left(self) -> bool:
        """Whether every rank has freed everything."""
        others = [s.doing for r, s in self._signs.items() if r != self.rank]
        return len(others) >= self.size - 1 and all(doing in (LEFT, GONE) for doing in others)

    def stop(self, keep_s: float) -> None:
        """End the signs; rank 0 keeps the store for so long, or until every other rank has left or is silent."""
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
                if self._failure_to_tell and not self._failure:
                    self._failure = store.compare_set("failure", "", self._failure_to_tell).decode()
                    self._told.set()
                if self._stopping.is_set() and (time.monotonic() >= self._keep_until_s or self._alone()):
                    return
                if self._watching.is_set():
                    self._listen(store, keys)
                self._wake.wait(SOON_S if self._leaving in (LEFT, GONE) else INTERVAL_S)
                self._wake.clear()
        except Exception:
            # The store is gone with rank 0, and says so in several exception types; `silent` reports it by its age.
            self._lost = True
            self._told.set()
            self._ready.set()

    def _alone(self) -> bool:
        gone = {r for r, s in self._signs.items() if s.doing == GONE} | self.silent(range(self.size)).keys() | {0}
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
                signs[rank] = Sign(int(count), doing, now, since_s)
            else:
                signs[rank] = replace(known, missed=known.missed + 1)
        self._signs, self._answered_s = signs, now
        if not self._failure:
            self._failure = store.compare_set("failure", "", "").decode()
