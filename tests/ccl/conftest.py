"""Every test leaves meshes, fabric and system as it found them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ttmesh.base import settings
from ttmesh.fabric.config import FabricConfig
from ttmesh.mesh.fabric_setup import set_fabric_config
from ttmesh.mesh.mesh_device import open_meshes


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    for mesh in open_meshes():
        if mesh.parent is None:
            mesh.close()
    set_fabric_config(FabricConfig.DISABLED)
    for name in ("TTMESH_SYSTEM", "TTMESH_SCHEDULE"):
        settings.override(name, None)
