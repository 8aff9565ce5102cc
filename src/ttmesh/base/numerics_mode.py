"""Which arithmetic computes results: torch's at its best, the chip's about, or the chip's to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ttmesh.base import settings

VARIABLE = "TTMESH_NUMERICS"
IDEAL, REALISTIC, EXACT = "ideal", "realistic", "exact"
MODES = (IDEAL, REALISTIC, EXACT)


class ModeState:
    """The mode in force, read at every operation; None until somebody asks."""

    mode: str | None = None


state = ModeState()


def current() -> str:
    """The mode in force for operations that run now."""
    if state.mode is None:
        state.mode = settings.get_str(VARIABLE)
    return state.mode


def choose(mode: str | None) -> None:
    """Set the mode of this process; None: what the environment says."""
    settings.override(VARIABLE, mode)
    state.mode = None


@contextmanager
def numerics(mode: str) -> Iterator[None]:
    """Inside, operations compute in this mode: "ideal", "realistic" or "exact"."""
    before = current()
    choose(mode)
    try:
        yield
    finally:
        choose(before)
