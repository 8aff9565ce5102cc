"""Seed 000, method 1: copy this as conftest.py (or merge it into yours) to choose the coordinator by environment variable.

With ttmesh installed its pytest plugin does this already; the file shows what it takes.
"""

from __future__ import annotations

import os

import pytest

import ttmesh.ttnn as ttnn


@pytest.fixture
def device_params(request):
    params = dict(getattr(request, "param", {}))
    coordinator = os.environ.get("TT_COORDINATOR_DEVICE_ID")
    if coordinator is not None:
        leader, everyone = int(coordinator), ttnn.get_device_ids()
        if leader not in everyone:
            raise RuntimeError(f"TT_COORDINATOR_DEVICE_ID={leader} names no device; expected one of {everyone}")
        params["physical_device_ids"] = [leader, *(device for device in everyone if device != leader)]
        print(f"CUSTOM COORDINATOR: device {leader} leads {params['physical_device_ids']}")
    return params


@pytest.fixture
def mesh_device(request, device_params):
    shape = ttnn.MeshShape(*request.param)
    ids = device_params.pop("physical_device_ids", [])[: shape.mesh_size()]
    mesh = ttnn.open_mesh_device(mesh_shape=shape, physical_device_ids=ids, **device_params)
    yield mesh
    ttnn.close_mesh_device(mesh)
