"""A program config that the caller gives is checked against operands, memory and the chip, in TT-NN's words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ttmesh import ttnn

LINE, BLOCKS = ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig, ttnn.MatmulMultiCoreReuseMultiCastProgramConfig


def make(mesh: ttnn.MeshDevice, shape: tuple[int, ...], memory: ttnn.MemoryConfig | None = None) -> ttnn.Tensor:
    return ttnn.from_torch(
        torch.zeros(shape), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, memory_config=memory
    )


def shards(layout: str, shape: tuple[int, int], x: int, y: int) -> ttnn.MemoryConfig:
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(x - 1, y - 1))})
    spec = ttnn.ShardSpec(cores, shape, ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(getattr(ttnn.TensorMemoryLayout, f"{layout}_SHARDED"), ttnn.BufferType.L1, spec)


def on_line(**changed: Any) -> LINE:
    options = {
        "compute_with_storage_grid_size": (8, 1), "in0_block_w": 4, "out_subblock_h": 1, "out_subblock_w": 2,
        "per_core_M": 2, "per_core_N": 2, "fuse_batch": True, "mcast_in0": True,
    }  # fmt: skip
    return LINE(**(options | changed))


def on_blocks(**changed: Any) -> BLOCKS:
    options = {
        "compute_with_storage_grid_size": (8, 2), "in0_block_w": 4, "out_subblock_h": 1, "out_subblock_w": 2,
        "per_core_M": 1, "per_core_N": 2, "transpose_mcast": False,
    }  # fmt: skip
    return BLOCKS(**(options | changed))


@pytest.mark.parametrize(
    ("config", "memory", "text"),
    [
        (on_blocks(compute_with_storage_grid_size=(9, 2)), None, r"\(9, 2\) must fit within device grid \(8, 8\)"),
        (on_blocks(out_subblock_w=16, per_core_N=16), None, "times out_subblock_h 1 needs to be at most 8 to fit"),
        (on_blocks(in0_block_w=3), None, r"Kt \(32\) must be divisible by in0_block_w \(3\)"),
        (on_blocks(), ("WIDTH", (64, 128), 8, 1), "Unsupported memory layout TensorMemoryLayout::WIDTH_SHARDED"),
        (on_blocks(), ("HEIGHT", (32, 1024), 1, 2), r"K \(32\) must equal in0_block_w \(4\)"),
        (on_blocks(per_core_M=2), ("BLOCK", (32, 128), 8, 2), r"per_core_M \(2\) must equal shard_shape\[0\]"),
        (on_line(per_core_M=1), None, "Number of blocks exceeds number of cores: 16 blocks > 8 cores"),
        (on_line(), ("HEIGHT", (32, 1024), 2, 1), "input A must be WIDTH_SHARDED when mcast_in0"),
        (on_line(in0_block_w=2), ("WIDTH", (64, 32), 8, 4), r"shard_shape\[1\] \(32\) / in0_tile width \(32\)"),
        (on_line(in0_block_w=1), ("WIDTH", (64, 32), 8, 4), "Target number of cores 32 is greater than total"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(config: Any, memory: Any, text: str) -> None:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        x = make(mesh, (1, 1, 64, 1024), None if memory is None else shards(*memory))
        w = make(mesh, (1024, 512))

        with pytest.raises(RuntimeError, match=text):
            ttnn.linear(x, w, program_config=config)
