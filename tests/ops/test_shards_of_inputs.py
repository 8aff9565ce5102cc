"""memory_config= that names a sharding without its shards, or the input's shards for a result of another size."""

from __future__ import annotations

import pytest
import torch

import ttmesh.ttnn as ttnn

LAYOUTS = {
    "block": (ttnn.ShardStrategy.BLOCK, ttnn.L1_BLOCK_SHARDED_MEMORY_CONFIG),
    "height": (ttnn.ShardStrategy.HEIGHT, ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG),
    "width": (ttnn.ShardStrategy.WIDTH, ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG),
}
OPERATIONS = {
    "layer_norm": ttnn.layer_norm,
    "rms_norm": ttnn.rms_norm,
    "sum": lambda x, **options: ttnn.sum(x, dim=-1, keepdim=True, **options),
    "mean": lambda x, **options: ttnn.mean(x, dim=-1, keepdim=True, **options),
    "std": lambda x, **options: ttnn.std(x, dim=-1, keepdim=True, **options),
    "untilize_with_unpadding": lambda x, **options: ttnn.untilize_with_unpadding(
        x, output_tensor_end=(0, 0, 511, 511), **options
    ),
}


@pytest.fixture
def device():
    device = ttnn.open_device(device_id=0)
    yield device
    ttnn.close_device(device)


def make_shards(device, shape, layout, tensor_layout=ttnn.TILE_LAYOUT):
    """A tensor of any values on 4x4 cores."""
    tensor = ttnn.from_torch(torch.ones(shape), dtype=ttnn.bfloat16, layout=tensor_layout, device=device)
    grid = ttnn.CoreGrid(y=4, x=4)
    return ttnn.to_memory_config(tensor, ttnn.create_sharded_memory_config(shape, grid, LAYOUTS[layout][0]))


@pytest.mark.parametrize(  # as TT-NN 0.81.1 divides the results
    ("operation", "layout", "shard"),
    [
        ("layer_norm", "block", (128, 128)),
        ("layer_norm", "width", (512, 32)),
        ("rms_norm", "block", (128, 128)),
        ("rms_norm", "width", (512, 32)),
        ("sum", "block", (128, 32)),
        ("sum", "height", (32, 32)),
        ("mean", "width", (512, 32)),
        ("std", "block", (128, 32)),
        ("untilize_with_unpadding", "height", (32, 512)),
        ("untilize_with_unpadding", "block", (128, 128)),
    ],
)
def test_a_sharding_without_shards_takes_the_cores_of_the_input(device, operation, layout, shard):
    x = make_shards(device, (1, 1, 512, 512), layout)

    config = OPERATIONS[operation](x, memory_config=LAYOUTS[layout][1]).memory_config()

    assert config.memory_layout == x.memory_config().memory_layout
    assert tuple(config.shard_spec.shape) == shard
    assert config.shard_spec.grid == x.memory_config().shard_spec.grid


@pytest.mark.parametrize("operation", ["softmax", "typecast"])
def test_other_operations_ask_for_shards(device, operation):
    x = make_shards(device, (1, 1, 512, 512), "block")
    options = {"dtype": ttnn.bfloat8_b} if operation == "typecast" else {"dim": -1}

    with pytest.raises(RuntimeError, match="MemoryConfig must have Shard Spec specified"):
        getattr(ttnn, operation)(x, memory_config=ttnn.L1_BLOCK_SHARDED_MEMORY_CONFIG, **options)


@pytest.mark.parametrize("scale", [2, (2, 1), (1.5, 1.5)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_upsample_enlarges_the_shards_of_its_input(device, layout, scale):
    x = make_shards(device, (1, 32, 16, 512), layout, ttnn.ROW_MAJOR_LAYOUT)
    down, across = scale if isinstance(scale, tuple) else (scale, scale)
    rows, columns = x.memory_config().shard_spec.shape

    made = ttnn.upsample(x, scale, memory_config=x.memory_config())

    assert tuple(made.memory_config().shard_spec.shape) == (rows * down * across, columns)
    assert torch.equal(ttnn.to_torch(made), torch.ones(tuple(made.shape), dtype=torch.bfloat16))


def test_upsample_of_shards_asks_for_shards(device):
    x = make_shards(device, (1, 32, 16, 512), "height", ttnn.ROW_MAJOR_LAYOUT)

    with pytest.raises(RuntimeError, match="bad optional access"):
        ttnn.upsample(x, 2, memory_config=ttnn.DRAM_MEMORY_CONFIG)


@pytest.mark.parametrize("transpose_k_heads", [False, True])
def test_a_projection_without_keys_and_values_is_split_into_query_heads(device, transpose_k_heads):
    values = torch.arange(64.0 * 128).reshape(1, 1, 64, 128).bfloat16()
    x = ttnn.from_torch(values, layout=ttnn.TILE_LAYOUT, device=device)

    q, k, v = ttnn.experimental.nlp_create_qkv_heads(
        x, num_heads=4, num_kv_heads=0, transpose_k_heads=transpose_k_heads
    )

    assert torch.equal(ttnn.to_torch(q), values.reshape(1, 64, 4, 32).transpose(1, 2))
    assert tuple(k.shape) == ((1, 0, 32, 64) if transpose_k_heads else (1, 0, 64, 32))
    assert tuple(v.shape) == (1, 0, 64, 32)


def test_concatenated_heads_choose_shards(device):
    values = torch.arange(8.0 * 16 * 32 * 64).reshape(8, 16, 32, 64).bfloat16()
    shards = ttnn.create_sharded_memory_config(
        (64, 64), ttnn.CoreGrid(y=8, x=8), ttnn.ShardStrategy.HEIGHT, use_height_and_width_as_shard_shape=True
    )
    x = ttnn.from_torch(values, layout=ttnn.TILE_LAYOUT, device=device, memory_config=shards)

    y = ttnn.transformer.concatenate_heads(x, memory_config=ttnn.L1_BLOCK_SHARDED_MEMORY_CONFIG)

    assert tuple(y.memory_config().shard_spec.shape) == (32, 128)  # TT-NN 0.81.1's
    assert torch.equal(ttnn.to_torch(y), values.transpose(1, 2).flatten(-2))


@pytest.mark.parametrize(  # as TT-NN 0.81.1 divides the results; dims before the last two change places first
    ("operation", "dim", "layout", "shard", "cores"),
    [
        ("mean", 0, "height", (32, 96), (6, 1)),
        ("mean", [0, 1], "width", (64, 32), (3, 1)),
        ("max", 1, "block", (32, 32), (3, 4)),
        ("min", [0, 1], "block", (32, 32), (3, 2)),
        ("var", -3, "block", (32, 32), (3, 4)),
        ("std", [0, 1, 2], "block", (32, 96), (1, 1)),
        ("std", [1, 3], "block", (32, 32), (1, 4)),
    ],
)
def test_reductions_over_batches_choose_shards(device, operation, dim, layout, shard, cores):
    values = torch.rand(2, 3, 64, 96).bfloat16()
    x = ttnn.from_torch(values, layout=ttnn.TILE_LAYOUT, device=device)

    y = getattr(ttnn, operation)(x, dim=dim, keepdim=True, memory_config=LAYOUTS[layout][1])

    plain = getattr(ttnn, operation)(x, dim=dim, keepdim=True)
    assert torch.equal(ttnn.to_torch(y), ttnn.to_torch(plain))
    assert y.memory_config().memory_layout == LAYOUTS[layout][1].memory_layout
    assert tuple(y.memory_config().shard_spec.shape) == shard
    assert y.memory_config().shard_spec.grid.bounding_box().grid_size() == ttnn.CoreCoord(*cores)


@pytest.mark.parametrize(
    ("operation", "dim", "words"),
    [
        ("mean", -1, "requires either nd_shard_spec or shard_spec"),
        ("max", [1, 2], "requires either nd_shard_spec or shard_spec"),
        ("var", -2, "requires either nd_shard_spec or shard_spec"),
        ("var", [2, 3], "bad optional access"),
        ("sum", 0, "bad optional access"),
    ],
)
def test_reductions_that_do_not_choose_shards_refuse(device, operation, dim, words):
    x = ttnn.from_torch(torch.rand(2, 3, 64, 96), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)

    with pytest.raises(RuntimeError, match=words):
        getattr(ttnn, operation)(x, dim=dim, memory_config=ttnn.L1_BLOCK_SHARDED_MEMORY_CONFIG)
