"""Tiles have TT-NN's attributes, sizes and errors."""

from __future__ import annotations

import pytest

from ttmesh.base.dtypes import DataType, bfloat4_b, bfloat8_b, bfloat16
from ttmesh.chip.formats.tiles import Tile, padded_shape, tile_bytes

# tt-metal's sizes (impl/data_format/tile.cpp): bfloat16, bfloat8_b and bfloat4_b bytes of each tile
SIZES = {
    (32, 32): (2048, 1088, 576),
    (16, 32): (1024, 544, 288),
    (32, 16): (1024, 544, 288),
    (16, 16): (512, 272, 144),
    (8, 32): (512, 272, 144),
    (4, 32): (256, 144, 80),
    (2, 32): (128, 80, 48),
    (1, 32): (64, 48, 32),
    (8, 16): (256, 144, 80),
    (4, 16): (128, 80, 48),
    (2, 16): (64, 48, 32),
    (1, 16): (32, 32, 24),
}


@pytest.mark.parametrize("shape", SIZES)
def test_packed_tiles_have_the_sizes_of_the_chip(shape: tuple[int, int]) -> None:
    tile = Tile(shape)

    assert tuple(tile.get_tile_size(dtype) for dtype in (bfloat16, bfloat8_b, bfloat4_b)) == SIZES[shape]


def test_the_default_tile_has_four_faces() -> None:
    tile = Tile()

    assert (tile.tile_shape, tile.face_shape, tile.num_faces) == ((32, 32), (16, 16), 4)
    assert (tile.partial_face, tile.narrow_tile) == (0, 0)
    assert repr(tile) == "Tile with shape: [32, 32]"


def test_a_tiny_tile_has_a_partial_face() -> None:
    tile = Tile((4, 16))

    assert (tile.face_shape, tile.num_faces, tile.partial_face, tile.narrow_tile) == ((4, 16), 1, 1, 1)


def test_transposing_is_of_faces_and_within_them() -> None:
    tile = Tile((16, 32), transpose_tile=True)

    assert tile.transpose_within_face
    assert tile.transpose_of_faces


def test_tiles_compare_by_shape_as_ttnn_compares_them() -> None:
    assert Tile([32, 32]) == Tile((32, 32), transpose_tile=True)  # type: ignore[arg-type]
    assert len({Tile(), Tile((16, 32)), Tile((32, 32), transpose_tile=True)}) == 2


def test_other_shapes_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"Tile size is not valid for our hardware: \[32, 64\].*16x16"):
        Tile((32, 64))


def test_low_tiles_cannot_be_transposed() -> None:
    with pytest.raises(RuntimeError, match="Tile height must equal 16 or 32 in transpose mode"):
        Tile((8, 32), transpose_tile=True)


def test_an_invalid_format_has_no_size() -> None:
    with pytest.raises(RuntimeError, match=r"Invalid data format: DataType\.INVALID"):
        tile_bytes(DataType.INVALID)


@pytest.mark.parametrize(
    ("shape", "padded"),
    [((), (32, 32)), ((5,), (32, 32)), ((33, 5), (64, 32)), ((2, 3, 7, 64), (2, 3, 32, 64)), ((0, 4), (0, 32))],
)
def test_the_last_two_dims_are_padded_to_tiles(shape: tuple[int, ...], padded: tuple[int, ...]) -> None:
    assert padded_shape(shape) == padded
