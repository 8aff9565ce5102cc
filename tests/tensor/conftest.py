"""Meshes for tensor tests, closed at the end of each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ttmesh.base.geometry import MeshShape
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.device.opening import close_mesh_device, open_mesh_device
from ttmesh.tensor.calls import conversions  # noqa: F401  they fill the operators table


@pytest.fixture
def mesh() -> Iterator[MeshDevice]:
    device = open_mesh_device(MeshShape(2, 4), num_command_queues=2)
    yield device
    close_mesh_device(device)


@pytest.fixture
def chip() -> Iterator[MeshDevice]:
    device = open_mesh_device(MeshShape(1, 1))
    yield device
    close_mesh_device(device)
