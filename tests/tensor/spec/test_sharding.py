"""`create_sharded_memory_config` in all its forms, and batches that do not divide."""

from __future__ import annotations

import pytest
import torch

from ttmesh.base.cores import CoreCoord, CoreGrid, CoreRange, CoreRangeSet, DramGrid
from ttmesh.base.dtypes import BufferType, ShardOrientation, ShardStrategy, TensorMemoryLayout
from ttmesh.base.geometry import MeshShape
from ttmesh.tensor.spec.shard_config import create_sharded_memory_config, create_sharded_memory_config_
from ttmesh.tensor.transfer.batch_padding import pad_batch

COL = ShardOrientation.COL_MAJOR


@pytest.mark.parametrize(
    ("strategy", "orientation", "shard"),
    [
        (ShardStrategy.HEIGHT, None, [32, 256]),
        (ShardStrategy.WIDTH, None, [256, 32]),
        (ShardStrategy.BLOCK, None, [128, 64]),
        (ShardStrategy.BLOCK, COL, [64, 128]),
    ],
)
def test_the_shape_is_divided_over_the_grid(strategy, orientation, shard) -> None:
    config = create_sharded_memory_config((2, 1, 128, 256), CoreGrid(y=2, x=4), strategy, orientation)

    assert config.shard_spec.shape == shard
    assert config.buffer_type is BufferType.L1
    assert config.shard_spec.num_cores() == 8


def test_a_dram_grid_means_dram() -> None:
    config = create_sharded_memory_config(
        shape=(1, 1, 32, 384), core_grid=DramGrid(12, 1), strategy=ShardStrategy.WIDTH
    )

    assert config.buffer_type is BufferType.DRAM
    assert config.shard_spec.shape == [32, 32]
    assert DramGrid(12, 1) == CoreCoord(12, 1)
    assert CoreCoord(12, 1) == DramGrid(12, 1)


def test_height_and_width_can_be_the_shard() -> None:
    grid = CoreRangeSet([CoreRange((0, 0), (3, 0)), CoreRange((0, 1), (1, 1))])

    config = create_sharded_memory_config((32, 64), grid, ShardStrategy.HEIGHT, None, True)

    assert config.shard_spec.shape == [32, 64]
    turned = create_sharded_memory_config((32, 64), grid, ShardStrategy.HEIGHT, COL, True)
    assert turned.shard_spec.shape == [64, 32]
    with pytest.raises(RuntimeError, match="height and width must be shard shape with CoreRangeSet"):
        create_sharded_memory_config((32, 64), grid, ShardStrategy.HEIGHT)


def test_two_grids_are_full_rows_and_a_rest() -> None:
    config = create_sharded_memory_config(
        (32, 64), [CoreGrid(y=2, x=8), CoreGrid(y=1, x=3)], ShardStrategy.HEIGHT, None, True
    )

    assert config.shard_spec.grid == CoreRangeSet([CoreRange((0, 0), (7, 1)), CoreRange((0, 2), (2, 2))])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nothing", CoreGrid(1, 1), ShardStrategy.WIDTH), "Invalid input shape"),
        (((32, 32), 7, ShardStrategy.WIDTH), "Invalid core_grid type"),
        (((32, 32), [CoreGrid(1, 1)], ShardStrategy.WIDTH), "Invalid core_grid"),
        (((32, 32), CoreGrid(1, 1), "width"), "Invalid sharding strategy"),
        (((32, 32), CoreGrid(1, 1), ShardStrategy.WIDTH, "row"), "Invalid shard orientation"),
        (((32, 100), CoreGrid(1, 8), ShardStrategy.WIDTH), "Invalid sharding core_grid"),
    ],
)
def test_wrong_arguments_are_refused_in_ttnns_words(arguments, text) -> None:
    with pytest.raises(RuntimeError, match=text):
        create_sharded_memory_config(*arguments)


def test_shapes_that_do_not_divide_round_up_in_the_second_form() -> None:
    row = ShardOrientation.ROW_MAJOR
    grid = CoreGrid(y=2, x=4)

    assert create_sharded_memory_config_((100, 100), grid, ShardStrategy.WIDTH, row).shard_spec.shape == [100, 13]
    block = create_sharded_memory_config_((100, 128), grid, TensorMemoryLayout.BLOCK_SHARDED, row, tile_layout=True)
    assert block.shard_spec.shape == [64, 32]
    uneven = CoreRangeSet([CoreRange((0, 0), (3, 0)), CoreRange((0, 1), (1, 1))])
    assert create_sharded_memory_config_((60, 32), uneven, ShardStrategy.HEIGHT, row).shard_spec.shape == [10, 32]
    with pytest.raises(RuntimeError, match="Invalid CoreRangeSet for block sharding strategy"):
        create_sharded_memory_config_((60, 32), uneven, ShardStrategy.BLOCK, row)
    with pytest.raises(RuntimeError, match="Incorrect tensor shape"):
        create_sharded_memory_config_((5, 7), grid, ShardStrategy.HEIGHT, row, tile_layout=True)


def test_a_batch_is_padded_to_the_devices_and_cut_back() -> None:
    batch = torch.arange(10.0).reshape(5, 2)

    padded = pad_batch(batch, MeshShape(2, 4))

    assert padded.values.shape == (8, 2)
    assert torch.equal(padded.unpad(padded.values * 2), batch * 2)
    assert pad_batch(batch[:4], MeshShape(2, 2)).values.data_ptr() == batch.data_ptr()
    with pytest.raises(RuntimeError, match="a result of 5 samples cannot be unpadded; expected 8 samples along dim 0"):
        padded.unpad(batch)
    with pytest.raises(RuntimeError, match="an empty batch cannot be padded"):
        pad_batch(batch[:0], MeshShape(2, 2))
