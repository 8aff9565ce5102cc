"""Programs as data: descriptors of Python kernels run on tensors, C++ kernels are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn

TILE_BYTES = 2048
ONE = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 0))])
FOUR = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(3, 0))])


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[ttnn.MeshDevice]:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    yield opened
    ttnn.close_mesh_device(opened)


async def reader(core: Any) -> None:
    pages = core.tensor_accessor(core.get_arg_val(0), core.get_compile_time_arg_val(0))
    for page in range(core.get_arg_val(2), core.get_arg_val(2) + core.get_arg_val(1)):
        await core.cb_reserve_back(0, 1)
        core.noc_async_read_tile(page, pages, core.get_write_ptr(0))
        core.noc_async_read_barrier()
        core.cb_push_back(0, 1)


async def writer(core: Any) -> None:
    pages = core.tensor_accessor(core.get_arg_val(0))
    for page in range(core.get_arg_val(2), core.get_arg_val(2) + core.get_arg_val(1)):
        await core.cb_wait_front(16, 1)
        core.noc_async_write_tile(page, pages, core.get_read_ptr(16))
        core.noc_async_write_barrier()
        core.cb_pop_front(16, 1)


async def doubler(core: Any) -> None:
    for _ in range(core.get_compile_time_arg_val(0)):
        await core.cb_wait_front(0, 1)
        await core.cb_reserve_back(16, 1)
        core.tile_regs_acquire()
        core.add_tiles(0, 0, 0, 0, 0)
        core.tile_regs_commit()
        core.tile_regs_wait()
        core.pack_tile(0, 16)
        core.tile_regs_release()
        core.cb_push_back(16, 1)
        core.cb_pop_front(0, 1)


def tiles(mesh: ttnn.MeshDevice, values: torch.Tensor, config: Any = None) -> ttnn.Tensor:
    return ttnn.from_torch(
        values, device=mesh, layout=ttnn.TILE_LAYOUT, memory_config=config or ttnn.DRAM_MEMORY_CONFIG
    )


def buffer(index: int, cores: ttnn.CoreRangeSet) -> ttnn.CBDescriptor:
    format_ = ttnn.CBFormatDescriptor(buffer_index=index, data_format=ttnn.bfloat16, page_size=TILE_BYTES)
    return ttnn.CBDescriptor(total_size=2 * TILE_BYTES, core_ranges=cores, format_descriptors=[format_])


def doubling(source: ttnn.Tensor, target: ttnn.Tensor, per_core: int) -> ttnn.ProgramDescriptor:
    reading, writing = ttnn.RuntimeArgs(), ttnn.RuntimeArgs()
    for x in range(4):
        reading[x][0] = [source.buffer_address(), per_core, x * per_core]
        writing[x][0] = [target.buffer_address(), per_core, x * per_core]
    kernels = [
        ttnn.KernelDescriptor(
            kernel_source=reader, core_ranges=FOUR, runtime_args=reading, config=ttnn.ReaderConfigDescriptor(),
            compile_time_args=ttnn.TensorAccessorArgs(source).get_compile_time_args(),
        ),
        ttnn.KernelDescriptor(
            kernel_source=writer, core_ranges=FOUR, runtime_args=writing, config=ttnn.WriterConfigDescriptor()
        ),
        ttnn.KernelDescriptor(
            kernel_source=doubler, core_ranges=FOUR, compile_time_args=[per_core],
            config=ttnn.ComputeConfigDescriptor(),
        ),
    ]  # fmt: skip
    return ttnn.ProgramDescriptor(kernels=kernels, cbs=[buffer(0, FOUR), buffer(16, FOUR)])


def test_generic_op_runs_python_kernels_on_every_chip(mesh: ttnn.MeshDevice) -> None:
    values = torch.randn(64, 256).bfloat16()
    source, target = tiles(mesh, values), tiles(mesh, torch.zeros(64, 256).bfloat16())

    result = ttnn.generic_op([source, target], doubling(source, target, 4))

    assert result.buffer_unique_id() == target.buffer_unique_id()
    for one in ttnn.get_device_tensors(result):
        assert torch.equal(ttnn.to_torch(one), 2 * values)


def test_a_second_call_compiles_nothing_and_can_be_traced(mesh: ttnn.MeshDevice) -> None:
    source = tiles(mesh, torch.ones(64, 256).bfloat16())
    target = tiles(mesh, torch.zeros(64, 256).bfloat16())
    ttnn.generic_op([source, target], doubling(source, target, 4))
    entries = mesh.num_program_cache_entries()

    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    ttnn.generic_op([target, target], doubling(target, target, 4))
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)

    assert mesh.num_program_cache_entries() == entries
    assert float(ttnn.to_torch(ttnn.get_device_tensors(target)[1]).float().mean()) == 4.0
    ttnn.release_trace(mesh, trace)


def test_programs_can_differ_by_chip(mesh: ttnn.MeshDevice) -> None:
    values = torch.randn(64, 256).bfloat16()
    source, target = tiles(mesh, values), tiles(mesh, torch.zeros(64, 256).bfloat16())
    only = ttnn.MeshCoordinateRange(ttnn.MeshCoordinate(0, 1), ttnn.MeshCoordinate(0, 1))

    ttnn.generic_op([source, target], ttnn.MeshProgramDescriptor({only: doubling(source, target, 4)}))

    first, second = (ttnn.to_torch(one) for one in ttnn.get_device_tensors(target))
    assert not first.any()
    assert torch.equal(second, 2 * values)


def sharded(high: int, wide: int) -> ttnn.MemoryConfig:
    shards = ttnn.ShardSpec(FOUR, (high, wide), ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.L1, shards)


async def hand_over(core: Any) -> None:
    await core.cb_reserve_back(0, 4)
    core.cb_push_back(0, 4)


async def double_in_place(core: Any) -> None:
    await core.cb_wait_front(0, 4)
    await core.cb_reserve_back(16, 4)
    for i in range(4):
        core.tile_regs_acquire()
        core.add_tiles(0, 0, i, i, 0)
        core.tile_regs_commit()
        core.tile_regs_wait()
        core.pack_tile(0, 16)
        core.tile_regs_release()
    core.cb_push_back(16, 4)


def test_circular_buffers_lie_in_the_shards_of_tensors(mesh: ttnn.MeshDevice) -> None:
    values = torch.randn(64, 256).bfloat16()
    source = tiles(mesh, values, sharded(64, 64))
    target = tiles(mesh, torch.zeros(64, 256).bfloat16(), sharded(64, 64))
    cbs = [ttnn.cb_descriptor_from_sharded_tensor(i, t) for i, t in ((0, source), (16, target))]
    kernels = [
        ttnn.KernelDescriptor(kernel_source=hand_over, core_ranges=FOUR, config=ttnn.ReaderConfigDescriptor()),
        ttnn.KernelDescriptor(kernel_source=double_in_place, core_ranges=FOUR, config=ttnn.ComputeConfigDescriptor()),
    ]

    ttnn.generic_op([source, target], ttnn.ProgramDescriptor(kernels=kernels, cbs=cbs))

    assert cbs[0].has_buffer()
    assert ttnn.get_cb_address(cbs[0]) == source.buffer_address()
    assert torch.equal(ttnn.to_torch(ttnn.get_device_tensors(target)[0]), 2 * values)
    assert torch.equal(ttnn.to_torch(ttnn.get_device_tensors(source)[0]), values)


def test_cpp_kernels_are_refused(mesh: ttnn.MeshDevice) -> None:
    source, target = (tiles(mesh, torch.zeros(64, 256).bfloat16()) for _ in range(2))
    kernel = ttnn.KernelDescriptor(
        kernel_source="kernels/reader.cpp", core_ranges=ONE, config=ttnn.ReaderConfigDescriptor()
    )

    with pytest.raises(NotImplementedError, match=r"C\+\+ kernels are not emulated: kernels/reader\.cpp"):
        ttnn.generic_op([source, target], ttnn.ProgramDescriptor(kernels=[kernel]))


def test_defines_have_no_meaning_for_a_python_kernel(mesh: ttnn.MeshDevice) -> None:
    source, target = (tiles(mesh, torch.zeros(64, 256).bfloat16()) for _ in range(2))
    kernel = ttnn.KernelDescriptor(
        kernel_source=hand_over, core_ranges=ONE, config=ttnn.ReaderConfigDescriptor(), defines=[("FAST", "1")]
    )

    with pytest.raises(RuntimeError, match="defines of kernel hand_over has no meaning"):
        ttnn.generic_op([source, target], ttnn.ProgramDescriptor(kernels=[kernel]))


def test_an_output_is_needed(mesh: ttnn.MeshDevice) -> None:
    with pytest.raises(RuntimeError, match="at least one input tensor and one output tensor, got 1 tensors"):
        ttnn.generic_op([tiles(mesh, torch.zeros(32, 32).bfloat16())], ttnn.ProgramDescriptor())


def test_merged_programs_share_no_core() -> None:
    def program(cores: ttnn.CoreRangeSet) -> ttnn.ProgramDescriptor:
        kernel = ttnn.KernelDescriptor(kernel_source=hand_over, core_ranges=cores, config=ttnn.ReaderConfigDescriptor())
        return ttnn.ProgramDescriptor(kernels=[kernel])

    other = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(5, 5), ttnn.CoreCoord(5, 5))])

    assert len(ttnn.merge_program_descriptors([program(ONE), program(other)]).kernels) == 2
    with pytest.raises(RuntimeError, match="overlapping kernel core ranges between descriptor 0 and 1"):
        ttnn.merge_program_descriptors([program(ONE), program(FOUR)])


def test_runtime_args_are_written_by_core() -> None:
    args = ttnn.RuntimeArgs()
    args[1][2] = [7, 8]
    args[1].append(2, 9)

    kernel = ttnn.KernelDescriptor(kernel_source=hand_over, core_ranges=ONE, runtime_args=args)
    kernel.runtime_args[1][2].append(10)

    assert kernel.runtime_args.to_list() == [(ttnn.CoreCoord(1, 2), [7, 8, 9, 10])]
    assert args[1][2] == [7, 8, 9]
    nested = ttnn.KernelDescriptor(kernel_source=hand_over, core_ranges=ONE, runtime_args=[[[1], [2]]])
    assert nested.runtime_args[0][1] == [2]


def test_tensors_that_are_not_sharded_hold_no_circular_buffer(mesh: ttnn.MeshDevice) -> None:
    with pytest.raises(RuntimeError, match="Tensor must be sharded to automatically create a CBDescriptor"):
        ttnn.cb_descriptor_from_sharded_tensor(0, tiles(mesh, torch.zeros(32, 32).bfloat16()))


def describe(**changed: Any) -> ttnn.ProgramDescriptor:
    """A program with a kernel, a circular buffer and a semaphore, one of whose options is another one."""
    kernel = {
        "kernel_source": reader, "core_ranges": ONE, "compile_time_args": [1, 2],
        "runtime_args": [(ttnn.CoreCoord(0, 0), [1, 2])], "common_runtime_args": [5],
        "config": ttnn.ReaderConfigDescriptor(),
    }  # fmt: skip
    cb = {"total_size": TILE_BYTES, "core_ranges": ONE}
    format_ = {"buffer_index": 0, "data_format": ttnn.bfloat16, "page_size": TILE_BYTES}
    semaphore = {"id": 0, "core_ranges": ONE, "initial_value": 0}
    for options, name in ((kernel, "kernel"), (cb, "cb"), (format_, "format"), (semaphore, "semaphore")):
        options.update(changed.pop(name, {}))
    return ttnn.ProgramDescriptor(
        kernels=[ttnn.KernelDescriptor(**kernel)],
        cbs=[ttnn.CBDescriptor(**cb, format_descriptors=[ttnn.CBFormatDescriptor(**format_)])],
        semaphores=[ttnn.SemaphoreDescriptor(**semaphore)],
        **changed,
    )


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({}, True),
        ({"kernel": {"runtime_args": [(ttnn.CoreCoord(0, 0), [1, 9, 9])]}}, True),
        ({"kernel": {"common_runtime_args": [6]}}, True),
        ({"semaphore": {"id": 1}}, True),
        ({"kernel": {"kernel_source": hand_over}}, False),
        ({"kernel": {"compile_time_args": [1, 3]}}, False),
        ({"kernel": {"named_compile_time_args": [("a", 3)]}}, False),
        ({"kernel": {"defines": [("A", "1")]}}, False),
        ({"kernel": {"runtime_args": []}}, False),
        ({"kernel": {"common_runtime_args": [5, 6]}}, False),
        ({"kernel": {"config": ttnn.WriterConfigDescriptor()}}, False),
        ({"kernel": {"core_ranges": FOUR}}, False),
        ({"cb": {"total_size": 2 * TILE_BYTES}}, False),
        ({"cb": {"core_ranges": FOUR}}, False),
        ({"format": {"buffer_index": 1}}, False),
        ({"format": {"page_size": 1024}}, False),
        ({"format": {"data_format": ttnn.float32}}, False),
        ({"semaphore": {"initial_value": 3}}, False),
        ({"semaphore": {"core_ranges": FOUR}}, False),
        ({"custom_program_hash": 42}, False),
    ],
)
def test_the_hash_of_a_program_counts_its_structure_alone(changed: dict[str, Any], same: bool) -> None:
    hashed = ttnn.compute_program_descriptor_hash(describe(**changed))

    assert (hashed == ttnn.compute_program_descriptor_hash(describe())) is same
    assert 0 <= hashed < 1 << 64
    assert changed != {"custom_program_hash": 42} or hashed == 42
