"""Buffers allocated while traces exist: which ones a replay may overwrite, and who acknowledged that."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from typing import Protocol

from ttmesh.base import settings

# Read once, as TT-NN does: set them before the import.
TRACE_ALLOC_TRACKING = settings.get_bool("TT_METAL_TRACE_ALLOC_TRACKING")
TRACE_ALLOC_DIAGNOSTICS = TRACE_ALLOC_TRACKING and settings.get_bool("TT_METAL_TRACE_ALLOC_TRACEBACKS")
TRACE_ALLOC_REFERRER_DEPTH = settings.get_int("TT_METAL_TRACE_ALLOC_REFERRER_DEPTH") or 0

tracebacks: dict[int, str] = {}  # buffer id -> the program's stack when it was allocated
_scopes = local()


class HeapWithTraces(Protocol):
    """A heap: the ids of its buffers that may be overwritten."""

    corruptible: set[int]


def note_allocation(owner: HeapWithTraces, buffer_id: int) -> None:
    """A buffer was allocated while a trace exists."""
    if any(scope is owner for scope in getattr(_scopes, "stack", ())):
        owner.corruptible.add(buffer_id)
    elif TRACE_ALLOC_DIAGNOSTICS:
        tracebacks[buffer_id] = "".join(traceback.format_stack()[:-2])


def push_scope(owner: HeapWithTraces) -> None:
    """From now on this thread's allocations on this heap may be overwritten."""
    if not hasattr(_scopes, "stack"):
        _scopes.stack = []
    _scopes.stack.append(owner)


def pop_scope() -> None:
    """End the innermost scope of this thread."""
    _scopes.stack.pop()


@contextmanager
def acknowledge(owner: HeapWithTraces) -> Iterator[None]:
    """A scope around the `with` block."""
    push_scope(owner)
    try:
        yield
    finally:
        pop_scope()
