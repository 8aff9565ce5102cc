"""TT-Metal's real-time profiler by its names: it never runs on an emulated chip, whose programs take no time of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ttmesh.base.errors import NotEmulatedError


def IsProgramRealtimeProfilerActive() -> bool:
    """Whether a chip records how long its programs take: no."""
    return False


def RegisterProgramRealtimeProfilerCallback(callback: Callable[[Any], None]) -> int:
    """Never works: nothing would call back."""
    raise NotEmulatedError(
        "the real-time profiler is not emulated",
        expected="IsProgramRealtimeProfilerActive() to be asked first, which says False",
        fix="Time programs with benchmarks, or run them on a card.",
    )


def UnregisterProgramRealtimeProfilerCallback(handle: int) -> None:
    """Never works: no callback was ever registered."""
    raise NotEmulatedError(
        f"no real-time profiler callback {handle} is registered",
        expected="a handle that RegisterProgramRealtimeProfilerCallback gave, which gives none here",
        fix="Ask IsProgramRealtimeProfilerActive() first.",
    )
