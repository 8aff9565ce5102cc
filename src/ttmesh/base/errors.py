"""Errors a user can meet: each says what was wrong, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import ClassVar


class MeshError(RuntimeError):
    """Anything ttmesh refuses; a RuntimeError because TT-NN programs expect one.

    `in_order`: nothing that TT-NN would have said first is left to look at.
    """

    in_order = False

    def __init__(self, wrong: str, *, expected: str, fix: str) -> None:
        joint = " Expected" if wrong.endswith((".", "!", "?")) else "; expected"  # TT-NN's own texts end like this
        super().__init__(f"{wrong}{joint} {expected}. {fix}")
        self.wrong, self.expected, self.fix = wrong, expected, fix


class SettingError(MeshError):
    """An environment variable or `configure()` option has a value that cannot be used."""


class SystemDescriptionError(MeshError):
    """The requested system or board is unknown or described wrongly."""


class CoordinatorError(MeshError):
    """The requested coordinator cannot lead this mesh."""


class ClosedError(MeshError):
    """A mesh was used after it was closed."""


class BusyError(MeshError):
    """A chip is held by another mesh or process."""


class OutOfMemoryError(MeshError):
    """Memory ran out: no span is large enough, circular buffers meet L1 buffers, or the trace region is full."""

    watchers: ClassVar[
        list[Callable[[OutOfMemoryError], None]]
    ] = []  # hear of every one, also where a program catches it

    def __init__(self, wrong: str, *, expected: str, fix: str, label: str = "") -> None:
        super().__init__(wrong, expected=expected, fix=fix)
        self.label = label  # what asked for the memory
        for watch in self.watchers:
            watch(self)


class DeallocatedError(MeshError):
    """A tensor or buffer was used after its memory was freed."""


class TraceError(MeshError):
    """A trace was used wrongly, or something was asked for that a capture cannot record."""


class TraceRegionError(TraceError, OutOfMemoryError):
    """The trace region is too small for the traces."""

    needed_bytes = 0  # of all traces with the one that was refused


class QueueError(MeshError):
    """A command queue cannot take or finish a command."""


class ShapeError(MeshError):
    """A shape, format, layout, coordinate or placement does not fit."""


class RankError(MeshError):
    """A rank died, stopped, lost its connection, is late, or was started wrongly; `ranks` are the ranks at fault."""

    def __init__(self, wrong: str, *, expected: str, fix: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(wrong, expected=expected, fix=fix)
        self.ranks = ranks

    def during(self, operation: str) -> RankError:
        """The same error with what the program was doing in front."""
        return RankError(f"{operation}: {self.wrong}", expected=self.expected, fix=self.fix, ranks=self.ranks)


class NotEmulatedError(MeshError, NotImplementedError):
    """TT-NN has it, ttmesh does not."""


def require(ok: bool, wrong: str, expected: str, fix: str) -> None:
    """Raise a ShapeError with these three parts unless the condition holds."""
    if not ok:
        raise ShapeError(wrong, expected=expected, fix=fix)


def one_of(names: Iterable[object]) -> str:
    """The `expected` part of an error about a wrong name: all the right ones, sorted."""
    return f"one of {sorted(names, key=str)}"


def suggest_names(name: str, names: Iterable[str]) -> str:
    """The `fix` part of an error about a wrong name: the closest right ones."""
    close = difflib.get_close_matches(name, list(names), n=3)
    return f"Did you mean {' or '.join(close)}?" if close else "Check the spelling."
