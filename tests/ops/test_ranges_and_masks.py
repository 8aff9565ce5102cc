"""Random ranges, Moreh's arange, fused causal masks, matmuls of block floats and grids of one line of cores."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.ops.creation.uniform_range import inclusive_range

TINY = torch.finfo(torch.float32).tiny


@pytest.fixture
def device() -> Iterator[ttnn.MeshDevice]:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as device:
        yield device


def on(device: ttnn.MeshDevice, values: torch.Tensor, **options: object) -> ttnn.Tensor:
    return ttnn.from_torch(values, layout=ttnn.TILE_LAYOUT, device=device, **options)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "expected"),
    [
        (0.0, 1.0, ttnn.bfloat16, (0.0, 1 - 2**-8)),
        (1.001, 2.0, ttnn.bfloat16, (1 + 2**-7, 2 - 2**-7)),
        (-2.0, -1.0, ttnn.bfloat16, (-2.0, -1 - 2**-7)),
        (0.0, 1.0, ttnn.float32, (0.0, 1 - 2**-24)),
        (0.0, TINY, ttnn.float32, (0.0, 0.0)),
        (-TINY, 0.0, ttnn.bfloat16, (-TINY, -TINY)),
    ],
)
def test_a_range_ends_at_the_last_number_of_its_format(
    low: float, high: float, dtype: ttnn.DataType, expected: tuple[float, float]
) -> None:
    assert inclusive_range(low, high, dtype) == expected


@pytest.mark.parametrize(
    ("low", "high", "wrong"),
    [
        (math.nan, 1.0, "endpoints must be finite"),
        (1.0, 1.0, "lower bound must be less than upper bound"),
        (-torch.finfo(torch.float32).max, torch.finfo(torch.float32).max, "too wide"),
        (TINY / 2, TINY, "contains no value representable"),
        (TINY, TINY * (1 + 2**-22), "subnormal scale"),
    ],
)
def test_ranges_without_numbers_are_refused(low: float, high: float, wrong: str) -> None:
    with pytest.raises(RuntimeError, match=wrong):
        inclusive_range(low, high, ttnn.float32)


def test_random_numbers_stay_below_the_upper_bound(device: ttnn.MeshDevice) -> None:
    made = ttnn.to_torch(ttnn.rand((256, 256), device, dtype=ttnn.bfloat16, low=0, high=1, seed=3)).float()
    target = on(device, torch.zeros(256, 256).bfloat16())
    ttnn.uniform(target, 0.0, 1.0, seed=3)

    assert made.min() >= 0
    assert made.max() == 1 - 2**-8
    assert ttnn.to_torch(target).float().max() < 1


@pytest.mark.parametrize("rows", [False, True])
def test_moreh_arange_counts_in_parts_of_one(device: ttnn.MeshDevice, rows: bool) -> None:
    made = ttnn.moreh_arange(2.5, 4.0, 0.5, device, untilize_out=rows, dtype=ttnn.float32)

    assert tuple(made.shape) == ((3,) if rows else (1, 3))
    assert ttnn.to_torch(made).flatten().tolist() == [2.5, 3.0, 3.5]
    assert device.num_program_cache_entries() == 1


def test_moreh_arange_writes_into_the_output(device: ttnn.MeshDevice) -> None:
    target = on(device, torch.zeros(1, 3).bfloat16())

    ttnn.moreh_arange(0, -3, -1, device, output=target)

    assert ttnn.to_torch(target).tolist() == [[0, -1, -2]]
    with pytest.raises(RuntimeError, match="inconsistent with step sign"):
        ttnn.moreh_arange(0, -3, 1, device)
    with pytest.raises(RuntimeError, match="must be Layout::ROW_MAJOR when untilize_out"):
        ttnn.moreh_arange(0, -3, -1, device, output=target, untilize_out=True)


def test_a_causal_mask_repeats_for_heads_fused_into_rows(device: ttnn.MeshDevice) -> None:
    x, mask = torch.randn(2, 1, 96, 32).bfloat16(), torch.randn(2, 1, 32, 32).bfloat16()

    found = ttnn.scale_mask_softmax_in_place(on(device, x), 0.5, on(device, mask), is_causal_mask=True)

    expected = torch.softmax(x.float() * 0.5 + mask.float().repeat(1, 1, 3, 1), -1)
    torch.testing.assert_close(ttnn.to_torch(found).float(), expected, rtol=0.01, atol=0.002)


@pytest.mark.parametrize("dtype", [ttnn.bfloat8_b, ttnn.bfloat4_b, ttnn.bfloat16, ttnn.float32])
def test_the_product_of_all_keeps_the_format(device: ttnn.MeshDevice, dtype: ttnn.DataType) -> None:
    values = torch.ones(32, 32)
    values[0, :3] = 2.0

    found = ttnn.prod(on(device, values, dtype=dtype))

    assert found.dtype is dtype
    assert ttnn.to_torch(found).item() == 8


@pytest.mark.parametrize(("end", "batches", "refused"), [((0, 1), 2, True), ((1, 0), 2, True), ((0, 1), 1, False)])
def test_blocks_on_one_line_of_cores_take_no_batched_weights(
    device: ttnn.MeshDevice, end: tuple[int, int], batches: int, refused: bool
) -> None:
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(*end))})
    shard = (64, 64) if end[1] else (128, 32)
    memory = ttnn.MemoryConfig(
        ttnn.TensorMemoryLayout.BLOCK_SHARDED,
        ttnn.BufferType.L1,
        ttnn.ShardSpec(cores, shard, ttnn.ShardOrientation.ROW_MAJOR),
    )
    a, b = (on(device, torch.ones(n, 64, 64).bfloat16()) for n in (2, batches))

    if refused:
        with pytest.raises(RuntimeError, match="BLOCK_SHARDED output on a 1D grid"):
            ttnn.matmul(a, b, memory_config=memory)
    else:
        found = ttnn.matmul(a, b, memory_config=memory).memory_config()
        assert (found.memory_layout, found.shard_spec) == (
            ttnn.TensorMemoryLayout.HEIGHT_SHARDED,
            memory.shard_spec,
        )  # a column of blocks is a height sharding, by TT-NN's answer too


@pytest.mark.parametrize(("keepdim", "expected"), [(True, [2, 2, 32, 64]), (False, [1, 32, 64])])
def test_reductions_keep_shards_of_any_rank(device: ttnn.MeshDevice, keepdim: bool, expected: list[int]) -> None:
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 1))})
    shards = ttnn.NdShardSpec([2, 2, 32, 64], cores)
    memory = ttnn.MemoryConfig(buffer_type=ttnn.BufferType.L1, nd_shard_spec=shards)
    values = torch.rand(4, 4, 64, 128, generator=torch.Generator().manual_seed(0))

    found = ttnn.max(on(device, values, dtype=ttnn.float32, memory_config=memory), dim=-2, keepdim=keepdim)

    assert list(found.memory_config().nd_shard_spec.shard_shape) == expected
    assert torch.equal(ttnn.to_torch(found), values.amax(-2, keepdim))


def test_of_a_mask_with_fewer_rows_than_the_scores_the_first_is_used(device: ttnn.MeshDevice) -> None:
    x, mask = torch.rand(1, 2, 128, 64), torch.zeros(1, 1, 64, 64)
    mask[..., 32:] = -1e4

    made = ttnn.scale_mask_softmax_in_place(on(device, x), 1.0, on(device, mask), is_causal_mask=False)

    assert float(ttnn.to_torch(made)[..., 32:].float().abs().max()) == 0
