from __future__ import annotations

import numpy as np
import pytest
import torch

import ttmesh
from ttmesh.base.cores import CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, ShardOrientation
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.programs.buffers.buffer_configs import (
    DeviceLocalBufferConfig,
    MeshBufferLayout,
    ReplicatedBufferConfig,
    ShardedBufferConfig,
)
from ttmesh.programs.buffers.buffer_transfers import (
    BufferRegion,
    enqueue_read_mesh_buffer,
    enqueue_read_shards,
    enqueue_write_mesh_buffer,
    enqueue_write_shard_to_sub_grid,
    enqueue_write_shards,
    read_shard,
    write_shard,
)
from ttmesh.programs.buffers.mesh_buffer import MeshBuffer, create_mesh_buffer
from ttmesh.programs.buffers.page_layout import BufferShardingArgs, make_interleaved_layout, make_sharded_layout

ROW, COLUMN = ShardOrientation.ROW_MAJOR, ShardOrientation.COL_MAJOR


def _numbers(*shape: int) -> torch.Tensor:
    return torch.arange(int(np.prod(shape)), dtype=torch.int32).reshape(shape)


def _sharded(mesh: MeshDevice, shape: tuple[int, int], shard: tuple[int, int], order: ShardOrientation) -> MeshBuffer:
    return create_mesh_buffer(
        mesh, "sharded", global_shape=shape, shard_shape=shard, datum_bytes=4, shard_orientation=order
    )


@pytest.mark.parametrize("order", [ROW, COLUMN])
def test_a_sharded_buffer_reads_back_what_was_written(mesh: MeshDevice, order: ShardOrientation) -> None:
    buffer, values = _sharded(mesh, (8, 16), (2, 8), order), _numbers(8, 16)

    enqueue_write_mesh_buffer(buffer, values)

    assert torch.equal(enqueue_read_mesh_buffer(buffer).view(torch.int32).reshape(8, 16), values)


def test_row_major_fills_rows_of_chips_first(mesh: MeshDevice) -> None:
    by_row, by_column = _sharded(mesh, (8, 1), (1, 1), ROW), _sharded(mesh, (8, 1), (1, 1), COLUMN)
    for buffer in (by_row, by_column):
        enqueue_write_mesh_buffer(buffer, _numbers(8, 1))

    chips = list(MeshCoordinateRange(mesh.shape))

    assert [int(s.view(torch.int32)) for s in enqueue_read_shards(by_row, chips)] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [int(s.view(torch.int32)) for s in enqueue_read_shards(by_column, chips)] == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize(
    ("order", "shard", "expected"),
    [
        (ROW, (0, 4), [[0, 4, 8, 12], [0, 4, 8, 12]]),
        (COLUMN, (0, 8), [[0, 0, 0, 0], [8, 8, 8, 8]]),
        (ROW, (0, 0), [[0, 0, 0, 0], [0, 0, 0, 0]]),
    ],
)
def test_a_shard_extent_of_zero_replicates(
    mesh: MeshDevice, order: ShardOrientation, shard: tuple[int, int], expected: list[list[int]]
) -> None:
    buffer = _sharded(mesh, (1, 16), shard, order)

    enqueue_write_mesh_buffer(buffer, _numbers(1, 16))

    first = [int(read_shard(buffer, c).view(torch.int32)[0]) for c in MeshCoordinateRange(mesh.shape)]
    assert first == [n for row in expected for n in row]
    with pytest.raises(RuntimeError, match="Cannot read a MeshBuffer that is replicated along any dimension"):
        enqueue_read_mesh_buffer(buffer)


def test_fewer_shards_than_chips_leave_the_others_as_they_were(mesh: MeshDevice) -> None:
    buffer = _sharded(mesh, (3, 2), (1, 2), ROW)
    enqueue_write_shards(buffer, [(c, [7, 7]) for c in MeshCoordinateRange(mesh.shape)])

    enqueue_write_mesh_buffer(buffer, _numbers(3, 2))

    last = [int(read_shard(buffer, c).view(torch.int32)[1]) for c in MeshCoordinateRange(mesh.shape)]
    assert last == [1, 3, 5, 7, 7, 7, 7, 7]


def test_shards_that_do_not_fit_are_refused(mesh: MeshDevice) -> None:
    with pytest.raises(RuntimeError, match=r"aligned with the shard shape: requested buffer shape: \(8, 16\)"):
        _sharded(mesh, (8, 16), (3, 16), ROW)
    with pytest.raises(RuntimeError, match=r"does not fit on the Mesh. Num shards in buffer 16, Num Devices 8"):
        _sharded(mesh, (16, 1), (1, 1), ROW)
    with pytest.raises(RuntimeError, match="Num shards in buffer 16, Num Devices 8"):
        _sharded(mesh, (1, 16), (0, 2), ROW)


def test_a_replicated_buffer_is_read_chip_by_chip(mesh: MeshDevice) -> None:
    buffer = create_mesh_buffer(mesh, global_shape=(2, 8), datum_bytes=4)
    enqueue_write_mesh_buffer(buffer, _numbers(2, 8).numpy())

    assert buffer.global_layout() is MeshBufferLayout.REPLICATED
    assert torch.equal(read_shard(buffer, MeshCoordinate(1, 3)).view(torch.int32), _numbers(16))
    with pytest.raises(RuntimeError, match="Can only read a Sharded MeshBuffer from a MeshDevice"):
        enqueue_read_mesh_buffer(buffer)
    with pytest.raises(RuntimeError, match="Can only query the global shard spec for a sharded MeshBuffer"):
        buffer.global_shard_spec()


def test_a_replicated_write_stores_one_lane(mesh: MeshDevice) -> None:
    buffer = create_mesh_buffer(mesh, global_shape=(2, 8), datum_bytes=4)

    enqueue_write_mesh_buffer(buffer, _numbers(2, 8))

    assert buffer.cell.raw is not None
    assert tuple(buffer.cell.raw.shape) == (1, 1, 64)


def test_regions_are_whole_pages_inside_the_buffer(mesh: MeshDevice) -> None:
    buffer = create_mesh_buffer(mesh, global_shape=(4, 8), datum_bytes=4)
    column = MeshCoordinateRange(MeshCoordinate(0, 1), MeshCoordinate(1, 1))

    enqueue_write_shard_to_sub_grid(buffer, _numbers(8) + 1, column, region=BufferRegion(64, 32))
    write_shard(buffer, _numbers(8) + 9, MeshCoordinate(1, 1), region=BufferRegion(96, 32))

    assert read_shard(buffer, MeshCoordinate(0, 1)).view(torch.int32).tolist() == [0] * 16 + list(range(1, 9)) + [0] * 8
    assert read_shard(buffer, MeshCoordinate(1, 1), region=BufferRegion(96, 32)).view(torch.int32)[0] == 9
    assert int(read_shard(buffer, MeshCoordinate(0, 0)).sum()) == 0
    for region, text in (
        (BufferRegion(3, 32), "Region offset must be a multiple of page size"),
        (BufferRegion(0, 33), "Region size must be a multiple of page size"),
        (BufferRegion(96, 64), "Region must be within buffer"),
    ):
        with pytest.raises(RuntimeError, match=text):
            read_shard(buffer, MeshCoordinate(0, 0), region=region)


def test_host_data_of_the_wrong_size_is_refused(mesh: MeshDevice) -> None:
    buffer = create_mesh_buffer(mesh, global_shape=(1, 8), datum_bytes=4)

    with pytest.raises(RuntimeError, match="28 B of host data for 32 B"):
        enqueue_write_mesh_buffer(buffer, _numbers(7))


def test_the_host_may_change_its_data_after_a_write(mesh: MeshDevice) -> None:
    buffer, values = create_mesh_buffer(mesh, global_shape=(1, 8), datum_bytes=4), _numbers(8)

    enqueue_write_mesh_buffer(buffer, values)
    values.zero_()

    assert read_shard(buffer, MeshCoordinate(0, 0)).view(torch.int32)[7] == 7


def test_buffers_lie_at_one_address_and_are_freed(mesh: MeshDevice) -> None:
    local = DeviceLocalBufferConfig(page_size=1024, buffer_type=BufferType.L1)
    before = mesh.heap.view(BufferType.L1).total_bytes_allocated_per_bank
    buffer = MeshBuffer.create(ReplicatedBufferConfig(65 * 1024), local, mesh)

    assert mesh.heap.view(BufferType.L1).total_bytes_allocated_per_bank - before == 2048  # 65 pages over 64 banks
    assert buffer.get_device_buffer(MeshCoordinate(1, 2)).address() == buffer.address()
    buffer.deallocate()
    assert not buffer.is_allocated()
    with pytest.raises(RuntimeError, match="Can't get device from mesh buffer, already deallocated"):
        buffer.device()
    assert MeshBuffer.create(ReplicatedBufferConfig(1024), local, mesh, address=1048576).address() == 1048576


def test_page_size_must_divide(mesh: MeshDevice) -> None:
    with pytest.raises(RuntimeError, match="buffer size should be divisible by the page size"):
        create_mesh_buffer(mesh, global_shape=(3, 10), page_size=7)


def test_transfers_are_refused_during_a_capture(mesh: MeshDevice) -> None:
    buffer = create_mesh_buffer(mesh, "sharded", global_shape=(2, 4), shard_shape=(1, 1))
    trace = ttmesh.begin_trace_capture(mesh)

    with pytest.raises(RuntimeError, match="Writes are not supported during trace capture"):
        enqueue_write_mesh_buffer(buffer, torch.zeros(8, dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match="Reads are not supported during trace capture"):
        enqueue_read_mesh_buffer(buffer)

    ttmesh.end_trace_capture(mesh, trace)


def test_a_tensor_and_its_mesh_buffer_see_the_same_bytes(mesh: MeshDevice) -> None:
    values = torch.randn(64, 64).bfloat16()
    tensor = ttmesh.from_torch(values, layout=ttmesh.TILE_LAYOUT, device=mesh)
    buffer = MeshBuffer.of(tensor.buffer, mesh)
    tiles = read_shard(buffer, MeshCoordinate(0, 0)).view(torch.bfloat16).reshape(4, 1024)

    assert torch.equal(tiles[0][:16], values[0, :16])  # the first row of the first face
    write_shard(buffer, torch.zeros(4, 1024).bfloat16(), MeshCoordinate(0, 0))

    first, second = (ttmesh.to_torch(t) for t in ttmesh.get_device_tensors(tensor)[:2])
    assert not first.any()
    assert torch.equal(second, values)
    assert buffer.num_pages == 4


def test_interleaved_pages_go_round_the_banks() -> None:
    layout = make_interleaved_layout(30, 100, 32, 12)

    assert [layout.locate(p) for p in (0, 11, 12, 29)] == [(0, 0), (11, 0), (0, 128), (5, 256)]
    assert layout.find(5, 256 + 7) == (29, 7)
    assert layout.find(6, 256) is None
    assert layout.find(0, 110) is None  # the padding behind a page
    assert layout.bank_bytes == 3 * 128


def test_sharded_pages_lie_on_their_cores() -> None:
    cores = CoreRangeSet([CoreRange((1, 0), (2, 1))])
    args = BufferShardingArgs(cores, shard_pages=(2, 1), buffer_pages=(4, 2))
    layout = make_sharded_layout(8, 64, 16, args, 8, dram=False)

    assert [layout.locate(p) for p in range(4)] == [(1, 0), (2, 0), (1, 64), (2, 64)]
    assert layout.locate(4) == (9, 0)
    assert all(layout.find(*layout.locate(p)) == (p, 0) for p in range(8))
    with pytest.raises(RuntimeError, match="8 shards of 1x1 pages do not fit on 4 cores"):
        make_sharded_layout(8, 64, 16, BufferShardingArgs(cores, (1, 1), (4, 2)), 8, dram=False)


def test_sharded_config_knows_its_sizes() -> None:
    config = ShardedBufferConfig(global_size=2048, global_buffer_shape=(16, 32), shard_shape=(0, 8))

    assert config.compute_datum_size_bytes() == 4
    assert config.physical_shard_shape == (16, 8)
    assert config.device_local_size == 512
    assert config.replicated_dims == (True, False)
