"""Statistics of rows that are sharded over cores, in the default numerics."""

from __future__ import annotations

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn


def _shard(mesh: ttnn.MeshDevice, values: torch.Tensor) -> ttnn.Tensor:
    grid = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 3))])
    config = ttnn.MemoryConfig(
        ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.L1, ttnn.ShardSpec(grid, (32, values.shape[-1] // 4))
    )
    return ttnn.from_torch(values, layout=ttnn.TILE_LAYOUT, device=mesh, memory_config=config)


def test_every_core_averages_its_own_columns() -> None:
    torch.manual_seed(1234)
    values = torch.randn(1, 1, 32, 1024).bfloat16()
    with ttmesh.numerics("realistic"), ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        x = _shard(mesh, values)
        config = ttnn.LayerNormShardedMultiCoreProgramConfig(
            compute_with_storage_grid_size=(1, 4), subblock_w=4, block_h=1, block_w=8, inplace=False
        )

        stats = ttnn.to_torch(ttnn.rms_norm_pre_all_gather(x, program_config=config)).float()[0, 0, :, 0]

    wanted = values.float().square().mean(-1)[0, 0]
    # One sum over all 32 tiles of a row in a 16-bit destination correlates with 0.96.
    assert float(torch.corrcoef(torch.stack([stats, wanted]))[0, 1]) > 0.986


def test_norms_of_sharded_rows_average_per_core_too() -> None:
    torch.manual_seed(0)
    values = (torch.randn(1, 1, 32, 1024) + 4).bfloat16()
    config = ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4, fp32_dest_acc_en=False)
    wanted = values.float() * torch.rsqrt(values.float().square().mean(-1, keepdim=True))
    with ttmesh.numerics("realistic"), ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        made = [
            ttnn.to_torch(ttnn.rms_norm(x, compute_kernel_config=config)).float()
            for x in (_shard(mesh, values), ttnn.from_torch(values, layout=ttnn.TILE_LAYOUT, device=mesh))
        ]

    sharded, interleaved = (float((result - wanted).norm() / wanted.norm()) for result in made)
    assert sharded < interleaved  # 32 tiles of a row in one 16-bit sum lose more than 8, then 4 averages


def test_float32_shards_need_no_wide_destination_but_bfloat16_statistics() -> None:
    config = ttnn.LayerNormShardedMultiCoreProgramConfig(
        compute_with_storage_grid_size=(1, 4), subblock_w=1, block_h=1, block_w=4, inplace=False
    )
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        x = _shard(mesh, torch.ones(1, 1, 32, 512))
        stats = ttnn.rms_norm_pre_all_gather(x, program_config=config)
        rows = ttnn.from_torch(torch.ones(1, 1, 32, 512), layout=ttnn.TILE_LAYOUT, device=mesh)
        wide = ttnn.typecast(stats, ttnn.float32)

        assert ttnn.rms_norm_post_all_gather(x, stats, program_config=config).dtype == ttnn.float32
        with pytest.raises(RuntimeError, match="Only bfloat16 is supported for stats"):
            ttnn.rms_norm_post_all_gather(x, wide, program_config=config)
        with pytest.raises(RuntimeError, match="with Float32 input requires fp32_dest_acc_en=true"):
            ttnn.rms_norm_pre_all_gather(rows)
