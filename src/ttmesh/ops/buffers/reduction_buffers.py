"""Circular buffers of reductions, running sums, and of what orders values: topk, sort, argmax."""

from __future__ import annotations

from math import isqrt, prod

from ttmesh.base.dtypes import DataType, Layout, TensorMemoryLayout
from ttmesh.chip.formats.tiles import Tile, tile_bytes
from ttmesh.ops.buffers.pages import (
    BFLOAT16,
    FLOAT32,
    TILE,
    columns,
    element_bytes,
    fewest_per_core,
    in_l1_shards,
    matrices,
    page_of,
    row_bytes,
    rows,
)
from ttmesh.ops.stages.divided_columns import PARTS, REST
from ttmesh.tensor.calls.dispatch_factories import ProgramCall
from ttmesh.tensor.calls.program_buffers import buffer_rule
from ttmesh.tensor.spec.tensor_spec import TensorSpec

BLOCK, ENOUGH = 8, 4  # tiles read at a time, by cores that get this many
INDEX = BFLOAT16  # a tile of uint16
SHORT_ROW, WIDE_ROW, LONG_ROW = (
    1024,
    8192,
    65536,
)  # of topk: wide rows are divided over cores, few of them also where shorter
FEW_ROWS, FEW_CORES, MANY_CORES = 2, 8, 16
SORTED_ALONE = 64  # tiles of a row that one core sorts
LONG_LINE = 24  # tiles of a row or column that is kept whole though it is its core's only one
LARGEST_PART = 8  # tiles of a batch that are added at a time


def _scaler(spec: TensorSpec) -> int:
    return FLOAT32 if spec.dtype is DataType.FLOAT32 else BFLOAT16


@buffer_rule("reduce", "sum", "mean", "max", "min")
def reduce_buffers(program: ProgramCall) -> int:
    """Tiles in and out and one that scales; the direction decides how the work is divided."""
    spec, result = program.inputs[0], program.results[0]
    stage = program.options.get("stage")
    dim, rank = program.options.get("dim"), len(spec.shape)
    axis = "H" if isinstance(dim, int) and rank > 1 and dim % rank == rank - 2 else "W"
    axis = stage[0] if isinstance(stage, tuple) and stage else axis
    size_in, size_out = page_of(spec), page_of(result)
    if axis in (PARTS, REST):
        return _reduce_divided(spec, result, axis)
    if spec.layout is not Layout.TILE:
        return _reduce_rows(spec, size_in, size_out, axis)
    cores, layout = program.grid.num_cores, spec.memory_config.memory_layout
    if axis == "H":
        if layout is TensorMemoryLayout.WIDTH_SHARDED and in_l1_shards(spec) and in_l1_shards(result):
            return 2 * size_in + _scaler(spec)
        each = fewest_per_core(columns(spec) * matrices(spec), cores)
    else:
        if layout is TensorMemoryLayout.HEIGHT_SHARDED and in_l1_shards(spec):
            return _scaler(spec) + 2 * size_out
        each = fewest_per_core(rows(spec) * matrices(spec), cores) * columns(spec)
    return (BLOCK if each >= ENOUGH and axis != "HW" else 2) * size_in + _scaler(spec) + 2 * size_out


def _reduce_divided(spec: TensorSpec, result: TensorSpec, program: str) -> int:
    """Parts of columns become rows, which are put into tiles and reduced in turn."""
    size_in, size_out = (tile_bytes(each.dtype, Tile((TILE, TILE))) for each in (spec, result))
    if program == REST:
        return 6 * size_in + 3 * size_out
    if spec.layout is not Layout.TILE:
        return 2 * size_in + size_in + size_out + BLOCK * size_in + _scaler(spec) + 2 * size_out
    return (2 if spec.dtype is DataType.FLOAT32 else BLOCK) * size_in + _scaler(spec) + 2 * size_out


def _reduce_rows(spec: TensorSpec, size_in: int, size_out: int, axis: str) -> int:
    """Rows are put into tiles on the way, eight tiles across or four high at a time."""
    wide, high = min(columns(spec), BLOCK), min(rows(spec), ENOUGH)
    across = wide if axis != "H" else 1
    staged = 2 * TILE * across * TILE * element_bytes(spec)
    return staged + size_in + size_out + max(2, wide if axis != "H" else high) * size_in + _scaler(spec) + 2 * size_out


@buffer_rule("fast_reduce_nc")
def fast_reduce_buffers(program: ProgramCall) -> int:
    """Tiles of the batch, twice, a tile of zeros, and two of the result."""
    spec, result = program.inputs[0], program.results[0]
    added = prod(spec.padded_shape) // max(prod(result.padded_shape), 1)
    part = max(n for n in range(1, LARGEST_PART + 1) if added % n == 0) if added else 1
    return 2 * part * page_of(spec) + BFLOAT16 + 2 * page_of(result)


@buffer_rule("welford", "std", "var")
def welford_buffers(program: ProgramCall) -> int:
    """Eight tiles in, or a whole row or column where it fits; two out, and over both five of sums."""
    spec, result, stage = program.inputs[0], program.results[0], program.options.get("stage")
    axis = stage[1] if isinstance(stage, tuple) and len(stage) > 1 else "W"
    length = columns(spec) if axis == "W" else rows(spec)
    sums = 5 * FLOAT32 if axis == "HW" else 0
    whole = max(length, BLOCK) * page_of(spec) + 2 * page_of(result) + sums
    others = rows(spec) if axis == "W" else columns(spec)
    alone = axis != "HW" and others * matrices(spec) <= program.grid.num_cores  # a core has one row or column
    if program.free_l1 and whole <= program.free_l1 and not (alone and length < LONG_LINE):
        return whole
    return BLOCK * page_of(spec) + 2 * page_of(result) + sums


@buffer_rule("accumulate", "cumsum", "cumprod", "moreh_cumsum")
def accumulate_buffers(program: ProgramCall) -> int:
    """Four tiles in and out, and the sum so far where it goes from tile to tile."""
    spec, result, stage = program.inputs[0], program.results[0], program.options.get("stage")
    size = 4 * (page_of(spec) + page_of(result))
    dim = stage[0] if isinstance(stage, tuple) and stage else program.options.get("dim")
    rank = len(spec.shape)
    if isinstance(dim, int) and rank and dim % rank >= rank - 2:
        return size
    adds = isinstance(stage, tuple) and "sum" in stage
    return size + FLOAT32 * (2 if spec.dtype is DataType.FLOAT32 and adds else 1)


@buffer_rule("prod_nc", "prod")
def product_buffers(program: ProgramCall) -> int:
    """Four tiles."""
    return 4 * page_of(program.inputs[0])


@buffer_rule("topk")
def topk_buffers(program: ProgramCall) -> int:
    """Rows of a power of two are divided over cores, and one merges what they found; else a core takes a row."""
    spec, stage = program.inputs[0], program.options.get("stage")
    k = program.options.get("k") if not isinstance(stage, tuple) else stage[0] if stage else None
    found = max(-(-int(k) // TILE), 1) if isinstance(k, int) else 1
    size, wide = page_of(spec), max(spec.shape[-1] if spec.shape else 1, 1)
    index = FLOAT32 if wide >= LONG_ROW or spec.dtype is DataType.FLOAT32 else INDEX  # numbers of 32 or of 16 bits
    inner, few = max(size, BFLOAT16), rows(spec) * matrices(spec) <= FEW_ROWS
    if (SHORT_ROW if few else WIDE_ROW) <= wide < LONG_ROW and not wide & (wide - 1) and found <= 2:
        cores = FEW_CORES if wide == SHORT_ROW else MANY_CORES
        gathered, own = 2 * cores * found * inner, 2 * columns(spec) // cores * inner
        return 4 * (size + index) + gathered + 2 * index + max(own + 2 * inner, 2 * size + gathered)
    return (2 + found) * (size + index) + (4 + 2 * found) * (inner + index)


@buffer_rule("sort")
def sort_buffers(program: ProgramCall) -> int:
    """A row of tiles of values and of indices; long rows are divided over cores."""
    spec = program.inputs[0]
    size, wide = page_of(spec), columns(spec)
    if wide > SORTED_ALONE:
        each = max(wide // program.grid.num_cores, 2)
        return (16 + 2 * each) * size + 4096 + 2048
    return (12 + 2 * wide) * size + 1024


@buffer_rule("argmax")
def argmax_buffers(program: ProgramCall) -> int:
    """A part of a row, the result, and what every core found in every row."""
    spec = program.inputs[0]
    wide, bytes_each = max(spec.shape[-1] if spec.shape else 1, 1), element_bytes(spec)
    high = spec.shape[-2] if len(spec.shape) > 1 else 1
    if spec.layout is Layout.TILE:
        return page_of(spec) + 4 * (program.results[0].shape[-1] if program.results[0].shape else 1)
    cores = program.grid.num_cores
    if program.options.get("dim") is None:
        part = max(16, -(-wide // cores))
        return part * bytes_each + 32 + 64 * -(-wide // part)
    part = max(16, 1 << (max(isqrt(wide) * 4 // bytes_each, 1).bit_length() - 1), -(-wide // cores))
    return 2 * part * bytes_each + 4 * high + -(-wide // part) * high * (4 + bytes_each)


@buffer_rule("nonzero")
def nonzero_buffers(program: ProgramCall) -> int:
    """The row, and four coordinates of every number in it."""
    spec = program.inputs[0]
    return row_bytes(spec, program.arch) + 64 + 32 * (spec.shape[-1] if spec.shape else 1)


@buffer_rule("sampling")
def sampling_buffers(program: ProgramCall) -> int:
    """Of one user: values and indices in tiles, and the rows of indices of all."""
    spec = program.inputs[0]
    return (
        3 * 8192 + 2 * columns(spec) * BFLOAT16 + 11 * BFLOAT16 + TILE * 4 * (spec.shape[-1] if spec.shape else 1) + 384
    )
