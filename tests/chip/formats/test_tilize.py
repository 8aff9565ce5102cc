"""Tile order: tiles, faces and elements row by row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttmesh.chip.formats.tiles import FACE_SHAPES, Tile, padded_shape
from ttmesh.chip.formats.tilize import tilize, untilize

TILES = [*map(Tile, FACE_SHAPES), *(Tile(shape, transpose_tile=True) for shape in FACE_SHAPES if shape[0] >= 16)]


def _by_definition(matrix: torch.Tensor, tile: Tile) -> list[float]:
    """Element by element, for a matrix of whole tiles."""
    (face_rows, face_columns), flat = tile.face_shape, []
    for top in range(0, matrix.shape[0], tile.height):
        for left in range(0, matrix.shape[1], tile.width):
            block = matrix[top : top + tile.height, left : left + tile.width]
            if tile.transpose_tile:
                block = block.T
            for y in range(0, block.shape[0], face_rows):
                for x in range(0, block.shape[1], face_columns):
                    flat += block[y : y + face_rows, x : x + face_columns].flatten().tolist()
    return flat


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.height}x{t.width}{'T' * t.transpose_tile}")
def test_elements_lie_in_face_order(tile: Tile) -> None:
    matrix = torch.arange(64.0 * 64).view(64, 64)

    assert tilize(matrix, tile).tolist() == _by_definition(matrix, tile)


@pytest.mark.usefixtures("served")
@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    tile=st.sampled_from(TILES),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.uint8, torch.int64, torch.int16]),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 70)),
)
def test_untilize_undoes_tilize(tile: Tile, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    values = torch.randint(0, 200, shape, generator=torch.Generator().manual_seed(5)).to(dtype)

    ordered = tilize(values, tile, pad_value=3)

    height, width = padded_shape(shape[1:], tile)
    assert ordered.shape == (shape[0], height * width)
    assert ordered.eq(3).sum() == values.eq(3).sum() + ordered.numel() - values.numel()
    assert torch.equal(untilize(ordered, shape[1:], tile), values)


@pytest.mark.usefixtures("served")
def test_strided_values_are_taken_as_they_read() -> None:
    values = torch.arange(35.0 * 40).view(35, 40).T

    assert torch.equal(untilize(tilize(values), (40, 35)), values)


def test_vectors_are_refused() -> None:
    with pytest.raises(RuntimeError, match="rank 1 is not a matrix"):
        tilize(torch.zeros(5))


def test_a_wrong_count_of_elements_says_the_right_one() -> None:
    with pytest.raises(RuntimeError, match="expected 1024 in the last dim"):
        untilize(torch.zeros(1023), (5, 5))
