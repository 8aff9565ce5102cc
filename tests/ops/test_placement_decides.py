"""Operations whose result or refusal depends on where their tensors are stored."""

from __future__ import annotations

import pytest
import torch

import ttmesh.ttnn as ttnn


@pytest.fixture
def device():
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    yield mesh
    ttnn.close_mesh_device(mesh)


def row_of(cores):
    return ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(cores - 1, 0))])


def width_sharded(cores, rows, columns, kind=ttnn.BufferType.L1):
    spec = ttnn.ShardSpec(row_of(cores), [rows, columns], ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, kind, spec)


def put_on_device(device, values, config, layout=ttnn.TILE_LAYOUT):
    return ttnn.from_torch(values.bfloat16(), layout=layout, device=device, memory_config=config)


HEIGHT = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1)


@pytest.mark.parametrize("tied", [False, True])
def test_every_core_of_a_sharded_projection_has_its_own_heads(device, tied) -> None:
    heads, kv, size = 8, 2, 32  # a tied width is no multiple of 12 heads, else TT-NN refuses it
    q, k, v = (torch.randn(32, n, size).bfloat16() for n in (heads, kv, kv))
    groups = [q.view(32, kv, -1), k] if tied else [q.view(32, kv, -1), k, v]
    x = torch.cat(groups, -1).flatten(1)[None, None]
    config = width_sharded(kv, 32, x.shape[-1] // kv)

    made = ttnn.experimental.nlp_create_qkv_heads(
        put_on_device(device, x, config), num_heads=heads, num_kv_heads=kv, transpose_k_heads=False, kv_tied=tied,
        memory_config=HEIGHT,
    )  # fmt: skip

    for found, expected in zip(made, (q, k, k if tied else v), strict=True):
        assert torch.equal(ttnn.to_torch(found)[0], expected.transpose(0, 1))


def test_keys_and_values_of_their_own_are_paired_on_every_core(device) -> None:
    heads, kv, size = 4, 2, 32
    q, k, v = (torch.randn(32, n, size).bfloat16() for n in (heads, kv, kv))
    x, pairs = q.flatten(1)[None, None], torch.cat([k, v], -1).flatten(1)[None, None]

    made = ttnn.experimental.nlp_create_qkv_heads(
        put_on_device(device, x, width_sharded(kv, 32, 64)), put_on_device(device, pairs, width_sharded(kv, 32, 64)),
        num_heads=heads, num_kv_heads=kv, transpose_k_heads=False, memory_config=HEIGHT,
    )  # fmt: skip

    for found, expected in zip(made, (q, k, v), strict=True):
        assert torch.equal(ttnn.to_torch(found)[0], expected.transpose(0, 1))


def test_heads_that_do_not_divide_over_the_cores_are_refused(device) -> None:
    x = put_on_device(device, torch.zeros(1, 1, 32, 256), width_sharded(2, 32, 128))

    with pytest.raises(RuntimeError, match="Transpose K heads must be false"):
        ttnn.experimental.nlp_create_qkv_heads(x, num_heads=4, num_kv_heads=2, memory_config=HEIGHT)
    with pytest.raises(RuntimeError, match=r"Number of KV heads \(1\) must be divisible by number of cores \(2\)"):
        ttnn.experimental.nlp_create_qkv_heads(
            x, num_heads=6, num_kv_heads=1, transpose_k_heads=False, memory_config=HEIGHT
        )


@pytest.mark.parametrize(
    ("shape", "shard", "corner"),
    [
        ([1, 1, 128, 64], [1, 1, 32, 64], (3, 0)),
        ([1, 1, 64, 256], [1, 1, 64, 64], (3, 0)),
        ([1, 1, 128, 128], [1, 1, 64, 64], (1, 1)),
        ([4, 32, 64], [2, 32, 64], (1, 0)),
    ],
)
def test_shards_of_more_dims_are_taken_where_they_are_rectangles(device, shape, shard, corner) -> None:
    grid = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(corner))])
    config = ttnn.MemoryConfig(ttnn.BufferType.L1, ttnn.NdShardSpec(shard, grid))
    values = torch.randn(shape).bfloat16()

    made = ttnn.interleaved_to_sharded(put_on_device(device, values, ttnn.DRAM_MEMORY_CONFIG), config)

    assert made.memory_config().is_sharded()
    assert torch.equal(ttnn.to_torch(made), values)


@pytest.mark.parametrize(("shape", "shard"), [([6, 32, 64], [3, 32, 32]), ([4, 3, 32, 64], [2, 1, 32, 64])])
def test_shards_that_are_no_rectangles_are_refused(device, shape, shard) -> None:
    config = ttnn.MemoryConfig(ttnn.BufferType.L1, ttnn.NdShardSpec(shard, row_of(6)))

    with pytest.raises(RuntimeError, match="takes no shards of more than two dims"):
        ttnn.interleaved_to_sharded(put_on_device(device, torch.zeros(shape), ttnn.DRAM_MEMORY_CONFIG), config)


def test_channels_last_need_aligned_shards(device) -> None:
    x = put_on_device(
        device, torch.zeros(1, 1, 4, 32), width_sharded(1, 4, 32, ttnn.BufferType.DRAM), ttnn.ROW_MAJOR_LAYOUT
    )
    spec = ttnn.ShardSpec(row_of(1), [32, 4], ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)

    with pytest.raises(RuntimeError, match=r"rounded up to next multiple of 8 .* \(width was 4\)"):
        ttnn.experimental.convert_to_hwc(x, memory_config=config)


def test_an_operand_on_the_host_is_named(device) -> None:
    here = ttnn.from_torch(torch.zeros(1, 1, 32, 32), layout=ttnn.TILE_LAYOUT)

    with pytest.raises(RuntimeError, match=r"Input tensor B must be on device.*: ttnn\.add got a tensor on the host"):
        ttnn.add(ttnn.to_device(here, device), here)
