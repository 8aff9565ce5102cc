"""scatter goes through the programs that TT-NN's does; padding that was filled is in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import ttmesh.ttnn as ttnn

TILES, ROWS = ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT


@pytest.fixture
def device() -> Iterator[ttnn.MeshDevice]:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as device:
        yield device


def on(device: ttnn.MeshDevice, values: torch.Tensor, layout: ttnn.Layout = TILES, **options: object) -> ttnn.Tensor:
    return ttnn.from_torch(values, layout=layout, device=device, **options)


@pytest.mark.parametrize(
    ("shape", "dim", "index_shape", "source_shape", "layout", "programs"),
    [
        ([10], -1, [8], [8], ROWS, 1),
        ([6, 8, 20], -1, [2, 5, 10], [3, 9, 30], ROWS, 2),  # a slice of the source first
        ([5, 20], 0, [5, 20], [5, 20], ROWS, 4),  # input and source share their transpose
        ([10, 1, 3, 1, 10], 0, [10, 1, 3, 1, 10], [10, 1, 3, 1, 10], ROWS, 3),
        ([100], -1, [80], [80], TILES, 5),
        ([100], -1, [80], [90], TILES, 8),  # a slice of one dim goes through rows
        ([50, 20], 0, [49, 19], [51, 21], TILES, 10),
    ],
)
def test_scatter_counts_the_programs_of_its_steps(
    device: ttnn.MeshDevice,
    shape: list[int],
    dim: int,
    index_shape: list[int],
    source_shape: list[int],
    layout: ttnn.Layout,
    programs: int,
) -> None:
    generator = torch.Generator().manual_seed(0)
    values, source = (torch.randn(s, generator=generator).bfloat16() for s in (shape, source_shape))
    index = torch.rand([*index_shape[:dim], shape[dim], *index_shape[dim:][1:]], generator=generator).argsort(dim)
    index = index.narrow(dim, 0, index_shape[dim])
    tensors = on(device, values, layout), on(device, index.int(), layout), on(device, source, layout)

    result = ttnn.scatter(tensors[0], dim, *tensors[1:])

    assert torch.equal(ttnn.to_torch(result), values.scatter(dim, index, source))
    assert result.layout is layout
    assert device.num_program_cache_entries() == programs


def test_scatter_refuses_what_tt_nn_refuses(device: ttnn.MeshDevice) -> None:
    values, index = torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.int32)
    rows = on(device, values, ROWS)

    with pytest.raises(RuntimeError, match="Scatter doesn't work for fp32 tiled tensors yet"):
        ttnn.scatter(on(device, values), 1, on(device, index), on(device, values))
    with pytest.raises(RuntimeError, match=r"index_shape\[0\] <= input_shape\[0\] == false"):
        ttnn.scatter(on(device, values[:1], ROWS), 1, on(device, index, ROWS), rows)
    with pytest.raises(RuntimeError, match="input_rank must be equal to source_rank"):
        ttnn.scatter(rows, 1, on(device, index, ROWS), on(device, values[0], ROWS))
    with pytest.raises(RuntimeError, match="reduce must be either 'add' or 'multiply'"):
        ttnn.scatter(rows, 1, on(device, index, ROWS), rows, reduce="amax")


def test_a_slice_that_begins_inside_a_tile_goes_through_rows(device: ttnn.MeshDevice) -> None:
    tensor = on(device, torch.arange(64.0 * 64).reshape(64, 64))

    ttnn.slice(tensor, [32, 0], [50, 64], [1, 1])
    whole_tiles = device.num_program_cache_entries()
    ttnn.slice(tensor, [31, 0], [50, 64], [1, 1])

    assert whole_tiles == 1
    assert device.num_program_cache_entries() == 4


def _padding(tensor: ttnn.Tensor) -> torch.Tensor:
    """The values in memory outside the logical shape."""
    padded = ttnn.to_torch(ttnn.reshape(tensor, tensor.padded_shape, tensor.padded_shape))
    outside = torch.ones(tuple(tensor.padded_shape), dtype=torch.bool)
    outside[tuple(map(slice, tensor.shape))] = False
    return padded[outside]


@pytest.mark.parametrize("sharded", [False, True])
def test_reshape_fills_padding_when_asked(device: ttnn.MeshDevice, sharded: bool) -> None:
    memory = None
    if sharded:
        memory = ttnn.create_sharded_memory_config([64, 64], ttnn.CoreGrid(x=1, y=2), ttnn.ShardStrategy.HEIGHT)
    values = torch.arange(64.0 * 64).reshape(64, 64)
    tensor = on(device, values, memory_config=memory)

    plain = ttnn.reshape(tensor, [64, 2, 32], pad_value=2.5, skip_padding_fill=True)
    skipped = device.num_program_cache_entries()
    device.clear_program_cache()
    filled = ttnn.reshape(tensor, [64, 2, 32], pad_value=2.5)

    assert _padding(plain).eq(0).all()
    assert _padding(filled).eq(2.5).all()
    assert torch.equal(ttnn.to_torch(filled), values.reshape(64, 2, 32))
    assert device.num_program_cache_entries() > skipped


def test_filling_padding_is_one_program_in_place(device: ttnn.MeshDevice) -> None:
    tensor = on(device, torch.ones(3, 40))

    filled = ttnn.fill_implicit_tile_padding(tensor, 7.0)

    assert device.num_program_cache_entries() == 1
    assert filled.buffer_address() == tensor.buffer_address()
    assert _padding(tensor).eq(7).all()


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_repeated_rows_stay_in_shards(device: ttnn.MeshDevice, dim: int) -> None:
    values = torch.arange(2.0 * 16 * 8 * 16).reshape(2, 16, 8, 16).bfloat16()
    memory = ttnn.create_sharded_memory_config(values.shape, ttnn.CoreGrid(x=4, y=1), ttnn.ShardStrategy.HEIGHT)
    tensor = on(device, values, ROWS, memory_config=memory)

    repeated = ttnn.repeat_interleave(tensor, 3, dim=dim)

    assert repeated.memory_config().is_sharded()
    assert torch.equal(ttnn.to_torch(repeated), values.repeat_interleave(3, dim))


def test_repeated_tiles_leave_their_shards(device: ttnn.MeshDevice) -> None:
    values = torch.arange(64.0 * 32).reshape(1, 1, 64, 32).bfloat16()
    memory = ttnn.create_sharded_memory_config(values.shape, ttnn.CoreGrid(x=2, y=1), ttnn.ShardStrategy.HEIGHT)

    repeated = ttnn.repeat_interleave(on(device, values, memory_config=memory), 2, dim=2)

    assert repeated.memory_config() == ttnn.DRAM_MEMORY_CONFIG
    assert torch.equal(ttnn.to_torch(repeated), values.repeat_interleave(2, 2))


@pytest.mark.parametrize("collapse", [False, True])
def test_folded_rows_stay_in_their_shards(device: ttnn.MeshDevice, collapse: bool) -> None:
    memory = ttnn.create_sharded_memory_config([1, 16, 16, 8], ttnn.CoreGrid(x=4, y=1), ttnn.ShardStrategy.HEIGHT)
    tensor = on(device, torch.rand(1, 16, 16, 8).bfloat16(), ROWS, memory_config=memory)

    folded = ttnn.fold(tensor, 2, 2, collapse_output=collapse)

    assert folded.memory_config().memory_layout is ttnn.TensorMemoryLayout.HEIGHT_SHARDED
    assert tuple(folded.memory_config().shard_spec.shape) == (16, 32)
