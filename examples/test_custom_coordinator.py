"""Seed 000: whichever device coordinates shows the high L1; all show the same DRAM and TRACE.

for i in 0 1 2 3 4 5 6 7; do TT_COORDINATOR_DEVICE_ID=$i pytest examples/test_custom_coordinator.py -v -s; done
pytest examples/test_custom_coordinator.py --coordinator all
"""

from __future__ import annotations

import os

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base.sizes import size_text
from ttmesh.testing.memory_watch import usage


@pytest.mark.parametrize("device_params", [{"trace_region_size": 200_000, "num_command_queues": 2}], indirect=True)
@pytest.mark.parametrize("mesh_device", [(1, 8)], indirect=True)
def test_coordinator_memory_pattern(mesh_device, device_params) -> None:
    wanted = int(os.environ.get("TT_COORDINATOR_DEVICE_ID", mesh_device.get_device_ids()[0]))
    mapper = ttnn.ReplicateTensorToMesh(mesh_device)
    x = ttnn.from_torch(
        torch.randn(1, 1, 32, 1024),
        dtype=ttnn.bfloat16,
        layout=ttnn.TILE_LAYOUT,
        device=mesh_device,
        mesh_mapper=mapper,
    )
    weight = ttnn.from_torch(
        torch.randn(1024, 1024), dtype=ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT, device=mesh_device, mesh_mapper=mapper
    )
    ttnn.deallocate(ttnn.linear(x, weight))

    print("capturing the decode trace")
    trace = ttnn.begin_trace_capture(mesh_device, cq_id=0)
    y = ttnn.linear(x, weight)
    ttnn.end_trace_capture(mesh_device, trace, cq_id=0)
    for _ in range(4):
        ttnn.execute_trace(mesh_device, trace, cq_id=0, blocking=False)
    ttnn.synchronize_device(mesh_device)

    seen = usage("pattern", mesh_device)
    for device in sorted(seen.l1_bytes):
        mark = "  ← coordinator" if device == seen.coordinator else ""
        print(f"Device {device}: L1 = {size_text(seen.l1_bytes[device])}{mark}")
    assert mesh_device.reference_device() == wanted
    assert seen.highest_l1_device == wanted
    assert len({size for device, size in seen.l1_bytes.items() if device != wanted}) == 1
    ttnn.release_trace(mesh_device, trace)
    ttnn.deallocate(y)
