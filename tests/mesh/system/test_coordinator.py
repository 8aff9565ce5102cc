"""Who leads a mesh, and which explicit devices are accepted."""

from __future__ import annotations

import pytest

from ttmesh.base.errors import CoordinatorError, ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.chip.catalogue import load_system
from ttmesh.mesh.allocation.reservations import list_reservations, reserved_bytes
from ttmesh.mesh.system.coordinator import MeshType, check_mesh_type, locate_mesh, put_coordinator_first

T3000 = load_system("t3000")
WALK = (4, 0, 3, 7, 6, 2, 1, 5)


@pytest.mark.parametrize("device", range(8))
def test_any_device_can_lead_and_the_mesh_keeps_its_devices(device: int) -> None:
    shape, ids = locate_mesh(T3000, MeshShape(2, 4), coordinator=device)

    assert shape == MeshShape(2, 4)
    assert ids[0] == device
    assert sorted(ids) == list(range(8))
    assert [i for i in ids if i != device] == [i for i in (4, 0, 3, 7, 5, 1, 2, 6) if i != device]


def test_a_coordinator_from_outside_replaces_the_last() -> None:
    assert locate_mesh(T3000, MeshShape(1, 4), coordinator=5)[1] == (5, 4, 0, 3)


def test_single_devices_are_not_affected() -> None:
    assert locate_mesh(T3000, MeshShape(1, 1), coordinator=5)[1] == (4,)
    assert put_coordinator_first([2], 99, range(8)) == (2,)


def test_unknown_coordinator_lists_the_devices() -> None:
    with pytest.raises(
        CoordinatorError,
        match=r"TT_COORDINATOR_DEVICE_ID=9 names no visible device; expected one of \[0, 1, 2, 3, 4, 5, 6, 7\]",
    ):
        locate_mesh(T3000, MeshShape(2, 4), coordinator=9)


def test_explicit_devices_decide_who_leads() -> None:
    ids = [5, 0, 1, 2, 3, 4, 6, 7]

    assert locate_mesh(T3000, MeshShape(1, 8), devices=ids, coordinator=3)[1] == tuple(ids)


def test_devices_may_be_paths() -> None:
    assert locate_mesh(T3000, MeshShape(1, 2), devices=["/dev/tenstorrent/3", "1"])[1] == (3, 1)


@pytest.mark.parametrize(
    ("shape", "devices", "text"),
    [
        (None, [0, 1], "Mesh shape must be provided when physical device ids are supplied"),
        (MeshShape(1, 2), [0, 1, 2], r"3 physical device ids \[0, 1, 2\] were given for MeshShape\(\[1, 2\]\)"),
        (MeshShape(1, 2), [0, 8], r"Device index 8 out of range. There are 8 devices .* t3000; expected one of \[0, 1"),
        (MeshShape(1, 2), [0, 0], r"physical device ids \[0, 0\] name \[0\] more than once"),
        (MeshShape(1, 2), [0, "/dev/sda"], "'/dev/sda' is not a device; expected an id such as 3"),
        (MeshShape(1, 2), [0, -1], "-1 is not a device"),
    ],
)
def test_explicit_devices_must_exist_and_fit(shape: MeshShape | None, devices: list[int | str], text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        locate_mesh(T3000, shape, devices=devices)


def test_an_offset_beside_explicit_devices_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"both offset MeshCoordinate\(\[0, 1\]\) and physical device ids \[0, 1\]"):
        locate_mesh(T3000, MeshShape(1, 2), offset=MeshCoordinate(0, 1), devices=[0, 1])


def test_mesh_types_need_their_links() -> None:
    check_mesh_type(MeshType.Ring, MeshShape(1, 8), WALK, T3000.links)
    check_mesh_type(MeshType.Ring, MeshShape(1, 2), WALK[:2], T3000.links)
    check_mesh_type(MeshType.Line, MeshShape(1, 5), WALK[:5], T3000.links)
    check_mesh_type(MeshType.Ring, MeshShape(2, 4), (4, 0, 3, 7, 5, 1, 2, 6), T3000.links)

    with pytest.raises(ShapeError, match=r"MeshType.Ring cannot be formed by devices .*: no link between 6 and 4"):
        check_mesh_type(MeshType.Ring, MeshShape(1, 5), WALK[:5], T3000.links)
    with pytest.raises(
        ShapeError, match=r"MeshType.Line cannot be formed by devices \[4, 3, 0\]: no link between 4 and 3"
    ):
        check_mesh_type(MeshType.Line, MeshShape(1, 3), (4, 3, 0), T3000.links)


def test_the_coordinator_holds_more_of_its_memory() -> None:
    assert reserved_bytes(coordinator=False) == 73 * 1024
    assert f"{reserved_bytes(coordinator=True) / 2**20:.2f} MB" == "3.17 MB"
    assert {r.label for r in list_reservations(coordinator=False)} < {
        r.label for r in list_reservations(coordinator=True)
    }
