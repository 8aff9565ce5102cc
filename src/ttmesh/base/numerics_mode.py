"""Which arithmetic computes results: torch's at its best, the chip's about, or the chip's to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ttmesh.base import settings

VARIABLE = "TTMESH_NUMERICS"
FAULT_VARIABLE = "TTMESH_MINUS_ONE_FAULT"
IDEAL, REALISTIC, EXACT = "ideal", "realistic", "exact"
MODES = (IDEAL, REALISTIC, EXACT)


class ModeState:
    """The current mode; it is in every call's key, so that a call keeps the mode it was made in."""

    mode = REALISTIC
    minus_one_fault = True  # Wormhole's, where a mode follows every bit


state = ModeState()


def refresh() -> None:
    """Read the setting again: the variable counts from the next open on."""
    state.mode = settings.get_str(VARIABLE)
    state.minus_one_fault = settings.get_bool(FAULT_VARIABLE)


def current() -> str:
    """The mode in force for operations that are called now."""
    return state.mode


def choose(mode: str | None) -> None:
    """Set the mode of this process; None: what the environment says."""
    settings.override(VARIABLE, mode)
    refresh()


def follow_minus_one_fault(follow: bool | None) -> None:
    """Set whether `exact` follows Wormhole's wrong sums of exactly -1 unit; None: what the environment says."""
    settings.override(FAULT_VARIABLE, follow)
    refresh()


@contextmanager
def numerics(mode: str) -> Iterator[None]:
    """Inside, operations compute in this mode: "ideal", "realistic" or "exact"."""
    before = settings.get_override(VARIABLE)
    choose(mode)
    try:
        yield
    finally:
        choose(before)
