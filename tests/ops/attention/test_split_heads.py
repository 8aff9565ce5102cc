"""Fused projections in shards: every shard holds queries, keys and values of its own heads."""

from __future__ import annotations

import pytest
import torch

import ttmesh.ttnn as ttnn

BATCH, ROWS, HEADS, SIZE = 7, 32, 4, 32


@pytest.mark.parametrize("shards_across", [None, 2])
def test_the_shards_of_a_projection_decide_the_order_of_its_columns(shards_across):
    device = ttnn.open_device(device_id=0)
    q, k, v = (torch.randn(BATCH, ROWS, HEADS * SIZE).bfloat16() for _ in range(3))
    parts = [torch.unflatten(x, -1, (shards_across or 1, -1)) for x in (q, k, v)]
    fused = torch.cat(parts, -1).flatten(-2)[:, None]
    x = ttnn.from_torch(fused, layout=ttnn.TILE_LAYOUT, device=device)
    options = {"memory_config": ttnn.DRAM_MEMORY_CONFIG}
    if shards_across is not None:
        grid = ttnn.CoreGrid(y=BATCH, x=shards_across)
        config = ttnn.create_sharded_memory_config(fused.shape, grid, ttnn.ShardStrategy.BLOCK)
        x, options = ttnn.to_memory_config(x, config), {"memory_config": ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG}

    heads = ttnn.experimental.split_query_key_value_and_split_heads(
        x, compute_with_storage_grid_size=device.compute_with_storage_grid_size(), num_heads=HEADS, **options
    )

    wanted = [x.reshape(BATCH, ROWS, HEADS, SIZE).transpose(1, 2) for x in (q, k, v)]
    wanted[1] = wanted[1].transpose(-1, -2)
    for made, values in zip(heads, wanted, strict=True):
        assert torch.equal(ttnn.to_torch(made), values)
    ttnn.close_device(device)
