"""TT-Metal's functions for the real-time profiler, which is never active: programs on emulated chips have no chip time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ttmesh.base.errors import NotEmulatedError


def IsProgramRealtimeProfilerActive() -> bool:
    """Whether a chip records how long its programs take: no."""
    return False


def RegisterProgramRealtimeProfilerCallback(callback: Callable[[Any], None]) -> int:
    """Raises: nothing would call back."""
    raise NotEmulatedError(
        "the real-time profiler is not emulated",
        expected="a program that asks IsProgramRealtimeProfilerActive(), which returns False here",
        fix="Time programs with benchmarks, or run them on a card.",
    )


def UnregisterProgramRealtimeProfilerCallback(handle: int) -> None:
    """Raises: no callback was registered."""
    raise NotEmulatedError(
        f"no real-time profiler callback {handle} is registered",
        expected="a handle that RegisterProgramRealtimeProfilerCallback gave, which raises here",
        fix="Ask IsProgramRealtimeProfilerActive() first.",
    )
