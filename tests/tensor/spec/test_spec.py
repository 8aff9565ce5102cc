"""Specs: every size TT-NN derives from shape, format, layout and memory."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest

import ttmesh.ttnn as ttnn
from ttmesh.base import dtypes as d
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.chip.formats.tiles import Tile
from ttmesh.tensor.spec.memory_config import (
    DRAM_MEMORY_CONFIG,
    L1_MEMORY_CONFIG,
    MemoryConfig,
    NdShardSpec,
    ShardDistributionStrategy,
    ShardShapeAlignment,
    ShardSpec,
)
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE, ROW = Layout.TILE, Layout.ROW_MAJOR


def cores(x: int, y: int) -> CoreRangeSet:
    return CoreRangeSet(CoreRange(CoreCoord(0, 0), CoreCoord(x - 1, y - 1)))


def sharded(layout: TensorMemoryLayout, shape, grid, orientation=ShardOrientation.ROW_MAJOR) -> MemoryConfig:
    return MemoryConfig(layout, BufferType.L1, ShardSpec(grid, shape, orientation))


@pytest.mark.parametrize(
    ("shape", "padded"),
    [((), (32, 32)), ((5,), (32, 32)), ((1, 33), (32, 64)), ((2, 3, 33, 7), (2, 3, 64, 32)), ((0, 5), (0, 32))],
)
def test_tiles_pad_the_last_two_dims(shape, padded) -> None:
    assert TensorSpec(shape, d.bfloat16, TILE).padded_shape == padded


def test_row_major_pages_are_rows() -> None:
    spec = TensorSpec((2, 3, 5), d.bfloat16, ROW)

    assert (spec.padded_shape, spec.page_size_bytes, spec.num_pages) == ((2, 3, 5), 10, 6)
    assert spec.strides == (15, 5, 1)


@pytest.mark.parametrize(
    ("dtype", "size"), [(d.bfloat16, 2048), (d.float32, 4096), (d.bfloat8_b, 1088), (d.bfloat4_b, 576)]
)
def test_tile_pages_have_the_tile_size(dtype, size) -> None:
    spec = TensorSpec((1, 1, 64, 96), dtype, TILE)

    assert (spec.page_size_bytes, spec.num_pages, spec.packed_size_bytes) == (size, 6, 6 * size)


def test_tiny_tiles_pad_less() -> None:
    spec = TensorSpec((1, 17, 20), d.bfloat16, TILE, tile=Tile((16, 32)))

    assert spec.padded_shape == (1, 32, 32)
    assert spec.num_pages == 2


def test_interleaved_pages_are_dealt_over_the_banks() -> None:
    spec = TensorSpec((32, 32 * 13), d.bfloat8_b, TILE)

    assert spec.bytes_per_bank(page_alignment=32, num_banks=12) == 2 * 1088
    assert spec.bytes_per_bank(page_alignment=64, num_banks=13) == 1088


def test_a_custom_padded_shape_is_kept() -> None:
    spec = TensorSpec((1, 3, 5), d.bfloat16, ROW).with_padded_shape((1, 4, 8))

    assert (spec.shape, spec.padded_shape, spec.physical_shape) == ((1, 3, 5), (1, 4, 8), (4, 8))
    assert spec.page_size_bytes == 16
    deep = TensorSpec((3, 2, 32, 32), d.bfloat16, TILE).with_padded_shape((4, 2, 64, 32))
    assert (deep.padded_shape, deep.physical_shape) == ((4, 2, 64, 32), (512, 32))


@pytest.mark.parametrize(
    ("config", "shape", "text"),
    [
        (
            sharded(TensorMemoryLayout.HEIGHT_SHARDED, (32, 64), cores(4, 1)),
            (128, 128),
            "Shard width 64 must match physical width 128 for height sharded",
        ),
        (
            sharded(TensorMemoryLayout.HEIGHT_SHARDED, (32, 128), cores(2, 1)),
            (128, 128),
            "Number of shards along height 4 must not exceed number of cores 2",
        ),
        (
            sharded(TensorMemoryLayout.WIDTH_SHARDED, (64, 32), cores(4, 1)),
            (128, 128),
            "Shard height 64 must match physical height 128 for width sharded",
        ),
        (
            sharded(TensorMemoryLayout.WIDTH_SHARDED, (128, 32), cores(3, 1)),
            (128, 128),
            "Number of shards along width 4 must not exceed number of cores 3",
        ),
        (
            sharded(TensorMemoryLayout.BLOCK_SHARDED, (32, 64), cores(2, 2)),
            (128, 128),
            "Number of shards along height 4 must not exceed number of rows 2 for row major orientation!",
        ),
        (
            sharded(TensorMemoryLayout.BLOCK_SHARDED, (32, 64), cores(4, 1), ShardOrientation.COL_MAJOR),
            (128, 128),
            "Number of shards along width 2 must not exceed number of rows 1 for column major orientation!",
        ),
        (
            sharded(
                TensorMemoryLayout.BLOCK_SHARDED,
                (64, 64),
                CoreRangeSet([CoreRange((0, 0), (1, 0)), CoreRange((0, 2), (1, 2))]),
            ),
            (128, 128),
            "Shard grid must be one full rectangular grid for block sharded!",
        ),
        (
            sharded(TensorMemoryLayout.HEIGHT_SHARDED, (33, 128), cores(4, 1)),
            (128, 128),
            r"Physical shard shape \{33, 128\} must be tile \{32, 32\} sized!",
        ),
        (
            MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, BufferType.L1),
            (128, 128),
            "MemoryConfig must have Shard Spec specified for sharded memory layout",
        ),
    ],
)
def test_shards_that_do_not_fit_are_refused_in_ttnns_words(config, shape, text) -> None:
    with pytest.raises(RuntimeError, match=text):
        TensorSpec(shape, d.bfloat16, TILE, memory_config=config)


def test_height_shards_lie_one_per_core() -> None:
    spec = TensorSpec(
        (1, 1, 96, 64),
        d.bfloat16,
        TILE,
        memory_config=sharded(TensorMemoryLayout.HEIGHT_SHARDED, (32, 64), cores(2, 2)),
    )

    assert spec.shard_layout.page_map() == [[0, 1], [2, 3], [4, 5], [None, None]]
    assert spec.bytes_per_bank(page_alignment=16, num_banks=64) == 2 * 2048


def test_block_shards_follow_the_grid() -> None:
    spec = TensorSpec(
        (64, 64), d.bfloat16, TILE, memory_config=sharded(TensorMemoryLayout.BLOCK_SHARDED, (32, 32), cores(3, 3))
    )

    assert spec.shard_layout.cores == (CoreCoord(0, 0), CoreCoord(1, 0), CoreCoord(0, 1), CoreCoord(1, 1))
    assert spec.shard_layout.page_map() == [[0], [1], [2], [3]]


def test_row_major_width_shards_have_pages_of_shard_width() -> None:
    spec = TensorSpec(
        (4, 60), d.float32, ROW, memory_config=sharded(TensorMemoryLayout.WIDTH_SHARDED, (4, 32), cores(2, 1))
    )

    assert (spec.padded_shape, spec.page_shape, spec.page_size_bytes) == ((4, 64), (1, 32), 128)
    assert spec.shard_layout.page_map() == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_nd_shards_go_round_the_cores() -> None:
    config = MemoryConfig(BufferType.L1, NdShardSpec((1, 32, 32), cores(2, 1)))
    spec = TensorSpec((3, 32, 64), d.bfloat16, TILE, memory_config=config)

    assert spec.shard_layout.page_map() == [[0, 2, 4], [1, 3, 5]]
    assert spec.bytes_per_bank(page_alignment=16, num_banks=64) == 3 * 2048
    assert spec.memory_config.memory_layout is TensorMemoryLayout.ND_SHARDED


def test_an_nd_spec_that_is_a_height_spec_is_told_as_one() -> None:
    spec = TensorSpec((2, 64, 32), d.bfloat16, TILE).height_sharded(cores(2, 2))

    assert spec.memory_config.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED
    assert spec.memory_config.shard_spec == ShardSpec(cores(2, 2), (32, 32))
    assert spec.memory_config.nd_shard_spec is not None


def test_sharding_by_dims_gives_a_shard_per_index() -> None:
    spec = TensorSpec((4, 3, 32, 64), d.bfloat16, TILE).sharded_across_dims([0], cores(4, 1))

    assert spec.memory_config.nd_shard_spec.shard_shape == (1, 3, 32, 64)
    assert spec == TensorSpec((4, 3, 32, 64), d.bfloat16, TILE).sharded_across_dims_except([1, 2, 3], cores(4, 1))


def test_shard_shapes_are_rounded_up_as_asked() -> None:
    plain = TensorSpec((100, 100), d.bfloat16, ROW)

    assert plain.sharded((10, 20), cores(1, 1)).memory_config.nd_shard_spec.shard_shape == (10, 32)
    exact = plain.sharded((10, 20), cores(1, 1), ShardShapeAlignment.NONE)
    assert exact.memory_config.nd_shard_spec.shard_shape == (10, 20)
    tiles = TensorSpec((100, 100), d.bfloat16, TILE).block_sharded(cores(2, 2))
    assert tiles.memory_config.shard_spec.shape == [64, 64]


def test_contiguous_shards_fill_a_core_before_the_next() -> None:
    nd = NdShardSpec((32, 32), cores(2, 1), shard_distribution_strategy=ShardDistributionStrategy.CONTIGUOUS_1D)
    spec = TensorSpec((32, 128), d.bfloat16, TILE, memory_config=MemoryConfig(BufferType.L1, nd))

    assert spec.shard_layout.page_map() == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError, match="CONTIGUOUS_1D distribution requires a uniform shards-per-core"):
        TensorSpec((32, 96), d.bfloat16, TILE, memory_config=MemoryConfig(BufferType.L1, nd)).shard_layout  # noqa: B018


def test_block_floats_are_tiles() -> None:
    with pytest.raises(RuntimeError, match="Layout must be Layout::TILE for bfloat8_b or bfloat4_b!"):
        TensorSpec((32, 32), d.bfloat8_b, ROW)
    with pytest.raises(RuntimeError, match="Only ROW_MAJOR layout is supported for FP8_E4M3 dtype!"):
        TensorSpec((32, 32), d.fp8_e4m3, TILE)


def test_equal_specs_are_one_cache_key_and_writes_to_a_config_do_not_reach_them() -> None:
    config = sharded(TensorMemoryLayout.HEIGHT_SHARDED, (32, 64), cores(2, 1))
    spec = TensorSpec((64, 64), d.bfloat16, TILE, memory_config=config)
    config.shard_spec.shape = [64, 64]

    again = TensorSpec(
        (64, 64), d.bfloat16, TILE, memory_config=sharded(TensorMemoryLayout.HEIGHT_SHARDED, (32, 64), cores(2, 1))
    )

    assert spec == again
    assert hash(spec) == hash(again)
    assert spec != again.with_memory_config(L1_MEMORY_CONFIG)
    spec.memory_config.shard_spec.shape[0] = 1
    assert spec.memory_config.shard_spec.shape == [32, 64]


def test_memory_configs_print_and_compare_as_in_ttnn() -> None:
    assert repr(DRAM_MEMORY_CONFIG) == (
        "MemoryConfig(memory_layout=TensorMemoryLayout::INTERLEAVED,buffer_type=BufferType::DRAM,"
        "shard_spec=std::nullopt,nd_shard_spec=std::nullopt,created_with_nd_shard_spec=0,per_core_allocation=0,"
        "range_lockstep_allocation=0)"
    )
    text = repr(sharded(TensorMemoryLayout.HEIGHT_SHARDED, (32, 64), cores(2, 1)))
    grid = 'grid=[{"start":{"x":0,"y":0},"end":{"x":1,"y":0}]'
    assert f"shard_spec=ShardSpec{{{grid}, shape=[32, 64], orientation=ShardOrientation::ROW_MAJOR}}" in text
    assert repr(NdShardSpec((1, 32, 32), cores(1, 1))) == (
        '{"shard_shape":[1, 32, 32],"grid":[{"start":{"x":0,"y":0},"end":{"x":0,"y":0}}],"orientation":'
        '"ShardOrientation::ROW_MAJOR","shard_distribution_strategy":"ShardDistributionStrategy::ROUND_ROBIN_1D"}'
    )
    assert repr(cores(2, 1)) == "{[0-0 - 1-0]}"
    assert MemoryConfig() == DRAM_MEMORY_CONFIG
    assert MemoryConfig(BufferType.L1) == L1_MEMORY_CONFIG
    assert MemoryConfig(BufferType.L1, NdShardSpec((32, 32), cores(1, 1))) == MemoryConfig(
        buffer_type=BufferType.L1, nd_shard_spec=NdShardSpec((32, 32), cores(1, 1))
    )
    with pytest.raises(RuntimeError, match="nd_shard_spec was given together with"):
        MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, BufferType.L1, nd_shard_spec=NdShardSpec((32, 32), cores(1, 1)))


def test_shapes_behave_as_ttnns() -> None:
    shape = Shape([1, 2, 3])

    assert shape == (1, 2, 3)
    assert shape == [1, 2, 3]
    assert (1, 2, 3) == shape  # noqa: SIM300
    assert shape != (1, 2)
    assert (repr(shape), shape.rank, shape.volume(), shape[-1], shape[:2]) == ("Shape([1, 2, 3])", 3, 6, 3, (1, 2))
    assert shape.to_rank(2) == (2, 3)
    assert shape.to_rank(5) == (1, 1, 1, 2, 3)
    with pytest.raises(RuntimeError, match="Can't convert shape rank"):
        shape.to_rank(1)
    with pytest.raises(RuntimeError, match=r"ShapeBase\[\] index out of range. 3 not in \[-4, 3\)"):
        shape[3]


@pytest.mark.parametrize(
    ("dims", "lowest", "extents"),
    [((7,), -4, [1, 1, 1, 7]), ((5, 7), -4, [1, 1, 5, 7]), ((2, 3, 4, 5, 7), -5, [2, 3, 4, 5, 7]), ((), -4, [1] * 4)],
)
def test_indices_from_the_end_reach_four_dims(dims: tuple[int, ...], lowest: int, extents: list[int]) -> None:
    shape = ttnn.Shape(dims)

    assert [shape[i] for i in range(lowest, 0)] == extents
    for index in (lowest - 1, len(dims)):
        with pytest.raises(RuntimeError, match=rf"{index} not in \[{lowest}, {len(dims)}\)"):
            shape[index]


def test_a_shape_is_no_tuple_but_equals_one() -> None:
    shape = Shape([1, 2, 3])

    assert not isinstance(shape, (tuple, list, Sequence))
    assert shape == (1, 2, 3) == shape
    assert shape == [1, 2, 3]
    assert shape != (1, 2)
    assert (shape[-4], shape[1:], list(shape), len(shape), shape.rank) == (1, (2, 3), [1, 2, 3], 3, 3)
    assert pickle.loads(pickle.dumps(shape)) == shape
    with pytest.raises(AttributeError, match="read-only"):
        shape.rank_of = 4
