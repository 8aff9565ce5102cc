"""Sharded results without a shard spec, grids as plain numbers, and goldens called as TT-NN's are."""

from __future__ import annotations

import pytest
import torch

import ttmesh.ttnn as ttnn


@pytest.fixture
def device():
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    yield mesh
    ttnn.close_mesh_device(mesh)


@pytest.mark.parametrize(
    ("layout", "cores"),
    [
        (ttnn.TensorMemoryLayout.HEIGHT_SHARDED, 4),
        (ttnn.TensorMemoryLayout.WIDTH_SHARDED, 2),
        (ttnn.TensorMemoryLayout.BLOCK_SHARDED, 8),
    ],
    ids=str,
)
def test_shards_without_a_grid_are_on_the_cores_that_get_one(device, layout, cores):
    x = ttnn.from_torch(torch.rand(1, 1, 64, 128), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
    y = ttnn.transpose(x, 2, 3, memory_config=ttnn.MemoryConfig(layout, ttnn.BufferType.L1))
    assert y.memory_config().shard_spec.grid.num_cores() == cores
    assert torch.equal(ttnn.to_torch(y), ttnn.to_torch(x).transpose(2, 3))


@pytest.mark.parametrize("grid", [(8, 1), [8, 1], ttnn.CoreCoord(8, 1)], ids=str)
def test_a_grid_may_be_plain_numbers(device, grid):
    x = ttnn.from_torch(torch.rand(1, 1, 256, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
    y = ttnn.interleaved_to_sharded(
        x, grid, [32, 32], ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.ShardOrientation.ROW_MAJOR
    )
    assert y.memory_config().shard_spec.grid.num_cores() == 8
    config = ttnn.MatmulMultiCoreReuseProgramConfig(grid, 1, 1, 1, 1, 1)
    assert config.compute_with_storage_grid_size == ttnn.CoreCoord(8, 1)
    assert hash(config) == hash(ttnn.MatmulMultiCoreReuseProgramConfig((8, 1), 1, 1, 1, 1, 1))


def test_goldens_let_pass_what_only_a_device_needs():
    a, b = torch.rand(4), torch.rand(4)
    golden = ttnn.get_golden_function(ttnn.addalpha)
    assert torch.equal(golden(a, b, 2.0, device=None, memory_config=ttnn.L1_MEMORY_CONFIG), a + 2 * b)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        golden(a, b, 2.0, colour="red")


@pytest.mark.parametrize("mode", ["none", "mean", "sum"])
def test_goldens_of_losses_take_torchs_names(mode):
    a, b = torch.rand(4), torch.rand(4)
    expected = torch.nn.functional.mse_loss(a, b, reduction=mode)
    assert torch.equal(ttnn.get_golden_function(ttnn.mse_loss)(a, b, reduction=mode), expected)


HEIGHT, WIDTH, BLOCK = (ttnn.TensorMemoryLayout[f"{kind}_SHARDED"] for kind in ("HEIGHT", "WIDTH", "BLOCK"))


@pytest.mark.parametrize("layout", [ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT], ids=["tiles", "rows"])
@pytest.mark.parametrize(
    ("held", "order", "wanted", "cores", "shard"),
    [
        ("HEIGHT", "ROW_MAJOR", WIDTH, (2, 1), [256, 32]),
        ("HEIGHT", "COL_MAJOR", WIDTH, (1, 2), [256, 32]),
        ("HEIGHT", "ROW_MAJOR", BLOCK, (2, 8), [32, 32]),
        ("HEIGHT", "COL_MAJOR", BLOCK, (8, 2), [32, 32]),
        ("HEIGHT", "COL_MAJOR", HEIGHT, (4, 1), [64, 64]),
        ("WIDTH", "ROW_MAJOR", HEIGHT, (8, 1), [32, 64]),
        ("WIDTH", "COL_MAJOR", HEIGHT, (1, 8), [32, 64]),
        (None, "ROW_MAJOR", HEIGHT, (8, 1), [32, 64]),
        (None, "ROW_MAJOR", BLOCK, (2, 8), [32, 32]),
    ],
)
def test_a_transpose_into_other_shards_spreads_whole_tiles(device, layout, held, order, wanted, cores, shard):
    """TT-NN 0.81.1's cores and shards on an n150, asked of it."""
    config = None
    if held is not None:
        grid, orientation = ttnn.CoreGrid(y=1, x=4), ttnn.ShardOrientation[order]
        config = ttnn.create_sharded_memory_config((1, 2, 64, 128), grid, ttnn.ShardStrategy[held], orientation)
    values = torch.rand(1, 2, 64, 128).bfloat16()
    x = ttnn.from_torch(values, layout=layout, device=device, memory_config=config)

    for y in (
        ttnn.transpose(x, 2, 3, memory_config=ttnn.MemoryConfig(wanted, ttnn.BufferType.L1)),
        ttnn.permute(x, (0, 1, 3, 2), memory_config=ttnn.MemoryConfig(wanted, ttnn.BufferType.L1)),
    ):
        made = y.memory_config().shard_spec
        box = made.grid.bounding_box().grid_size()
        assert (box.x, box.y) == cores
        assert list(made.shape) == shard
        assert torch.equal(ttnn.to_torch(y), values.mT)
