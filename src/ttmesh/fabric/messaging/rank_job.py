"""Running one operation between ranks to its end or its deadline, and finding out who is to blame when it fails."""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from os import sched_yield

from ttmesh.base.errors import RankError
from ttmesh.fabric.messaging.liveness import ABSENT, GONE, LEAVING, LEFT, SILENCE_S, Liveness
from ttmesh.fabric.messaging.rank_joining import Stop

KEEP_S = 3.0  # how long rank 0 of a failed job keeps the store, for the others to find out why
LATE_S = 0.5  # an operation that takes longer starts listening to the other ranks' signs of life
VERDICT_S = 1.0  # after a failure: a rank that is quiet for this long (four signs) is the culprit
JOIN, LEAVE, FINALISE, PART = "join", "leave", "finalise", "part"  # the first, and the last in this order
ENDING = (LEAVE, FINALISE, PART)  # here the others may have left

Done = Callable[[], bool]


class Job:
    """What all groups of this process share: signs of life, and the error that broke it."""

    def __init__(self, liveness: Liveness, keep: object) -> None:
        self.liveness = liveness
        self.broken: RankError | None = None
        self._keep = keep  # rank 0's store lives as long as this
        self._places: list[Place] = []
        self._last: Place | None = None
        self._late = 0  # queues have a worker each: several operations may be late at once
        self._guard = threading.Lock()
        liveness.doing = self

    def place(self, group: str, ranks: tuple[int, ...], world_rank: int, spins: int, pause_s: float = 0.0) -> Place:
        """Where a new group's operations happen."""
        place = Place(group, ranks, world_rank, spins, pause_s)
        self._places.append(place)
        return place

    def forget(self, place: Place) -> None:
        """Nothing will happen there any more."""
        self._places.remove(place)

    def in_use(self) -> bool:
        """Whether an operation is still going on somewhere in this process."""
        return any(place.inside for place in self._places)

    def __str__(self) -> str:
        """What this rank is doing, as its signs of life say it: every operation it is in, else its last one."""
        inside = [str(place) for place in self._places if place.inside]
        return "; ".join(inside) or (f"after {self._last}" if self._last else "before its first operation")

    def begin(self, place: Place, operation: str, partners: tuple[int, ...] | None) -> None:
        """Say that an operation begins."""
        if self.broken is not None:
            raise self.broken
        place.enter(operation, partners)
        self._last = place

    def run(
        self,
        place: Place,
        operation: str,
        start: Callable[[], Done],
        limit_s: float,
        partners: tuple[int, ...] | None = None,
    ) -> None:
        """Start an operation and wait for it; whatever goes wrong becomes a RankError that says who and where.

        `partners` are the world ranks it depends on; without them it is a collective of the whole group.
        """
        self.begin(place, operation, partners)
        try:
            done = start()
            for _ in range(place.spins):
                if done():
                    break
            else:
                self._wait(place, operation, done, limit_s)
        except RankError:
            raise
        except Exception as cause:  # every engine has its own exception types
            raise self._diagnose(place, operation, limit_s, in_short(cause)) from cause
        place.inside = False

    def join(self, start: Callable[[], Done], limit_s: float) -> None:
        """Let the engine join all ranks; those that do not come, die or stop meanwhile are named."""
        lives = self.liveness
        place = self.place("group 'world'", tuple(range(lives.size)), lives.rank, 0)
        try:
            with Stop() as place.stop:
                self.run(place, JOIN, start, limit_s)
        except RankError:
            lives.stop(0.0 if place.is_stopped else KEEP_S)
            raise
        self.forget(place)

    def leave(
        self, place: Place, meet: Callable[[], Done], free: Callable[[], object], limit_s: float
    ) -> RankError | None:
        """Meet every rank once more and free the engine; the error that this met, if any.

        Freeing waits for every rank, so nothing is freed in a failed job or with a message on its way.
        """
        known = self.broken
        self.liveness.leave()
        with contextlib.suppress(RankError), Stop() as place.stop:  # the error is kept in `broken`
            self.run(place, LEAVE, meet, limit_s)
            if not self.in_use():
                self.run(place, FINALISE, partial(apart, free), limit_s)
                self.liveness.finish()
                self.liveness.watch()
                self.run(place, PART, lambda: self.liveness.has_last_left, limit_s)
        return None if known is not None else self.broken

    def end(self) -> None:
        """The last sign of life; in rank 0 once the others have left too, or have had time to find out why they cannot."""
        self.liveness.stop(SILENCE_S if self.broken is None else KEEP_S)

    def fail(self, error: RankError) -> None:
        """Every operation fails from now on, here and, once they hear of it, on the other ranks."""
        self.broken = self.broken or error
        self.liveness.tell_failure(error.wrong)

    def _wait(self, place: Place, operation: str, done: Done, limit_s: float) -> None:
        began = time.monotonic()
        deadline, late = began + limit_s, began + min(LATE_S, limit_s)
        while time.monotonic() < late:
            if done():
                return
            if place.pause_s:
                time.sleep(place.pause_s)
            else:
                sched_yield()
        with self._guard:
            self._late += 1
            self.liveness.watch()
        try:
            self._wait_listening(place, operation, done, deadline, limit_s)
        finally:
            with self._guard:
                self._late -= 1
                if self._late == 0 and self.broken is None:
                    self.liveness.relax()

    def _wait_listening(self, place: Place, operation: str, done: Done, deadline: float, limit_s: float) -> None:
        look = 0.0
        lives = self.liveness
        while not done():
            now = time.monotonic()
            if now >= min(deadline, place.expected_by):
                limit_s = min(limit_s, place.patience_s)
                raise self._diagnose(place, operation, limit_s, f"not finished after {limit_s:g} s")
            if now >= look:
                look = now + 0.05
                left = operation not in ENDING and lives.left(place.partners)
                if lives.failure or left or lives.silent(place.partners):
                    raise self._diagnose(place, operation, limit_s, "waiting for it was given up")
                if place.is_stopped:
                    raise self._diagnose(place, operation, limit_s, "this rank was told to stop")
            # long transfers progress only while they are looked at
            time.sleep(0.0001 if not place.pause_s else 0.001)

    def _diagnose(self, place: Place, operation: str, limit_s: float, symptom: str) -> RankError:
        """Find out who is to blame, tell the others, and make every later operation fail the same way."""
        self.liveness.watch()
        while True:
            silent = self.liveness.silent(place.partners, VERDICT_S)
            enough = self.liveness.watched_s > 2 * VERDICT_S and self.liveness.answered
            if silent or self.liveness.failure or enough or place.is_stopped:
                break
            time.sleep(0.02)
        if not silent and not self.liveness.failure:  # a partner may itself wait for a rank that is gone
            silent = self.liveness.silent(range(self.liveness.size), 2 * VERDICT_S)
        others = {r: s for r, s in self.liveness.elsewhere(place.partners).items() if str(place) not in s}
        if operation in ENDING:
            others = {r: s for r, s in others.items() if s not in (LEAVING, LEFT, GONE)}
        ranks, wrong = verdict(place.here(operation), symptom, tuple(sorted(silent)), self.liveness.failure, others)
        error = RankError(
            wrong,
            expected=f"every rank of the group to finish it within {limit_s:g} s",
            fix=f"Look at the output of {named(ranks)}; TTMESH_TIMEOUT_S sets the time"
            + (
                "."
                if silent or operation in (JOIN, *ENDING)
                else ", TTMESH_CHECK_RANKS=1 names the first call in which ranks differ."
            ),
            ranks=ranks,
        )
        if place.is_stopped:  # the others are told to stop too, and there is no time to lose
            self.broken = self.broken or error
        else:
            self.fail(error)
        return error


def apart(work: Callable[[], object]) -> Done:
    """Run a call that blocks in a thread of its own; whether it is over, and its error when it failed."""
    failures: list[Exception] = []
    over = threading.Event()

    def run() -> None:
        try:
            work()
        except Exception as error:  # raised again below, in the caller's thread
            failures.append(error)
        over.set()

    threading.Thread(target=run, daemon=True, name="ttmesh-apart").start()

    def done() -> bool:
        if not over.wait(0.0002):
            return False
        if failures:
            raise failures[0]
        return True

    return done


class Place:
    """Where an operation happens: the group, its ranks, who looks, and how many calls it has seen.

    `pause_s`: sleep so long between two looks, for threads that wait beside a program which computes.
    """

    def __init__(self, group: str, ranks: tuple[int, ...], world_rank: int, spins: int, pause_s: float = 0.0) -> None:
        self.group, self.ranks, self.world_rank, self.spins = group, ranks, world_rank, spins
        self.pause_s = pause_s
        self.patience_s = self.expected_by = math.inf
        self.calls = 0  # collectives only: these are the same on every rank
        self.operation = ""
        self.stop: Stop | None = None  # while a SIGTERM is noted here instead of ending the process
        self.partners = ranks
        self.inside = False

    def enter(self, operation: str, partners: tuple[int, ...] | None) -> None:
        """The next operation has begun."""
        if partners is None:
            self.calls += 1
            self.operation = f"{operation} #{self.calls}"
        else:
            self.operation = operation
        self.partners = self.ranks if partners is None else partners
        self.inside = True

    @property
    def is_stopped(self) -> bool:
        """Whether this process was told to stop while it waited here."""
        return self.stop is not None and self.stop.seen

    def expect_by(self, patience_s: float) -> None:
        """Somebody waits, for so long from the first time this is said; or, with infinity, nobody any more."""
        if patience_s == math.inf or self.expected_by == math.inf:
            self.patience_s, self.expected_by = patience_s, time.monotonic() + patience_s

    def __str__(self) -> str:
        """The last operation as signs of life name it; the same text on every rank that is in the same call."""
        return f"{self.operation} on {self.group}"

    def here(self, operation: str) -> str:
        """The operation as errors name it."""
        return f"{operation} on {self.group} of ranks {list(self.ranks)}, seen by rank {self.world_rank}"


def verdict(
    here: str, symptom: str, silent: tuple[int, ...], failure: str, others: dict[int, str]
) -> tuple[tuple[int, ...], str]:
    """The ranks to blame and the sentence that says so: first the silent, then what another rank told, then the absent."""
    if silent:
        return silent, f"{named(silent)} died, stopped or was cut off during {here} ({symptom})"
    if failure:
        return (), f"{failure}; this ended {here}"
    if others:
        absent = tuple(sorted(r for r, s in others.items() if s == ABSENT))
        if absent:
            return absent, f"{named(absent)} has not come to {here} ({symptom})"
        ranks = tuple(sorted(others))
        where = ", ".join(
            f"rank {r}: {'it left' if s in (LEAVING, LEFT, GONE) else s}" for r, s in sorted(others.items())
        )
        return ranks, f"{named(ranks)} alive but not in {here} ({symptom}; {where})"
    return (), f"{symptom} in {here}"


def named(ranks: tuple[int, ...]) -> str:
    """Ranks in words."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else "every rank"


def in_short(cause: Exception) -> str:
    """An engine's own words without its source file and advice."""
    line = str(cause).strip().split("\n")[0]
    return re.sub(r"^\[[^\]]*\]\s*", "", line).split(". ")[0][:200]
