"""Sets of cores: which rectangles come out, and in which order, as TT-NN 0.81.1 gives them."""

from __future__ import annotations

import pytest

import ttmesh.ttnn as ttnn

Box = tuple[int, int, int, int]


def _make(*boxes: Box) -> ttnn.CoreRangeSet:
    return ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(a, b), ttnn.CoreCoord(c, d)) for a, b, c, d in boxes])


def _boxes(cores: ttnn.CoreRangeSet) -> list[Box]:
    return [(box.start.x, box.start.y, box.end.x, box.end.y) for box in cores.ranges()]


@pytest.mark.parametrize(
    ("base", "holes", "left"),
    [
        ([(0, 0, 7, 7)], [(2, 2, 3, 3)], [(0, 0, 1, 7), (4, 0, 7, 7), (2, 0, 3, 1), (2, 4, 3, 7)]),
        (
            [(0, 0, 7, 7)],
            [(2, 2, 3, 3), (5, 5, 5, 7)],
            [(0, 0, 1, 7), (4, 0, 4, 7), (6, 0, 7, 7), (5, 0, 5, 4), (2, 0, 3, 1), (2, 4, 3, 7)],
        ),
        ([(0, 0, 3, 0), (0, 1, 3, 1)], [(0, 0, 0, 0)], [(1, 0, 3, 1), (0, 1, 0, 1)]),
        (
            [(0, 0, 7, 0), (0, 2, 7, 5)],
            [(3, 0, 4, 3), (0, 4, 1, 4)],
            [(0, 0, 2, 0), (5, 0, 7, 0), (2, 2, 2, 5), (5, 2, 7, 5), (3, 4, 4, 5), (0, 2, 1, 3), (0, 5, 1, 5)],
        ),
        ([(0, 0, 3, 3)], [(0, 0, 3, 3)], []),
    ],
)
def test_a_hole_leaves_columns_at_its_sides_and_what_is_above_and_below(
    base: list[Box], holes: list[Box], left: list[Box]
) -> None:
    assert _boxes(_make(*base).subtract(_make(*holes))) == left


def test_merged_rectangles_are_ordered_by_column() -> None:
    assert _boxes(_make((5, 0, 5, 0), (1, 8, 1, 8)).merge(_make((0, 0, 0, 0)))) == [
        (0, 0, 0, 0), (1, 8, 1, 8), (5, 0, 5, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row_wise", "count", "chosen"),
    [(True, 8, [(1, 8, 3, 9), (5, 0, 6, 0)]), (False, 8, [(1, 8, 1, 9), (2, 0, 2, 5)])],
)
def test_cores_from_a_start_on_keep_their_order(row_wise: bool, count: int, chosen: list[Box]) -> None:
    grids = _make((1, 0, 3, 9), (5, 0, 6, 9))
    start = ttnn.CoreCoord(1, 8)
    assert _boxes(ttnn.num_cores_to_corerangeset_in_subcoregrids(start, count, grids, row_wise=row_wise)) == chosen


@pytest.mark.parametrize(
    ("count", "message"),
    [(51, "Target number of cores 51 is greater than total available cores 50"), (49, "Failed to assign all 49 req")],
)
def test_more_cores_than_follow_the_start_are_refused(count: int, message: str) -> None:
    grids = _make((1, 0, 3, 9), (5, 0, 6, 9))
    with pytest.raises(RuntimeError, match=message):
        ttnn.num_cores_to_corerangeset_in_subcoregrids(ttnn.CoreCoord(1, 8), count, grids, row_wise=True)
