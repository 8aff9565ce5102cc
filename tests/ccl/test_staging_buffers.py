"""reduce_scatter_minimal_async on a ring takes the staging buffers that TT-NN's helper makes."""

from __future__ import annotations

import pytest
import torch
from ccl_meshes import lanes_of, on, opened, random_lanes

from ttmesh import ttnn
from ttmesh.base.dtypes import bfloat16


def scatter(mesh, x, buffers):
    semaphores = [ttnn.create_global_semaphore(mesh, ttnn.CoreRangeSet([ttnn.CoreRange((0, 0), (7, 7))]), 0)] * 3
    return ttnn.experimental.reduce_scatter_minimal_async(
        x, persistent_output_buffers=buffers, dim=3, multi_device_global_semaphore=semaphores,
        topology=ttnn.Topology.Ring,
    )  # fmt: skip


def test_a_ring_takes_its_staging_buffers_or_one_like_the_input():
    with opened((1, 8), config=ttnn.FabricConfig.FABRIC_1D_RING) as mesh:
        values = random_lanes((1, 8), (1, 1, 32, 512), bfloat16)
        x = ttnn.to_layout(on(mesh, values, bfloat16), ttnn.TILE_LAYOUT)
        staging = ttnn.experimental.reduce_scatter_minimal_async_create_intermediate_buffer(x, dim=3, cluster_axis=1)
        like = [ttnn.zeros_like(x)]
        output = ttnn.reduce_scatter(x, dim=3, cluster_axis=1)

        made = [scatter(mesh, x, [buffers[0], ttnn.zeros_like(output), *buffers[1:]]) for buffers in (staging, like)]

        assert torch.equal(lanes_of(made[0]), lanes_of(made[1]))
        assert torch.equal(lanes_of(made[0]), lanes_of(output))
        with pytest.raises(RuntimeError, match="Intermediate tensor layout must match input tensor layout"):
            scatter(mesh, x, [staging[1], ttnn.zeros_like(output)])  # the one for the last slice alone
