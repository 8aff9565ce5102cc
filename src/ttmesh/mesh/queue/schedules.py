"""When commands run: at once, on a worker per queue, or as unluckily as the events allow."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from os import sched_yield
from typing import Protocol

from ttmesh.base import settings
from ttmesh.mesh.queue.command_queue import Command, CommandQueue, Doable, deadlock

LOOK_S = 0.002  # so long a program that waits for another process looks itself, before it sleeps until it is woken


class Schedule(Protocol):
    """Decides when the commands of all queues run; one object serves the whole process."""

    @property
    def busy(self) -> Sequence[object]:
        """Empty while a program may run the moment it is enqueued, without the schedule being asked."""

    def submit(self, queue: CommandQueue, command: Command) -> None:
        """Take a command; run it now or later, in the order of its queue."""

    def drain(self, queue: CommandQueue, through: Doable | None = None) -> None:
        """Return when the queue is empty (or this is done); raise on a deadlock."""

    def nudge(self) -> None:
        """What some command waits for may have come from another process."""


class Turn:
    """One thread at a time runs commands that waited; the others leave word, and nothing that came meanwhile is missed."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.moved = threading.Event()  # for whoever waits until there is something to do
        self._news = threading.Event()

    def take(self, work: Callable[[], bool]) -> bool:
        """Work, and again as long as news comes in meanwhile; whether anything moved."""
        moved = False
        while True:
            with self.lock:
                self._news.clear()
                moved = work() or moved
            if not self._news.is_set():
                return moved

    def nudge(self, work: Callable[[], bool]) -> None:
        """Work unless another thread is at it, which then works once more."""
        self._news.set()
        while self._news.is_set() and self.lock.acquire(blocking=False):
            try:
                self._news.clear()
                work()
            finally:
                self.lock.release()
        self.moved.set()


class Eager:
    """A command runs as soon as it can; one that waits parks, and every later command tries again.

    What waits for another process is tried again by `nudge`, on the thread that brought the news.
    """

    def __init__(self) -> None:
        self.busy: list[CommandQueue] = []  # the queues that are parked
        self._turn = Turn()

    def submit(self, queue: CommandQueue, command: Command) -> None:
        """Run at once unless something before it, or what it waits for, is missing."""
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

    def drain(self, queue: CommandQueue, through: Doable | None = None) -> None:
        """Progress all queues until this one is done."""
        while queue.pending and not (through and through.done):
            self._turn.moved.clear()
            if self._progress() or not queue.pending:
                continue
            if not any(map(_remote, list(self.busy))):
                raise deadlock(self.busy)
            if not self._look_again():
                self._turn.moved.wait(timeout=1.0)

    def _look_again(self) -> bool:
        """Look for a moment whether another process's word comes: quicker than being woken by a thread."""
        until = time.monotonic() + LOOK_S
        while not self._turn.moved.is_set() and time.monotonic() < until:
            if self._progress():
                return True
            sched_yield()
        return False

    def nudge(self) -> None:
        """Run what waited for another process, unless another thread is at it."""
        self._turn.nudge(lambda: self._run_parked(keep_failure=True))

    def _progress(self) -> bool:
        return self._turn.take(self._run_parked)

    def _run_parked(self, *, keep_failure: bool = False) -> bool:
        moved = False
        for queue in list(self.busy):
            while _runnable(queue):
                run_head(queue, keep_failure=keep_failure)
                moved = True
            if not queue.pending and queue in self.busy:
                self.busy.remove(queue)
        return moved


class Async:
    """One worker thread per queue; the caller goes on at once."""

    busy = (True,)

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queues: weakref.WeakSet[CommandQueue] = weakref.WeakSet()
        self._running: set[int] = set()

    def submit(self, queue: CommandQueue, command: Command) -> None:
        """Hand the command to the queue's worker, starting one on first use."""
        with self._changed:
            queue.pending.append(command)
            if queue not in self._queues:
                self._queues.add(queue)
                worker = threading.Thread(
                    target=_work, args=(weakref.ref(queue), self._changed, self._running), daemon=True
                )
                worker.start()
            self._changed.notify_all()

    def drain(self, queue: CommandQueue, through: Doable | None = None) -> None:
        """Wait for the worker; a state in which nobody can move is a deadlock."""
        with self._changed:
            while queue.pending and not (through and through.done) and queue.failure is None:
                if not self._running and not any(_runnable(q) or _remote(q) for q in self._queues):
                    raise deadlock(sorted((q for q in self._queues if q.pending), key=lambda q: (q.mesh_id, q.id)))
                self._changed.wait(timeout=1.0)

    def nudge(self) -> None:
        """Let the workers look again."""
        with self._changed:
            self._changed.notify_all()


def _runnable(queue: CommandQueue) -> bool:
    head = queue.pending[0] if queue.pending else None
    return head is not None and (head.ready is None or head.ready())


def _remote(queue: CommandQueue) -> bool:
    """Whether the queue waits for another process, which ends with its word or with an error in time."""
    return bool(queue.pending) and queue.pending[0].remote


def run_head(queue: CommandQueue, *, keep_failure: bool = False) -> None:
    """Run the first pending command; it counts as pending until it is done. A failure takes what follows with it.

    `keep_failure`: on a thread that is not the program's, the queue raises it later.
    """
    try:
        queue.run(queue.pending[0])
    except BaseException as failure:
        queue.pending.clear()  # what came after a failed command would read what it did not write
        if not keep_failure:
            raise
        queue.failure = failure
        return
    queue.pending.popleft()


def _work(ref: weakref.ref[CommandQueue], changed: threading.Condition, running: set[int]) -> None:
    """Run the commands of one queue until it is gone; holds no reference to it while idle."""
    me = threading.get_ident()
    look_until = 0.0
    while True:
        with changed:
            queue = ref()
            if queue is None:
                return
            command = queue.pending[0] if _runnable(queue) else None
            if command is None:
                sleeps = not _remote(queue) or time.monotonic() >= look_until
                del queue
                if sleeps:
                    changed.wait(timeout=1.0)
                    look_until = time.monotonic() + LOOK_S
            else:
                running.add(me)
        if command is None:
            sched_yield()
            continue
        try:
            queue.run(command)
        except BaseException as failure:
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
    """Commands run as late as possible, and what overwrites a cell as early: a missing wait shows at once.

    The host's order tells a producer from an overwriter: a command that writes what a later one reads is a producer
    and is held back; one that writes what an earlier, still pending one reads runs first. Ties fall by the seed.
    """

    busy = (True,)

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._queues: weakref.WeakSet[CommandQueue] = weakref.WeakSet()
        self._turn = Turn()

    def submit(self, queue: CommandQueue, command: Command) -> None:
        """Only take it; nothing runs before somebody must see a result, here or in another process."""
        with self._turn.lock:
            self._queues.add(queue)
            queue.pending.append(command)
        if command.remote:
            self._turn.take(self._let_others_see)

    def drain(self, queue: CommandQueue, through: Doable | None = None) -> None:
        """Run this queue, others only where they are waited for or where they do the most harm."""
        while queue.pending and not (through and through.done):
            self._turn.moved.clear()
            if self._turn.take(lambda: self._step(queue)):
                continue
            waiting = sorted((q for q in self._queues if q.pending), key=lambda q: (q.mesh_id, q.id))
            if not any(map(_remote, waiting)):
                raise deadlock(waiting)
            self._turn.moved.wait(timeout=1.0)

    def nudge(self) -> None:
        """Go on with what other processes wait for."""
        self._turn.nudge(lambda: self._let_others_see(keep_failure=True))

    def _step(self, queue: CommandQueue) -> bool:
        self._strike(queue)
        if _runnable(queue):
            run_head(queue)
            return True
        return not queue.pending or self._step_other(queue)

    def _let_others_see(self, *, keep_failure: bool = False) -> bool:
        """Run up to the last command that another process has a part in: holding it back would hold that process back."""
        moved = False
        for queue in sorted(self._queues, key=lambda q: (q.mesh_id, q.id)):
            while any(command.remote for command in queue.pending) and _runnable(queue):
                run_head(queue, keep_failure=keep_failure)
                moved = True
        return moved

    def _strike(self, victim: CommandQueue) -> None:
        """Run, on the other queues, every reachable command that overwrites what the victim still has to read."""
        for queue in self._others(victim):
            while queue.pending and self._overwrites(queue, victim) and _runnable(queue):
                run_head(queue)

    def _overwrites(self, queue: CommandQueue, victim: CommandQueue) -> bool:
        """Whether some command up to a reachable overwriter exists at the front of the queue."""
        for place, command in enumerate(queue.pending):
            if command.ready is not None and ((place and command.offers) or not command.ready()):
                return False
            for pending in victim.pending:
                if pending.id < command.id and any(cell in pending.reads for cell in command.writes):
                    return True
        return False

    def _step_other(self, waiting: CommandQueue) -> bool:
        candidates = [queue for queue in self._others(waiting) if _runnable(queue)]
        if not candidates:
            return False
        chosen = self._random.choice(candidates)
        run_head(chosen)
        return True

    def _others(self, queue: CommandQueue) -> list[CommandQueue]:
        return sorted((q for q in self._queues if q is not queue), key=lambda q: (q.mesh_id, q.id))


class Elsewhere:
    """The schedule of a mesh none of whose chips is this rank's: other ranks do the work."""

    busy = (True,)

    def submit(self, queue: CommandQueue, command: Command) -> None:
        """Nothing to do here."""
        command.done = True

    def drain(self, queue: CommandQueue, through: Doable | None = None) -> None:
        """Nothing to wait for."""

    def nudge(self) -> None:
        """Nothing comes here."""


_BUILDERS: dict[str, Callable[[], Schedule]] = {
    "eager": Eager,
    "async": Async,
    "adversarial": lambda: Adversarial(settings.get_int("TTMESH_SEED") or 0),
}
_current: tuple[object, Schedule] | None = None


def current() -> Schedule:
    """The schedule the settings ask for: one object for the process, a new one when the settings change."""
    global _current
    wanted = (settings.get_str("TTMESH_SCHEDULE"), settings.get_int("TTMESH_SEED"))
    if _current is None or _current[0] != wanted:
        _current = (wanted, _BUILDERS[wanted[0]]())
    return _current[1]
