"""Memory configs travel as JSON with TT-NN's keys."""

from __future__ import annotations

import json

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base.errors import MeshError

GRID = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(3, 1))])
CONFIGS = [
    ttnn.DRAM_MEMORY_CONFIG,
    ttnn.L1_MEMORY_CONFIG,
    ttnn.MemoryConfig(ttnn.TensorMemoryLayout.BLOCK_SHARDED, ttnn.BufferType.L1, ttnn.ShardSpec(GRID, [32, 64])),
    ttnn.MemoryConfig(ttnn.BufferType.L1, ttnn.NdShardSpec([1, 32, 64], GRID)),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_config_comes_back_as_it_was(config):
    back = ttnn.MemoryConfig.from_json(config.to_json())
    assert back == config
    assert str(back) == str(config)


def test_enums_are_numbers():
    fields = json.loads(ttnn.L1_MEMORY_CONFIG.to_json())
    assert fields["buffer_type"] == ttnn.BufferType.L1.value
    assert fields["per_core_allocation"] is False


def test_allocation_per_core_is_part_of_a_config():
    spec = ttnn.ShardSpec(GRID, [32, 64], ttnn.ShardOrientation.ROW_MAJOR)
    plain, own = (ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec) for _ in "ab")
    own.experimental_set_per_core_allocation(True)

    assert plain != own
    assert hash(plain) != hash(own)
    assert "per_core_allocation=1" in repr(own)
    assert ttnn.MemoryConfig.from_json(own.to_json()) == own
    legacy = {key: value for key, value in json.loads(own.to_json()).items() if key != "per_core_allocation"}
    assert ttnn.MemoryConfig.from_json(json.dumps(legacy)) == plain


def test_allocation_per_core_is_refused_where_it_cannot_be():
    with pytest.raises(MeshError, match="per_core_allocation is only supported for L1 buffers"):
        ttnn.MemoryConfig(ttnn.BufferType.DRAM).experimental_set_per_core_allocation(True)
    with pytest.raises(MeshError, match="requires a sharded memory layout"):
        ttnn.MemoryConfig(ttnn.BufferType.L1).experimental_set_per_core_allocation(True)
    with pytest.raises(MeshError, match="not supported with NdShardSpec"):
        ttnn.MemoryConfig(ttnn.BufferType.L1, ttnn.NdShardSpec([32, 64], GRID)).experimental_set_per_core_allocation(
            True
        )


def test_no_tensor_is_placed_per_core():
    spec = ttnn.ShardSpec(GRID, [32, 64], ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)
    config.experimental_set_per_core_allocation(True)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    try:
        with pytest.raises(MeshError, match="per_core_allocation is not emulated"):
            ttnn.from_torch(torch.zeros(256, 64), layout=ttnn.TILE_LAYOUT, device=mesh, memory_config=config)
    finally:
        ttnn.close_mesh_device(mesh)


def test_a_grid_is_listed_between_two_cores():
    first, last = ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 1)
    assert ttnn.grid_to_cores(first, last) == [ttnn.CoreCoord(x, y) for x in (0, 1) for y in (0, 1)]
    assert ttnn.grid_to_cores(2, 2, 2, row_wise=True) == [ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 0)]
    with pytest.raises(MeshError, match="grid_to_cores got 2, 2, None"):
        ttnn.grid_to_cores(2, 2)
