"""Schedules decide when commands run: at once, on a worker per queue, or in the worst order that events allow."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from os import sched_yield
from typing import Protocol

from ttmesh.base import settings
from ttmesh.mesh.queue.command_queue import Awaited, Command, CommandQueue, make_deadlock_error

POLL_S = 0.002  # how long a program that waits for another process polls before it sleeps until it is woken


class Schedule(Protocol):
    """Decides when the commands of all queues run; one object for the whole process."""

    @property
    def busy(self) -> Sequence[object]:
        """Empty while a program may run as soon as it is enqueued, without a call of the schedule."""

    def submit(self, queue: CommandQueue, command: Command) -> None:
        """Run a command now or later, in the order of its queue."""

    def drain(self, queue: CommandQueue, through: Awaited | None = None) -> None:
        """Return when the queue is empty (or `through` is done); raise on a deadlock."""

    def nudge(self) -> None:
        """Try again: another process may have sent what a command waits for."""


class Turn:
    """Lets one thread at a time run commands that waited; other threads signal it to look again, so no news is missed."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.moved = threading.Event()  # wakes a thread that waits until there is something to run
        self._news = threading.Event()

    def take(self, work: Callable[[], bool]) -> bool:
        """Call `work`, again while others signal meanwhile; whether any command ran."""
        moved = False
        while True:
            with self.lock:
                self._news.clear()
                moved = work() or moved
            if not self._news.is_set():
                return moved

    def nudge(self, work: Callable[[], bool]) -> None:
        """Call `work`, unless another thread does; that thread then calls it once more."""
        self._news.set()
        while self._news.is_set() and self.lock.acquire(blocking=False):
            try:
                self._news.clear()
                work()
            finally:
                self.lock.release()
        self.moved.set()


class Eager:
    """A command runs as soon as it can; one that must wait is parked, and every later command tries again.

    Commands that wait for another process are tried again by `nudge`, on the thread that received its message.
    """

    def __init__(self) -> None:
        self.busy: list[CommandQueue] = []  # the queues that are parked
        self._turn = Turn()

    def submit(self, queue: CommandQueue, command: Command) -> None:
        """Run at once, unless an earlier command is pending or this one must wait."""
        if not queue.pending and (command.ready is None or command.ready()):
            queue.run(command)
            if self.busy:
                self._progress()
            return
        with self._turn.lock:
            queue.pending.append(command)
            if queue not in self.busy:
                self.busy.append(queue)
        self._progress()

    def drain(self, queue: CommandQueue, through: Awaited | None = None) -> None:
        """Progress all queues until this one is done."""
        while queue.pending and not (through and through.done):
            self._turn.moved.clear()
            if self._progress() or not queue.pending:
                continue
            if not any(map(_is_remote, list(self.busy))):
                raise make_deadlock_error(self.busy)
            if not self._poll():
                self._turn.moved.wait(timeout=1.0)

    def _poll(self) -> bool:
        """Poll briefly for another process's message: quicker than being woken by a thread."""
        until = time.monotonic() + POLL_S
        while not self._turn.moved.is_set() and time.monotonic() < until:
            if self._progress():
                return True
            sched_yield()
        return False

    def nudge(self) -> None:
        """Run the commands that waited for another process, unless another thread does."""
        self._turn.nudge(lambda: self._run_parked(keep_failure=True))

    def _progress(self) -> bool:
        return self._turn.take(self._run_parked)

    def _run_parked(self, *, keep_failure: bool = False) -> bool:
        moved = False
        for queue in list(self.busy):
            while _is_runnable(queue):
                run_head(queue, keep_failure=keep_failure)
                moved = True
            if not queue.pending and queue in self.busy:
                self.busy.remove(queue)
        return moved


class Async:
    """One worker thread per queue; the caller continues at once."""

    busy = (True,)

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queues: weakref.WeakSet[CommandQueue] = weakref.WeakSet()
        self._running: set[int] = set()

    def submit(self, queue: CommandQueue, command: Command) -> None:
        """Pass the command to the queue's worker thread, which starts on first use."""
        with self._changed:
            queue.pending.append(command)
            if queue not in self._queues:
                self._queues.add(queue)
                shared = (weakref.ref(queue), self._changed, self._running, queue.start_thread)
                worker = threading.Thread(target=_run_worker, args=shared, daemon=True)
                worker.start()
            self._changed.notify_all()

    def drain(self, queue: CommandQueue, through: Awaited | None = None) -> None:
        """Wait for the worker; when no queue can run anything, raise the deadlock."""
        with self._changed:
            while queue.pending and not (through and through.done) and queue.failure is None:
                if not self._running and not any(_is_runnable(q) or _is_remote(q) for q in self._queues):
                    raise make_deadlock_error(
                        sorted((q for q in self._queues if q.pending), key=lambda q: (q.mesh_id, q.id))
                    )
                self._changed.wait(timeout=1.0)

    def nudge(self) -> None:
        """Wake the workers, so that they try again."""
        with self._changed:
            self._changed.notify_all()


def _is_runnable(queue: CommandQueue) -> bool:
    head = queue.pending[0] if queue.pending else None
    return head is not None and (head.ready is None or head.ready())


def _is_remote(queue: CommandQueue) -> bool:
    """Whether the queue waits for another process: that ends with its message, or with an error after a time limit."""
    return bool(queue.pending) and queue.pending[0].remote


def run_head(queue: CommandQueue, *, keep_failure: bool = False) -> None:
    """Run the first pending command, which stays pending until it is done. A failure drops the commands after it.

    `keep_failure`: on another thread than the program's, store the failure, and the queue raises it later.
    """
    try:
        queue.run(queue.pending[0])
    except BaseException as failure:  # raised here or by the queue's next call, interrupts too
        queue.pending.clear()  # what came after a failed command would read what it did not write
        if not keep_failure:
            raise
        queue.failure = failure
        return
    queue.pending.popleft()


def _run_worker(
    ref: weakref.ref[CommandQueue], changed: threading.Condition, running: set[int], start_thread: Callable[[], None]
) -> None:
    """Run the commands of one queue for as long as it exists; holds no reference to it while idle."""
    start_thread()
    me = threading.get_ident()
    poll_until = 0.0
    while True:
        with changed:
            queue = ref()
            if queue is None:
                return
            command = queue.pending[0] if _is_runnable(queue) else None
            if command is None:
                sleeps = not _is_remote(queue) or time.monotonic() >= poll_until
                del queue
                if sleeps:
                    changed.wait(timeout=1.0)
                    poll_until = time.monotonic() + POLL_S
            else:
                running.add(me)
        if command is None:
            sched_yield()
            continue
        try:
            queue.run(command)
        except BaseException as failure:  # the queue's next call raises it in the program's thread
            queue.failure = failure
        with changed:
            running.discard(me)
            if queue.failure is not None:
                queue.pending.clear()  # what came after a failed command would read what it did not write
            else:
                queue.pending.popleft()
            del queue, command
            changed.notify_all()


class Adversarial:
    """Runs commands as late as possible, but overwrites of a cell as early as possible: a missing wait shows at once.

    The host's order distinguishes a producer from an overwriter: a command that writes what a later one reads is a producer
    and is held back; one that writes what an earlier, still pending one reads runs first. Ties fall by the seed.
    """

    busy = (True,)

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._queues: weakref.WeakSet[CommandQueue] = weakref.WeakSet()
        self._turn = Turn()

    def submit(self, queue: CommandQueue, command: Command) -> None:
        """Keep the command; it runs when this or another process needs a result."""
        with self._turn.lock:
            self._queues.add(queue)
            queue.pending.append(command)
        if command.remote:
            self._turn.take(self._run_shared)

    def drain(self, queue: CommandQueue, through: Awaited | None = None) -> None:
        """Run this queue, and other queues only where it waits for them or where they overwrite what it reads."""
        while queue.pending and not (through and through.done):
            self._turn.moved.clear()
            if self._turn.take(lambda: self._step(queue)):
                continue
            waiting = sorted((q for q in self._queues if q.pending), key=lambda q: (q.mesh_id, q.id))
            if not any(map(_is_remote, waiting)):
                raise make_deadlock_error(waiting)
            self._turn.moved.wait(timeout=1.0)

    def nudge(self) -> None:
        """Run the commands that other processes wait for."""
        self._turn.nudge(lambda: self._run_shared(keep_failure=True))

    def _step(self, queue: CommandQueue) -> bool:
        self._run_overwriters(queue)
        if _is_runnable(queue):
            run_head(queue)
            return True
        return not queue.pending or self._step_other(queue)

    def _run_shared(self, *, keep_failure: bool = False) -> bool:
        """Run up to the last command that another process takes part in: holding it back would hold that process back."""
        moved = False
        for queue in sorted(self._queues, key=lambda q: (q.mesh_id, q.id)):
            while any(command.remote for command in queue.pending) and _is_runnable(queue):
                run_head(queue, keep_failure=keep_failure)
                moved = True
        return moved

    def _run_overwriters(self, victim: CommandQueue) -> None:
        """Run, on the other queues, every command that can run and overwrites what the victim still has to read."""
        for queue in self._others(victim):
            while queue.pending and self._has_overwriter(queue, victim) and _is_runnable(queue):
                run_head(queue)

    def _has_overwriter(self, queue: CommandQueue, victim: CommandQueue) -> bool:
        """Whether a command of the queue that can be reached now overwrites what the victim still has to read."""
        for index, command in enumerate(queue.pending):
            if command.ready is not None and ((index and command.offers) or not command.ready()):
                return False
            for pending in victim.pending:
                if pending.id < command.id and any(cell in pending.reads for cell in command.writes):
                    return True
        return False

    def _step_other(self, waiting: CommandQueue) -> bool:
        candidates = [queue for queue in self._others(waiting) if _is_runnable(queue)]
        if not candidates:
            return False
        run_head(self._random.choice(candidates))
        return True

    def _others(self, queue: CommandQueue) -> list[CommandQueue]:
        return sorted((q for q in self._queues if q is not queue), key=lambda q: (q.mesh_id, q.id))


class NoChipsSchedule:
    """The schedule of a mesh of which this rank holds no chip: other ranks run the commands."""

    busy = (True,)

    def submit(self, queue: CommandQueue, command: Command) -> None:
        """Mark the command as done."""
        command.done = True

    def drain(self, queue: CommandQueue, through: Awaited | None = None) -> None:
        """Nothing to wait for."""

    def nudge(self) -> None:
        """Nothing waits."""


_BUILDERS: dict[str, Callable[[], Schedule]] = {
    "eager": Eager,
    "async": Async,
    "adversarial": lambda: Adversarial(settings.get_int("TTMESH_SEED") or 0),
}
_current: tuple[object, Schedule] | None = None


def find_schedule() -> Schedule:
    """The schedule the settings ask for: one object for the process, a new one when the settings change."""
    global _current
    key = (settings.get_str("TTMESH_SCHEDULE"), settings.get_int("TTMESH_SEED"))
    if _current is None or _current[0] != key:
        _current = (key, _BUILDERS[key[0]]())
    return _current[1]
