"""What a kernel is told that uses circular buffers, transfers, registers or semaphores as no chip allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ttmesh.base.cores import CoreCoord, CoreRange
from ttmesh.base.dtypes import DataType
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.programs.buffers.buffer_configs import DeviceLocalBufferConfig, ReplicatedBufferConfig
from ttmesh.programs.buffers.mesh_buffer import MeshBuffer
from ttmesh.programs.circular_buffers import CircularBufferConfig
from ttmesh.programs.program import ComputeConfig, Program, ReaderDataMovementConfig, WriterDataMovementConfig

Launch = Callable[[Program], Any]
ONE, PAIR = CoreCoord(0, 0), CoreRange((0, 0), (1, 0))
TILE = 2048
HERE = r"test_misuse\.py:\d+"


async def give(core: Any) -> None:
    for _ in range(2):
        await core.cb_reserve_back(0, 1)
        core.store_word(core.get_write_ptr(0), 1)
        core.cb_push_back(0, 1)


async def take(core: Any) -> None:
    for _ in range(2):
        await core.cb_wait_front(0, 1)
        core.cb_pop_front(0, 1)


async def take_unawaited(core: Any) -> None:
    core.cb_wait_front(0, 1)


async def peek(core: Any) -> None:
    core.load_word(core.get_read_ptr(0))
    await take(core)


async def keep(core: Any) -> None:
    for _ in range(2):
        await core.cb_wait_front(0, 1)


async def read_and_push(core: Any) -> None:
    await core.cb_reserve_back(0, 2)
    core.noc_async_read_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_write_ptr(0))
    core.cb_push_back(0, 2)


async def write_and_pop(core: Any) -> None:
    await core.cb_wait_front(0, 1)
    core.noc_async_write_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_read_ptr(0))
    core.cb_pop_front(0, 1)


async def write_page(core: Any) -> None:
    core.noc_async_write_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_read_ptr(0))
    core.noc_async_write_barrier()


async def use_before_barrier(core: Any) -> None:
    core.noc_async_read_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_write_ptr(0))
    core.load_word(core.get_write_ptr(0))
    core.noc_async_read_barrier()


async def change_before_flush(core: Any) -> None:
    core.noc_async_write_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_read_ptr(0))
    core.store_word(core.get_read_ptr(0), 5)
    core.noc_async_write_barrier()


async def reset(core: Any) -> None:
    core.noc_semaphore_set(core.get_semaphore(0), 0)


async def increment(core: Any) -> None:
    core.noc_semaphore_inc(core.get_noc_addr(core.my_x, core.my_y, core.get_semaphore(0)), 1)


async def push_unpacked(core: Any) -> None:
    await core.cb_reserve_back(0, 1)
    core.cb_push_back(0, 1)


async def use_empty_register(core: Any) -> None:
    core.tile_regs_acquire()
    core.exp_tile(3)


CASES: dict[str, tuple[Any, Any, str]] = {
    "two producers": (give, give, r"give on core \(x=0,y=0\) and give on core \(x=0,y=0\) both fill it"),
    "a wait that is not awaited": (
        give, take_unawaited, rf"take_unawaited on core \(x=0,y=0\) \({HERE}\) waits for nothing: the call was not awaited",
    ),
    "reading before waiting": (
        give, peek, rf"peek on core \(x=0,y=0\) \({HERE}\) reads bytes of cb 0 on core \(x=0,y=0\) that give .*{HERE}\) w",
    ),
    "reading before waiting, and before it is written": (
        peek, give, rf"give on core \(x=0,y=0\) \({HERE}\) writes bytes of cb 0 .* that peek .*{HERE}\) reads, and no",
    ),
    "no pop": (
        give, keep, rf"keep on core \(x=0,y=0\) \({HERE}\) left 1 of 2 pages of cb 0 that were pushed without ever",
    ),
    "a push before the read barrier": (
        read_and_push, take, rf"\({HERE}\): cb_push_back hands over a page of cb 0 into which the read from {HERE} is",
    ),
    "a pop before the write barrier": (
        give, write_and_pop, rf"\({HERE}\): cb_pop_front gives a page back of cb 0 of which the write from {HERE} is",
    ),
    "two who write one page": (
        write_page, write_page, r"writes bytes of the buffer at DRAM address \d+ that write_page .* writes, and nothing",
    ),
    "use before the read barrier": (
        use_before_barrier, None, rf"\({HERE}\) reads bytes of cb 0 .* that its own transfer at {HERE} still writes;",
    ),
    "change before the flush": (
        change_before_flush, None, rf"\({HERE}\) writes bytes of cb 0 .* that its own transfer at {HERE} still reads",
    ),
    "a semaphore reset before it is incremented": (
        reset, increment, rf"increment .*\({HERE}\) changes a semaphore that reset .*\({HERE}\) changes, and nothing",
    ),
    "a semaphore incremented before it is reset": (
        increment, reset, rf"reset .*\({HERE}\) changes a semaphore that increment .*\({HERE}\) changes, and nothing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_misuse_names_kernel_core_and_line(mesh: MeshDevice, launch: Launch, name: str) -> None:
    reader, writer, text = CASES[name]
    buffer = MeshBuffer.create(ReplicatedBufferConfig(TILE), DeviceLocalBufferConfig(TILE), mesh)
    program = Program()
    program.create_circular_buffer(ONE, CircularBufferConfig(2 * TILE, {0: DataType.BFLOAT16}))
    program.create_semaphore(ONE, 0)
    for kernel, config in ((reader, ReaderDataMovementConfig()), (writer, WriterDataMovementConfig())):
        if kernel is not None:
            program.set_runtime_args(program.create_kernel(kernel, ONE, config), ONE, [buffer])

    with pytest.raises(RuntimeError, match=text):
        launch(program)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (push_unpacked, rf"push_unpacked on core \(x=0,y=0\) \({HERE}\) pushes a page of cb 0 that it has not packed"),
        (use_empty_register, rf"use_empty_register on core \(x=0,y=0\) \({HERE}\): register 3 is empty"),
    ],
)
def test_misuse_of_registers_names_kernel_core_and_line(launch: Launch, kernel: Any, text: str) -> None:
    program = Program()
    program.create_circular_buffer(ONE, CircularBufferConfig(2 * TILE, {0: DataType.BFLOAT16}))
    program.create_kernel(kernel, ONE, ComputeConfig())

    with pytest.raises(RuntimeError, match=text):
        launch(program)


def test_a_semaphore_orders_the_writes_to_its_own_core_alone(mesh: MeshDevice, launch: Launch) -> None:
    """Data in DRAM needs the write barrier before the semaphore; data beside the semaphore does not."""
    buffer = MeshBuffer.create(ReplicatedBufferConfig(TILE), DeviceLocalBufferConfig(TILE), mesh)
    seen: list[int] = []

    async def send(core: Any) -> None:
        there = core.get_noc_addr(core.my_x + 1, core.my_y, core.get_read_ptr(0))
        core.store_word(core.get_write_ptr(0), 42)
        if core.get_arg_val(1):
            core.noc_async_write(core.get_write_ptr(0), there, 32)
        else:
            core.noc_async_write_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_write_ptr(0))
        core.noc_semaphore_inc(core.get_noc_addr(core.my_x + 1, core.my_y, core.get_semaphore(0)), 1)
        core.noc_async_write_barrier()

    async def receive(core: Any) -> None:
        await core.noc_semaphore_wait(core.get_semaphore(0), 1)
        if not core.get_arg_val(1):
            core.noc_async_read_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_read_ptr(0))
            core.noc_async_read_barrier()
        seen.append(core.load_word(core.get_read_ptr(0)))

    def program(beside: bool) -> Program:
        made = Program()
        made.create_circular_buffer(PAIR, CircularBufferConfig(TILE, {0: DataType.BFLOAT16}))
        made.create_semaphore(PAIR, 0)
        for kernel, core in ((send, ONE), (receive, CoreCoord(1, 0))):
            handle = made.create_kernel(kernel, core, ReaderDataMovementConfig())
            made.set_runtime_args(handle, core, [buffer, int(beside)])
        return made

    launch(program(True))
    with pytest.raises(RuntimeError, match=r"receive .* reads bytes of the buffer at DRAM .* that send .* writes"):
        launch(program(False))

    assert seen == [42]
