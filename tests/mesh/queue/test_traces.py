"""Traces: recorded, bound to addresses, replayed, sized and refused."""

from __future__ import annotations

import logging
import threading

import pytest

from ttmesh.base.dtypes import BufferType
from ttmesh.base.geometry import MeshShape
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.device.opening import close_mesh_device, open_mesh_device
from ttmesh.mesh.functions.queue_functions import event_synchronize, record_event, synchronize_device, wait_for_event
from ttmesh.mesh.functions.trace_capture import begin_trace_capture, end_trace_capture, execute_trace, release_trace
from ttmesh.mesh.queue.command_queue import Command
from ttmesh.mesh.queue.trace import compute_trace_bytes


def test_a_capture_records_and_does_not_run(mesh, program) -> None:
    a, out = program.buffer(), program.buffer()
    program.write(a, 5)

    trace = begin_trace_capture(mesh, cq_id=0)
    program.add(a, a, out)
    end_trace_capture(mesh, trace, cq_id=0)

    assert program.read(out) == 0
    execute_trace(mesh, trace, cq_id=0)
    assert program.read(out) == 10


def test_a_freed_input_reallocated_at_the_same_address_is_what_a_replay_reads(mesh, program) -> None:
    source, out = program.buffer(), program.buffer()
    program.write(source, 1)
    trace = begin_trace_capture(mesh, cq_id=0)
    program.add(source, source, out)
    address = source.cell.address
    source.deallocate()
    end_trace_capture(mesh, trace, cq_id=0)

    other = program.buffer()
    program.write(other, 21)
    execute_trace(mesh, trace, cq_id=0)

    assert other.cell.address == address
    assert program.read(out) == 42


def test_a_replay_without_a_live_input_reads_what_the_input_last_held(mesh, program) -> None:
    source, out = program.buffer(), program.buffer()
    program.write(source, 3)
    trace = begin_trace_capture(mesh, cq_id=0)
    program.add(source, source, out)
    source.deallocate()
    end_trace_capture(mesh, trace, cq_id=0)

    execute_trace(mesh, trace, cq_id=0)

    assert program.read(out) == 6


def test_allocation_and_deallocation_are_allowed_while_capturing(mesh, program) -> None:
    a, out = program.buffer(), program.buffer()
    program.write(a, 2)
    trace = begin_trace_capture(mesh, cq_id=0)
    middle = program.buffer()
    program.add(a, a, middle)
    program.add(middle, a, out)
    middle.deallocate()
    end_trace_capture(mesh, trace, cq_id=0)

    execute_trace(mesh, trace, cq_id=0)

    assert program.read(out) == 6


def test_a_released_trace_lives_until_its_queued_replays_finish(monkeypatch, bytes_on) -> None:
    monkeypatch.setenv("TTMESH_SCHEDULE", "async")
    mesh = open_mesh_device(MeshShape(1, 2), trace_region_size=60000)
    program = bytes_on(mesh)
    a, out = program.buffer(), program.buffer()
    program.write(a, 4)
    trace = begin_trace_capture(mesh, cq_id=0)
    program.add(a, a, out)
    end_trace_capture(mesh, trace, cq_id=0)

    for _ in range(50):
        execute_trace(mesh, trace, cq_id=0, blocking=False)
    release_trace(mesh, trace)

    assert program.read(out) == 8
    close_mesh_device(mesh)


def test_as_many_programs_fit_as_the_regions_of_tt_metals_tests_hold() -> None:
    workload = Command("mesh_workload", lambda reads, writes: None, programs=1)

    assert compute_trace_bytes([workload] * 6) < 60000
    assert compute_trace_bytes([workload] * 3) < 10000


def test_a_trace_larger_than_its_region_is_refused_with_the_sizes(bytes_on) -> None:
    mesh = open_mesh_device(MeshShape(1, 2), trace_region_size=10000)
    program = bytes_on(mesh)
    a = program.buffer()
    trace = begin_trace_capture(mesh, cq_id=0)
    for _ in range(11):
        program.add(a, a, a)

    with pytest.raises(RuntimeError, match=r"Creating trace buffers of size 10240B on MeshDevice \d+, but only 10000B"):
        end_trace_capture(mesh, trace, cq_id=0)

    assert mesh.heap.view(BufferType.TRACE).total_bytes_allocated_per_bank == 0
    close_mesh_device(mesh)


def test_trace_memory_is_taken_from_the_region_and_given_back(bytes_on) -> None:
    mesh = open_mesh_device(MeshShape(1, 2), trace_region_size=60000)
    program = bytes_on(mesh)
    a = program.buffer()
    trace = begin_trace_capture(mesh, cq_id=0)
    program.add(a, a, a)
    end_trace_capture(mesh, trace, cq_id=0)

    assert mesh.heap.view(BufferType.TRACE).total_bytes_allocated_per_bank == 1024
    release_trace(mesh, trace)
    assert mesh.heap.view(BufferType.TRACE).total_bytes_allocated_per_bank == 0
    close_mesh_device(mesh)


def test_without_a_region_a_trace_goes_to_the_top_of_dram_and_must_not_meet_traced_buffers(mesh, program) -> None:
    banks = mesh.heap.map.banks[BufferType.DRAM]
    trace = begin_trace_capture(mesh, cq_id=0)
    everything = mesh.heap.allocate(BufferType.DRAM, 12 * banks.size, 32, banks.size, 12, "everything")
    everything.deallocate()

    with pytest.raises(
        RuntimeError, match=r"overlaps with DRAM activity during trace capture\. Allocation high water mark"
    ):
        end_trace_capture(mesh, trace, cq_id=0)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (lambda mesh, event: record_event(mesh, 0), "Event Synchronization is not supported during trace capture."),
        (lambda mesh, event: wait_for_event(0, event), "Event Synchronization is not supported during trace capture."),
        (lambda mesh, event: event_synchronize(event), "Event Synchronization is not supported during trace capture."),
        (lambda mesh, event: synchronize_device(mesh), "Event Synchronization is not supported during trace capture."),
        (lambda mesh, event: begin_trace_capture(mesh, cq_id=0), "CQ 0 is already being used for tracing tid"),
    ],
)
def test_what_a_capture_cannot_record_is_refused(mesh, what, text) -> None:
    event = record_event(mesh, 0)
    trace = begin_trace_capture(mesh, cq_id=0)

    with pytest.raises(RuntimeError, match=text):
        what(mesh, event)

    end_trace_capture(mesh, trace, cq_id=0)


def test_a_capture_ends_on_the_queue_it_began_on(mesh) -> None:
    trace = begin_trace_capture(mesh, cq_id=0)

    with pytest.raises(RuntimeError, match=f"CQ 1 is not being used for tracing tid {trace}"):
        end_trace_capture(mesh, trace, cq_id=1)

    end_trace_capture(mesh, trace, cq_id=0)


def test_an_unknown_or_released_trace_is_named(mesh: MeshDevice) -> None:
    trace = begin_trace_capture(mesh, cq_id=0)
    end_trace_capture(mesh, trace, cq_id=0)
    release_trace(mesh, trace)

    with pytest.raises(RuntimeError, match=f"Trace instance {trace} must exist on Mesh device"):
        execute_trace(mesh, trace, cq_id=0)


def test_allocating_while_a_trace_is_live_warns_once_per_thread(mesh, program, caplog) -> None:
    trace = begin_trace_capture(mesh, cq_id=0)
    end_trace_capture(mesh, trace, cq_id=0)

    def allocate_twice() -> None:
        program.buffer()
        program.buffer()

    with caplog.at_level(logging.WARNING, logger="ttmesh"):
        thread = threading.Thread(target=allocate_twice)
        thread.start()
        thread.join()

    said = [record for record in caplog.records if "existence of an active trace" in record.getMessage()]
    assert len(said) == 1
    release_trace(mesh, trace)
