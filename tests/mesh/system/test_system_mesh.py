"""Which chips a shape gets, rule by rule, as TT-Metal's SystemMesh maps them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttmesh.base.errors import ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange, MeshShape
from ttmesh.chip.catalogue import load_system
from ttmesh.chip.system import System
from ttmesh.mesh.ranks.system_descriptor import SystemMeshDescriptor
from ttmesh.mesh.system.grid_path import Position, find_path
from ttmesh.mesh.system.system_mesh import (
    PERIMETER_SHAPES,
    get_line_coordinates,
    get_ring_coordinates,
    map_devices,
)

# tt-umd's example descriptor numbers a t3000 like this; TT-Metal's published orders are for it.
EXAMPLE = replace(load_system("t3000"), grid=((4, 0, 2, 6), (5, 1, 3, 7)))
PERIMETER = (4, 0, 2, 6, 7, 3, 1, 5)


def _ids(system: System, *dims: int, offset: tuple[int, int] | None = None) -> tuple[int, ...]:
    shape, ids = map_devices(system, MeshShape(dims), None if offset is None else MeshCoordinate(offset))
    assert shape == MeshShape(dims)
    return ids


@pytest.mark.parametrize("length", range(1, 9))
def test_lines_on_a_t3000_walk_the_perimeter(length: int) -> None:
    assert _ids(EXAMPLE, 1, length) == _ids(EXAMPLE, length, 1) == PERIMETER[:length]


def test_lines_start_at_the_offset() -> None:
    assert _ids(EXAMPLE, 1, 4, offset=(0, 2)) == (2, 6, 7, 3)
    assert _ids(EXAMPLE, 1, 8, offset=(1, 0)) == (5, *PERIMETER[:7])


@pytest.mark.parametrize(
    ("dims", "offset", "ids"),
    [
        ((2, 4), None, (4, 0, 2, 6, 5, 1, 3, 7)),
        ((4, 2), None, (4, 5, 0, 1, 2, 3, 6, 7)),
        ((2, 2), None, (4, 0, 5, 1)),
        ((2, 2), (0, 2), (2, 6, 3, 7)),
        ((2, 3), None, (4, 0, 2, 5, 1, 3)),
        ((3, 2), None, (4, 5, 0, 1, 2, 3)),
        ((3, 2), (0, 1), (4, 5, 0, 1, 2, 3)),  # transposed: TT-Metal maps from the origin whatever the offset
    ],
)
def test_boxes_on_a_t3000(dims: tuple[int, int], offset: tuple[int, int] | None, ids: tuple[int, ...]) -> None:
    assert _ids(EXAMPLE, *dims, offset=offset) == ids


def test_our_t3000_takes_the_same_walk() -> None:
    assert _ids(load_system("t3000"), 1, 8) == (4, 0, 3, 7, 6, 2, 1, 5)
    assert _ids(load_system("t3000"), 2, 4) == (4, 0, 3, 7, 5, 1, 2, 6)


def test_no_shape_is_the_whole_system() -> None:
    shape, ids = map_devices(load_system("galaxy"))

    assert shape == MeshShape(8, 4)
    assert ids[:5] == (0, 16, 19, 3, 4)


def test_other_systems_prefer_a_ring() -> None:
    assert _ids(load_system("4x4"), 1, 4) == (0, 1, 5, 4)
    assert _ids(load_system("4x4"), 1, 3) == (0, 1, 2)  # no ring of three: right, right


def test_a_three_dimensional_line_is_a_line() -> None:
    assert _ids(EXAMPLE, 1, 1, 8) == PERIMETER


@pytest.mark.parametrize(
    ("dims", "offset", "text"),
    [
        (
            (0, 4),
            None,
            "Requested mesh shape MeshShape([0, 4]) has zero devices (mesh_size=0). "
            "MeshShape must have at least one device.",
        ),
        (
            (3, 4),
            None,
            "Requested mesh shape MeshShape([3, 4]) requires 12 devices, but only 8 devices are available in the "
            "system mesh MeshShape([2, 4]).",
        ),
        ((2, 2), (1,), "Provided offset dimensions mismatch: MeshCoordinate([1]) != 2"),
        (
            (1, 2),
            (2, 0),
            "The specified offset MeshCoordinate([2, 0]) is out of bounds for the system mesh shape MeshShape([2, 4])",
        ),
        ((2, 2, 2), None, "Requested mesh shape dimensions mismatch: MeshShape([2, 2, 2]) != MeshShape([2, 4])"),
        (
            (2, 4),
            (0, 1),
            "Requested mesh is too big and is not rotatable: MeshShape([2, 4]) and SystemMesh MeshShape([2, 4]), "
            "offset MeshCoordinate([0, 1])",
        ),
    ],
)
def test_refusals_read_as_in_tt_metal(dims: tuple[int, ...], offset: tuple[int, ...] | None, text: str) -> None:
    with pytest.raises(ShapeError) as caught:
        map_devices(EXAMPLE, MeshShape(dims), None if offset is None else MeshCoordinate(list(offset)))

    assert caught.value.wrong == text


def test_rings_go_round_the_edge() -> None:
    ring = get_ring_coordinates(MeshShape(3, 3), MeshShape(4, 4))

    assert [c.coords() for c in ring] == [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0)]
    assert len(get_ring_coordinates(MeshShape(1, 4), MeshShape(1, 4))) == 4


@pytest.mark.parametrize(
    ("ring", "text"),
    [
        ((0, 2), "Ring shape must not be empty along either dimension. Got MeshShape([0, 2])"),
        ((3, 2), "Subgrid MeshShape([3, 2]) is out of mesh bounds MeshShape([2, 4])"),
    ],
)
def test_rings_must_fit(ring: tuple[int, int], text: str) -> None:
    with pytest.raises(ShapeError) as caught:
        get_ring_coordinates(MeshShape(ring), MeshShape(2, 4))

    assert caught.value.wrong == text


@pytest.mark.parametrize(
    ("length", "shape", "offset", "text"),
    [
        (9, (2, 4), (0, 0), "Length 9 is greater than the number of ring coordinates 8"),
        (10, (3, 3), (0, 0), "Failed to get line coordinates, got 1 coordinates, expected 10"),
        (3, (1, 5), (0, 2), None),
        (4, (1, 5), (0, 2), "Failed to get line coordinates, got 1 coordinates, expected 4"),
        (1, (2, 4), (2, 0), "Mesh offset (2, 0) is out of bounds for mesh shape (2, 4)"),
    ],
)
def test_lines_must_fit(length: int, shape: tuple[int, int], offset: tuple[int, int], text: str | None) -> None:
    if text is None:
        assert len(get_line_coordinates(length, MeshShape(shape), MeshCoordinate(offset))) == length
        return
    with pytest.raises(ShapeError) as caught:
        get_line_coordinates(length, MeshShape(shape), MeshCoordinate(offset))

    assert caught.value.wrong == text


def _plain_search(length: int, rows: int, cols: int, start: Position, *, ring: bool) -> list[Position] | None:
    path = [start]

    def extend() -> bool:
        if len(path) >= length:
            return True
        r, c = path[-1]
        for near in ((r, c + 1), (r + 1, c), (r, c - 1), (r - 1, c)):
            if not (0 <= near[0] < rows and 0 <= near[1] < cols) or near in path:
                continue
            if ring and len(path) == length - 1 and abs(near[0] - start[0]) + abs(near[1] - start[1]) != 1:
                continue
            path.append(near)
            if extend():
                return True
            path.pop()
        return False

    return path if extend() else None


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.data())
def test_the_cut_search_finds_what_the_plain_one_finds(data: st.DataObject) -> None:
    rows, cols = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    length = data.draw(st.integers(1, rows * cols))
    start = (data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, cols - 1)))
    ring = data.draw(st.booleans())

    assert find_path(length, rows, cols, start, ring=ring) == _plain_search(length, rows, cols, start, ring=ring)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.data())
def test_lines_are_paths_of_different_neighbours(data: st.DataObject) -> None:
    rows, cols = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8))
    shape = MeshShape(rows, cols)
    length = data.draw(st.integers(1, rows * cols if rows > 1 and cols > 1 else max(rows, cols)))

    line = get_line_coordinates(length, shape)

    assert len(set(line)) == length
    steps = [abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in pairwise(line)]
    assert set(steps) <= {1}
    ring_exists = rows > 1 and cols > 1 and length > 3 and length % 2 == 0 and length <= 2 * max(rows, cols)
    if ring_exists and (rows, cols) not in PERIMETER_SHAPES:
        assert abs(line[-1][0] - line[0][0]) + abs(line[-1][1] - line[0][1]) == 1


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.data())
def test_boxes_agree_with_brute_force(data: st.DataObject) -> None:
    rows, cols = data.draw(st.integers(2, 8)), data.draw(st.integers(2, 8))
    height, width = data.draw(st.integers(2, 8)), data.draw(st.integers(2, 8))
    top, left = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, cols - 1))
    system = load_system(f"{rows}x{cols}")
    inside = height * width <= rows * cols
    if inside and top + height <= rows and left + width <= cols:
        expected = [system.grid[top + r][left + c] for r in range(height) for c in range(width)]
    elif inside and top + width <= rows and left + height <= cols:
        expected = [system.grid[c][r] for r in range(height) for c in range(width)]
    else:
        with pytest.raises(ShapeError, match=r"too big and is not rotatable|requires"):
            _ids(system, height, width, offset=(top, left))
        return

    assert _ids(system, height, width, offset=(top, left)) == tuple(expected)


def test_the_system_as_a_mesh() -> None:
    whole = SystemMeshDescriptor(load_system("t3000"))
    half = SystemMeshDescriptor(load_system("t3000"), MeshCoordinateRange(MeshCoordinate(1, 0), MeshCoordinate(1, 3)))

    assert whole.shape() == whole.local_shape() == MeshShape(2, 4)
    assert whole.all_local()
    assert whole.get_device_id(MeshCoordinate(0, 2)) == 3
    assert half.local_shape() == MeshShape(1, 4)
    assert not half.all_local()
    assert half.get_device_id(MeshCoordinate(1, 3)) == 6
    assert not half.is_local(MeshCoordinate(0, 0))
    with pytest.raises(ShapeError, match=r"Device at MeshCoordinate\(\[0, 0\]\) is remote"):
        half.get_device_id(MeshCoordinate(0, 0))
    with pytest.raises(ShapeError, match=r"MeshCoordinate\(\[2, 0\]\) lies outside MeshShape\(\[2, 4\]\)"):
        whole.is_local(MeshCoordinate(2, 0))


def test_the_descriptor_describes_the_system_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "galaxy")
    assert SystemMeshDescriptor().shape() == MeshShape(8, 4)

    monkeypatch.setenv("TTMESH_SYSTEM", "t3000")
    monkeypatch.setenv("TT_VISIBLE_DEVICES", "0,1")
    assert SystemMeshDescriptor().shape() == MeshShape(2, 2)
