"""group_norm of large groups in the default numerics: every core averages its own rows."""

from __future__ import annotations

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base.numerics_mode import numerics
from ttmesh.ops.norm.group_norm import _rows_of_a_sum


def test_large_groups_keep_their_statistics_in_a_16_bit_destination() -> None:
    torch.manual_seed(0)
    values = torch.randn(1, 1, 128 * 128, 64)
    expected = torch.nn.functional.group_norm(values.reshape(1, -1, 64).transpose(1, 2), 8).transpose(1, 2)
    with numerics("realistic"), ttnn.manage_device(0) as device:
        x = ttnn.from_torch(values, ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)

        got = ttnn.to_torch(ttnn.group_norm(x, num_groups=8, core_grid=ttnn.CoreGrid(y=8, x=8), inplace=False)).reshape(
            expected.shape
        )

    assert float((got.float() - expected).norm() / expected.norm()) < 0.02  # bfloat16 alone makes 0.005 of it


def test_blocks_of_a_core_keep_the_statistics_of_still_larger_groups() -> None:
    torch.manual_seed(0)
    values = torch.randn(1, 1, 256 * 512, 32) + 0.5
    expected = torch.nn.functional.group_norm(values.reshape(1, -1, 32).transpose(1, 2), 4).transpose(1, 2)
    options = {"num_groups": 4, "core_grid": ttnn.CoreGrid(y=2, x=1), "inplace": False}
    with numerics("realistic"), ttnn.manage_device(0) as device:
        x = ttnn.from_torch(values, ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)

        errors = [
            float((ttnn.to_torch(made).reshape(expected.shape).float() - expected).norm() / expected.norm())
            for made in (ttnn.group_norm(x, **options, num_out_blocks=count) for count in (None, 16, 7))
        ]

    assert errors[0] > 0.1  # 524,288 elements in one 16-bit sum
    assert max(errors[1:]) < 0.02


@pytest.mark.parametrize(
    ("samples", "grid", "blocks", "rows"),
    [
        (1, ttnn.CoreGrid(y=8, x=8), None, 4096 // 32),
        (2, ttnn.CoreGrid(y=8, x=8), None, 4096 // 16),
        (1, ttnn.CoreGrid(y=2, x=4), None, 4096 // 4),
        (1, None, None, 4096 // 32),
        (1, ttnn.CoreGrid(y=2, x=4), 8, 4096 // 4 // 8),
        (1, ttnn.CoreGrid(y=2, x=4), 5, 6 * 32),
        (1, ttnn.CoreGrid(y=2, x=4), 99, 32),
    ],
    ids=[
        "one sample", "two samples share the rows of cores", "a small grid", "the grid that TT-NN chooses", "blocks",
        "blocks that do not divide", "no block is less than a tile",
    ],
)  # fmt: skip
def test_rows_are_added_by_the_cores_that_two_columns_of_channels_leave(samples, grid, blocks, rows) -> None:
    spec = ttnn.TensorSpec((samples, 1, 4096, 64), ttnn.bfloat16, ttnn.TILE_LAYOUT)  # 64 channels: two columns of 32

    assert _rows_of_a_sum(spec, grid, 8, blocks) == rows


def test_in_place_it_writes_into_the_memory_of_its_input() -> None:
    torch.manual_seed(0)
    values, grid = torch.randn(1, 1, 256, 64), ttnn.CoreGrid(y=8, x=1)
    shards = ttnn.create_sharded_memory_config(values.shape, core_grid=grid, strategy=ttnn.ShardStrategy.BLOCK)
    with ttnn.manage_device(0) as device:

        def normalize(inplace: bool) -> tuple[ttnn.Tensor, ttnn.Tensor]:
            x = ttnn.from_torch(values, ttnn.bfloat16, device=device, memory_config=shards)
            return x, ttnn.group_norm(x, num_groups=2, core_grid=grid, memory_config=shards, inplace=inplace)

        for _ in range(2):  # the second calls take the fast path
            x, kept = normalize(False)
            written, result = normalize(True)

        assert result.buffer_address() == written.buffer_address()
        assert kept.buffer_address() != x.buffer_address()
        assert torch.equal(ttnn.to_torch(result), ttnn.to_torch(kept))
        assert torch.equal(ttnn.to_torch(written), ttnn.to_torch(kept))
        written.deallocate()
        assert not result.is_allocated()
