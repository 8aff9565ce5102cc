"""The cores TT-NN would start kernels on for sharded tensors."""

from __future__ import annotations

import pytest
import torch

import ttmesh.ttnn as ttnn


@pytest.fixture
def device():
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    yield mesh
    ttnn.close_mesh_device(mesh)


def grid(*corners):
    return ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(*a), ttnn.CoreCoord(*b)) for a, b in corners])


def placed(device, shape, config):
    return ttnn.from_torch(torch.zeros(shape, dtype=torch.bfloat16), device=device, memory_config=config)


@pytest.mark.parametrize(
    ("cores", "orientation", "expected"),
    [
        (grid(((0, 0), (7, 0))), "ROW_MAJOR", [(0, 0), (1, 0), (2, 0), (3, 0)]),
        (grid(((0, 0), (3, 3))), "COL_MAJOR", [(0, 0), (0, 1), (0, 2), (0, 3)]),
        (grid(((0, 0), (1, 0)), ((4, 0), (4, 0))), "ROW_MAJOR", [(0, 0), (1, 0), (4, 0)]),
    ],
)
def test_cores_with_shards_come_in_the_order_of_the_shards(device, cores, orientation, expected) -> None:
    spec = ttnn.NdShardSpec([1, 1, 32, 64], cores, ttnn.ShardOrientation[orientation])
    tensor = placed(device, [1, 1, 128, 64], ttnn.MemoryConfig(ttnn.BufferType.L1, spec))

    found = ttnn.get_optimal_worker_cores_for_sharded_tensor(tensor)

    assert [(core.x, core.y) for core in found] == expected


def test_shards_in_dram_have_the_worker_near_their_bank(device) -> None:
    spec = ttnn.ShardSpec(grid(((2, 0), (7, 0))), [32, 64], ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.DRAM, spec)

    found = ttnn.get_optimal_worker_cores_for_sharded_tensor(placed(device, [1, 1, 96, 64], config))

    assert found == device.get_optimal_dram_bank_to_logical_worker_assignment(ttnn.NOC.NOC_0)[2:5]


def test_tensors_without_shards_have_no_worker_cores(device) -> None:
    on_host = ttnn.from_torch(torch.zeros(32, 32))

    with pytest.raises(RuntimeError, match="Tensor must be on device to compute optimal worker cores"):
        ttnn.get_optimal_worker_cores_for_sharded_tensor(on_host)
    with pytest.raises(RuntimeError, match="Tensor must be sharded to compute optimal worker cores"):
        ttnn.get_optimal_worker_cores_for_sharded_tensor(ttnn.to_device(on_host, device))
