"""From a logical shape to the rows, columns, pages and strides of its bytes (plain ints, no tensors)."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm, prod

from ttmesh.base.dtypes import BLOCK_FLOATS, ELEMENT_BYTES, DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import ShapeError
from ttmesh.chip.formats.tiles import Tile
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.spec.shard_config import round_up

Alignment = tuple[int, ...]
Extent2d = tuple[int, int]

RECOMMENDED_ALIGNMENT_BYTES = 64  # the largest memory alignment of any chip (tt-metal page_config.cpp)


def element_bytes(dtype: DataType) -> int:
    """Bytes of an element in row-major order; block floats fall back to whole floats there."""
    return 4 if dtype in BLOCK_FLOATS else ELEMENT_BYTES[dtype]


def default_alignment(layout: Layout, tile: Tile, config: MemoryConfig) -> Alignment:
    """What the last dims are rounded up to by default."""
    if layout is Layout.TILE:
        return tuple(tile.tile_shape)
    if config.shard_spec is not None:
        return (config.shard_spec.shape[1],)
    if config.nd_shard_spec is not None:
        return (config.nd_shard_spec.shard_shape[-1],)
    return (1,)


def merged_alignment(asked: Alignment, default: Alignment) -> Alignment:
    """The requested alignment, rounded up to what the layout needs."""
    if not asked:
        return default
    rank = max(len(asked), len(default))
    merged = (1,) * (rank - len(asked)) + asked
    floor = (1,) * (rank - len(default)) + default
    return tuple(round_up(a, b) for a, b in zip(merged, floor, strict=True))


def padded_shape(shape: Shape, alignment: Alignment) -> Shape:
    """The logical shape with every aligned dim rounded up."""
    rank = max(len(shape), len(alignment))
    sizes = (1,) * (rank - len(shape)) + tuple(shape)
    steps = (1,) * (rank - len(alignment)) + alignment
    padded, rows = list(sizes), 1
    for i in reversed(range(rank - len(alignment), rank)):
        if i >= rank - 2:
            padded[i] = round_up(sizes[i], steps[i])
        elif rows % steps[i]:
            if steps[i] % rows:
                raise ShapeError(
                    f"Padded shape can't be deducted from TensorLayout parameters {list(alignment)} and Shape {shape}",
                    expected="alignments that are multiples of the rows below them",
                    fix="Choose a padded shape whose rows are multiples of these alignments.",
                )
            padded[i] = round_up(sizes[i], steps[i] // rows)
        if i != rank - 1:  # the width does not count as rows
            rows *= padded[i]
    return Shape(padded)


def physical_extent(shape: Shape, alignment: Alignment) -> Extent2d:
    """Height and width in elements of the two-dimensional array that is stored."""
    rank = max(len(shape), len(alignment))
    sizes = (1,) * (rank - len(shape)) + tuple(shape)
    steps = (1,) * (rank - len(alignment)) + alignment
    height = width = 1
    for i in reversed(range(rank)):
        if i == rank - 1:
            width = round_up(sizes[i], steps[i])
        else:
            height = round_up(height * sizes[i], steps[i])
    return height, width


def logical_extent(shape: Shape) -> Extent2d:
    """Height and width in elements without any padding."""
    return (prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def page_extent(layout: Layout, tile: Tile, dtype: DataType, config: MemoryConfig, physical: Extent2d) -> Extent2d:
    """Height and width in elements of one page: a tile, or a row of the tensor or of its shard."""
    if layout is Layout.TILE:
        return tile.tile_shape[0], tile.tile_shape[1]
    if 0 in physical:
        return 1, max(4 // element_bytes(dtype), 1)
    if config.shard_spec is not None and config.memory_layout is not TensorMemoryLayout.HEIGHT_SHARDED:
        return 1, config.shard_spec.shape[1]
    if config.is_sharded() and config.nd_shard_spec is not None:
        return 1, config.nd_shard_spec.shard_shape[-1]
    return 1, physical[1]


def strides(shape: Shape, alignment: Alignment) -> tuple[int, ...]:
    """Elements between neighbours along each dim of the stored array."""
    rank = len(shape)
    steps = [1] * rank
    for i in reversed(range(rank - 1)):
        steps[i] = steps[i + 1] * shape[i + 1]
        at = i - (rank - len(alignment)) + 1
        if at >= 0:
            steps[i] = round_up(steps[i], alignment[at])
    return tuple(steps)


def shard_alignment(layout: Layout, tile: Tile, dtype: DataType, *, recommended: bool) -> Alignment:
    """What shard shapes are rounded up to: tiles, or memory lines in row-major order."""
    if layout is Layout.TILE:
        return tuple(tile.tile_shape)
    size = element_bytes(dtype)
    return (lcm(RECOMMENDED_ALIGNMENT_BYTES, size) // size,) if recommended else (1,)


def alignment_of(shape: Shape, padded: Sequence[int], layout: Layout, tile: Tile, config: MemoryConfig) -> Alignment:
    """The alignment under which a logical shape gets this padded shape."""
    padded = Shape(padded)
    if shape == padded:
        return ()
    rank = len(padded)
    logical = (1,) * (rank - len(shape)) + tuple(shape)
    only_last_two = logical[: max(rank - 2, 0)] == tuple(padded)[: max(rank - 2, 0)]
    if config.shard_spec is not None:
        if not only_last_two:
            raise ShapeError(
                f"Tensor with shape {shape} ({padded}) cannot be sharded because alignment will have rank greater "
                "than 2!",
                expected="padding of the last two dims only",
                fix="Pad less, or interleave the tensor.",
            )
        return (config.shard_spec.shape[1],) if layout is Layout.ROW_MAJOR else ()
    steps = list(padded[-2:])
    if layout is Layout.TILE:
        for i in range(-min(rank, 2), 0):
            side = tile.tile_shape[i]
            steps[i] = side if padded[i] <= round_up(logical[i], side) else padded[i]
    if only_last_two:
        return tuple(steps)
    rows = padded[-2]
    outer: list[int] = []
    for extent in reversed(tuple(padded)[:-2]):
        rows *= extent
        outer.insert(0, rows)
    return tuple(max(step, 1) for step in (*outer, *steps))
