"""Circular buffers of tilize and untilize: a row of tiles in and out; wide matrices are divided into squares."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.ops.buffers.pages import (
    BFLOAT16,
    HALF_L1,
    TILE,
    alignment,
    columns,
    element_bytes,
    in_l1_shards,
    matrices,
    page_of,
    rows,
)
from ttmesh.tensor.calls.dispatch_factories import ProgramCall
from ttmesh.tensor.calls.program_buffers import buffer_rule
from ttmesh.tensor.spec.tensor_spec import TensorSpec

WIDE = 32  # tiles across, from which squares are considered
WIDEST_IN_ONE_PROGRAM = 800_000  # bytes of a row, in and out


@lru_cache(maxsize=512)
def find_square(cores: int, wide: int, high: int) -> tuple[int, int]:
    """The side of the squares that a matrix of tiles is divided into, and how many there are: fewer than cores."""
    least = -(-wide * high // cores)
    side = isqrt(least)
    if side * side != least:
        side += 1
    while -(-wide // side) * -(-high // side) >= cores and side <= wide * high:
        side += 1
    return side, -(-wide // side) * -(-high // side)


def _is_divided(cores: int, wide: int, high: int, all_rows: int) -> int:
    """The side of the squares where they use more cores than rows would, else 0."""
    if wide > WIDE and (high > WIDE or wide > high):
        side, squares = find_square(cores, wide, high)
        busy = -(-all_rows // -(-all_rows // cores)) if all_rows else 0
        if busy < squares:
            return side
    return 0


@buffer_rule("tilize", "tilize_with_val_padding", "tilize_with_zero_padding")
def tilize_buffers(program: ProgramCall) -> int:
    """A row of tiles in and out; for square blocks also a row as it is read."""
    spec, result = program.inputs[0], program.results[0]
    if spec.layout is Layout.TILE:
        return 0
    size_in, size_out = page_of(spec), page_of(result)
    if in_l1_shards(spec):
        return 0 if in_l1_shards(result) else columns(result) * (size_in + size_out)
    wide, high, cores = columns(result), rows(result), program.grid.num_cores
    step = alignment(spec, program.arch)
    staged = TILE * element_bytes(spec)
    side = _is_divided(cores, wide, high, high * matrices(result))
    if not side and wide * (size_in + size_out + staged) + 2 * step >= program.free_l1 > 0:
        side = find_square(cores, wide, high)[0]
    if side:
        limit = max((program.free_l1 - 2 * step) // (size_in + size_out + staged), 1) if program.free_l1 else side
        side = min(side, limit)
        return side * (size_in + size_out + staged) + 2 * step
    return wide * (size_in + size_out)


@buffer_rule("untilize_codegen")
def untilize_buffers(program: ProgramCall) -> int:
    """TT-NN's newer program for bfloat16 and block floats, else its older ones."""
    spec, result, cores = program.inputs[0], program.results[0], program.grid.num_cores
    if spec.layout is not Layout.TILE:
        return 0
    size_in, size_out = page_of(spec), page_of(result)
    wide, high = columns(spec), rows(spec) * matrices(spec)
    if in_l1_shards(spec):
        return _untilize_shards(spec, result, size_out)
    if program.options.get("use_multicore") is False:
        return _divide_to_fit(wide, size_in + size_out) * (size_in + size_out)
    largest = max(size_in, size_out)
    new = spec.dtype in (DataType.BFLOAT16, DataType.BFLOAT8_B) and program.options.get("sub_core_grids") is None
    aligned = all(extent % TILE == 0 for extent in spec.shape[-2:]) and len(spec.shape) > 1
    narrow = (high == 1 and aligned) or 2 * wide * BFLOAT16 <= WIDEST_IN_ONE_PROGRAM
    if new and not in_l1_shards(result) and narrow:
        tiles = _columns_per_core(wide, high, cores) if aligned else wide
        deep_in, deep_out = _depths(tiles, largest, program.free_l1)
        return tiles * (deep_in * size_in + deep_out * size_out)
    if new and not aligned and tuple(spec.padded_shape) != tuple(spec.shape):
        return untilize_with_unpadding_buffers(program)
    return _untilize_rows(program, wide, high, size_in, size_out)


def _columns_per_core(wide: int, high: int, cores: int) -> int:
    if wide > 1 and high == 1:
        return -(-wide // cores)
    if wide < 2 or high >= cores:
        return wide
    return wide // max(n for n in range(1, min(cores // high, wide) + 1) if wide % n == 0)


def _depths(tiles: int, size: int, room: int) -> tuple[int, int]:
    """Two buffers in and out, two in and one out, or one each: what fits."""
    for depths in ((2, 2), (2, 1)):
        if not room or sum(depths) * tiles * size <= room:
            return depths
    return 1, 1


def _untilize_rows(program: ProgramCall, wide: int, high: int, size_in: int, size_out: int) -> int:
    cores = program.grid.num_cores
    spec, both = program.inputs[0], size_in + size_out
    side = _is_divided(cores, wide, rows(spec), high)
    if not side and wide * both >= program.free_l1 > 0:
        side = find_square(cores, wide, rows(spec))[0]
    if side:
        return min(side, max(program.free_l1 // both, 1) if program.free_l1 else side) * both
    if wide > HALF_L1 // (2 * size_in):
        return 2 * both if high == 1 else _divide_to_fit(wide, both) * both
    return wide * both * (1 if high <= cores else 2)


def _divide_to_fit(wide: int, both: int) -> int:
    """The largest part of a row that divides it and fits half of L1."""
    most = max(HALF_L1 // both, 1)
    return wide if wide <= most else max(n for n in range(1, most + 1) if wide % n == 0)


def _untilize_shards(spec: TensorSpec, result: TensorSpec, size_out: int) -> int:
    shards = spec.memory_config.shard_spec
    if shards is None or in_l1_shards(result):
        return 0
    return -(-shards.shape[1] // TILE) * size_out * (1 if shards.shape[0] <= TILE else 2)


@buffer_rule("untilize")
def untilize_as_asked_buffers(program: ProgramCall) -> int:
    """By its own name as above, bfloat16 with padding too; from to_layout padding is left out by older programs."""
    by_name = program.options.get("use_multicore") is not False and "use_multicore" in program.options
    if by_name and program.inputs[0].dtype is DataType.BFLOAT16:
        return untilize_buffers(program)
    return untilize_with_unpadding_buffers(program)


@buffer_rule("untilize_with_unpadding")
def untilize_with_unpadding_buffers(program: ProgramCall) -> int:
    """A row of tiles in and out, where padding is left out; else as above."""
    spec, result = program.inputs[0], program.results[0]
    if tuple(spec.padded_shape) == tuple(spec.shape) and tuple(result.shape) == tuple(spec.shape):
        return untilize_buffers(program)
    if in_l1_shards(spec) or spec.layout is not Layout.TILE:
        return untilize_buffers(program)
    both = page_of(spec) + page_of(result)
    wide, high, cores = columns(spec), rows(spec), program.grid.num_cores
    if program.options.get("use_multicore") is False:
        return _divide_to_fit(wide, both) * both
    side = _is_divided(cores, wide, high, high * matrices(spec))
    if not side and wide * both >= program.free_l1 > 0:
        side = find_square(cores, wide, high)[0]
    if side:
        return min(side, max(program.free_l1 // both, 1) if program.free_l1 else side) * both
    return wide * both
