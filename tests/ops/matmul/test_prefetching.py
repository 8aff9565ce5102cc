"""Global circular buffers take L1 on their cores; the prefetcher checks what it is given; matmuls find their weights."""

from __future__ import annotations

import pytest
import torch

import ttmesh.ttnn as ttnn

RECEIVERS = 2


@pytest.fixture
def mesh():
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    yield mesh
    ttnn.close_mesh_device(mesh)


def mapping(senders=2, receivers=RECEIVERS):
    return [
        (
            ttnn.CoreCoord(0, i),
            ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(1, i), ttnn.CoreCoord(receivers, i))]),
        )
        for i in range(senders)
    ]


def in_use(mesh):
    return ttnn.get_memory_view(mesh, ttnn.BufferType.L1).total_bytes_allocated_per_bank


def weight(mesh, columns=256, **options):
    grid = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 0))])
    shard = ttnn.ShardSpec(grid, [64, columns // 2], ttnn.ShardOrientation.ROW_MAJOR)
    memory = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.DRAM, shard)
    given = {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT, "device": mesh, "memory_config": memory, **options}
    return ttnn.from_torch(torch.ones(64, columns), **given)


def addresses(mesh, *tensors):
    rows = torch.tensor([[tensor.buffer_address() for tensor in tensors]] * 2, dtype=torch.int64)
    grid = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 1))])
    shard = ttnn.ShardSpec(grid, [1, len(tensors)], ttnn.ShardOrientation.ROW_MAJOR)
    memory = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shard)
    return ttnn.from_torch(rows, dtype=ttnn.uint32, device=mesh, memory_config=memory)


def test_a_global_circular_buffer_takes_its_size_and_a_page_of_configuration_on_each_core(mesh):
    before = in_use(mesh)

    buffer = ttnn.create_global_circular_buffer(mesh, mapping(), 3200)

    alignment = ttnn.get_l1_alignment()
    words = -(-(8 + 2 * RECEIVERS) * 4 // alignment) * alignment
    page = words + 2 * RECEIVERS * alignment
    assert in_use(mesh) - before == 3200 + -(-page // 32) * 32  # blocks of 32 bytes
    assert (buffer.size(), buffer.sender_core_type()) == (3200, "worker")
    assert buffer.sender_cores().num_cores() == 2
    assert buffer.receiver_cores().num_cores() == 4


@pytest.mark.parametrize("use", ["matmul", "dram_prefetcher"])
def test_its_memory_goes_with_the_last_reference_though_programs_are_cached(mesh, use):
    buffer = ttnn.create_global_circular_buffer(mesh, mapping(), 3200)
    w = weight(mesh)
    where = addresses(mesh, w)
    before = in_use(mesh)

    if use == "matmul":
        x = ttnn.from_torch(torch.ones(32, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
        ttnn.deallocate(ttnn.matmul(x, w, global_cb=buffer))
    else:
        ttnn.deallocate(ttnn.dram_prefetcher([w, where], 1, buffer))
    del buffer

    assert in_use(mesh) < before


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([], "At least one sender required"),
        ([*mapping(1), *mapping(1)], "Duplicate sender cores found"),
        ([mapping(2)[0], (ttnn.CoreCoord(5, 5), mapping(2)[0][1])], "Duplicate receiver cores found"),
        ([(ttnn.CoreCoord(1, 0), mapping(1)[0][1])], "Duplicate cores found"),
    ],
)
def test_each_core_has_one_part(mesh, pairs, text):
    with pytest.raises(RuntimeError, match=text):
        ttnn.create_global_circular_buffer(mesh, pairs, 3200)


def test_global_circular_buffers_lie_in_l1(mesh):
    with pytest.raises(RuntimeError, match="can only be created for L1 buffer types"):
        ttnn.create_global_circular_buffer(mesh, mapping(), 3200, ttnn.BufferType.DRAM)


def test_the_prefetcher_gives_a_tile_in_dram_and_matmuls_read_the_weights(mesh):
    buffer = ttnn.create_global_circular_buffer(mesh, mapping(), 3200)
    w = weight(mesh)

    result = ttnn.dram_prefetcher([w, addresses(mesh, w)], num_layers=1, global_cb=buffer)

    assert tuple(result.shape) == (32, 32)
    assert result.dtype == ttnn.bfloat16
    assert result.memory_config() == ttnn.DRAM_MEMORY_CONFIG
    x = ttnn.from_torch(torch.ones(32, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
    result = ttnn.to_torch(ttnn.get_device_tensors(ttnn.matmul(x, w, global_cb=buffer))[1])
    assert torch.equal(result, torch.full((32, 256), 64.0, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("layers", "options", "text"),
    [
        (0, {}, "Prefetcher must run for at least 1 layer"),
        (1, {"memory_config": ttnn.DRAM_MEMORY_CONFIG}, "Input tensors must be width sharded"),
        (1, {"dtype": ttnn.float32}, "Input tensors must be of type Bfp4_b, Bfp8_b, or Float16_b"),
    ],
)
def test_the_prefetcher_refuses_what_tt_nn_refuses(mesh, layers, options, text):
    buffer = ttnn.create_global_circular_buffer(mesh, mapping(), 3200)
    w = weight(mesh, **options)

    with pytest.raises(RuntimeError, match=text):
        ttnn.dram_prefetcher([w, addresses(mesh, w)], layers, buffer)


def test_senders_that_read_no_bank_may_have_other_receivers(mesh):
    spare = (ttnn.CoreCoord(6, 6), ttnn.CoreRangeSet([ttnn.CoreRange((0, 7), (0, 7)), ttnn.CoreRange((2, 7), (2, 7))]))
    buffer = ttnn.create_global_circular_buffer(mesh, [*mapping(2), spare], 3200)
    w = weight(mesh)

    assert tuple(ttnn.dram_prefetcher([w, addresses(mesh, w)], 1, buffer).shape) == (32, 32)


def test_senders_that_read_have_as_many_ranges_of_receivers(mesh):
    apart = ttnn.CoreRangeSet([ttnn.CoreRange((1, 1), (1, 1)), ttnn.CoreRange((3, 1), (3, 1))])
    buffer = ttnn.create_global_circular_buffer(mesh, [mapping(1)[0], (ttnn.CoreCoord(0, 1), apart)], 3200)
    w = weight(mesh)

    with pytest.raises(RuntimeError, match="must have same number of receivers for each sender core"):
        ttnn.dram_prefetcher([w, addresses(mesh, w)], 1, buffer)


def test_shards_must_divide_among_the_receivers(mesh):
    buffer = ttnn.create_global_circular_buffer(mesh, mapping(receivers=3), 3200)
    w = weight(mesh)

    with pytest.raises(RuntimeError, match=r"padded shard size \(in last dim\) 128 must be divisible .* 3"):
        ttnn.dram_prefetcher([w, addresses(mesh, w)], 1, buffer)


def test_addresses_come_last_and_in_sharded_l1(mesh):
    buffer = ttnn.create_global_circular_buffer(mesh, mapping(), 3200)
    w = weight(mesh)

    with pytest.raises(RuntimeError, match="Tensor containing addresses must be row major"):
        ttnn.dram_prefetcher([w, w], 1, buffer)
