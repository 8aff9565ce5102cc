"""Group norm refuses grids, blocks and layouts in TT-NN's words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ttmesh import ttnn

ROWS, TILES = ttnn.ROW_MAJOR_LAYOUT, ttnn.TILE_LAYOUT


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_out_blocks": 2}, r"num_out_blocks \(2\) must be in \[1, block_h \(1\)\]"),
        ({"num_out_blocks": -2}, r"num_out_blocks \(-2\) is invalid"),
        (
            {"core_grid": None, "num_out_blocks": 1},
            "num_out_blocks cannot be specified when core_grid is auto-selected",
        ),
        ({"core_grid": ttnn.CoreGrid(x=1, y=3)}, r"Requested core_grid \(x=1, y=3\) is invalid .*\(Ht=8, W=64"),
        ({"num_groups": 48}, r"Number of channels \(64\) must be divisible by the number of groups \(48\)"),
    ],
)
def test_a_grid_and_blocks_that_do_not_divide_the_input_are_refused(options: dict[str, Any], text: str) -> None:
    asked = {"num_groups": 32, "core_grid": ttnn.CoreGrid(x=1, y=8), "inplace": False} | options
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        x = ttnn.from_torch(torch.zeros(1, 1, 256, 64), dtype=ttnn.bfloat16, layout=TILES, device=mesh)

        with pytest.raises(RuntimeError, match=text):
            ttnn.group_norm(x, **asked)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"inplace": True, "output_layout": TILES}, "Input and output tensor layouts differ"),
        ({"inplace": False}, "Only L1 buffers can have an associated circular buffer"),
    ],
)
def test_a_result_that_shards_cannot_be_written_to_is_refused(options: dict[str, Any], text: str) -> None:
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 7))})
    shards = ttnn.MemoryConfig(
        ttnn.TensorMemoryLayout.BLOCK_SHARDED, ttnn.BufferType.L1, ttnn.ShardSpec(cores, (32, 64))
    )
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        x = ttnn.from_torch(
            torch.zeros(1, 1, 256, 64), dtype=ttnn.bfloat16, layout=ROWS, device=mesh, memory_config=shards
        )

        with pytest.raises(RuntimeError, match=text):
            ttnn.group_norm(x, num_groups=32, core_grid=ttnn.CoreGrid(x=1, y=8), **options)
