"""Capture, replay and release traces on a mesh."""

from __future__ import annotations

import itertools

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import TraceError, TraceRegionError, one_of
from ttmesh.chip.memory import align_up
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.allocation.trace_allocations import TRACE_ALLOC_TRACKING
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.trace_safety import verify_before_replay
from ttmesh.mesh.queue.command_queue import Cells, Command
from ttmesh.mesh.queue.dispatch_commands import choose_page_bytes
from ttmesh.mesh.queue.trace import (
    MeshTraceId,
    Trace,
    TraceSegment,
    compute_dram_high_water,
    compute_trace_bytes,
    find_overlap_error,
    make_capture_error,
)

_ids = itertools.count()


@name_wrong_types
def begin_trace_capture(mesh_device: MeshDevice, *, cq_id: int | None = None) -> MeshTraceId:
    """Begin to record the commands that are enqueued on this queue, instead of running them."""
    queue = mesh_device.queue(cq_id)
    if queue.recording is not None:
        current = next(t.id for t in mesh_device.traces.values() if t.commands is queue.recording)
        raise TraceError(
            f"CQ {queue.id} is already being used for tracing tid {current}",
            expected="one capture at a time on a queue",
            fix="Call end_trace_capture for the other trace first.",
        )
    queue.finish()
    trace = Trace(MeshTraceId(next(_ids)), queue.id)
    mesh_device.traces[trace.id] = trace
    mesh_device.heap.allocation_high_water = mesh_device.heap.deletion_high_water = 0
    queue.recording = trace.commands
    return trace.id


@name_wrong_types
def end_trace_capture(mesh_device: MeshDevice, trace_id: MeshTraceId, *, cq_id: int | None = None) -> None:
    """Stop recording and allocate the trace's memory on the chips."""
    queue = mesh_device.queue(cq_id)
    trace = _find_trace(mesh_device, trace_id)
    if queue.recording is not trace.commands:
        raise TraceError(
            f"CQ {queue.id} is not being used for tracing tid {trace_id}",
            expected=f"the queue of begin_trace_capture, {trace.queue_id}",
            fix="Pass the same cq_id to both.",
        )
    queue.recording = None
    try:
        trace.buffer = _allocate_trace_buffer(mesh_device, trace)
    except BaseException:  # raised again, without a trace that could be replayed
        del mesh_device.traces[trace_id]
        raise


@name_wrong_types
def execute_trace(
    mesh_device: MeshDevice, trace_id: MeshTraceId, *, cq_id: int | None = None, blocking: bool = True
) -> None:
    """Run a captured trace again."""
    queue = mesh_device.queue(cq_id)
    trace = _find_trace(mesh_device, trace_id)
    if queue.recording is not None:
        raise make_capture_error("A trace cannot be executed during trace capture.", trace_id)
    if trace.buffer is None:
        raise TraceError(
            f"trace {trace_id} is still being captured",
            expected="a finished capture",
            fix="Call end_trace_capture first.",
        )
    if TRACE_ALLOC_TRACKING:
        verify_before_replay(mesh_device, trace_id)
    if len(mesh_device.queues) > 1:
        mesh_device.ownership().take(queue.id)
    for segment in trace.segments():
        command = _make_replay_command(mesh_device, trace, segment)
        queue.enqueue(command)
    if blocking:
        queue.finish_through(command)


@name_wrong_types
def release_trace(mesh_device: MeshDevice, trace_id: MeshTraceId) -> None:
    """Free a trace; replays that are still queued finish first, on their own reference."""
    trace = _find_trace(mesh_device, trace_id)
    if any(queue.recording is trace.commands for queue in mesh_device.queues):
        raise make_capture_error("A trace cannot be released during its own capture.", trace_id)
    del mesh_device.traces[trace_id]
    if trace.buffer is not None:
        mesh_device.trace_bytes -= trace.buffer.cell.size_bytes
        trace.buffer.deallocate()
        mesh_device.heap.traces_live -= 1


def _make_replay_command(mesh_device: MeshDevice, trace: Trace, segment: TraceSegment) -> Command:
    """A command that replays a segment of a trace; it waits for what the segment's first command waits for."""
    heap, backend, first = mesh_device.heap, mesh_device.backend, segment.first

    def replay(reads: Cells, writes: Cells) -> None:
        trace.replay(heap, backend, segment)

    name = f"execute_trace {trace.id}"
    if first is None:
        return Command(name, replay, segment.cells, segment.cells, programs=segment.programs)
    return Command(
        f"{name}, {first.name}", replay, segment.cells, segment.cells, programs=segment.programs, ready=first.ready,
        waits_for=first.waits_for, remote=first.remote, offers=first.offers,
    )  # fmt: skip


def _find_trace(mesh_device: MeshDevice, trace_id: MeshTraceId) -> Trace:
    mesh_device.check_open()
    trace = mesh_device.traces.get(trace_id)
    if trace is None:
        manager = mesh_device.sub_devices.loaded.id.id
        raise TraceError(
            f"Trace instance {trace_id} must exist on Mesh device {mesh_device.id()}'s active sub-device manager {manager}",
            expected=one_of(mesh_device.traces) if mesh_device.traces else "a captured trace; this mesh has none",
            fix="Use the id that begin_trace_capture returned, before release_trace.",
        )
    return trace


def _allocate_trace_buffer(mesh_device: MeshDevice, trace: Trace) -> Buffer:
    """Allocate memory for the trace: in the trace region, or from the top of DRAM when there is none."""
    heap = mesh_device.heap
    allocated, freed = heap.allocation_high_water, heap.deletion_high_water
    others = max((t.high_water for t in mesh_device.traces.values() if t is not trace), default=0)
    trace.high_water = max(compute_dram_high_water(trace.cells()), allocated, freed)
    region = heap.map.trace_region_bytes
    kind = BufferType.TRACE if region else BufferType.DRAM
    banks = heap.map.banks[kind].count
    taken = compute_trace_bytes(trace.commands)
    page = choose_page_bytes(taken, banks)
    size = align_up(taken, page)
    if region and mesh_device.trace_bytes + size > region:
        error = TraceRegionError(
            f"Creating trace buffers of size {mesh_device.trace_bytes + size}B on MeshDevice {mesh_device.id()}, but only "
            f"{region}B is allocated for trace region.",
            expected=f"traces of at most {region} B together",
            fix="Open the mesh with a larger trace_region_size or release a trace.",
        )
        error.needed_bytes = mesh_device.trace_bytes + size
        raise error
    bank_bytes = -(-size // page // banks) * page
    buffer = heap.allocate(kind, size, page, bank_bytes, banks, f"trace {trace.id}", bottom_up=False)
    if not region:
        overlap = find_overlap_error(buffer.cell.address, allocated=allocated, freed=freed, others=others)
        if overlap is not None:
            buffer.deallocate()
            raise overlap
    mesh_device.trace_bytes += size
    heap.traces_live += 1
    return buffer
