"""The check before a replay: no buffer allocated since the capture may be overwritten unless the program said so."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, ClassVar

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.dtypes import BufferType
from ttmesh.mesh.allocation import trace_allocations
from ttmesh.mesh.allocation.trace_allocations import (
    TRACE_ALLOC_DIAGNOSTICS,
    TRACE_ALLOC_REFERRER_DEPTH,
    TRACE_ALLOC_TRACKING,
)
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.queue.trace import MeshTraceId


@name_wrong_types
def get_unsafe_tracked_ids(mesh_device: MeshDevice, trace_id: MeshTraceId) -> dict[int, str]:
    """The live buffers that were allocated after a trace's capture, by id, each with the operation it belongs to."""
    trace = mesh_device.traces.get(trace_id)
    if not TRACE_ALLOC_TRACKING or trace is None or trace.buffer is None:
        return {}
    heap = mesh_device.heap
    storage = {t.buffer.cell.buffer_id for t in mesh_device.traces.values() if t.buffer is not None}
    captured = trace.buffer.cell.buffer_id  # ids rise: the trace's own storage was allocated last
    return {
        cell.buffer_id: cell.label
        for cell in heap.cells()
        if cell.buffer_id > captured
        and cell.buffer_type is not BufferType.TRACE
        and cell.buffer_id not in storage
        and cell.buffer_id not in heap.corruptible
    }


@name_wrong_types
def remove_unsafe_tracked_id(mesh_device: MeshDevice, buffer_unique_id: int) -> None:
    """A buffer that replays may overwrite from now on."""
    mesh_device.heap.corruptible.add(buffer_unique_id)


@name_wrong_types
def corruptible_allocation_scope(mesh_device: MeshDevice) -> AbstractContextManager[None]:
    """Replays may overwrite what is allocated inside the `with` block; without tracking it does nothing."""
    heap = mesh_device.heap
    return trace_allocations.acknowledge(heap) if TRACE_ALLOC_TRACKING else nullcontext()


@name_wrong_types
def push_corruptible_allocation_scope(mesh_device: MeshDevice) -> None:
    """Begin such a block."""
    trace_allocations.push_scope(mesh_device.heap)


@name_wrong_types
def pop_corruptible_allocation_scope(mesh_device: MeshDevice) -> None:
    """End the innermost such block of this thread."""
    trace_allocations.pop_scope()


def trace_allocation_tracking_enabled() -> bool:
    """Whether TT_METAL_TRACE_ALLOC_TRACKING is on."""
    return TRACE_ALLOC_TRACKING


def trace_allocation_diagnostics_enabled() -> bool:
    """Whether TT_METAL_TRACE_ALLOC_TRACEBACKS is on as well."""
    return TRACE_ALLOC_DIAGNOSTICS


class TraceAllocationTracker:
    """TT-NN's names around the check, in the form of its wheel; `UnsafeAllocationTracker` is that of its sources."""

    _tracebacks: ClassVar[dict[int, str]] = trace_allocations.tracebacks

    @classmethod
    def acknowledge_corruptible(cls, tensor: Any) -> None:
        """A device tensor that replays may overwrite; without tracking it does nothing."""
        if TRACE_ALLOC_TRACKING:
            _mark(tensor, "acknowledge_corruptible")

    @classmethod
    def verify_before_replay(cls, mesh_device: MeshDevice, trace_id: MeshTraceId) -> None:
        """Raise RuntimeError if a replay would overwrite a live buffer."""
        verify_before_replay(mesh_device, trace_id)


class UnsafeAllocationTracker:
    """The same with a tracker per mesh."""

    _tracebacks: ClassVar[dict[int, str]] = trace_allocations.tracebacks

    def __init__(self, mesh_device: MeshDevice) -> None:
        self.mesh_device = mesh_device

    @classmethod
    def mark_corruptible(cls, tensor: Any) -> int:
        """A device tensor that replays may overwrite; returns its buffer's id."""
        return _mark(tensor, "mark_corruptible")

    def verify_before_replay(self, trace_id: MeshTraceId) -> None:
        """Raise RuntimeError if a replay would overwrite a live buffer."""
        verify_before_replay(self.mesh_device, trace_id)


def acknowledge_corruptible(tensor: Any) -> None:
    """A device tensor that replays may overwrite; without tracking it does nothing."""
    TraceAllocationTracker.acknowledge_corruptible(tensor)


def mark_corruptible(tensor: Any) -> int:
    """A device tensor that replays may overwrite; returns its buffer's id."""
    return UnsafeAllocationTracker.mark_corruptible(tensor)


def verify_before_replay(mesh_device: MeshDevice, trace_id: MeshTraceId) -> None:
    """Raise RuntimeError if a replay would overwrite a live buffer; unreachable tensors are collected first."""
    if not get_unsafe_tracked_ids(mesh_device, trace_id):
        return
    gc.collect()
    unsafe = get_unsafe_tracked_ids(mesh_device, trace_id)
    for buffer_id in trace_allocations.tracebacks.keys() - unsafe.keys():
        del trace_allocations.tracebacks[buffer_id]
    if unsafe:
        raise RuntimeError("".join(_describe_unsafe(unsafe)))


def _describe_unsafe(unsafe: dict[int, str]) -> Iterator[str]:
    yield f"Found {len(unsafe)} device buffer(s) still alive before trace replay. These will be corrupted on replay.\n"
    for buffer_id, label in sorted(unsafe.items()):
        yield f"Buffer {buffer_id}{f' [op: {label}]' if label else ''}\n"
        if buffer_id in trace_allocations.tracebacks:
            yield f"  allocated at:\n{trace_allocations.tracebacks[buffer_id]}"
    if TRACE_ALLOC_DIAGNOSTICS:
        yield "\n--- Python referrer analysis ---\n"
        found = _find_holders(set(unsafe))
        for buffer_id, paths in sorted(found.items()):
            yield f"Buffer {buffer_id}: held by {', '.join(sorted(paths))}\n"
        if unsafe.keys() - found.keys():
            yield f"{len(unsafe.keys() - found.keys())} buffer(s) not found in any Python stack frame.\n"
    yield (
        "\nUse corruptible_allocation_scope() or mark_corruptible() for tensors that may be overwritten, or free them "
        "before the replay."
    )


def _find_holders(unsafe: set[int]) -> dict[int, set[str]]:
    """The variables of running functions, and what they contain, that hold these buffers."""
    found: dict[int, set[str]] = {}
    seen: set[int] = set()

    def visit(value: Any, path: str, depth: int) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        buffer = _look(value, "_buffer")
        cell = getattr(buffer, "_cell", None)
        if cell is not None and cell.buffer_id in unsafe:
            found.setdefault(cell.buffer_id, set()).add(path)
        if depth == 0 or buffer is not None:
            return
        if issubclass(type(value), (list, tuple)):
            children = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
        elif issubclass(type(value), dict):
            children = [(f"{path}[{key!r}]", item) for key, item in list(value.items())]
        else:
            skip = issubclass(type(value), (type, ModuleType))
            attributes = {} if skip else _look(value, "__dict__") or {}
            children = [(f"{path}.{name}", item) for name, item in list(attributes.items())]
        for name, item in children:
            visit(item, name, depth - 1)

    for frame in sys._current_frames().values():
        while frame is not None:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}: "
            for name, value in list(frame.f_locals.items()):
                visit(value, place + name, TRACE_ALLOC_REFERRER_DEPTH)
            frame = frame.f_back  # type: ignore[assignment]  # None ends it
    return found


def _look(value: Any, name: str) -> Any:
    """An attribute as it is stored: objects of the program may compute theirs."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


def _mark(tensor: Any, name: str) -> int:
    if not hasattr(tensor, "buffer_unique_id"):
        raise TypeError(f"{name} expects a ttnn.Tensor, got {type(tensor).__name__}")
    if getattr(tensor, "_buffer", None) is None:
        raise ValueError(f"{name} expects a tensor with device storage")
    if not tensor.is_allocated():
        raise ValueError(f"{name} expected an allocated tensor")
    buffer_id: int = tensor.buffer_unique_id()
    remove_unsafe_tracked_id(tensor.device(), buffer_id)
    trace_allocations.tracebacks.pop(buffer_id, None)
    return buffer_id
