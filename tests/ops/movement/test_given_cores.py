"""Programs on given cores refuse what TT-NN 0.81.1 refuses there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ttmesh.ttnn as ttnn
from ttmesh import MeshDevice

CORES = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(3, 6))])
SHARDS = ttnn.create_sharded_memory_config((32, 128), ttnn.CoreGrid(y=1, x=2), ttnn.ShardStrategy.WIDTH)


@pytest.fixture
def device() -> Iterator[MeshDevice]:
    with ttnn.manage_device(0) as opened:
        yield opened


def _untilize(device: MeshDevice, shape: list[int], memory: Any = ttnn.DRAM_MEMORY_CONFIG, **options: Any) -> Any:
    x = ttnn.empty(shape, ttnn.bfloat16, ttnn.TILE_LAYOUT, device, memory)
    return ttnn.untilize(x, sub_core_grids=CORES, **options)


@pytest.mark.parametrize("shape", [[1, 1, 32, 128], [1, 1, 20, 128], [1, 1, 33, 128]])
def test_untilize_on_given_cores_takes_one_row_of_tiles_or_padding(device: MeshDevice, shape: list[int]) -> None:
    assert list(_untilize(device, shape).shape) == shape


def test_untilize_on_given_cores_refuses_more_rows_of_tiles_shards_and_one_core(device: MeshDevice) -> None:
    for shape in ([1, 1, 64, 128], [2, 1, 32, 128]):
        with pytest.raises(RuntimeError, match="only supports tensors one tile row tall, got height 64"):
            _untilize(device, shape)
    with pytest.raises(RuntimeError, match="must be interleaved when sub_core_grid argument provided"):
        _untilize(device, [1, 1, 32, 128], SHARDS)
    with pytest.raises(RuntimeError, match="only supported when use_multicore flag"):
        _untilize(device, [1, 1, 32, 128], use_multicore=False)
