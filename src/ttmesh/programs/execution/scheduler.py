"""Kernels as coroutines: each runs until it must wait; when none can run, the error lists what each waits for."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

from ttmesh.base.errors import MeshError
from ttmesh.programs.execution.ordering import find_location


class DeadlockError(MeshError):
    """Every kernel that has not ended waits, and nothing can end a wait."""


class Wait:
    """What a kernel awaits: continues at once when `ready()` is true, else sleeps until its `waiters` list is woken."""

    __slots__ = ("on_ready", "ready", "text", "unawaited", "waiters")

    def __init__(
        self,
        ready: Callable[[], bool],
        waiters: list[Task],
        text: Callable[[], str],
        on_ready: Callable[[], None] | None,
    ) -> None:
        self.ready, self.waiters, self.text, self.on_ready = ready, waiters, text, on_ready
        self.unawaited: dict[Wait, Any] = {}  # waits that its kernel created and never awaited, without this one

    def __await__(self) -> Generator[Wait, None, None]:
        self.unawaited.pop(self, None)
        while not self.ready():
            yield self
        if self.on_ready is not None:
            self.on_ready()


class Task:
    """A running kernel on a core."""

    __slots__ = ("coroutine", "finish", "name", "waits")

    def __init__(self, name: str, coroutine: Coroutine[Any, Any, None] | None, finish: Callable[[], None]) -> None:
        self.name, self.coroutine, self.finish = name, coroutine, finish
        self.waits: Wait | None = None


class Scheduler:
    """Runs the kernels of all cores of all chips of a workload, one at a time."""

    __slots__ = ("_ready", "_sleeping")

    def __init__(self) -> None:
        self._ready: deque[Task] = deque()
        self._sleeping: dict[int, Task] = {}

    def add(self, task: Task) -> None:
        """Add a kernel, to run after those added before."""
        self._ready.append(task)

    def wake(self, waiters: list[Task]) -> None:
        """Let waiting kernels check again. They run first, because the data they read is still in the cache."""
        for task in waiters:
            self._ready.appendleft(task)
        waiters.clear()

    def run(self) -> None:
        """Run until every kernel has ended."""
        ready, sleeping = self._ready, self._sleeping
        try:
            while ready:
                task = ready.popleft()
                if task.coroutine is not None and not self._step(task):
                    continue
                sleeping.pop(id(task), None)
                task.finish()
            if sleeping:
                raise _make_deadlock_error([task for task in sleeping.values() if task.waits is not None])
        finally:
            for task in (*ready, *sleeping.values()):
                if task.coroutine is not None:
                    task.coroutine.close()

    def _step(self, task: Task) -> bool:
        """Run a kernel until it waits; whether it has ended."""
        assert task.coroutine is not None, "a plain function has no steps"
        try:
            wait = task.coroutine.send(None)
        except StopIteration:
            return True
        except Exception as failure:  # whatever the user's kernel raises gets its place and is raised again
            add_location(failure, task.name)
            raise
        if not isinstance(wait, Wait):
            raise MeshError(
                f"{task.name} awaits {wait!r}",
                expected="cb_wait_front, cb_reserve_back or noc_semaphore_wait of its core",
                fix="Await only calls of the kernel's core.",
            )
        task.waits = wait
        wait.waiters.append(task)
        self._sleeping[id(task)] = task
        return False


def add_location(failure: Exception, name: str) -> None:
    """Add the kernel, its core and the line to an error: in front of ttmesh's own errors, as a note to others."""
    location = find_location(failure.__traceback__)
    if isinstance(failure, MeshError):
        if location is not None and not str(failure).startswith(name):
            failure.wrong = f"{name} ({location}): {failure.wrong}"
            failure.args = (f"{name} ({location}): {failure}",)
    elif hasattr(failure, "add_note"):  # Python 3.11
        failure.add_note(f"in {name}" + (f" ({location})" if location else ""))


def _find_line(task: Task) -> str:
    """Where a kernel sleeps: in itself, or in a coroutine that it awaits."""
    running: Any = task.coroutine
    while inspect.iscoroutine(running.cr_await):
        running = running.cr_await
    return f"{Path(running.cr_code.co_filename).name}:{running.cr_frame.f_lineno}"


def _make_deadlock_error(sleeping: list[Task]) -> DeadlockError:
    shown = [
        f"{task.name} waits for {task.waits.text()} at {_find_line(task)}"
        for task in sleeping[:8]
        if task.waits is not None
    ]
    more = f"; and {len(sleeping) - 8} more" if len(sleeping) > 8 else ""
    return DeadlockError(
        f"deadlock: no kernel can move: {'; '.join(shown)}{more}",
        expected="every wait to be met by a push, a pop or a semaphore increment",
        fix="Compare how many pages producers push and consumers pop, and who sets each semaphore.",
    )
