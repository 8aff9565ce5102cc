"""Programs, workloads, their rules, and how they go through queues, traces and schedules."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import ttmesh
from ttmesh.base import settings
from ttmesh.base.cores import CoreCoord, CoreRange
from ttmesh.base.dtypes import BufferType, DataType
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange, MeshShape
from ttmesh.base.records import Allocated, Freed
from ttmesh.base.signals import signals
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.device.opening import open_mesh_device
from ttmesh.programs.buffers.buffer_configs import DeviceLocalBufferConfig, ReplicatedBufferConfig
from ttmesh.programs.buffers.buffer_transfers import enqueue_write_mesh_buffer, read_shard
from ttmesh.programs.buffers.mesh_buffer import MeshBuffer
from ttmesh.programs.circular_buffers import CircularBufferConfig
from ttmesh.programs.execution.workload import MeshWorkload, enqueue_mesh_workload
from ttmesh.programs.program import ComputeConfig, DataMovementConfig, Program, ReaderDataMovementConfig

ONE = CoreCoord(0, 0)
ORIGIN = MeshCoordinate(0, 0)


def nothing(core: Any) -> None:
    """A kernel that does nothing."""


def increment(core: Any) -> None:
    """Add an argument to the first word of a buffer."""
    page, scratch = core.tensor_accessor(core.get_arg_val(0)), core.get_write_ptr(0)
    core.noc_async_read_page(0, page, scratch)
    core.noc_async_read_barrier()
    core.store_word(scratch, core.load_word(scratch) + core.get_arg_val(1))
    core.noc_async_write_page(0, page, scratch)
    core.noc_async_write_barrier()


def _buffer(mesh: MeshDevice, kind: BufferType = BufferType.DRAM) -> MeshBuffer:
    return MeshBuffer.create(ReplicatedBufferConfig(64), DeviceLocalBufferConfig(64, kind), mesh)


def _program(kernel: Any = nothing, *args: Any, cores: Any = ONE) -> Program:
    program = Program()
    program.create_circular_buffer(cores, CircularBufferConfig(64, {0: DataType.UINT32}).set_page_size(0, 64))
    program.set_runtime_args(program.create_kernel(kernel, cores, DataMovementConfig()), cores, args)
    return program


def _workload(mesh: MeshDevice, program: Program) -> MeshWorkload:
    workload = MeshWorkload()
    workload.add_program(MeshCoordinateRange(mesh.shape), program)
    return workload


def _word(buffer: MeshBuffer, coord: MeshCoordinate = ORIGIN, cq_id: int | None = None) -> int:
    return int(read_shard(buffer, coord, cq_id=cq_id).view(torch.int32)[0])


# ---- rules


def test_ranges_may_not_overlap(mesh: MeshDevice) -> None:
    workload = _workload(mesh, _program())

    with pytest.raises(
        RuntimeError, match=r"Program range MeshCoordinateRange\(.*\) overlaps with the previously added"
    ):
        workload.add_program(MeshCoordinate(0, 1), _program())


def test_nothing_is_added_after_the_first_launch(mesh: MeshDevice) -> None:
    workload = MeshWorkload()
    workload.add_program(ORIGIN, _program())
    enqueue_mesh_workload(mesh, workload)

    with pytest.raises(RuntimeError, match=r"Cannot add programs to a MeshWorkload after it has been finalized\."):
        workload.add_program(MeshCoordinate(1, 1), _program())
    with pytest.raises(RuntimeError, match="MeshWorkload has already been finalized"):
        workload.finalize(mesh)


def test_a_program_belongs_to_one_workload(mesh: MeshDevice) -> None:
    program = _program()
    _workload(mesh, program)

    with pytest.raises(RuntimeError, match=f"program {program.id} is already part of a MeshWorkload"):
        _workload(mesh, program)


def test_a_workload_belongs_to_one_mesh(mesh: MeshDevice) -> None:
    workload = MeshWorkload()
    workload.add_program(ORIGIN, _program())
    enqueue_mesh_workload(mesh, workload)
    submesh = mesh.create_submesh(MeshShape(1, 2))

    with pytest.raises(RuntimeError, match=r"Reusing MeshWorkloads across MeshDevices is currently not supported\."):
        enqueue_mesh_workload(submesh, workload)


def test_ranges_must_lie_on_the_mesh(mesh: MeshDevice) -> None:
    workload = MeshWorkload()
    workload.add_program(MeshCoordinate(2, 0), _program())

    with pytest.raises(RuntimeError, match="lies outside MeshDevice"):
        enqueue_mesh_workload(mesh, workload)


def test_a_compiled_program_is_closed(mesh: MeshDevice) -> None:
    program = _program()
    enqueue_mesh_workload(mesh, _workload(mesh, program))

    with pytest.raises(RuntimeError, match=f"Cannot add kernel to an already compiled program {program.id}"):
        program.create_kernel(nothing, ONE, ComputeConfig())
    with pytest.raises(RuntimeError, match="Cannot add circular buffer to an already compiled program"):
        program.create_circular_buffer(ONE, CircularBufferConfig(2048, {4: DataType.BFLOAT16}))
    with pytest.raises(RuntimeError, match="Cannot add semaphore to an already compiled program"):
        program.create_semaphore(ONE)


def test_programs_are_checked_while_they_are_built() -> None:
    program, pair = _program(), CoreRange((0, 0), (1, 0))

    with pytest.raises(
        RuntimeError, match=r'Core Overlap Between \("nothing"\) and new kernel \("increment"\) at \(x=0,y=0\)'
    ):
        program.create_kernel(increment, pair, DataMovementConfig())
    with pytest.raises(
        RuntimeError, match="Cannot add circular buffer at index 0, another circular buffer already exists"
    ):
        program.create_circular_buffer(pair, CircularBufferConfig(2048, {0: DataType.BFLOAT16}))
    with pytest.raises(RuntimeError, match="must be divisible by page size 2048 B"):
        program.create_circular_buffer(ONE, CircularBufferConfig(3000, {1: DataType.BFLOAT16}))
    with pytest.raises(RuntimeError, match="circular buffer index 32"):
        program.create_circular_buffer(ONE, CircularBufferConfig(2048, {32: DataType.BFLOAT16}))
    handle = program.create_kernel(nothing, pair, ReaderDataMovementConfig())
    with pytest.raises(RuntimeError, match=r"Cannot set runtime args for core \(x=5,y=5\)"):
        program.set_runtime_args(handle, CoreCoord(5, 5), [1])
    with pytest.raises(RuntimeError, match=r"4097 unique\+common runtime args targeting kernel nothing"):
        program.set_runtime_args(handle, ONE, [0] * 4097)
    with pytest.raises(RuntimeError, match="Semaphore id 16 exceeds max value 15"):
        for _ in range(17):
            program.create_semaphore(ONE)


def test_cores_must_exist(mesh: MeshDevice) -> None:
    with pytest.raises(RuntimeError, match=r"core \(x=8,y=0\) does not exist"):
        enqueue_mesh_workload(mesh, _workload(mesh, _program(cores=CoreCoord(8, 0))))


def test_circular_buffers_must_fit_into_l1(mesh: MeshDevice) -> None:
    program = Program()
    program.create_circular_buffer(ONE, CircularBufferConfig(700 * 2048, {0: DataType.BFLOAT16}))

    with pytest.raises(
        RuntimeError, match=r"on core range \{\[\(x=0,y=0\) - .* grow to \d+ B which is beyond max L1 size"
    ):
        enqueue_mesh_workload(mesh, _workload(mesh, program))


def test_circular_buffers_may_not_reach_l1_buffers(mesh: MeshDevice) -> None:
    program = Program()
    program.create_circular_buffer(ONE, CircularBufferConfig(512 * 2048, {0: DataType.BFLOAT16}))
    program.create_kernel(nothing, ONE, DataMovementConfig())
    workload = _workload(mesh, program)
    enqueue_mesh_workload(mesh, workload)
    large = MeshBuffer.create(
        ReplicatedBufferConfig(64 * 500_000), DeviceLocalBufferConfig(500_000, BufferType.L1), mesh
    )

    with pytest.raises(
        RuntimeError, match=rf"clash with L1 buffers .* L1 buffer allocated at {large.address()} and static"
    ):
        enqueue_mesh_workload(mesh, workload)
    large.deallocate()
    enqueue_mesh_workload(mesh, workload)


def test_circular_buffers_of_different_cores_are_laid_out_apart(mesh: MeshDevice) -> None:
    addresses: dict[int, tuple[int, int]] = {}

    def look(core: Any) -> None:
        addresses[core.logical_core.x] = (core.get_write_ptr(0), core.get_write_ptr(1))

    program, pair = Program(), CoreRange((0, 0), (1, 0))
    program.create_circular_buffer(CoreCoord(1, 0), CircularBufferConfig(2048, {2: DataType.BFLOAT16}))
    for cb in (0, 1):
        program.create_circular_buffer(pair, CircularBufferConfig(2048, {cb: DataType.BFLOAT16}))
    program.create_kernel(look, pair, DataMovementConfig())
    enqueue_mesh_workload(mesh, _workload(mesh, program))

    base = mesh.heap.map.banks[BufferType.L1].start
    assert addresses[0] == addresses[1] == (base + 2048, base + 4096)


# ---- arguments, queues, traces


def test_arguments_may_change_between_launches(mesh: MeshDevice) -> None:
    buffer = _buffer(mesh)
    program = _program(increment, buffer, 3)
    workload = _workload(mesh, program)

    enqueue_mesh_workload(mesh, workload)
    program.set_runtime_args(ttmesh.programs.program.KernelHandle(0), ONE, [buffer, 10])
    enqueue_mesh_workload(mesh, workload)

    assert _word(buffer) == 13


def test_programs_share_a_global_semaphore(mesh: MeshDevice) -> None:
    counter = ttmesh.create_global_semaphore(mesh, CoreRange((2, 1), (2, 1)), 0)

    def count(core: Any) -> None:
        core.noc_semaphore_inc(core.get_noc_addr(core.my_x, core.my_y, core.get_arg_val(0)), 1)

    kept = _workload(mesh, _program(count, counter, cores=CoreCoord(2, 1)))
    for _ in range(2):
        enqueue_mesh_workload(mesh, _workload(mesh, _program(count, counter, cores=CoreCoord(2, 1))))
        gc.collect()
        enqueue_mesh_workload(mesh, kept)

    assert counter.values().unique().tolist() == [4]


def test_heterogeneous_workloads_leave_other_chips_alone(mesh: MeshDevice) -> None:
    buffer, workload = _buffer(mesh), MeshWorkload()
    workload.add_program(MeshCoordinateRange(ORIGIN, MeshCoordinate(0, 2)), _program(increment, buffer, 1))
    workload.add_program(MeshCoordinate(1, 3), _program(increment, buffer, 5))

    enqueue_mesh_workload(mesh, workload)

    assert [_word(buffer, c) for c in MeshCoordinateRange(mesh.shape)] == [1, 1, 1, 0, 0, 0, 0, 5]


def test_a_trace_replays_with_the_arguments_of_its_capture(mesh: MeshDevice) -> None:
    buffer = _buffer(mesh)
    program = _program(increment, buffer, 1)
    workload = _workload(mesh, program)
    enqueue_mesh_workload(mesh, workload)
    trace = ttmesh.begin_trace_capture(mesh)
    with pytest.raises(RuntimeError, match="Blocking is not supported when recording a trace"):
        enqueue_mesh_workload(mesh, workload)
    enqueue_mesh_workload(mesh, workload, blocking=False)
    ttmesh.end_trace_capture(mesh, trace)
    program.set_runtime_args(ttmesh.programs.program.KernelHandle(0), ONE, [buffer, 100])

    for _ in range(3):
        ttmesh.execute_trace(mesh, trace)

    assert _word(buffer) == 4


def test_a_trace_writes_what_lies_at_its_address_now(mesh: MeshDevice) -> None:
    buffer = _buffer(mesh)
    workload = _workload(mesh, _program(increment, buffer, 1))
    enqueue_mesh_workload(mesh, workload)
    trace = ttmesh.begin_trace_capture(mesh)
    enqueue_mesh_workload(mesh, workload, blocking=False)
    ttmesh.end_trace_capture(mesh, trace)
    address = buffer.address()
    buffer.deallocate()

    other = MeshBuffer.create(ReplicatedBufferConfig(64), DeviceLocalBufferConfig(64), mesh, address=address)
    enqueue_write_mesh_buffer(other, torch.full((16,), 41, dtype=torch.int32))
    ttmesh.execute_trace(mesh, trace)

    assert _word(other) == 42


def test_a_capture_loads_no_new_programs(mesh: MeshDevice) -> None:
    workload = _workload(mesh, _program())
    trace = ttmesh.begin_trace_capture(mesh)

    with pytest.raises(RuntimeError, match=r"Cannot load new binaries during trace capture\."):
        enqueue_mesh_workload(mesh, workload, blocking=False)

    ttmesh.end_trace_capture(mesh, trace)


def test_two_queues_hand_over_by_events(mesh: MeshDevice) -> None:
    workload = _workload(mesh, _program())
    enqueue_mesh_workload(mesh, workload, blocking=False, cq_id=0)

    with pytest.raises(
        RuntimeError, match=r"Sub device id 0 currently in use by cq 0. Can't enqueue program from cq 1"
    ):
        enqueue_mesh_workload(mesh, workload, blocking=False, cq_id=1)
    ttmesh.wait_for_event(1, ttmesh.record_event(mesh, 0))
    enqueue_mesh_workload(mesh, workload, cq_id=1)


@pytest.mark.parametrize("wait", [True, False])
def test_a_missing_wait_shows_on_the_adversarial_schedule(wait: bool) -> None:
    settings.override("TTMESH_SCHEDULE", "adversarial")
    mesh = open_mesh_device(MeshShape(1, 2), num_command_queues=2)
    buffer = _buffer(mesh)
    workload = _workload(mesh, _program(increment, buffer, 1))

    enqueue_write_mesh_buffer(buffer, torch.full((16,), 7, dtype=torch.int32), cq_id=1)
    if wait:
        ttmesh.wait_for_event(0, ttmesh.record_event(mesh, 1))
    enqueue_mesh_workload(mesh, workload, cq_id=0)

    assert _word(buffer, cq_id=0) == (8 if wait else 1)


def test_workloads_run_on_workers() -> None:
    settings.override("TTMESH_SCHEDULE", "async")
    mesh = open_mesh_device(MeshShape(2, 4))
    buffer = _buffer(mesh)
    workload = _workload(mesh, _program(increment, buffer, 1))

    for _ in range(5):
        enqueue_mesh_workload(mesh, workload, blocking=False)
    ttmesh.synchronize_device(mesh)

    assert _word(buffer) == 5


def test_programs_are_compiled_once(mesh: MeshDevice) -> None:
    buffer = _buffer(mesh)
    first, second = (_workload(mesh, _program(increment, buffer, 1)) for _ in range(2))
    other = _workload(mesh, _program(nothing))

    counts = []
    for workload in (first, first, second, other):
        enqueue_mesh_workload(mesh, workload)
        counts.append(mesh.num_program_cache_entries())

    assert counts == [1, 1, 1, 2]
    mesh.set_program_cache_misses_allowed(False)
    with pytest.raises(RuntimeError, match="program cache miss occurred, but cache misses are forbidden"):
        enqueue_mesh_workload(mesh, _workload(mesh, _program(nothing, cores=CoreCoord(1, 1))))


def test_lanes_without_values_run_no_kernels() -> None:
    settings.override("TTMESH_BACKEND", "meta")
    mesh = open_mesh_device(MeshShape(1, 1))

    with pytest.raises(NotImplementedError, match="kernels cannot run on lanes without values"):
        enqueue_mesh_workload(mesh, _workload(mesh, _program()))


# ---- what trackers see


def test_trackers_see_programs_come_and_go(mesh: MeshDevice) -> None:
    seen: list[Any] = []
    stop = signals.listen(seen.append)
    pair = CoreRange((0, 0), (1, 0))
    workload = _workload(mesh, _program(cores=pair))
    enqueue_mesh_workload(mesh, workload)
    enqueue_mesh_workload(mesh, workload)

    held = {record.buffer_type: record for record in seen if isinstance(record, Allocated)}
    assert held.keys() == {"CB", "KERNEL"}
    assert (held["CB"].bank_bytes, held["CB"].banks, held["CB"].size_bytes) == (64, 2, 128)
    assert held["CB"].chips == mesh.physical_ids
    assert held["CB"] in mesh.holdings()

    del workload
    gc.collect()
    stop()

    assert [r.buffer_id for r in seen if isinstance(r, Freed)] == [held["CB"].buffer_id, held["KERNEL"].buffer_id]
    assert held["CB"] not in mesh.holdings()


def test_programs_use_l1_in_turn(mesh: MeshDevice) -> None:
    everywhere, corner = _workload(mesh, _program()), MeshWorkload()
    corner.add_program(ORIGIN, _program(cores=CoreRange((0, 0), (3, 0))))

    held = []
    for workload in (everywhere, everywhere, corner, everywhere):
        enqueue_mesh_workload(mesh, workload)
        held.append([record.banks for record in mesh.residents.records() if record.buffer_type == "CB"])

    assert held == [[1], [1], [4], [1]]


def test_a_recorded_workload_stays_on_the_chips(mesh: MeshDevice) -> None:
    workload = _workload(mesh, _program())
    enqueue_mesh_workload(mesh, workload)
    trace = ttmesh.begin_trace_capture(mesh)
    enqueue_mesh_workload(mesh, workload, blocking=False)
    ttmesh.end_trace_capture(mesh, trace)

    del workload
    gc.collect()
    assert len(mesh.residents.records()) == 2
    ttmesh.release_trace(mesh, trace)
    gc.collect()

    assert mesh.residents.records() == []


def test_a_reshaped_mesh_needs_a_new_workload(mesh: MeshDevice) -> None:
    workload = _workload(mesh, _program())
    enqueue_mesh_workload(mesh, workload)
    mesh.reshape(MeshShape(1, 8))

    with pytest.raises(RuntimeError, match=r"the mesh was reshaped from MeshShape\(\[2, 4\]\)"):
        enqueue_mesh_workload(mesh, workload)


def test_names_are_reachable_from_the_root() -> None:
    names = "Program MeshWorkload enqueue_mesh_workload create_mesh_buffer MeshBuffer CreateKernel DeadlockError"

    for name in names.split():
        assert getattr(ttmesh, name).__name__ == name
    with pytest.raises(AttributeError, match=r"MeshWorkload is no name of TT-NN 0\.81"):
        ttmesh.ttnn.MeshWorkload  # noqa: B018 - TT-NN has no such name
