"""What data movement, creation and reductions refuse, choose and remember."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import pytest
import torch

import ttmesh.ttnn as ttnn


@pytest.fixture
def mesh() -> Iterator[ttnn.MeshDevice]:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 2)) as mesh:
        yield mesh


def on(mesh: ttnn.MeshDevice, values: torch.Tensor, **options: object) -> ttnn.Tensor:
    options.setdefault("layout", ttnn.TILE_LAYOUT)
    return ttnn.from_torch(values, device=mesh, **options)


def first(tensor: ttnn.Tensor) -> torch.Tensor:
    return ttnn.to_torch(ttnn.get_device_tensors(tensor)[0])


def test_filled_padding_is_seen_with_the_padded_shape() -> None:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as one:
        filled = ttnn.fill_implicit_tile_padding(on(one, torch.ones(3, 40)), 7.0)

        padded = ttnn.from_device(filled).to_torch_with_padded_shape()

    assert padded.shape == (32, 64)
    assert padded[:3, :40].eq(1).all()
    assert padded[3:].eq(7).all()


def test_slices_take_their_bounds_from_tensors_on_the_host(mesh: ttnn.MeshDevice) -> None:
    values = torch.arange(16.0).reshape(4, 4)
    bounds = (ttnn.from_torch(torch.tensor(bound)) for bound in ([0, 1], [2, 3]))

    assert torch.equal(first(ttnn.slice(on(mesh, values), *bounds)), values[0:2, 1:3])


def test_bounds_in_device_memory_are_read_every_time(mesh: ttnn.MeshDevice) -> None:
    values = torch.arange(64.0).reshape(8, 8)
    tensor = on(mesh, values)

    for start in (0, 2, 4):
        low, high = (on(mesh, torch.tensor(n), layout=ttnn.ROW_MAJOR_LAYOUT) for n in ([0, start], [8, start + 4]))
        found = first(ttnn.slice(tensor, low, high, [1, 2], slice_dim=1, num_devices=2))
        assert torch.equal(found, values[:, start : start + 4 : 2])


def test_the_largest_of_negative_multiples_is_that_of_the_smallest(mesh: ttnn.MeshDevice) -> None:
    values = torch.tensor([[1.0, 2.0, 5.0]])

    assert first(ttnn.max(on(mesh, values), dim=-1, scalar=-2.0)).item() == -2.0


def test_dropout_scales_what_it_keeps_and_follows_its_seed(mesh: ttnn.MeshDevice) -> None:
    ones = on(mesh, torch.ones(64, 64), dtype=ttnn.bfloat16)
    kept = [first(ttnn.experimental.dropout(ones, 0.25, 4 / 3, seed)) for seed in (1, 1, 2)]

    assert torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[0], kept[2])
    assert set(kept[0].float().unique().tolist()) == {0.0, 1.3359375}
    assert kept[0].eq(0).float().mean().item() == pytest.approx(0.25, abs=0.05)
    assert mesh.num_program_cache_entries() == 1


def test_like_tensors_keep_the_topology_and_count_their_program(mesh: ttnn.MeshDevice) -> None:
    cut = on(mesh, torch.ones(2, 32, 32), mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0))
    before = mesh.num_program_cache_entries()

    assert ttnn.empty_like(cut).tensor_topology() == cut.tensor_topology()
    assert mesh.num_program_cache_entries() == before
    assert first(ttnn.moreh_full_like(cut, 3.0)).eq(3).all()
    assert mesh.num_program_cache_entries() == before + 1


def test_goldens_take_options_without_meaning_in_torch() -> None:
    golden = ttnn.get_golden_function(ttnn.sum)

    assert golden(torch.ones(2, 3), dim=-1, memory_config=ttnn.DRAM_MEMORY_CONFIG).tolist() == [3.0, 3.0]


HEIGHT = ttnn.TensorMemoryLayout.HEIGHT_SHARDED


def _sharded(
    mesh: ttnn.MeshDevice, shape: tuple[int, ...], shard: tuple[int, int], cores: tuple[int, int]
) -> tuple[torch.Tensor, ttnn.Tensor]:
    end = ttnn.CoreCoord(cores[0] - 1, cores[1] - 1)
    grid = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), end)])
    memory = ttnn.MemoryConfig(HEIGHT, ttnn.BufferType.L1, ttnn.ShardSpec(grid, shard, ttnn.ShardOrientation.ROW_MAJOR))
    x = torch.arange(prod(shape)).reshape(shape).remainder(251).bfloat16()
    return x, ttnn.from_torch(x, layout=ttnn.TILE_LAYOUT, device=mesh, memory_config=memory)


@pytest.mark.parametrize(
    ("dims", "shard"),
    [
        ((1, 0, 2, 3), (32, 64)),  # users and batch are swapped: every core keeps its user
        ((0, 1, 3, 2), (64, 32)),  # rows and columns: a shard turns with the tensor
    ],
)
def test_permuted_tensors_stay_sharded_on_their_cores(
    mesh: ttnn.MeshDevice, dims: tuple[int, ...], shard: tuple[int, int]
) -> None:
    x, tensor = _sharded(mesh, (8, 1, 32, 64), (32, 64), (8, 1))

    result = ttnn.permute(tensor, dims)

    spec = result.memory_config().shard_spec
    assert result.memory_config().memory_layout == HEIGHT
    assert (tuple(spec.shape), spec.grid) == (shard, tensor.memory_config().shard_spec.grid)
    assert torch.equal(ttnn.to_torch(ttnn.get_device_tensors(result)[0]), x.permute(dims))


@pytest.mark.parametrize(
    ("shape", "shard", "cores", "dims", "layout"),
    [
        ((1, 1, 256, 8), (32, 32), (8, 1), (0, 1, 3, 2), ttnn.TensorMemoryLayout.WIDTH_SHARDED),  # rows become columns
        ((1, 3, 32, 32), (32, 32), (3, 1), (0, 2, 1, 3), ttnn.TensorMemoryLayout.INTERLEAVED),  # 3 into 32: fractions
        ((2, 3, 32, 32), (32, 32), (6, 1), (2, 1, 0, 3), HEIGHT),  # no transpose of neighbours: new shards are made
    ],
)
def test_shards_follow_the_tensor_as_tt_nn_turns_them(
    mesh: ttnn.MeshDevice,
    shape: tuple[int, ...],
    shard: tuple[int, int],
    cores: tuple[int, int],
    dims: tuple[int, ...],
    layout: ttnn.TensorMemoryLayout,
) -> None:
    x, tensor = _sharded(mesh, shape, shard, cores)

    result = ttnn.permute(tensor, dims)

    assert result.memory_config().memory_layout == layout
    assert result.memory_config().buffer_type == ttnn.BufferType.L1
    assert torch.equal(first(result), x.permute(dims))


@pytest.mark.parametrize(("columns", "rows", "extra"), [(7, 7, 0), (8, 6, 1)])
def test_shards_on_cores_that_are_no_rectangle_become_interleaved_where_a_reshape_copies(
    columns: int, rows: int, extra: int
) -> None:
    ranges = [ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(columns - 1, rows - 1))]
    if extra:
        ranges.append(ttnn.CoreRange(ttnn.CoreCoord(0, rows), ttnn.CoreCoord(extra - 1, rows)))
    shards = ttnn.ShardSpec(ttnn.CoreRangeSet(ranges), [4, 16], ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shards)
    values = torch.arange(196.0 * 16).reshape(196, 16)
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as one:
        tensor = ttnn.from_torch(values, device=one, memory_config=config)

        result = ttnn.reshape(tensor, (4, 784))

        assert result.memory_config().is_sharded() == (not extra)
        assert result.memory_config().buffer_type is ttnn.BufferType.L1
        assert torch.equal(ttnn.to_torch(result), values.reshape(4, 784))
