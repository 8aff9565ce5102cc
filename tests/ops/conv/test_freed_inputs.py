"""Where a convolution's result lies if it frees its input: addresses of TT-NN 0.81.1 on an n150."""

from __future__ import annotations

import pytest
import torch

import ttmesh.ttnn as ttnn


@pytest.mark.parametrize(
    ("channels", "made", "size", "columns", "frees", "moves", "below"),
    [
        (320, 320, 64, 8, True, True, 77_376),
        (320, 320, 64, 8, True, False, 118_336),
        (320, 320, 64, 8, False, True, 118_336),
        (64, 256, 32, 2, True, True, 13_056),
        (64, 256, 32, 2, True, False, 0),
    ],
    ids=["moved rows", "rows where they were", "kept", "moved rows of few columns", "in the input's place"],
)
def test_the_result_lies_below_the_rows_that_are_read(channels, made, size, columns, frees, moves, below) -> None:
    values = torch.rand(1, 1, size * size, channels)
    shards = ttnn.create_sharded_memory_config(
        values.shape, core_grid=ttnn.CoreGrid(y=8, x=columns), strategy=ttnn.ShardStrategy.BLOCK
    )
    config = ttnn.Conv2dConfig(
        weights_dtype=ttnn.bfloat8_b,
        shard_layout=ttnn.TensorMemoryLayout.BLOCK_SHARDED,
        deallocate_activation=frees,
        reallocate_halo_output=moves,
        act_block_h_override=32,
        reshard_if_not_optimal=True,
    )
    with ttnn.manage_device(0) as device:
        x = ttnn.from_torch(values, ttnn.bfloat16, device=device, memory_config=shards)
        address = x.buffer_address()

        y = ttnn.conv2d(
            input_tensor=x, weight_tensor=ttnn.from_torch(torch.rand(made, channels, 3, 3), ttnn.bfloat16),
            in_channels=channels, out_channels=made, device=device, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1),
            batch_size=1, input_height=size, input_width=size, conv_config=config,
            slice_config=ttnn.Conv2dL1FullSliceConfig, dtype=ttnn.bfloat16,
        )  # fmt: skip

        assert address - y.buffer_address() == below
        assert x.is_allocated() is not frees
        assert ttnn.to_torch(y).count_nonzero() > 0
        y.deallocate()
        left = ttnn.get_memory_view(device, ttnn.BufferType.L1).total_bytes_allocated_per_bank
        assert left == (0 if frees else size // 8 * size * channels // columns * 2)
