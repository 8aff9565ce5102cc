"""The race check: two accesses to the same bytes that nothing orders are an error, in whatever order they ran.

Kernels and their pending transfers are *actors*, each with a time of its own. A clock holds, for every actor, the time
up to which the owner of the clock knows that actor: by pages pushed and waited for, pages popped and reserved, semaphores,
barriers. An access is ordered after another only if its clock covers that one's time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, TracebackType

from ttmesh.base.errors import MeshError

Clock = dict[int, int]  # by actor

_OWN = str(Path(__file__).parent)
_own_files: dict[str, bool] = {}  # whether code of a file is ours and not a kernel's


class RaceError(MeshError):
    """Kernels touch the same bytes and nothing orders the accesses."""


class Site:
    """A call in a kernel; its line is found only when a message needs it."""

    __slots__ = ("_code", "_instruction", "actor")

    def __init__(self, actor: Actor, code: CodeType, instruction: int) -> None:
        self.actor, self._code, self._instruction = actor, code, instruction

    def find_line(self) -> str:
        """File and line."""
        lines = (line for start, end, line in self._code.co_lines() if start <= self._instruction < end)
        return f"{Path(self._code.co_filename).name}:{next(lines, None) or self._code.co_firstlineno}"

    def __str__(self) -> str:
        return f"{self.actor.name} ({self.find_line()})"


def _is_own(code: CodeType) -> bool:
    name = code.co_filename
    found = _own_files.get(name)
    if found is None:
        found = _own_files[name] = name.startswith(_OWN)
    return found


def find_location(trace: TracebackType | None) -> str | None:
    """The last line of a kernel's own code in a traceback."""
    found = None
    while trace is not None:
        if not _is_own(trace.tb_frame.f_code):
            found = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


class Actor:
    """A kernel on a core: its name and its clock."""

    __slots__ = ("clock", "id", "name", "version")

    def __init__(self, name: str, actor_id: int) -> None:
        self.name, self.id = name, actor_id
        self.clock: Clock = {actor_id: 1}
        self.version = 0  # how often the clock changed

    def release(self) -> Clock:
        """A copy of the clock for others; what the kernel does from here on is not in it."""
        released = self.clock.copy()
        self.clock[self.id] += 1
        self.version += 1
        return released

    def learn(self, released: Clock) -> None:
        """Merge a clock that another actor released into this one."""
        clock = self.clock
        self.version += 1
        for actor, time in released.items():
            if clock.get(actor, 0) < time:
                clock[actor] = time

    def site(self) -> Site:
        """The line of the kernel that runs now."""
        frame = sys._getframe(1)
        while _is_own(frame.f_code) and frame.f_back is not None:
            frame = frame.f_back
        return Site(self, frame.f_code, frame.f_lasti)


class Transfers:
    """The transfers of a kernel that end together, at a barrier or before a semaphore changes; they are an actor too."""

    __slots__ = ("id", "time")

    def __init__(self, actor_id: int) -> None:
        self.id, self.time = actor_id, 1

    def end(self, released: Clock) -> None:
        """End all transfers that began, and record it in a clock."""
        released[self.id] = self.time
        self.time += 1


Access = tuple[int, int, int, int, bool, Site]  # from, to, actor, its time, whether it writes, where


class Shadow:
    """The last accesses to each byte of a memory, kept per `granule` bytes."""

    __slots__ = ("_granule", "_name", "_touched")

    def __init__(self, name: Callable[[int], str], granule: int) -> None:
        self._name, self._granule = name, granule  # what a user calls the memory at an offset
        self._touched: dict[int, list[Access]] = {}

    def touch(self, low: int, size: int, known: Clock, actor: int, time: int, writes: bool, site: Site) -> None:
        """Add an access of an actor with this clock; raise where it is not ordered after an earlier conflicting one."""
        granule, touched = self._granule, self._touched
        for number in range(low // granule, (low + size - 1) // granule + 1):
            begin, end = max(low, number * granule), min(low + size, (number + 1) * granule)
            entries = touched.get(number)
            if entries is None:
                touched[number] = [(begin, end, actor, time, writes, site)]
                continue
            kept = []
            for entry in entries:
                start, stop, by, when, wrote, _ = entry
                if start < end and begin < stop:
                    before = by == actor or known.get(by, 0) >= when
                    if (writes or wrote) and not before:
                        raise self._race(entry, writes, site)
                    if before and (writes or not wrote) and begin <= start and stop <= end:
                        continue  # an access ordered after this one is ordered after that one too
                kept.append(entry)
            kept.append((begin, end, actor, time, writes, site))
            touched[number] = kept

    def _race(self, earlier: Access, writes: bool, site: Site) -> RaceError:
        other, wrote, name = earlier[5], earlier[4], self._name(earlier[0])
        if other.actor is site.actor:
            return RaceError(
                f"{site} {'writes' if writes else 'reads'} bytes of {name} that its own transfer at "
                f"{other.find_line()} still {'writes' if wrote else 'reads'}",
                expected="a barrier between the two",
                fix="Call noc_async_read_barrier() before using what was read, noc_async_writes_flushed() or "
                "noc_async_write_barrier() before changing what is sent.",
            )
        return RaceError(
            f"{site} {'writes' if writes else 'reads'} bytes of {name} that {other} "
            f"{'writes' if wrote else 'reads'}, and nothing says who comes first",
            expected="one of them to wait for the other",
            fix="Call cb_wait_front before reading, cb_reserve_back before writing and the barrier before pushing or "
            "popping; between cores, a semaphore, after the write barrier if it is on another core than the data.",
        )


class Word:
    """A semaphore: its recent values, each with the clock that an actor gets by waiting for it."""

    __slots__ = ("_changes", "_set", "_states")

    KEPT = 256  # values that may still be seen by a slow kernel

    def __init__(self, value: int) -> None:
        self._states: list[tuple[int, Clock, int, int]] = [(value, {}, -1, 0)]  # value, released, by whom, when
        self._set: tuple[int, int, Site] | None = None
        self._changes: dict[int, tuple[int, Site]] = {}  # increments since, by actor

    def add(self, value: int, actor: Actor, released: Clock, site: Site) -> None:
        """Add an increment; its clock includes the clocks of the values before it."""
        self._check_set(actor, site)
        merged = dict(self._states[-1][1])
        for who, time in released.items():
            if merged.get(who, 0) < time:
                merged[who] = time
        self._changes[actor.id] = (released[actor.id], site)
        self._append(value, merged, actor.id, released[actor.id])

    def set(self, value: int, actor: Actor, released: Clock, site: Site) -> None:
        """Set a value; raise if another actor changes the semaphore without an order between the two."""
        self._check_set(actor, site)
        for who, (time, other) in self._changes.items():
            if who != actor.id and actor.clock.get(who, 0) < time:
                raise self._race(site, other)
        self._changes.clear()
        self._set = (actor.id, released[actor.id], site)
        self._append(value, released, actor.id, released[actor.id])

    def see(self, actor: Actor, value: int, exact: bool) -> bool:
        """Give an actor that waited for a value the clock of the first value that could have ended its wait."""
        first = len(self._states) - 1
        while first and actor.clock.get(self._states[first][2], 0) < self._states[first][3]:
            first -= 1
        for held, released, _, _ in self._states[first:]:
            if held == value or (not exact and held > value):
                actor.learn(released)
                return True
        return False

    def load(self, actor: Actor) -> None:
        """Give an actor that read the semaphore the clock of the current value."""
        actor.learn(self._states[-1][1])

    def _append(self, value: int, released: Clock, by: int, when: int) -> None:
        self._states.append((value, released, by, when))
        if len(self._states) > self.KEPT:
            del self._states[: self.KEPT // 2]

    def _check_set(self, actor: Actor, site: Site) -> None:
        if self._set is not None and self._set[0] != actor.id and actor.clock.get(self._set[0], 0) < self._set[1]:
            raise self._race(site, self._set[2])

    def _race(self, site: Site, other: Site) -> RaceError:
        return RaceError(
            f"{site} changes a semaphore that {other} changes, and nothing says who comes first",
            expected="a semaphore to be set while no other kernel changes it",
            fix="Wait for it with noc_semaphore_wait before setting it, and signal others only after that.",
        )
