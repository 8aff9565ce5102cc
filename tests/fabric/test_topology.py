"""Lines, rings, meshes and tori are recognised from links, whatever the order of the chips."""

from __future__ import annotations

import pytest

from ttmesh.base.geometry import MeshShape
from ttmesh.chip.catalogue import load_system
from ttmesh.fabric.chip_topology import AxisForm, Fabric, axis_form, axis_lines, fabric_type, link_width, mesh_topology
from ttmesh.fabric.fabric_config import FabricType, Topology

T3000 = Fabric(load_system("t3000").links)
ROUND = (4, 0, 3, 7, 6, 2, 1, 5)
GRID = (4, 0, 3, 7, 5, 1, 2, 6)


def test_neighbours_are_linked_chips() -> None:
    assert T3000.neighbours(0) == (1, 3, 4)
    assert T3000.link_count(0, 3) == T3000.link_count(3, 0) == 2
    assert T3000.link_count(4, 7) == 0
    assert T3000.neighbours(99) == ()


@pytest.mark.parametrize(
    ("dims", "ids", "topology"),
    [
        ((1, 8), ROUND, Topology.Ring),
        ((8, 1), ROUND, Topology.Ring),
        ((1, 7), ROUND[:7], Topology.Linear),
        ((1, 4), GRID[:4], Topology.Linear),
        ((1, 2), (0, 4), Topology.Linear),  # two chips never close
        ((1, 1), (0,), Topology.Linear),
        ((2, 4), GRID, Topology.Mesh),
        ((4, 2), (4, 5, 0, 1, 3, 2, 7, 6), Topology.Mesh),
        ((1, 8), tuple(range(8)), None),  # 1 and 2, 4 and 5 are linked, 3 and 4 are not
        ((1, 2, 4), GRID, Topology.Mesh),
    ],
)
def test_the_form_of_a_t3000_mesh(dims: tuple[int, ...], ids: tuple[int, ...], topology: Topology | None) -> None:
    assert mesh_topology(T3000, MeshShape(dims), ids) is topology


@pytest.mark.parametrize(
    ("system", "kind", "topology"),
    [
        ("galaxy", FabricType.MESH, Topology.Mesh),
        ("galaxy_torus_x", FabricType.TORUS_X, Topology.Torus),
        ("galaxy_torus_y", FabricType.TORUS_Y, Topology.Torus),
        ("galaxy_torus_xy", FabricType.TORUS_XY, Topology.Torus),
        ("bh_galaxy", FabricType.TORUS_XY, Topology.Torus),
        ("p150x8", FabricType.TORUS_X, Topology.Torus),
        ("p150x4", FabricType.MESH, Topology.Mesh),
    ],
)
def test_the_form_of_whole_systems(system: str, kind: FabricType, topology: Topology) -> None:
    box = load_system(system)
    ids = [chip for row in box.grid for chip in row]

    assert fabric_type(Fabric(box.links), box.shape, ids) is kind
    assert mesh_topology(Fabric(box.links), box.shape, ids) is topology


def test_forms_along_each_axis() -> None:
    box = load_system("galaxy_torus_x")
    ids = [chip for row in box.grid for chip in row]
    fabric = Fabric(box.links)

    assert axis_form(fabric, box.shape, ids, 0) is AxisForm.LINE
    assert axis_form(fabric, box.shape, ids, 1) is AxisForm.RING
    assert axis_form(fabric, MeshShape(1, 32), ids, 0) is AxisForm.POINT
    assert axis_form(fabric, MeshShape(1, 32), ids, 1) is AxisForm.UNLINKED
    assert link_width(fabric, box.shape, ids, 0) == 4
    assert link_width(fabric, MeshShape(1, 32), ids, 1) == 0


def test_lines_follow_the_axis() -> None:
    assert axis_lines(MeshShape(2, 3), "abcdef", 0) == [("a", "d"), ("b", "e"), ("c", "f")]  # type: ignore[arg-type]
    assert axis_lines(MeshShape(2, 3), "abcdef", 1) == [("a", "b", "c"), ("d", "e", "f")]  # type: ignore[arg-type]
