"""Runs one operation between ranks until it ends or its deadline passes, and finds the ranks at fault when it fails."""

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

KEEP_S = 3.0  # how long rank 0 of a failed job keeps the store, so that the others can read the cause
LATE_S = 0.5  # an operation that takes longer reads the other ranks' heartbeats
VERDICT_S = 1.0  # after a failure: a rank without a heartbeat for this long (four intervals) is at fault
JOIN, LEAVE, FINALISE, PART = "join", "leave", "finalise", "part"  # the first, and the last in this order
ENDING = (LEAVE, FINALISE, PART)  # here the others may have left

Done = Callable[[], bool]


class Job:
    """What all groups of this process share: heartbeats, and the error that broke the job."""

    def __init__(self, liveness: Liveness, keep: object) -> None:
        self.liveness = liveness
        self.broken: RankError | None = None
        self._keep = keep  # keeps rank 0's store alive
        self._groups: list[GroupState] = []
        self._last: GroupState | None = None
        # Operations that failed or were interrupted, with their tensors: the engine may still write into them.
        self._abandoned: list[tuple[Callable[[], Done], Done | None]] = []
        self._late = 0  # queues have a worker each: several operations may be late at once
        self._guard = threading.Lock()
        liveness.doing = self

    def add_group(
        self, group: str, ranks: tuple[int, ...], world_rank: int, spins: int, pause_s: float = 0.0
    ) -> GroupState:
        """Register a group; its operations are then part of this rank's heartbeats."""
        state = GroupState(group, ranks, world_rank, spins, pause_s)
        self._groups.append(state)
        return state

    def forget(self, state: GroupState) -> None:
        """Remove a group that starts no more operations."""
        self._groups.remove(state)

    def in_use(self) -> bool:
        """Whether an operation of any group is still running in this process."""
        return any(state.inside for state in self._groups)

    def __str__(self) -> str:
        """This rank's activity for its heartbeats: every running operation, otherwise the last one."""
        inside = [str(state) for state in self._groups if state.inside]
        return "; ".join(inside) or (f"after {self._last}" if self._last else "before its first operation")

    def begin(self, state: GroupState, operation: str, partners: tuple[int, ...] | None) -> None:
        """Record that an operation begins."""
        if self.broken is not None:
            raise self.broken
        state.enter(operation, partners)
        self._last = state

    def run(
        self,
        state: GroupState,
        operation: str,
        start: Callable[[], Done],
        limit_s: float,
        partners: tuple[int, ...] | None = None,
    ) -> None:
        """Start an operation and wait for it; every failure becomes a RankError that names ranks and operation.

        `partners` are the world ranks it depends on; without them it is a collective of the full group.
        """
        self.begin(state, operation, partners)
        done: Done | None = None
        try:
            done = start()
            for _ in range(state.spins):
                if done():
                    break
            else:
                self._wait(state, operation, done, limit_s)
        except BaseException as cause:  # raised again; an interrupt too leaves memory that the engine still uses
            self._abandoned.append((start, done))
            if isinstance(cause, RankError) or not isinstance(cause, Exception):
                raise
            # every engine has its own exception types
            raise self._diagnose(state, operation, limit_s, shorten_cause(cause)) from cause
        state.inside = False

    def join(self, start: Callable[[], Done], limit_s: float) -> None:
        """Let the engine connect all ranks; the error names those that are missing, died or stopped."""
        lives = self.liveness
        state = self.add_group("group 'world'", tuple(range(lives.size)), lives.rank, 0)
        try:
            with Stop() as state.stop:
                self.run(state, JOIN, start, limit_s)
        except RankError:
            lives.stop(0.0 if state.is_stopped else KEEP_S)
            raise
        self.forget(state)

    def leave(
        self, state: GroupState, meet: Callable[[], Done], free: Callable[[], object], limit_s: float
    ) -> RankError | None:
        """Run a last barrier and free the engine; returns the error that occurred, if any.

        Freeing waits for every rank, so nothing is freed in a failed job or while a message is being sent.
        """
        known = self.broken
        self.liveness.leave()
        with contextlib.suppress(RankError), Stop() as state.stop:  # the error is kept in `broken`
            self.run(state, LEAVE, meet, limit_s)
            if not self.in_use():
                self.run(state, FINALISE, partial(run_in_thread, free), limit_s)
                self.liveness.finish()
                self.liveness.watch()
                self.run(state, PART, lambda: self.liveness.has_last_left, limit_s)
        return None if known is not None else self.broken

    def end(self) -> None:
        """Stop the heartbeats; rank 0 first waits until the others have left or could read the cause of a failure."""
        self.liveness.stop(SILENCE_S if self.broken is None else KEEP_S)

    def fail(self, error: RankError) -> None:
        """Make every later operation fail, here and, once the cause is read, on the other ranks."""
        self.broken = self.broken or error
        self.liveness.report_failure(error.wrong)

    def _wait(self, state: GroupState, operation: str, done: Done, limit_s: float) -> None:
        began = time.monotonic()
        deadline, late = began + limit_s, began + min(LATE_S, limit_s)
        while time.monotonic() < late:
            if done():
                return
            if state.pause_s:
                time.sleep(state.pause_s)
            else:
                sched_yield()
        with self._guard:
            self._late += 1
            self.liveness.watch()
        try:
            self._wait_listening(state, operation, done, deadline, limit_s)
        finally:
            with self._guard:
                self._late -= 1
                if self._late == 0 and self.broken is None:
                    self.liveness.relax()

    def _wait_listening(self, state: GroupState, operation: str, done: Done, deadline: float, limit_s: float) -> None:
        look = 0.0
        lives = self.liveness
        while not done():
            now = time.monotonic()
            if now >= min(deadline, state.expected_by):
                limit_s = min(limit_s, state.patience_s)
                raise self._diagnose(state, operation, limit_s, f"not finished after {limit_s:g} s")
            if now >= look:
                look = now + 0.05
                left = operation not in ENDING and lives.has_left(state.partners)
                if lives.failure or left or lives.find_silent(state.partners):
                    raise self._diagnose(state, operation, limit_s, "waiting for it was given up")
                if state.is_stopped:
                    raise self._diagnose(state, operation, limit_s, "this rank got SIGTERM")
            # long transfers progress only while they are polled
            time.sleep(0.0001 if not state.pause_s else 0.001)

    def _diagnose(self, state: GroupState, operation: str, limit_s: float, symptom: str) -> RankError:
        """Find the ranks at fault, publish the cause, and make every later operation fail in the same way."""
        self.liveness.watch()
        while True:
            silent = self.liveness.find_silent(state.partners, VERDICT_S)
            enough = self.liveness.watched_s > 2 * VERDICT_S and self.liveness.has_answer
            if silent or self.liveness.failure or enough or state.is_stopped:
                break
            time.sleep(0.02)
        if not silent and not self.liveness.failure:  # a partner may be waiting for a rank that has died
            silent = self.liveness.find_silent(range(self.liveness.size), 2 * VERDICT_S)
        others = {r: s for r, s in self.liveness.list_activities(state.partners).items() if str(state) not in s}
        if operation in ENDING:
            others = {r: s for r, s in others.items() if s not in (LEAVING, LEFT, GONE)}
        ranks, wrong = judge_failure(
            state.here(operation), symptom, tuple(sorted(silent)), self.liveness.failure, others
        )
        error = RankError(
            wrong,
            expected=f"every rank of the group to finish it within {limit_s:g} s",
            fix=f"Look at the output of {format_ranks(ranks)}; TTMESH_TIMEOUT_S sets the time"
            + (
                "."
                if silent or operation in (JOIN, *ENDING)
                else ", TTMESH_CHECK_RANKS=1 names the first call in which ranks differ."
            ),
            ranks=ranks,
        )
        if state.is_stopped:  # the launcher stops the others too, so nothing is published
            self.broken = self.broken or error
        else:
            self.fail(error)
        return error


def run_in_thread(work: Callable[[], object]) -> Done:
    """Run a blocking call in its own thread; the result reports whether it has ended, and raises its error."""
    failures: list[Exception] = []
    over = threading.Event()

    def run() -> None:
        try:
            work()
        except Exception as error:  # re-raised by done() in the caller's thread
            failures.append(error)
        over.set()

    threading.Thread(target=run, daemon=True, name="ttmesh-blocking-call").start()

    def done() -> bool:
        if not over.wait(0.0002):
            return False
        if failures:
            raise failures[0]
        return True

    return done


class GroupState:
    """A group's current operation: its name and partners, the group's ranks, and how many collectives came before.

    `pause_s`: how long to sleep between two polls, for threads that wait while the program computes.
    """

    def __init__(self, group: str, ranks: tuple[int, ...], world_rank: int, spins: int, pause_s: float = 0.0) -> None:
        self.group, self.ranks, self.world_rank, self.spins = group, ranks, world_rank, spins
        self.pause_s = pause_s
        self.patience_s = self.expected_by = math.inf
        self.calls = 0  # collectives only, so that the number is the same on every rank
        self.operation = ""
        self.stop: Stop | None = None  # while set, a SIGTERM is recorded here instead of ending the process
        self.partners = ranks
        self.inside = False

    def enter(self, operation: str, partners: tuple[int, ...] | None) -> None:
        """Record the operation that begins."""
        if partners is None:
            self.calls += 1
            self.operation = f"{operation} #{self.calls}"
        else:
            self.operation = operation
        self.partners = self.ranks if partners is None else partners
        self.inside = True

    @property
    def is_stopped(self) -> bool:
        """Whether this process got a SIGTERM while it waited here."""
        return self.stop is not None and self.stop.seen

    def expect_by(self, patience_s: float) -> None:
        """Set a deadline for the running operation, counted from the first call; infinity removes it."""
        if patience_s == math.inf or self.expected_by == math.inf:
            self.patience_s, self.expected_by = patience_s, time.monotonic() + patience_s

    def __str__(self) -> str:
        """The last operation as heartbeats name it; the same text on every rank in the same call."""
        return f"{self.operation} on {self.group}"

    def here(self, operation: str) -> str:
        """The operation as errors name it."""
        return f"{operation} on {self.group} of ranks {list(self.ranks)}, seen by rank {self.world_rank}"


def judge_failure(
    here: str, symptom: str, silent: tuple[int, ...], failure: str, others: dict[int, str]
) -> tuple[tuple[int, ...], str]:
    """The ranks at fault and the sentence for the error: silent ranks first, then a published cause, then absent ranks."""
    if silent:
        return silent, f"{format_ranks(silent)} died, stopped or was cut off during {here} ({symptom})"
    if failure:
        return (), f"{failure}; this ended {here}"
    if others:
        absent = tuple(sorted(r for r, s in others.items() if s == ABSENT))
        if absent:
            return absent, f"{format_ranks(absent)} has not come to {here} ({symptom})"
        ranks = tuple(sorted(others))
        where = ", ".join(
            f"rank {r}: {'it left' if s in (LEAVING, LEFT, GONE) else s}" for r, s in sorted(others.items())
        )
        return ranks, f"{format_ranks(ranks)} alive but not in {here} ({symptom}; {where})"
    return (), f"{symptom} in {here}"


def format_ranks(ranks: tuple[int, ...]) -> str:
    """Rank numbers as text for errors."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else "every rank"


def shorten_cause(cause: Exception) -> str:
    """The first sentence of an engine's error, without its source file."""
    line = str(cause).strip().split("\n")[0]
    return re.sub(r"^\[[^\]]*\]\s*", "", line).split(". ")[0][:200]
