"""Random programs of copies and adds over random core grids give what numpy gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ttmesh.base.cores import CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange, MeshShape
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.device.opening import close_mesh_device, open_mesh_device
from ttmesh.programs.buffers.buffer_configs import DeviceLocalBufferConfig, ReplicatedBufferConfig
from ttmesh.programs.buffers.buffer_transfers import enqueue_read_shards, enqueue_write_shards
from ttmesh.programs.buffers.mesh_buffer import MeshBuffer
from ttmesh.programs.circular_buffers import CircularBufferConfig
from ttmesh.programs.execution.workload import MeshWorkload, enqueue_mesh_workload
from ttmesh.programs.program import ComputeConfig, Program, ReaderDataMovementConfig, WriterDataMovementConfig

PAGE = 4096  # an int32 tile
BUFFERS = 4


@pytest.fixture(scope="module")
def small_mesh() -> Iterator[MeshDevice]:
    opened = open_mesh_device(MeshShape(2, 2))
    yield opened
    if opened.is_open():
        close_mesh_device(opened)


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> None:
    return  # the mesh of this file stays open from test to test


async def reader(core: Any) -> None:
    sources = [core.tensor_accessor(core.get_arg_val(i)) for i in (0, 1)]
    pages, depth = core.get_compile_time_arg_val(0), core.get_compile_time_arg_val(1)
    both = core.get_compile_time_arg_val(2)
    for first in range(core.get_arg_val(2), core.get_arg_val(3), depth):
        for cb in range(1 + both):
            await core.cb_reserve_back(cb, depth)
            for i in range(depth):
                core.noc_async_read_page(pages[first + i][cb], sources[cb], core.get_write_ptr(cb) + i * PAGE)
            core.noc_async_read_barrier()
            core.cb_push_back(cb, depth)


async def adder(core: Any) -> None:
    for _ in range(core.get_arg_val(0)):
        await core.cb_wait_front(0, 1)
        await core.cb_wait_front(1, 1)
        await core.cb_reserve_back(2, 1)
        core.tile_regs_acquire()
        core.add_tiles(0, 1, 0, 0, 0)
        core.tile_regs_commit()
        core.tile_regs_wait()
        core.pack_tile(0, 2)
        core.tile_regs_release()
        for cb in (0, 1):
            core.cb_pop_front(cb, 1)
        core.cb_push_back(2, 1)


async def writer(core: Any) -> None:
    target, pages = core.tensor_accessor(core.get_arg_val(0)), core.get_compile_time_arg_val(0)
    cb = core.get_compile_time_arg_val(1)
    for number in range(core.get_arg_val(1), core.get_arg_val(2)):
        await core.cb_wait_front(cb, 1)
        core.noc_async_write_page(pages[number][2], target, core.get_read_ptr(cb))
        core.noc_async_write_barrier()
        core.cb_pop_front(cb, 1)


@st.composite
def grids(draw: st.DrawFn) -> CoreRangeSet:
    x, y = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    wide, high = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    return CoreRangeSet([CoreRange((x, y), (min(x + wide, 7), min(y + high, 7)))])


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    """Pages (a, b, out) of three buffers; every output page once, all inside one part of the mesh."""
    depth = draw(st.integers(1, 3))
    count = depth * draw(st.integers(1, 4))
    size = draw(st.integers(count, 16))
    outputs = draw(st.permutations(range(size)))[:count]
    inputs = draw(
        st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), min_size=count, max_size=count)
    )
    box = draw(
        st.sampled_from([((0, 0), (1, 1)), ((0, 0), (0, 1)), ((1, 0), (1, 1)), ((0, 1), (1, 1)), ((1, 1), (1, 1))])
    )
    return {
        "depth": depth,
        "pages": [(a, b, out) for (a, b), out in zip(inputs, outputs, strict=True)],
        "size": size,
        "buffers": draw(st.permutations(range(BUFFERS)))[:3],
        "add": draw(st.booleans()),
        "cores": draw(grids()),
        "box": MeshCoordinateRange(MeshCoordinate(box[0]), MeshCoordinate(box[1])),
        "slots": draw(st.integers(1, 3)),
    }


def _program(step: dict[str, Any], buffers: list[MeshBuffer]) -> Program:
    a, b, out = (buffers[i] for i in step["buffers"])
    cores, depth, pages, add = step["cores"], step["depth"], step["pages"], step["add"]
    program = Program()
    for cb in (0, 1, 2):
        size = PAGE * depth * step["slots"]
        program.create_circular_buffer(cores, CircularBufferConfig(size, {cb: DataType.INT32}))
    read = program.create_kernel(reader, cores, ReaderDataMovementConfig([pages, depth, add]))
    write = program.create_kernel(writer, cores, WriterDataMovementConfig([pages, 2 if add else 0]))
    compute = program.create_kernel(adder, cores, ComputeConfig(compile_args=[])) if add else None
    every = cores.cores()
    blocks = len(pages) // depth
    edges = [blocks * i // len(every) * depth for i in range(len(every) + 1)]
    for core, first, end in zip(every, edges[:-1], edges[1:], strict=True):
        program.set_runtime_args(read, core, [a, b, first, end])
        program.set_runtime_args(write, core, [out, first, end])
        if compute is not None:
            program.set_runtime_args(compute, core, [end - first])
    return program


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(steps(), min_size=1, max_size=3), st.sampled_from([BufferType.DRAM, BufferType.L1]), st.integers(0, 2**31)
)
def test_random_programs_give_what_numpy_gives(
    small_mesh: MeshDevice, plan: list[dict[str, Any]], kind: BufferType, seed: int
) -> None:
    size = max(step["size"] for step in plan)
    coords = list(MeshCoordinateRange(small_mesh.shape))
    rng = np.random.default_rng(seed)
    values = rng.integers(-(2**30), 2**30, (BUFFERS, len(coords), size, PAGE // 4), dtype=np.int32)
    config, local = ReplicatedBufferConfig(size * PAGE), DeviceLocalBufferConfig(PAGE, kind)
    buffers = [MeshBuffer.create(config, local, small_mesh) for _ in range(BUFFERS)]
    for buffer, mine in zip(buffers, values, strict=True):
        enqueue_write_shards(buffer, zip(coords, mine, strict=True))

    for step in plan:
        workload = MeshWorkload()
        workload.add_program(step["box"], _program(step, buffers))
        enqueue_mesh_workload(small_mesh, workload)
        a, b, out = step["buffers"]
        chips = [i for i, coord in enumerate(coords) if step["box"].contains(coord)]
        for x, y, z in step["pages"]:
            values[out, chips, z] = values[a, chips, x] + (values[b, chips, y] if step["add"] else 0)

    for buffer, expected in zip(buffers, values, strict=True):
        got = np.stack([s.view(torch.int32).reshape(size, -1).numpy() for s in enqueue_read_shards(buffer, coords)])
        np.testing.assert_array_equal(got, expected)
