"""Command queues: the only place that runs work on lanes. A command names the cells it reads and writes."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ttmesh.base.errors import QueueError
from ttmesh.base.records import Enqueued, Finished, TensorFacts
from ttmesh.base.signals import signals
from ttmesh.chip.cells import Cell

if TYPE_CHECKING:
    from ttmesh.mesh.queue.schedules import Schedule

Cells = Sequence[Cell]
Body = Callable[[Cells, Cells], None]

_ids = itertools.count(1)


class _Worker(threading.local):
    """The queue whose command a thread runs: where ranks divide a mesh, each queue has its own communicators."""

    queue = 0


worker = _Worker()


class _Dispatch:
    """Whether anything reaches the chips: a graph capture without dispatch disables it, and asks for every command."""

    enabled = True


dispatch = _Dispatch()


class Command:
    """One unit of work: `body(reads, writes)`. The cells are arguments so that a trace can pass others.

    `ready` (when given) says whether it may run yet, `waits_for` what it waits for; with `remote` that comes from
    another process, which nudges the schedule. With `offers`, asking `ready` tells the other end that this command stands
    at the head of its queue, so nobody may ask before it does. `programs` is how many device programs TT-NN would launch
    for it (0 for transfers and events), `dispatch_bytes` what they take in a trace (None: an average per program).
    """

    __slots__ = (
        "body", "dispatch_bytes", "done", "id", "name", "offers", "programs", "reads", "ready", "remote", "waits_for",
        "writes",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        body: Body,
        reads: Cells = (),
        writes: Cells = (),
        *,
        programs: int = 0,
        dispatch_bytes: int | None = None,
        ready: Callable[[], bool] | None = None,
        waits_for: str = "",
        offers: bool = False,
        remote: bool = False,
    ) -> None:
        self.name = name
        self.body = body
        self.reads = reads
        self.writes = writes
        self.programs = programs
        self.dispatch_bytes = dispatch_bytes
        self.ready = ready
        self.waits_for = waits_for
        self.offers = offers
        self.remote = remote
        self.id = next(_ids)
        self.done = False


class Awaited(Protocol):
    """An object that is done at some time: a command, an event."""

    @property
    def done(self) -> bool:
        """Whether it is done."""


class CommandQueue:
    """An in-order queue of one mesh; its schedule decides when commands run."""

    __slots__ = (
        "__weakref__", "failure", "id", "mesh_id", "mesh_name", "pending", "recording", "schedule", "start_thread",
    )  # fmt: skip

    def __init__(
        self,
        queue_id: int,
        mesh_id: int,
        mesh_name: str,
        schedule: Schedule,
        start_thread: Callable[[], None] = lambda: None,
    ) -> None:
        self.id = queue_id
        self.mesh_id = mesh_id
        self.mesh_name = mesh_name
        self.schedule = schedule
        self.start_thread = start_thread  # prepares a thread that will run its commands
        self.pending: deque[Command] = deque()
        self.recording: list[Command] | None = None
        self.failure: BaseException | None = None

    def enqueue(self, command: Command) -> None:
        """Add a command that writes into memory allocated earlier, and count the writes."""
        for cell in command.writes:
            cell.writes += 1
        self.take(command)

    def take(self, command: Command) -> None:
        """Record a command while a trace is captured, else pass it to the schedule."""
        if not dispatch.enabled and (command.programs or command.writes):
            command.done = True
            return
        if self.recording is not None:
            self.recording.append(command)
            return
        if self.failure is not None:
            self.raise_failure()
        if signals.timing:
            now = time.monotonic_ns()
            signals.emit_command(Enqueued(self.mesh_id, self.id, command.id, command.name, now))
        self.schedule.submit(self, command)

    def finish(self) -> None:
        """Return when everything enqueued so far has run."""
        self.schedule.drain(self)
        if self.failure is not None:
            self.raise_failure()

    def finish_through(self, awaited: Awaited) -> None:
        """Return when this command has run, or this event is set."""
        if not awaited.done:
            self.schedule.drain(self, awaited)
            if self.failure is not None:
                self.raise_failure()

    def run(self, command: Command) -> None:
        """Run a command. Called by schedules, in queue order."""
        if not signals.timing:
            command.body(command.reads, command.writes)
            command.done = True
            return
        reads = _describe_tensors(command.reads)  # now: a command may change in place what it reads
        start = time.monotonic_ns()
        command.body(command.reads, command.writes)
        command.done = True
        end = time.monotonic_ns()
        writes = _describe_tensors(command.writes)
        signals.emit_command(Finished(self.mesh_id, self.id, command.id, command.name, end, end - start, reads, writes))

    def raise_failure(self) -> None:
        """Raise, once, the error with which a command failed on a worker."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def describe_wait(self) -> str:
        """The head of the queue and what it waits for, for a deadlock report."""
        head = self.pending[0]
        return f"queue {self.id} of {self.mesh_name}: {head.name} waits for {head.waits_for or 'its turn'}"


class DividedQueue(CommandQueue):
    """A queue of a mesh that ranks divide: its commands run with the communicators of their queue."""

    __slots__ = ()

    def take(self, command: Command) -> None:
        """Add a command that sets the thread's current queue before it runs."""
        body, number = command.body, self.id

        def run_for_queue(reads: Cells, writes: Cells) -> None:
            worker.queue = number
            body(reads, writes)

        command.body = run_for_queue
        super().take(command)


def _describe_tensors(cells: Cells) -> tuple[TensorFacts, ...]:
    return tuple(facts for cell in cells if (facts := cell.describe()) is not None)


def make_deadlock_error(queues: Sequence[CommandQueue]) -> QueueError:
    """The error that lists which queue waits for what."""
    waiting = "; ".join(queue.describe_wait() for queue in queues if queue.pending)
    return QueueError(
        f"deadlock: {waiting}",
        expected="every wait to be met by a command that was enqueued before",
        fix="Enqueue the matching send, receive or record_event before you synchronise.",
    )
