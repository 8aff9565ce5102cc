"""Prepared weights hold the rows that the cores of their convolution read."""

from __future__ import annotations

import pytest
import torch

from ttmesh import ttnn


@pytest.mark.parametrize(
    ("channels", "kernel", "layout", "shards", "rows"),
    [
        (
            128,
            3,
            ttnn.ROW_MAJOR_LAYOUT,
            "BLOCK",
            1536,
        ),  # eight cores of 16 channels: 48 values of a row of taps in 2 tiles
        (128, 3, ttnn.TILE_LAYOUT, "BLOCK", 1152),
        (3, 5, ttnn.ROW_MAJOR_LAYOUT, "HEIGHT", 320),
        (3, 5, ttnn.TILE_LAYOUT, "HEIGHT", 800),
        (20, 3, ttnn.ROW_MAJOR_LAYOUT, "WIDTH", 288),
    ],
)
def test_weights_are_padded_for_every_core(
    channels: int, kernel: int, layout: ttnn.Layout, shards: str, rows: int
) -> None:
    config = ttnn.Conv2dConfig(shard_layout=getattr(ttnn.TensorMemoryLayout, f"{shards}_SHARDED"))
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        x = ttnn.from_torch(torch.zeros(1, 1, 1024, channels), dtype=ttnn.bfloat16, layout=layout, device=mesh)
        weights = ttnn.from_torch(torch.zeros(64, channels, kernel, kernel), dtype=ttnn.bfloat16)

        _, (prepared, _) = ttnn.conv2d(
            input_tensor=x, weight_tensor=weights, device=mesh, in_channels=channels, out_channels=64, batch_size=1,
            input_height=32, input_width=32, kernel_size=(kernel, kernel), stride=(1, 1), padding=(1, 1),
            conv_config=config, return_weights_and_bias=True,
        )  # fmt: skip

        assert tuple(prepared.padded_shape) == (1, 1, rows, 64)
