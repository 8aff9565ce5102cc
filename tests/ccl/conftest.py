"""Every test leaves meshes, fabric and system as it found them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from some_chips import SomeChips

from ttmesh.base import settings
from ttmesh.fabric.fabric_config import FabricConfig
from ttmesh.mesh.device.mesh_device import list_open_meshes
from ttmesh.mesh.functions.process_fabric import set_fabric_config
from ttmesh.tensor.observer import observer


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    for mesh in list_open_meshes():
        if mesh.parent is None:
            mesh.close()
    set_fabric_config(FabricConfig.DISABLED)
    for name in ("TTMESH_SYSTEM", "TTMESH_SCHEDULE"):
        settings.override(name, None)


@pytest.fixture
def collectives_on_some_chips() -> Iterator[None]:
    """Every collective that the test calls is repeated on parts of the mesh (`some_chips.py`)."""
    watcher = SomeChips()
    observer.add(watcher)
    yield
    observer.remove(watcher)
