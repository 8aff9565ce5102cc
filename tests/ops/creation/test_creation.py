"""Tensors out of nothing: defaults, placement, host and device, random numbers and their seeds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base.errors import MeshError


@pytest.fixture
def mesh() -> Iterator[ttnn.MeshDevice]:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 2), trace_region_size=1 << 20) as mesh:
        yield mesh


def lanes(tensor: ttnn.Tensor) -> list[torch.Tensor]:
    return [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(tensor)]


def test_zeros_are_bfloat16_in_row_major_dram_on_every_device(mesh: ttnn.MeshDevice) -> None:
    made = ttnn.zeros((2, 33), device=mesh)

    assert (made.dtype, made.layout, made.memory_config()) == (
        ttnn.bfloat16, ttnn.ROW_MAJOR_LAYOUT, ttnn.DRAM_MEMORY_CONFIG,
    )  # fmt: skip
    assert all(torch.equal(shard, torch.zeros(2, 33, dtype=torch.bfloat16)) for shard in lanes(made))
    assert mesh.num_program_cache_entries() == 0


def test_block_floats_default_to_tiles(mesh: ttnn.MeshDevice) -> None:
    assert ttnn.ones((32, 32), dtype=ttnn.bfloat8_b, device=mesh).layout is ttnn.TILE_LAYOUT


def test_without_a_device_the_tensor_is_on_the_host() -> None:
    made = ttnn.full((2, 3), 1.5, dtype=ttnn.float32)

    assert made.device() is None
    assert torch.equal(ttnn.to_torch(made), torch.full((2, 3), 1.5))


def test_full_writes_into_a_given_tensor(mesh: ttnn.MeshDevice) -> None:
    target = ttnn.empty((32, 32), ttnn.float32, ttnn.TILE_LAYOUT, mesh)

    made = ttnn.full((1, 1), 7, optional_tensor=target)

    assert made.buffer_unique_id() == target.buffer_unique_id()
    assert torch.equal(lanes(target)[1], torch.full((32, 32), 7.0))


def test_fill_values_are_cut_to_integers(mesh: ttnn.MeshDevice) -> None:
    assert lanes(ttnn.full((2, 2), 2.9, dtype=ttnn.int32, device=mesh))[0].tolist() == [[2, 2], [2, 2]]


def test_likes_take_everything_from_the_tensor(mesh: ttnn.MeshDevice) -> None:
    source = ttnn.ones((32, 64), ttnn.float32, ttnn.TILE_LAYOUT, mesh, ttnn.L1_MEMORY_CONFIG)

    for made, value in (
        (ttnn.zeros_like(source), 0.0),
        (ttnn.full_like(source, 3.0), 3.0),
        (ttnn.ones_like(source), 1.0),
    ):
        assert made.spec == source.spec
        assert torch.equal(lanes(made)[0], torch.full((32, 64), value))
    assert ttnn.empty_like(source).spec == source.spec


def test_arange_counts(mesh: ttnn.MeshDevice) -> None:
    assert lanes(ttnn.arange(1, 8, 3, dtype=ttnn.int32, device=mesh))[0].tolist() == [1, 4, 7]
    assert ttnn.to_torch(ttnn.arange(4)).tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(MeshError, match="Step must be nonzero"):
        ttnn.arange(0, 4, 0)
    with pytest.raises(MeshError, match="Step direction does not match range bounds"):
        ttnn.arange(0, 4, -1)


def test_from_buffer_takes_a_list(mesh: ttnn.MeshDevice) -> None:
    made = ttnn.from_buffer([1, 2, 3, 4], [2, 2], ttnn.int32, mesh)

    assert lanes(made)[1].tolist() == [[1, 2], [3, 4]]
    for dtype in (ttnn.bfloat8_b, ttnn.DataType.INVALID):
        with pytest.raises(MeshError, match="Unreachable"):
            ttnn.from_buffer([1, 2, 3, 4], [2, 2], dtype, mesh)


def test_circular_buffers_may_reach_into_what_sub_devices_reserve(mesh: ttnn.MeshDevice) -> None:
    cores = [ttnn.CoreRangeSet([ttnn.CoreRange(a, a)]) for a in (ttnn.CoreCoord(0, 0), ttnn.CoreCoord(4, 4))]
    manager = mesh.create_sub_device_manager([ttnn.SubDevice([one]) for one in cores], 3200)
    mesh.load_sub_device_manager(manager)
    x = ttnn.ones((64, 64), layout=ttnn.TILE_LAYOUT, device=mesh)

    assert ttnn.add(x, x, sub_device_id=ttnn.SubDeviceId(1)).is_allocated()
    mesh.clear_loaded_sub_device_manager()


def test_rand_repeats_its_seed_and_differs_without_one(mesh: ttnn.MeshDevice) -> None:
    first, again, other = (ttnn.rand((64, 64), mesh, dtype=ttnn.float32, low=2, high=4, seed=s) for s in (7, 7, 0))

    assert torch.equal(lanes(first)[0], lanes(again)[1])
    assert not torch.equal(lanes(first)[0], lanes(other)[0])
    assert 2 <= lanes(first)[0].min() < 2.1
    assert 3.9 < lanes(first)[0].max() < 4


def test_rand_over_a_mapper_gives_each_device_its_own_numbers(mesh: ttnn.MeshDevice) -> None:
    config = ttnn.MeshMapperConfig([ttnn.PlacementReplicate(), ttnn.PlacementShard(0)])

    made = ttnn.rand((64, 32), mesh, mesh_mapper=config)
    left, right = lanes(made)

    assert tuple(made.shape) == (32, 32)
    assert not torch.equal(left, right)
    assert made.tensor_topology().placements()[1] == ttnn.PlacementShard(0)


def test_randn_has_mean_0_and_variance_1(mesh: ttnn.MeshDevice) -> None:
    values = lanes(ttnn.randn((256, 256), mesh, dtype=ttnn.float32, seed=3))[0]

    assert abs(float(values.mean())) < 0.02
    assert abs(float(values.std()) - 1) < 0.02


def test_uniform_writes_in_place(mesh: ttnn.MeshDevice) -> None:
    target = ttnn.zeros((64, 64), ttnn.float32, ttnn.TILE_LAYOUT, mesh)

    made = ttnn.uniform(target, -1, 1, seed=5)

    assert made.buffer_address() == target.buffer_address()
    assert -1 <= lanes(target)[0].min() < -0.9


def test_bernoulli_follows_its_probabilities(mesh: ttnn.MeshDevice) -> None:
    made = ttnn.bernoulli(ttnn.full((128, 128), 0.25, layout=ttnn.TILE_LAYOUT, device=mesh), seed=5)

    assert made.dtype is ttnn.float32
    assert abs(float(lanes(made)[0].mean()) - 0.25) < 0.02
    assert set(lanes(made)[0].unique().tolist()) == {0.0, 1.0}


def test_a_replayed_trace_repeats_its_random_numbers(mesh: ttnn.MeshDevice) -> None:
    target = ttnn.zeros((32, 32), ttnn.float32, ttnn.TILE_LAYOUT, mesh)
    ttnn.uniform(target, 0, 1)
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    ttnn.uniform(target, 0, 1)
    ttnn.end_trace_capture(mesh, trace, cq_id=0)

    ttnn.execute_trace(mesh, trace, cq_id=0)
    first = lanes(target)[0].clone()
    ttnn.execute_trace(mesh, trace, cq_id=0)

    assert torch.equal(first, lanes(target)[0])
    ttnn.release_trace(mesh, trace)


def test_moreh_creates_in_tiles(mesh: ttnn.MeshDevice) -> None:
    full = ttnn.moreh_full([2, 3], 1.5, mesh)
    like = ttnn.moreh_full_like(full, 2.5)
    counted = ttnn.moreh_arange(1, 6, 2, mesh, dtype=ttnn.int32)

    assert (full.layout, full.dtype, like.spec) == (ttnn.TILE_LAYOUT, ttnn.bfloat16, full.spec)
    assert lanes(like)[1].unique().tolist() == [2.5]
    assert lanes(counted)[0].tolist() == [[1, 3, 5]]
    assert ttnn.moreh_arange(0, 4, 1, mesh, untilize_out=True).layout is ttnn.ROW_MAJOR_LAYOUT


def test_sampling_after_a_seed_does_not_depend_on_whether_it_ran_before(mesh: ttnn.MeshDevice) -> None:
    logits = ttnn.from_torch(torch.zeros(1, 1, 32, 64).bfloat16(), layout=ttnn.TILE_LAYOUT, device=mesh)
    indices = ttnn.from_torch(torch.arange(64).expand(1, 1, 32, 64).contiguous(), dtype=ttnn.int32, device=mesh)
    k = ttnn.from_torch(torch.full((32,), 64), dtype=ttnn.uint32, device=mesh)
    ones = ttnn.from_torch(torch.ones(32), dtype=ttnn.bfloat16, device=mesh)

    def draw() -> torch.Tensor:
        ttnn.manual_seed(seeds=42, device=mesh)
        return ttnn.to_torch(ttnn.get_device_tensors(ttnn.sampling(logits, indices, k=k, p=ones, temp=ones))[0])

    assert torch.equal(draw(), draw())
