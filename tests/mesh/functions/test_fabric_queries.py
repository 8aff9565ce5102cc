"""What the fabric says of the system."""

from __future__ import annotations

import pytest

import ttmesh.ttnn as ttnn
from ttmesh.base.errors import MeshError
from ttmesh.fabric.fabric_state import fabric_process


@pytest.fixture
def fabric():
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    yield
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


def node(chip):
    return ttnn.FabricNodeId(ttnn.MeshId(0), chip)


@pytest.mark.parametrize(
    ("system", "kind"),
    [("t3000", "MESH"), ("galaxy_torus_x", "TORUS_X"), ("galaxy_torus_y", "TORUS_Y"), ("galaxy_torus_xy", "TORUS_XY")],
)
def test_rings_make_a_torus(system, kind, monkeypatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", system)

    assert ttnn.get_all_mgd_fabric_types() == [ttnn.FabricType[kind]]


def test_links_towards_a_chip_are_those_of_the_first_hop(fabric, monkeypatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3000")
    with ttnn.create_mesh_device(ttnn.MeshShape(2, 4)) as mesh:
        here, beside, far = (mesh.get_fabric_node_id(ttnn.MeshCoordinate(0, c)) for c in (0, 1, 3))
        links = mesh.system.link_count(mesh.get_device_id(ttnn.MeshCoordinate(0, 0)), mesh.get_device_ids()[1])

    assert ttnn.get_forwarding_link_indices(here, beside) == list(range(links))
    assert ttnn.get_forwarding_link_indices(here, far) == list(range(links))
    assert ttnn.get_forwarding_link_indices(here, here) == []
    with pytest.raises(MeshError, match="is not in the fabric"):
        ttnn.get_forwarding_link_indices(here, node(99))


def test_without_a_fabric_there_are_no_links(monkeypatch) -> None:
    monkeypatch.setattr(fabric_process, "has_routes", False)

    with pytest.raises(MeshError, match="map::at"):
        ttnn.get_forwarding_link_indices(node(0), node(1))
