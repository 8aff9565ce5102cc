"""The fabric is configured before a mesh opens, as in TT-NN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshShape
from ttmesh.fabric.fabric_config import FabricConfig
from ttmesh.mesh.device.opening import close_mesh_device, list_root_meshes, open_mesh_device
from ttmesh.mesh.functions.process_fabric import fabric_setup, get_fabric_config, set_fabric_config


@pytest.fixture(autouse=True)
def _disabled_afterwards() -> Iterator[None]:
    yield
    set_fabric_config(FabricConfig.DISABLED)


def test_a_fabric_is_disabled_until_set() -> None:
    assert get_fabric_config() is FabricConfig.DISABLED

    set_fabric_config(FabricConfig.FABRIC_1D_RING, num_planes=1)

    assert get_fabric_config() is FabricConfig.FABRIC_1D_RING
    assert fabric_setup().num_planes == 1


def test_setting_it_again_needs_the_same_or_off_in_between() -> None:
    set_fabric_config(FabricConfig.FABRIC_1D)
    set_fabric_config(FabricConfig.FABRIC_1D)

    with pytest.raises(
        MeshError, match="Tried to override previous value of fabric config: FABRIC_1D, with: FABRIC_2D;"
    ):
        set_fabric_config(FabricConfig.FABRIC_2D)

    set_fabric_config(FabricConfig.DISABLED)
    set_fabric_config(FabricConfig.FABRIC_2D)


def test_an_open_mesh_keeps_its_fabric() -> None:
    set_fabric_config(FabricConfig.FABRIC_1D)
    mesh = open_mesh_device(MeshShape(1, 2))
    try:
        assert list_root_meshes() == [mesh]
        with pytest.raises(
            MeshError, match=r"SetFabricConfig\(FABRIC_1D\) is not allowed while devices are still open"
        ):
            set_fabric_config(FabricConfig.FABRIC_1D)
        set_fabric_config(FabricConfig.DISABLED)
    finally:
        close_mesh_device(mesh)

    assert list_root_meshes() == []


def test_closing_the_last_mesh_disables_the_fabric() -> None:
    set_fabric_config(FabricConfig.FABRIC_1D)
    first = open_mesh_device(MeshShape(1, 2))
    second = open_mesh_device(MeshShape(1, 2), physical_device_ids=[2, 3])
    submesh = second.create_submesh(MeshShape(1, 1))

    close_mesh_device(submesh)
    close_mesh_device(first)
    assert get_fabric_config() is FabricConfig.FABRIC_1D

    close_mesh_device(second)
    assert get_fabric_config() is FabricConfig.DISABLED
