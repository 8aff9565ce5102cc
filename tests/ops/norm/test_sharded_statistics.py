"""Statistics of rows that are sharded over cores, in the default numerics."""

from __future__ import annotations

import torch

import ttmesh
import ttmesh.ttnn as ttnn


def test_every_core_averages_its_own_columns() -> None:
    torch.manual_seed(1234)
    values = torch.randn(1, 1, 32, 1024).bfloat16()
    with ttmesh.numerics("realistic"), ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        grid = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 3))])
        config = ttnn.MemoryConfig(
            ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.L1, ttnn.ShardSpec(grid, (32, 256))
        )
        x = ttnn.from_torch(values, layout=ttnn.TILE_LAYOUT, device=mesh, memory_config=config)

        stats = ttnn.to_torch(ttnn.rms_norm_pre_all_gather(x)).float()[0, 0, :, 0]

    wanted = values.float().square().mean(-1)[0, 0]
    # One sum over all 32 tiles of a row in a 16-bit destination correlates with 0.96.
    assert float(torch.corrcoef(torch.stack([stats, wanted]))[0, 1]) > 0.986
