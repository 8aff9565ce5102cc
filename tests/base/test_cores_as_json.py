"""Cores and shard specs as JSON: TT-NN's text, read back to equal values."""

from __future__ import annotations

from typing import Any

import pytest

import ttmesh.ttnn as ttnn

CORNERS = ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(3, 1))
GRID = ttnn.CoreRangeSet([CORNERS, ttnn.CoreRange(ttnn.CoreCoord(5, 5), ttnn.CoreCoord(5, 6))])
GRID_TEXT = '[{"end":{"x":3,"y":1},"start":{"x":0,"y":0}},{"end":{"x":5,"y":6},"start":{"x":5,"y":5}}]'
SHARDS = ttnn.ShardSpec(GRID, [32, 64], ttnn.ShardOrientation.COL_MAJOR)
VALUES = [
    (ttnn.CoreCoord(1, 2), '{"x":1,"y":2}'),
    (CORNERS, '{"end":{"x":3,"y":1},"start":{"x":0,"y":0}}'),
    (GRID, GRID_TEXT),
    (SHARDS, f'{{"grid":{GRID_TEXT},"orientation":1,"shape":[32,64]}}'),
]


@pytest.mark.parametrize(("value", "text"), VALUES, ids=lambda one: type(one).__name__)
def test_values_are_written_as_tt_nn_writes_them_and_read_back(value: Any, text: str) -> None:
    assert value.to_json() == text
    assert type(value).from_json(text) == value


@pytest.mark.parametrize("kind", [ttnn.CoreCoord, ttnn.CoreRange, ttnn.CoreRangeSet, ttnn.ShardSpec])
@pytest.mark.parametrize("text", ["{", "5", '{"x":"a","y":2}', '[{"x":1}]', "null"])
def test_other_text_is_refused_with_the_class_that_it_was_read_as(kind: Any, text: str) -> None:
    with pytest.raises(
        RuntimeError, match=rf"is not the JSON of a {kind.__name__}; expected what {kind.__name__}.to_json"
    ):
        kind.from_json(text)
