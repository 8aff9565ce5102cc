"""Tiles: their shapes, faces and sizes in bytes; nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from ttmesh.base.dtypes import BLOCK_FLOATS, ELEMENT_BYTES, DataType, bfloat8_b
from ttmesh.base.errors import ShapeError, one_of

FACE_WIDTH = 16  # also how many consecutive elements of a face row share one block-float exponent
TILE_HEIGHT = TILE_WIDTH = 32
EXPONENT_ALIGNMENT = 16  # L1 alignment of both chip generations: the exponents of a tile fill whole 16 B

# Rows and columns of a tile -> rows and columns of its faces (tt-metal impl/data_format/tile.cpp).
FACE_SHAPES = {(h, w): (min(h, 16), FACE_WIDTH) for h in (32, 16, 8, 4, 2, 1) for w in (32, 16)}


@dataclass(frozen=True, eq=False, repr=False)
class Tile:
    """A tile's shape and whether its contents are stored transposed."""

    tile_shape: tuple[int, int] = (TILE_HEIGHT, TILE_WIDTH)
    transpose_tile: bool = False
    face_shape: tuple[int, int] = field(init=False)
    num_faces: int = field(init=False)

    def __post_init__(self) -> None:
        shape = tuple(int(n) for n in self.tile_shape)
        if len(shape) != 2 or shape not in FACE_SHAPES:
            raise ShapeError(
                f"Tile size is not valid for our hardware: {list(shape)}",
                expected=one_of(f"{h}x{w}" for h, w in FACE_SHAPES),
                fix="Pass one of these tile shapes.",
            )
        if self.transpose_tile and shape[0] < 16:
            raise ShapeError(
                f"Tile height must equal 16 or 32 in transpose mode: {list(shape)}",
                expected="a height of 16 or 32",
                fix="Use a taller tile or transpose_tile=False.",
            )
        face = FACE_SHAPES[shape]
        object.__setattr__(self, "tile_shape", shape)
        object.__setattr__(self, "face_shape", face)
        object.__setattr__(self, "num_faces", shape[0] * shape[1] // (face[0] * face[1]))

    # TT-NN compares shapes only: a transposed tile equals its plain twin. Do not key a cache of packed bytes by Tile.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tile) and self.tile_shape == other.tile_shape

    def __hash__(self) -> int:
        return hash(self.tile_shape)

    def __repr__(self) -> str:
        return f"Tile with shape: [{self.tile_shape[0]}, {self.tile_shape[1]}]"

    @property
    def height(self) -> int:
        """Rows of a tile."""
        return self.tile_shape[0]

    @property
    def width(self) -> int:
        """Columns of a tile."""
        return self.tile_shape[1]

    @property
    def transpose_within_face(self) -> bool:
        """Whether each face is stored transposed."""
        return self.transpose_tile

    @property
    def transpose_of_faces(self) -> bool:
        """Whether the faces are stored column by column."""
        return self.transpose_tile

    @property
    def partial_face(self) -> int:
        """1 when the tile has fewer than 32 rows."""
        return int(self.tile_shape[0] < TILE_HEIGHT)

    @property
    def narrow_tile(self) -> int:
        """1 when the tile has fewer than 32 columns."""
        return int(self.tile_shape[1] < TILE_WIDTH)

    def get_tile_size(self, dtype: DataType) -> int:
        """Bytes of one packed tile."""
        return tile_bytes(dtype, self)


def exponent_bytes(tile: Tile) -> int:
    """Bytes of a block-float tile's shared exponents, with their padding."""
    rows = tile.face_shape[0] * tile.num_faces
    return -(-rows // EXPONENT_ALIGNMENT) * EXPONENT_ALIGNMENT


def tile_bytes(dtype: DataType, tile: Tile | None = None) -> int:
    """Bytes of one packed tile of this format; 32x32 when no tile is given."""
    tile = tile or Tile()
    elements = tile.height * tile.width
    if dtype in BLOCK_FLOATS:
        return (elements if dtype == bfloat8_b else elements // 2) + exponent_bytes(tile)
    if dtype not in ELEMENT_BYTES:
        raise ShapeError(f"Invalid data format: {dtype}", expected=one_of(DataType), fix="Choose a format with a size.")
    return elements * ELEMENT_BYTES[dtype]


def padded_shape(shape: tuple[int, ...], tile: Tile | None = None) -> tuple[int, ...]:
    """A logical shape rounded up to whole tiles in its last two dims; ranks 0 and 1 become rank 2."""
    tile = tile or Tile()
    *lead, height, width = (1,) * (2 - len(shape)) + tuple(shape)
    return (*lead, -(-height // tile.height) * tile.height, -(-width // tile.width) * tile.width)
