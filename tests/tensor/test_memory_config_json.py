"""Memory configs travel as JSON with TT-NN's keys."""

from __future__ import annotations

import json

import pytest

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


def test_allocation_per_core_is_refused():
    text = ttnn.L1_MEMORY_CONFIG.to_json().replace('"per_core_allocation": false', '"per_core_allocation": true')
    with pytest.raises(MeshError, match="per_core_allocation, which is not emulated"):
        ttnn.MemoryConfig.from_json(text)


def test_a_grid_is_listed_between_two_cores():
    first, last = ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 1)
    assert ttnn.grid_to_cores(first, last) == [ttnn.CoreCoord(x, y) for x in (0, 1) for y in (0, 1)]
    assert ttnn.grid_to_cores(2, 2, 2, row_wise=True) == [ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 0)]
    with pytest.raises(MeshError, match="grid_to_cores got 2, 2, None"):
        ttnn.grid_to_cores(2, 2)
