"""What kernels can do, and what they are told when they do it wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ttmesh
from ttmesh.base import settings
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType, Layout, MathFidelity
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange
from ttmesh.chip.formats.packing import pack, unpack
from ttmesh.chip.formats.tilize import tilize, untilize
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.programs.buffers.addresses import TensorAccessorArgs
from ttmesh.programs.buffers.buffer_configs import DeviceLocalBufferConfig, ReplicatedBufferConfig
from ttmesh.programs.buffers.buffer_transfers import enqueue_read_mesh_buffer, enqueue_write_mesh_buffer, read_shard
from ttmesh.programs.buffers.mesh_buffer import MeshBuffer, create_mesh_buffer
from ttmesh.programs.buffers.page_layout import BufferShardingArgs
from ttmesh.programs.circular_buffers import CircularBufferConfig
from ttmesh.programs.program import ComputeConfig, DataMovementConfig, Program, ReaderDataMovementConfig

Launch = Callable[[Program], Any]
ONE = CoreCoord(0, 0)
TILE = 2048
ORIGIN = MeshCoordinate(0, 0)


def _buffer(mesh: MeshDevice, pages: int, page_bytes: int = TILE) -> MeshBuffer:
    local = DeviceLocalBufferConfig(page_bytes)
    return MeshBuffer.create(ReplicatedBufferConfig(pages * page_bytes), local, mesh)


def _ring(program: Program, pages: int, *, cb: int = 0, cores: Any = ONE, dtype: DataType = DataType.BFLOAT16) -> None:
    config = CircularBufferConfig(pages * ttmesh.Tile((32, 32)).get_tile_size(dtype), {cb: dtype})
    program.create_circular_buffer(cores, config)


def _program(kernel: Any, *args: Any, pages: int = 2, config: Any = None, cores: Any = ONE) -> Program:
    program = Program()
    _ring(program, pages, cores=cores)
    handle = program.create_kernel(kernel, cores, config or DataMovementConfig())
    program.set_runtime_args(handle, cores, args)
    return program


# ---- handing over


def test_producer_and_consumer_share_a_small_ring(mesh: MeshDevice, launch: Launch) -> None:
    source, target = _buffer(mesh, 9), _buffer(mesh, 9)
    order: list[str] = []

    async def producer(core: Any) -> None:
        pages = core.tensor_accessor(core.get_arg_val(0))
        for page in range(9):
            await core.cb_reserve_back(0, 1)
            core.noc_async_read_page(page, pages, core.get_write_ptr(0))
            core.noc_async_read_barrier()
            core.cb_push_back(0, 1)
            order.append("push")

    async def consumer(core: Any) -> None:
        pages = core.tensor_accessor(core.get_arg_val(0))
        for page in range(9):
            await core.cb_wait_front(0, 1)
            core.noc_async_write_page(page, pages, core.get_read_ptr(0))
            core.noc_async_write_barrier()
            core.cb_pop_front(0, 1)
            order.append("pop")

    values = torch.randint(0, 255, (9 * TILE,), dtype=torch.uint8)
    enqueue_write_mesh_buffer(source, values)
    program = _program(producer, source, pages=2)
    program.set_runtime_args(program.create_kernel(consumer, ONE, ReaderDataMovementConfig()), ONE, [target])
    launch(program)

    assert torch.equal(read_shard(target, MeshCoordinate(1, 3)), values)
    ahead = [order[: i + 1].count("push") - order[: i + 1].count("pop") for i in range(len(order))]
    assert max(ahead) == 2  # back-pressure: never more than the ring holds


def test_reads_arrive_at_the_barrier(mesh: MeshDevice, launch: Launch) -> None:
    source = _buffer(mesh, 1)
    enqueue_write_mesh_buffer(source, torch.ones(TILE, dtype=torch.uint8))
    seen: list[int] = []

    def kernel(core: Any) -> None:
        core.noc_async_read_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_write_ptr(0))
        core.noc_async_read_barrier()
        seen.append(core.load_word(core.get_write_ptr(0)))

    launch(_program(kernel, source))

    assert seen == [0x01010101]


def test_unwritten_l1_can_be_poisoned(mesh: MeshDevice, launch: Launch) -> None:
    settings.override("TTMESH_UNWRITTEN", "poison")
    seen: list[int] = []

    launch(_program(lambda core: seen.append(core.load_word(core.get_write_ptr(0)))))

    assert seen == [0xFFFFFFFF]


def test_a_missing_barrier_at_the_end_is_reported(mesh: MeshDevice, launch: Launch) -> None:
    def forgetful(core: Any) -> None:
        core.noc_async_write_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_read_ptr(0))

    buffer = _buffer(mesh, 1)

    with pytest.raises(RuntimeError, match=r"forgetful on core \(x=0,y=0\) ended with NoC writes under way"):
        launch(_program(forgetful, buffer))


# ---- errors


def test_a_deadlock_names_who_waits_for_what(mesh: MeshDevice, launch: Launch) -> None:
    async def starving(core: Any) -> None:
        await core.cb_wait_front(0, 1)

    async def stuck(core: Any) -> None:
        await core.noc_semaphore_wait(core.get_semaphore(0), 3)

    program = _program(starving)
    program.create_semaphore(ONE, 1)
    program.create_kernel(stuck, ONE, ReaderDataMovementConfig())

    with pytest.raises(ttmesh.DeadlockError) as caught:
        launch(program)

    text = str(caught.value)
    assert "starving on core (x=0,y=0) waits for 1 pages in cb 0 (0 of 2 filled)" in text
    assert "stuck on core (x=0,y=0) waits for semaphore at L1 address" in text
    assert "to be 3 (1 now)" in text


def test_an_error_leaves_the_buffers_as_they_were(mesh: MeshDevice, launch: Launch) -> None:
    target = _buffer(mesh, 1)
    enqueue_write_mesh_buffer(target, torch.full((TILE,), 5, dtype=torch.uint8))

    async def half_way(core: Any) -> None:
        core.noc_async_write_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_read_ptr(0))
        core.noc_async_write_barrier()
        await core.cb_wait_front(0, 1)

    with pytest.raises(RuntimeError, match="deadlock"):
        launch(_program(half_way, target))

    assert read_shard(target, ORIGIN).unique().tolist() == [5]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda core: core.cb_push_back(0, 1), r"cb 0 of 2 pages: cb_push_back of 1 pages overflows: 0 are reserved"),
        (lambda core: core.cb_pop_front(0, 1), r"cb_pop_front of 1 pages underflows: 0 are filled"),
        (lambda core: core.cb_reserve_back(0, 3), r"cb_reserve_back of 3 pages never ends"),
        (lambda core: core.cb_wait_front(0, 3), r"cb_wait_front of 3 pages never ends"),
        (lambda core: core.cb_wait_front(7, 1), r"uses cb 7 on core \(x=0,y=0\), which has \[0\]"),
        (lambda core: core.get_arg_val(4), r"asks for runtime argument 4 of 1"),
        (lambda core: core.get_compile_time_arg_val(0), r"asks for compile-time argument 0 of 0"),
        (lambda core: core.tensor_accessor(17), r"no buffer begins at address 17"),
        (lambda core: core.get_noc_addr(0, 0, 64), r"no worker core at \(0, 0\) on the network"),
        (lambda core: core.load_word(core.get_read_ptr(0) + 2 * TILE), r"lies outside a buffer"),
    ],
)
def test_misuse_is_explained(mesh: MeshDevice, launch: Launch, wrong: Any, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        launch(_program(wrong, 0))


def test_noc_access_outside_a_buffer_is_refused(mesh: MeshDevice, launch: Launch) -> None:
    buffer = _buffer(mesh, 14)  # 12 DRAM banks: two rows of pages

    def page(core: Any) -> None:
        core.noc_async_read_page(14, core.tensor_accessor(core.get_arg_val(0)), core.get_write_ptr(0))

    def bank(core: Any) -> None:
        where = core.get_noc_addr_from_bank_id(True, 2, core.get_arg_val(0) + TILE)
        core.noc_async_read(where, core.get_write_ptr(0), 32)

    def nowhere(core: Any) -> None:
        core.noc_async_read(core.get_noc_addr_from_bank_id(True, 0, 99_999_968), core.get_write_ptr(0), 32)

    def ring(core: Any) -> None:
        core.noc_async_read_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_write_ptr(0) + 3000)

    for kernel, text in (
        (page, "NoC access to page 14 lies outside a buffer of 14 pages"),
        (bank, "DRAM bank 2 address .* lies outside a buffer: the buffer at .* has 14 pages of 2048 B in 12 banks"),
        (nowhere, "DRAM bank 0 address 99999968 lies outside a buffer: nothing is allocated there"),
        (ring, "run over the end of cb 0"),
    ):
        with pytest.raises(RuntimeError, match=text):
            launch(_program(kernel, buffer))


def test_a_freed_buffer_cannot_be_reached(mesh: MeshDevice, launch: Launch) -> None:
    buffer = _buffer(mesh, 1)

    def kernel(core: Any) -> None:
        core.tensor_accessor(core.get_arg_val(0))

    program = _program(kernel, buffer)
    buffer.deallocate()

    with pytest.raises(RuntimeError, match="no buffer begins at address"):
        launch(program)


def test_registers_have_an_order_and_a_size(mesh: MeshDevice, launch: Launch) -> None:
    def no_acquire(core: Any) -> None:
        core.copy_tile(0, 0, 0)

    async def feed(core: Any) -> None:
        await core.cb_reserve_back(0, 9)
        core.cb_push_back(0, 9)

    async def too_many(core: Any) -> None:
        await core.cb_wait_front(0, 9)
        core.tile_regs_acquire()
        core.copy_tile(0, 0, 0, tiles=9)

    async def unwaited(core: Any) -> None:
        core.cb_wait_front(0, 1)  # no await: nothing is waited for
        core.cb_pop_front(0, 1)

    def kept(core: Any) -> None:
        core.tile_regs_acquire()

    for kernel, text in (
        (no_acquire, "tiles 0 to 0 are used but 0 are waited for"),
        (unwaited, "underflows: 9 are filled, 0 were waited for"),
        (too_many, "registers 0 to 8 of 8"),
        (kept, "the end of the kernel while the registers are acquired"),
        (lambda core: core.sfpu("sine", 0), "no sine_tile; expected one of"),
    ):
        program = _program(feed, pages=9)
        program.create_kernel(kernel, ONE, ComputeConfig())
        with pytest.raises(RuntimeError, match=text):
            launch(program)


def test_kernels_await_only_what_cores_offer(mesh: MeshDevice, launch: Launch) -> None:
    class Elsewhere:
        def __await__(self) -> Any:
            yield "something"

    async def curious(core: Any) -> None:
        await Elsewhere()

    with pytest.raises(RuntimeError, match=r"curious on core .* awaits 'something'"):
        launch(_program(curious))


# ---- addresses


@pytest.mark.parametrize("kind", [BufferType.DRAM, BufferType.L1])
def test_bank_addresses_reach_the_pages_dealt_there(mesh: MeshDevice, launch: Launch, kind: BufferType) -> None:
    banks = mesh.heap.map.banks[kind].count
    pages = banks + 5
    buffer = MeshBuffer.create(ReplicatedBufferConfig(pages * 64), DeviceLocalBufferConfig(64, kind), mesh)
    out = _buffer(mesh, 1, 64)
    values = torch.randint(0, 255, (pages, 64), dtype=torch.uint8)
    enqueue_write_mesh_buffer(buffer, values)

    def kernel(core: Any) -> None:  # bank 4 holds pages 4 and banks + 4, one after the other
        where = core.get_noc_addr_from_bank_id(kind is BufferType.DRAM, 4, core.get_arg_val(0))
        core.noc_async_read(where + 32, core.get_write_ptr(0), 64)
        core.noc_async_read_barrier()
        core.noc_async_write(core.get_write_ptr(0), core.tensor_accessor(core.get_arg_val(1)).get_noc_addr(0), 64)
        core.noc_async_write_barrier()

    launch(_program(kernel, buffer, out))

    assert torch.equal(read_shard(out, ORIGIN), torch.cat([values[4, 32:], values[banks + 4, :32]]))


def test_an_address_generator_may_have_pages_of_its_own(mesh: MeshDevice, launch: Launch) -> None:
    buffer, out = _buffer(mesh, 24, 128), _buffer(mesh, 1, 64)
    values = torch.randint(0, 255, (24, 128), dtype=torch.uint8)
    enqueue_write_mesh_buffer(buffer, values)

    def kernel(core: Any) -> None:  # pages of 64 B over 12 banks: page 12 is the second half of bank 0's first 128 B
        halves = core.interleaved_addr_gen(True, core.get_arg_val(0), 64)
        core.noc_async_read_page(12, halves, core.get_write_ptr(0))
        core.noc_async_read_barrier()
        core.noc_async_write_page(0, core.tensor_accessor(core.get_arg_val(1)), core.get_write_ptr(0))
        core.noc_async_write_barrier()

    launch(_program(kernel, buffer, out))

    assert torch.equal(read_shard(out, ORIGIN), values[0, 64:])


def test_a_core_finds_its_shard_in_its_own_l1(mesh: MeshDevice, launch: Launch) -> None:
    cores = CoreRangeSet([CoreRange((0, 0), (3, 1))])
    args = BufferShardingArgs(cores, (2, 1), (4, 4))
    local = DeviceLocalBufferConfig(64, BufferType.L1, args)
    buffer, out = MeshBuffer.create(ReplicatedBufferConfig(1024), local, mesh), _buffer(mesh, 16, 64)
    values = torch.randint(0, 255, (16, 64), dtype=torch.uint8)
    enqueue_write_mesh_buffer(buffer, values)

    def kernel(core: Any) -> None:
        target = core.tensor_accessor(core.get_arg_val(1))
        first = 2 * (core.logical_core.y * 4 + core.logical_core.x)
        for slot in range(2):
            core.noc_async_write_page(first + slot, target, core.get_arg_val(0) + slot * 64)
        core.noc_async_write_barrier()

    launch(_program(kernel, buffer, out, cores=cores))

    by_core = values.reshape(2, 2, 4, 64).transpose(1, 2).reshape(16, 64)  # [rows of cores, columns, slots]
    assert torch.equal(read_shard(out, ORIGIN).reshape(16, 64), by_core)
    assert TensorAccessorArgs(buffer) == TensorAccessorArgs(buffer)


def test_a_sharded_tensor_needs_a_view_that_knows_its_pages(mesh: MeshDevice, launch: Launch) -> None:
    shards = ttmesh.create_sharded_memory_config(
        (1, 1, 64, 32),
        ttmesh.CoreGrid(y=1, x=2),
        ttmesh.ShardStrategy.HEIGHT,
        use_height_and_width_as_shard_shape=False,
    )
    values = torch.randn(1, 1, 64, 32).bfloat16()
    tensor = ttmesh.from_torch(values, layout=ttmesh.TILE_LAYOUT, device=mesh, memory_config=shards)
    out = _buffer(mesh, 2)

    def kernel(core: Any) -> None:  # each core sends the tile in its own L1
        core.noc_async_write_page(core.logical_core.x, core.tensor_accessor(core.get_arg_val(1)), core.get_arg_val(0))
        core.noc_async_write_barrier()

    pair = CoreRange((0, 0), (1, 0))
    program = _program(kernel, tensor.buffer.cell.address, out, cores=pair)
    with pytest.raises(RuntimeError, match="is sharded and its pages are not known here"):
        launch(program)
    args = BufferShardingArgs(CoreRangeSet([pair]), (1, 1), (2, 1))
    view = MeshBuffer.of(tensor.buffer, mesh, sharding_args=args)
    launch(_program(kernel, view, out, cores=pair))

    tiles = read_shard(out, ORIGIN).view(torch.bfloat16).reshape(2, 1024)
    assert torch.equal(tiles, tilize(values.reshape(2, 32, 32)))


def test_a_tensor_is_read_by_a_kernel_and_sees_what_it_wrote(mesh: MeshDevice, launch: Launch) -> None:
    values = torch.randn(8, 1, 32, 32).bfloat16()
    tensor = ttmesh.from_torch(
        values, layout=ttmesh.TILE_LAYOUT, device=mesh, mesh_mapper=ttmesh.ShardTensorToMesh(mesh, dim=0)
    )

    async def negate(core: Any) -> None:
        await core.cb_wait_front(0, 1)
        await core.cb_reserve_back(1, 1)
        core.tile_regs_acquire()
        core.copy_tile(0, 0, 0)
        core.negative_tile(0)
        core.tile_regs_commit()
        core.tile_regs_wait()
        core.pack_tile(0, 1)
        core.tile_regs_release()
        core.cb_push_back(1, 1)

    async def move(core: Any) -> None:
        tile = core.tensor_accessor(core.get_arg_val(0))
        await core.cb_reserve_back(0, 1)
        core.noc_async_read_tile(0, tile, core.get_write_ptr(0))
        core.noc_async_read_barrier()
        core.cb_push_back(0, 1)
        await core.cb_wait_front(1, 1)
        core.noc_async_write_tile(0, tile, core.get_read_ptr(1))
        core.noc_async_write_barrier()

    program = _program(move, MeshBuffer.of(tensor.buffer, mesh))
    _ring(program, 1, cb=1)
    program.create_kernel(negate, ONE, ComputeConfig())
    launch(program)

    assert torch.equal(ttmesh.to_torch(tensor, mesh_composer=ttmesh.ConcatMeshToTensor(mesh, dim=0)), -values)


# ---- cores and chips together


def test_cores_signal_each_other_by_semaphores_and_multicast(mesh: MeshDevice, launch: Launch) -> None:
    line, out = CoreRange((0, 0), (3, 0)), _buffer(mesh, 4, 64)
    others = CoreRange((1, 0), (3, 0))

    async def first(core: Any) -> None:
        ready, go = core.get_semaphore(0), core.get_semaphore(1)
        await core.noc_semaphore_wait(ready, 3)
        core.store_word(core.get_write_ptr(0), 42)
        x, y = core.my_x, core.my_y
        core.noc_async_write_multicast(
            core.get_write_ptr(0), core.get_noc_multicast_addr(x, y, x + 3, y, core.get_write_ptr(0)), 64
        )
        core.noc_semaphore_set(go, 1)
        core.noc_semaphore_set_multicast(go, core.get_noc_multicast_addr(x, y, x + 3, y, go))
        core.noc_async_write_barrier()

    async def rest(core: Any) -> None:
        ready, go = core.get_semaphore(0), core.get_semaphore(1)
        core.noc_semaphore_inc(core.get_noc_addr(core.get_arg_val(1), core.get_arg_val(2), ready), 1)
        await core.noc_semaphore_wait(go, 1)
        core.store_word(core.get_write_ptr(0) + 4, core.logical_core.x)
        core.noc_async_write_page(core.logical_core.x, core.tensor_accessor(core.get_arg_val(0)), core.get_write_ptr(0))
        core.noc_async_write_barrier()

    program = Program()
    _ring(program, 1, cores=line)
    assert [program.create_semaphore(line, 0), program.create_semaphore(line, 0)] == [0, 1]
    program.create_kernel(first, ONE, DataMovementConfig())
    handle = program.create_kernel(rest, others, DataMovementConfig())
    sender = mesh.worker_core_from_logical_core(ONE)
    program.set_runtime_args(handle, others, [out, sender.x, sender.y])
    launch(program)

    words = read_shard(out, ORIGIN).view(torch.int32).reshape(4, 16)
    assert words[:, :2].tolist() == [[0, 0], [42, 1], [42, 2], [42, 3]]


def test_a_kernel_that_asks_for_its_chip_runs_on_each(mesh: MeshDevice, launch: Launch) -> None:
    out = _buffer(mesh, 1, 64)

    def kernel(core: Any) -> None:
        row, column = core.mesh_coord
        core.store_word(core.get_write_ptr(0), 10 * row + column)
        core.noc_async_write_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_write_ptr(0))
        core.noc_async_write_barrier()

    launch(_program(kernel, out))

    found = [int(read_shard(out, c).view(torch.int32)[0]) for c in MeshCoordinateRange(mesh.shape)]
    assert found == [0, 1, 2, 3, 10, 11, 12, 13]


def test_control_flow_may_depend_on_data_that_differs_by_chip(mesh: MeshDevice, launch: Launch) -> None:
    counts = create_mesh_buffer(mesh, "sharded", global_shape=(2, 64), shard_shape=(1, 16), datum_bytes=4)
    enqueue_write_mesh_buffer(counts, torch.arange(8, dtype=torch.int32).repeat_interleave(16).reshape(2, 64))

    def kernel(core: Any) -> None:
        page = core.tensor_accessor(core.get_arg_val(0))
        core.noc_async_read_page(0, page, core.get_write_ptr(0))
        core.noc_async_read_barrier()
        total = 0
        for i in range(core.load_word(core.get_write_ptr(0))):
            total += i
        core.store_word(core.get_write_ptr(0), total)
        core.noc_async_write_page(0, page, core.get_write_ptr(0))
        core.noc_async_write_barrier()

    launch(_program(kernel, counts))

    totals = enqueue_read_mesh_buffer(counts).view(torch.int32).reshape(8, 16)[:, 0]
    assert totals.tolist() == [0, 0, 1, 3, 6, 10, 15, 21]


def test_chips_that_hold_the_same_are_computed_once(mesh: MeshDevice, launch: Launch) -> None:
    same, out = _buffer(mesh, 1), _buffer(mesh, 1)
    enqueue_write_mesh_buffer(same, torch.ones(TILE, dtype=torch.uint8))
    runs: list[int] = []

    def kernel(core: Any) -> None:
        runs.append(1)
        core.noc_async_read_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_write_ptr(0))
        core.noc_async_read_barrier()
        core.noc_async_write_page(0, core.tensor_accessor(core.get_arg_val(1)), core.get_write_ptr(0))
        core.noc_async_write_barrier()

    launch(_program(kernel, same, out))

    assert runs == [1]
    assert out.cell.raw is not None
    assert tuple(out.cell.raw.shape) == (1, 1, TILE)


def test_fabric_sends_need_a_link_and_are_counted(mesh: MeshDevice, launch: Launch) -> None:
    out = _buffer(mesh, 1, 64)

    def send(core: Any) -> None:
        if core.mesh_coord != ORIGIN:
            return
        core.store_word(core.get_write_ptr(0), 7)
        there = core.fabric_connection(MeshCoordinate(0, core.get_arg_val(1)))
        there.noc_unicast_write(core.get_write_ptr(0), core.tensor_accessor(core.get_arg_val(0)).get_noc_addr(0), 64)

    launch(_program(send, out, 1))
    a, b = mesh.get_device_ids()[:2]

    assert int(read_shard(out, MeshCoordinate(0, 1)).view(torch.int32)[0]) == 7
    assert int(read_shard(out, ORIGIN).view(torch.int32)[0]) == 0
    assert mesh.traffic.counters.get_bytes(a, b) == 64
    with pytest.raises(
        RuntimeError, match=r"no link from MeshCoordinate\(\[0, 0\]\) \(chip \d\) to .* expected a neighbour"
    ):
        launch(_program(send, out, 2))


# ---- tiles


def _unary(
    mesh: MeshDevice, launch: Launch, kernel: Any, tiles: torch.Tensor, dtype: DataType, config: Any
) -> torch.Tensor:
    """Run a compute kernel between cb 0 and cb 1 over one replicated tile."""
    raw = pack(tiles, dtype, Layout.TILE)
    source, target = _buffer(mesh, 1, raw.numel()), _buffer(mesh, 1, raw.numel())
    enqueue_write_mesh_buffer(source, raw)

    async def move(core: Any) -> None:
        await core.cb_reserve_back(0, 1)
        core.noc_async_read_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_write_ptr(0))
        core.noc_async_read_barrier()
        core.cb_push_back(0, 1)
        await core.cb_wait_front(1, 1)
        core.noc_async_write_page(0, core.tensor_accessor(core.get_arg_val(1)), core.get_read_ptr(1))
        core.noc_async_write_barrier()

    program = Program()
    _ring(program, 1, dtype=dtype)
    _ring(program, 1, cb=1, dtype=dtype)
    program.set_runtime_args(program.create_kernel(move, ONE, DataMovementConfig()), ONE, [source, target])
    program.create_kernel(kernel, ONE, config)
    launch(program)
    return unpack(read_shard(target, ORIGIN), (32, 32), dtype, Layout.TILE)


@pytest.mark.parametrize(
    "dtype", [DataType.BFLOAT16, DataType.FLOAT32, DataType.BFLOAT8_B, DataType.INT32, DataType.UINT32, DataType.UINT16]
)
def test_every_format_goes_through_the_registers(mesh: MeshDevice, launch: Launch, dtype: DataType) -> None:
    async def double(core: Any) -> None:
        await core.cb_wait_front(0, 1)
        await core.cb_reserve_back(1, 1)
        core.tile_regs_acquire()
        core.add_tiles(0, 0, 0, 0, 0)
        core.tile_regs_commit()
        core.tile_regs_wait()
        core.pack_tile(0, 1)
        core.tile_regs_release()
        core.cb_push_back(1, 1)

    whole = torch.arange(1024).reshape(32, 32) % 100
    values = whole if dtype in (DataType.INT32, DataType.UINT32, DataType.UINT16) else whole.float()
    got = _unary(mesh, launch, double, values, dtype, ComputeConfig(fp32_dest_acc_en=True))

    assert torch.equal(got.float(), unpack(pack(values, dtype, Layout.TILE), (32, 32), dtype, Layout.TILE).float() * 2)


def test_tiles_are_packed_one_after_the_other(mesh: MeshDevice, launch: Launch) -> None:
    source, target = _buffer(mesh, 3), _buffer(mesh, 3)
    values = torch.randn(3, 1024).bfloat16()
    enqueue_write_mesh_buffer(source, values)

    async def move(core: Any) -> None:
        pages, out = core.tensor_accessor(core.get_arg_val(0)), core.tensor_accessor(core.get_arg_val(1))
        await core.cb_reserve_back(0, 3)
        for i in range(3):
            core.noc_async_read_page(i, pages, core.get_write_ptr(0) + i * TILE)
        core.noc_async_read_barrier()
        core.cb_push_back(0, 3)
        await core.cb_wait_front(1, 3)
        for i in range(3):
            core.noc_async_write_page(i, out, core.get_read_ptr(1) + i * TILE)
        core.noc_async_write_barrier()

    async def reverse(core: Any) -> None:
        await core.cb_wait_front(0, 3)
        await core.cb_reserve_back(1, 3)
        core.tile_regs_acquire()
        for i in range(3):
            core.copy_tile(0, i, 2 - i)
        core.exp_tile(0)
        core.add_binary_tile(1, 2, 1)
        core.tile_regs_commit()
        core.tile_regs_wait()
        for i in range(3):
            core.pack_tile(i, 1)
        core.tile_regs_release()
        core.cb_push_back(1, 3)
        core.cb_pop_front(0, 3)

    program = _program(move, source, target, pages=3)
    _ring(program, 3, cb=1)
    program.create_kernel(reverse, ONE, ComputeConfig())
    launch(program)

    got = read_shard(target, ORIGIN).view(torch.bfloat16).reshape(3, 1024)
    assert torch.equal(got, torch.stack([values[2].float().exp().bfloat16(), values[1] + values[0], values[0]]))


def test_an_error_in_a_kernel_says_where(mesh: MeshDevice, launch: Launch) -> None:
    async def clumsy(core: Any) -> None:
        [][core.logical_core.x]

    with pytest.raises(IndexError) as caught:
        launch(_program(clumsy, cores=CoreCoord(3, 2)))

    (note,) = getattr(caught.value, "__notes__", ["in clumsy on core (x=3,y=2) (test_kernels.py:1)"])  # Python 3.11
    assert re.fullmatch(r"in clumsy on core \(x=3,y=2\) \(test_kernels\.py:\d+\)", note)


def test_matmul_tiles_accumulates(mesh: MeshDevice, launch: Launch) -> None:
    async def square_twice(core: Any) -> None:
        await core.cb_wait_front(0, 1)
        await core.cb_reserve_back(1, 1)
        core.tile_regs_acquire()
        core.matmul_tiles(0, 0, 0, 0, 0)
        core.matmul_tiles(0, 0, 0, 0, 0)
        core.tile_regs_commit()
        core.tile_regs_wait()
        core.pack_tile(0, 1)
        core.tile_regs_release()
        core.cb_push_back(1, 1)

    values = torch.randn(32, 32)
    got = _unary(mesh, launch, square_twice, values, DataType.FLOAT32, ComputeConfig(fp32_dest_acc_en=True))

    torch.testing.assert_close(got, 2 * (values @ values), rtol=1e-5, atol=1e-4)  # float32, another order of sums


# The square of 147/128, 1.318909: ideally rounded once; in phases, each rounds into a 16-bit register.
@pytest.mark.parametrize(
    ("mode", "fidelity", "square"),
    [
        ("ideal", MathFidelity.HiFi4, 1.3203125),
        ("realistic", MathFidelity.HiFi4, 1.3125),
        ("exact", MathFidelity.HiFi4, 1.3125),
        ("exact", MathFidelity.HiFi2, 1.3046875),
    ],
)
def test_mul_tiles_computes_as_the_mode_and_the_kernel_s_fidelity_say(
    mesh: MeshDevice, launch: Launch, mode: str, fidelity: MathFidelity, square: float
) -> None:
    async def multiply(core: Any) -> None:
        await core.cb_wait_front(0, 1)
        await core.cb_reserve_back(1, 1)
        core.tile_regs_acquire()
        core.mul_tiles(0, 0, 0, 0, 0)
        core.tile_regs_commit()
        core.tile_regs_wait()
        core.pack_tile(0, 1)
        core.tile_regs_release()
        core.cb_push_back(1, 1)

    values = torch.full((32, 32), 147 / 128)
    with ttmesh.numerics(mode):
        got = _unary(mesh, launch, multiply, values, DataType.BFLOAT16, ComputeConfig(math_fidelity=fidelity))

    assert got.unique().tolist() == [square]


def test_registers_round_to_16_bit_unless_told_otherwise(mesh: MeshDevice, launch: Launch) -> None:
    async def copy(core: Any) -> None:
        await core.cb_wait_front(0, 1)
        await core.cb_reserve_back(1, 1)
        core.tile_regs_acquire()
        core.copy_tile(0, 0, 0)
        core.tile_regs_commit()
        core.tile_regs_wait()
        core.pack_tile(0, 1)
        core.tile_regs_release()
        core.cb_push_back(1, 1)

    values = torch.randn(32, 32)

    narrow = _unary(mesh, launch, copy, values, DataType.FLOAT32, ComputeConfig())
    wide = _unary(mesh, launch, copy, values, DataType.FLOAT32, ComputeConfig(fp32_dest_acc_en=True))

    assert torch.equal(narrow, values.bfloat16().float())
    assert torch.equal(wide, values)


def test_tiles_lie_in_face_order() -> None:
    values = torch.arange(1024).reshape(32, 32).float()

    assert torch.equal(untilize(tilize(values), (32, 32)), values)
