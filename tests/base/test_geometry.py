"""Shapes, coordinates and ranges agree with brute force on meshes up to 8x8, and print as TT-NN's."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttmesh.base.cores import CoreCoord
from ttmesh.base.errors import ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange, MeshCoordinateRangeSet, MeshShape
from ttmesh.base.sizes import size_text

quick = settings(deadline=None, max_examples=120, derandomize=True)
shapes = st.lists(st.integers(1, 8), min_size=2, max_size=3).map(MeshShape)


@st.composite
def boxes(draw: st.DrawFn) -> MeshCoordinateRange:
    ends = [sorted((draw(st.integers(0, 7)), draw(st.integers(0, 7)))) for _ in range(2)]
    return MeshCoordinateRange(MeshCoordinate([e[0] for e in ends]), MeshCoordinate([e[1] for e in ends]))


def _cells(box: MeshCoordinateRange) -> set[tuple[int, ...]]:
    start, end = box.start_coord, box.end_coord
    return {c for c in itertools.product(range(8), repeat=2) if all(start[i] <= c[i] <= end[i] for i in (0, 1))}


@quick
@given(shapes)
def test_linear_index_counts_in_row_major_order(shape: MeshShape) -> None:
    every = list(itertools.product(*map(range, shape)))

    assert [MeshCoordinate(c).to_linear_index(shape) for c in every] == list(range(shape.mesh_size()))
    assert [c.coords() for c in MeshCoordinateRange(shape)] == every
    assert sorted(map(MeshCoordinate, every)) == list(map(MeshCoordinate, every))


@quick
@given(shapes, st.data())
def test_strides_are_the_distance_to_the_neighbour(shape: MeshShape, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, shape.dims() - 1))
    at = MeshCoordinate([data.draw(st.integers(0, extent - 1)) for extent in shape])
    step = at.get_neighbor(shape, 1, axis, "none")

    if at[axis] == shape[axis] - 1:
        assert step is None
    else:
        assert step is not None
        assert step.to_linear_index(shape) - at.to_linear_index(shape) == shape.get_stride(axis)


@quick
@given(shapes, st.integers(-9, 9), st.data())
def test_neighbours_wrap_clamp_or_end(shape: MeshShape, offset: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, shape.dims() - 1))
    at = MeshCoordinate([data.draw(st.integers(0, extent - 1)) for extent in shape])
    walked, clamped = at[axis], at[axis]
    for _ in range(abs(offset)):  # one step at a time
        walked = (walked + (1 if offset > 0 else -1)) % shape[axis]
        clamped = min(max(clamped + (1 if offset > 0 else -1), 0), shape[axis] - 1)

    wrapped, held = at.get_neighbor(shape, offset, axis), at.get_neighbor(shape, offset, axis, "clamp")

    assert wrapped is not None
    assert held is not None
    assert (wrapped[axis], held[axis]) == (walked, clamped)
    for other in range(shape.dims()):
        if other != axis:
            assert wrapped[other] == held[other] == at[other]
    inside = 0 <= at[axis] + offset < shape[axis]
    assert (at.get_neighbor(shape, offset, axis, "none") is not None) == inside


@quick
@given(boxes(), boxes())
def test_boxes_are_sets_of_cells(a: MeshCoordinateRange, b: MeshCoordinateRange) -> None:
    common = a.intersection(b)

    assert {c.coords() for c in a} == _cells(a)
    assert a.shape.mesh_size() == len(_cells(a))
    assert (_cells(common) if common else set()) == _cells(a) & _cells(b)
    assert a.intersects(b) == bool(_cells(a) & _cells(b))
    assert a.contains(b) == (_cells(b) <= _cells(a))
    assert all(a.contains(MeshCoordinate(c)) == (c in _cells(a)) for c in itertools.product(range(8), repeat=2))


@quick
@given(st.lists(boxes(), max_size=6))
def test_a_set_of_boxes_is_their_union(parts: list[MeshCoordinateRange]) -> None:
    union = MeshCoordinateRangeSet(parts)

    assert {c.coords() for c in union.coords()} == set().union(*map(_cells, parts))
    assert union.size() <= len(parts)
    assert union == MeshCoordinateRangeSet(reversed(parts))


def test_boxes_that_form_a_box_become_one() -> None:
    whole = MeshCoordinateRangeSet([MeshCoordinateRange(MeshCoordinate(r, 0), MeshCoordinate(r, 3)) for r in (1, 0)])

    assert whole.ranges() == [MeshCoordinateRange(MeshShape(2, 4))]


def test_things_print_as_in_tt_nn() -> None:
    assert repr(MeshShape(1, 2)) == "MeshShape([1, 2])"
    assert repr(MeshCoordinate(0, 1)) == "MeshCoordinate([0, 1])"
    assert MeshShape(2, 1, 4).mesh_size() == 8
    assert MeshShape(1, 8).is_line_topology()
    assert MeshShape(1, 1).is_line_topology()
    assert not MeshShape(2, 4).is_line_topology()
    assert MeshShape([2, 4]) == MeshShape(2, 4) != MeshShape(4, 2)


def test_what_is_no_shape_is_refused() -> None:
    with pytest.raises(TypeError, match="is not a shape"):
        MeshShape(4)
    with pytest.raises(TypeError, match="is not a coordinate"):
        MeshCoordinate(-1, 0)
    with pytest.raises(ShapeError, match=r"MeshCoordinate\(\[2, 0\]\) lies outside MeshShape\(\[2, 4\]\)"):
        MeshCoordinate(2, 0).to_linear_index(MeshShape(2, 4))
    with pytest.raises(ShapeError, match=r"Start coordinate MeshCoordinate\(\[1, 0\]\) is after end coordinate"):
        MeshCoordinateRange(MeshCoordinate(1, 0), MeshCoordinate(0, 0))
    with pytest.raises(ShapeError, match="Cannot compare"):
        assert MeshCoordinate(0, 0) < MeshCoordinate(0, 0, 0)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (74752, "73 KB"),
        (3323904, "3.17 MB"),
        (12849278208, "11.97 GB"),
        (2**50, "1024.00 TB"),
    ],
)
def test_sizes_read_well(size: int, text: str) -> None:
    assert size_text(size) == text


def test_a_core_is_named_by_two_numbers_or_a_pair() -> None:
    assert CoreCoord((3, 4)) == CoreCoord(3, 4)
    for wrong in ((3,), (3, 4, 5)):
        with pytest.raises(TypeError, match="CoreCoord\\(\\) takes x and y, or a tuple of them"):
            CoreCoord(wrong)
    with pytest.raises(TypeError, match="takes x and y"):
        CoreCoord(3)
