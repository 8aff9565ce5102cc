"""What is ordered before what: two accesses to the same bytes that nothing orders are an error, however they ran.

Kernels and the transfers they have under way are *actors*, each with a time of its own. A clock holds, for every actor,
the time up to which its owner has been told: by pages pushed and waited for, pages popped and reserved, semaphores,
barriers. An access may follow another's only where its clock covers that one's time.
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
    """Kernels touch the same bytes and nothing says who comes first."""


class Site:
    """A call in a kernel; its line is worked out only for a message."""

    __slots__ = ("_code", "_instruction", "actor")

    def __init__(self, actor: Actor, code: CodeType, instruction: int) -> None:
        self.actor, self._code, self._instruction = actor, code, instruction

    def place(self) -> str:
        """File and line."""
        lines = (line for start, end, line in self._code.co_lines() if start <= self._instruction < end)
        return f"{Path(self._code.co_filename).name}:{next(lines, None) or self._code.co_firstlineno}"

    def __str__(self) -> str:
        return f"{self.actor.name} ({self.place()})"


def _is_own(code: CodeType) -> bool:
    name = code.co_filename
    found = _own_files.get(name)
    if found is None:
        found = _own_files[name] = name.startswith(_OWN)
    return found


def place_of(trace: TracebackType | None) -> str | None:
    """The last line of a kernel's own code on the way to an error."""
    found = None
    while trace is not None:
        if not _is_own(trace.tb_frame.f_code):
            found = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


class Actor:
    """A kernel on a core: what it is called and what it has been told."""

    __slots__ = ("clock", "id", "name", "told")

    def __init__(self, name: str, actor_id: int) -> None:
        self.name, self.id = name, actor_id
        self.clock: Clock = {actor_id: 1}
        self.told = 0  # how often the clock changed

    def release(self) -> Clock:
        """What others are told now; what the kernel does from here on is not in it."""
        told = self.clock.copy()
        self.clock[self.id] += 1
        self.told += 1
        return told

    def learn(self, told: Clock) -> None:
        """Be told."""
        clock = self.clock
        self.told += 1
        for actor, time in told.items():
            if clock.get(actor, 0) < time:
                clock[actor] = time

    def site(self) -> Site:
        """The line of the kernel that runs now."""
        frame = sys._getframe(1)
        while _is_own(frame.f_code) and frame.f_back is not None:
            frame = frame.f_back
        return Site(self, frame.f_code, frame.f_lasti)


class Transfers:
    """Transfers of a kernel that end together, at a barrier or before a semaphore's change: an actor beside it."""

    __slots__ = ("id", "time")

    def __init__(self, actor_id: int) -> None:
        self.id, self.time = actor_id, 1

    def end(self, told: Clock) -> None:
        """All that began are over, and who holds this clock knows it."""
        told[self.id] = self.time
        self.time += 1


Access = tuple[int, int, int, int, bool, Site]  # from, to, actor, its time, whether it writes, where


class Shadow:
    """Who touched which bytes of a memory last, in pieces of `granule` bytes."""

    __slots__ = ("_granule", "_name", "_touched")

    def __init__(self, name: Callable[[int], str], granule: int) -> None:
        self._name, self._granule = name, granule  # what a user calls the memory at an offset
        self._touched: dict[int, list[Access]] = {}

    def touch(self, low: int, size: int, known: Clock, actor: int, time: int, writes: bool, site: Site) -> None:
        """An access by somebody who knows so much; those before it that it may not follow are an error."""
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
                        continue  # whoever may follow this access may follow that one
                kept.append(entry)
            kept.append((begin, end, actor, time, writes, site))
            touched[number] = kept

    def _race(self, earlier: Access, writes: bool, site: Site) -> RaceError:
        other, wrote, name = earlier[5], earlier[4], self._name(earlier[0])
        if other.actor is site.actor:
            return RaceError(
                f"{site} {'writes' if writes else 'reads'} bytes of {name} that its own transfer at "
                f"{other.place()} still {'writes' if wrote else 'reads'}",
                expected="a barrier between the two",
                fix="Call noc_async_read_barrier() before using what was read, noc_async_writes_flushed() or "
                "noc_async_write_barrier() before changing what is sent.",
            )
        return RaceError(
            f"{site} {'writes' if writes else 'reads'} bytes of {name} that {other} "
            f"{'writes' if wrote else 'reads'}, and nothing says who comes first",
            expected="one of them to wait for the other",
            fix="Call cb_wait_front before reading, cb_reserve_back before writing and the barrier before pushing or "
            "popping; between cores, a semaphore, after the write barrier where it lies on another core than the data.",
        )


class Word:
    """A semaphore: the values it had, and what whoever sees one of them has been told."""

    __slots__ = ("_changes", "_set", "_states")

    KEPT = 256  # values that may still be seen by a slow kernel

    def __init__(self, value: int) -> None:
        self._states: list[tuple[int, Clock, int, int]] = [(value, {}, -1, 0)]  # value, told, by whom, when
        self._set: tuple[int, int, Site] | None = None
        self._changes: dict[int, tuple[int, Site]] = {}  # increments since, by actor

    def add(self, value: int, actor: Actor, told: Clock, site: Site) -> None:
        """An increment: whoever sees it has been told what those before it told."""
        self._check_set(actor, site)
        joined = dict(self._states[-1][1])
        for who, time in told.items():
            if joined.get(who, 0) < time:
                joined[who] = time
        self._changes[actor.id] = (told[actor.id], site)
        self._append(value, joined, actor.id, told[actor.id])

    def set(self, value: int, actor: Actor, told: Clock, site: Site) -> None:
        """A new value in the place of the old, which nobody else may change meanwhile."""
        self._check_set(actor, site)
        for who, (time, other) in self._changes.items():
            if who != actor.id and actor.clock.get(who, 0) < time:
                raise self._race(site, other)
        self._changes.clear()
        self._set = (actor.id, told[actor.id], site)
        self._append(value, told, actor.id, told[actor.id])

    def see(self, actor: Actor, value: int, exact: bool) -> bool:
        """A kernel has waited for a value: it is told what the first moment tells that could have ended its wait."""
        first = len(self._states) - 1
        while first and actor.clock.get(self._states[first][2], 0) < self._states[first][3]:
            first -= 1
        for held, told, _, _ in self._states[first:]:
            if held == value or (not exact and held > value):
                actor.learn(told)
                return True
        return False

    def load(self, actor: Actor) -> None:
        """A kernel has looked at the value of now."""
        actor.learn(self._states[-1][1])

    def _append(self, value: int, told: Clock, by: int, when: int) -> None:
        self._states.append((value, told, by, when))
        if len(self._states) > self.KEPT:
            del self._states[: self.KEPT // 2]

    def _check_set(self, actor: Actor, site: Site) -> None:
        if self._set is not None and self._set[0] != actor.id and actor.clock.get(self._set[0], 0) < self._set[1]:
            raise self._race(site, self._set[2])

    def _race(self, site: Site, other: Site) -> RaceError:
        return RaceError(
            f"{site} changes a semaphore that {other} changes, and nothing says who comes first",
            expected="a semaphore to be set when nobody else changes it",
            fix="Wait for it with noc_semaphore_wait before setting it, and tell others only after that.",
        )
