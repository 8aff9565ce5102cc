"""Circular buffers of softmax and of norms over rows."""

from __future__ import annotations

from math import prod

from ttmesh.base.dtypes import DataType, Layout, ShardOrientation
from ttmesh.ops.buffers.pages import (
    BFLOAT16,
    FLOAT32,
    TILE,
    align,
    columns,
    has_float32_sums,
    in_l1_shards,
    page_of,
    rows,
)
from ttmesh.tensor.calls.dispatch_factories import ProgramCall
from ttmesh.tensor.calls.program_buffers import buffer_rule
from ttmesh.tensor.spec.tensor_spec import TensorSpec

L1_BYTES = 1_499_136  # of a Wormhole core
SMALL = 512 * 1024  # what TT-NN's kernels for short columns may take of L1
LARGE_TILES = 80  # of a row at a time, where a whole one does not fit


@buffer_rule("softmax")
def softmax_buffers(program: ProgramCall) -> int:
    """Rows in one pass; columns and other dims have other kernels."""
    spec, dim = program.inputs[0], program.options.get("dim")
    rank = len(spec.shape)
    place = (-1 if dim is None else int(dim)) % max(rank, 1)
    if place >= rank - 1:
        stable = program.options.get("numeric_stable")
        return _softmax_rows(program, None, stable=True if stable is None else bool(stable))
    size, wide = page_of(spec), FLOAT32 if has_float32_sums(program, True) else BFLOAT16
    if place == rank - 2:
        number = size if spec.dtype is not DataType.BFLOAT8_B else BFLOAT16
        for tiles, needed in ((rows(spec), 2), (2, 1)):  # a whole column, else two tiles at a time
            usage = 2 * tiles * size + needed * tiles * wide + 3 * wide + (0 if needed == 2 else wide)
            if needed == 1 or usage + 2 * number + program_base(program) <= SMALL:
                return usage + 3 * number
    return 5 * size + 5 * wide


def program_base(program: ProgramCall) -> int:
    """Where circular buffers begin, in round numbers: firmware and dispatch take the bottom of L1."""
    return max(L1_BYTES - 1_393_472, 0)


@buffer_rule(
    "softmax_in_place",
    "scale_mask_softmax",
    "scale_mask_softmax_in_place",
    "scale_causal_mask_hw_dims_softmax_in_place",
    "attention_softmax",
)
def masked_softmax_buffers(program: ProgramCall) -> int:
    """Rows, scaled and masked on the way."""
    stable = bool(program.options.get("numeric_stable"))
    return _softmax_rows(program, program.inputs[1] if len(program.inputs) > 1 else None, stable=stable)


def _softmax_rows(program: ProgramCall, mask: TensorSpec | None, *, stable: bool) -> int:
    spec, result = program.inputs[0], program.results[0]
    config = program.options.get("program_config")
    wide = has_float32_sums(program, True)
    sums = FLOAT32 if wide else BFLOAT16
    inner = FLOAT32 if wide and spec.dtype is DataType.FLOAT32 else BFLOAT16
    scaler = FLOAT32 if spec.dtype is DataType.FLOAT32 else BFLOAT16
    masked = BFLOAT16 if mask is None else page_of(mask)
    if hasattr(config, "block_w") and in_l1_shards(spec):
        return _softmax_shards(program, mask, inner, sums, scaler, stable=stable)
    width, block = columns(spec), 4 if wide else 8
    if width % block:
        divisor = max(n for n in range(1, block + 1) if width % n == 0)
        if -(-width // block) == width // divisor:
            block = divisor
    whole = align(width, block)
    padded = spec.shape[-1] % TILE != 0 if spec.shape else False
    own = stable and (mask is not None or padded)  # the rows after the mask have a buffer of their own
    first = whole if stable and not own else 2 * block
    size_in, size_out = page_of(spec), page_of(result)
    total = first * size_in + whole * inner + 2 * block * size_out + 5 * inner + (whole * inner if own else 0)
    if mask is not None:
        total += (whole + block) * inner + BFLOAT16 + whole * masked
    large = total > 0.9 * L1_BYTES
    if large:
        first = whole = LARGE_TILES // block * block
    size = first * size_in + 2 * block * size_out + whole * inner + 2 * sums + scaler + masked
    if large:
        size += 2 * sums + inner + whole * inner
    elif own:
        size += whole * inner
    if mask is not None:
        size += (whole if large else whole + block) * inner + BFLOAT16 + whole * masked
    return size + (inner if stable else 0)


def _softmax_shards(
    program: ProgramCall, mask: TensorSpec | None, inner: int, sums: int, scaler: int, *, stable: bool
) -> int:
    config = program.options["program_config"]
    width, height = int(config.block_w), int(config.block_h)
    size = width * inner + 2 * sums + scaler + (inner + width * inner if stable else 0)
    if mask is not None:
        kept = 0 if in_l1_shards(mask) else width * (2 if mask.layout is Layout.TILE and height > 1 else 1)
        size += width * inner + BFLOAT16 + kept * page_of(mask)
    return size


def norm_buffers(program: ProgramCall, *, rms: bool) -> int:
    """Rows of tiles of the input, of what is left of them, and of weights; long rows in pieces."""
    spec, result, options = program.inputs[0], program.results[0], program.options
    weight, bias, residual = (
        getattr(options.get(name), "spec", None) for name in ("weight", "bias", "residual_input_tensor")
    )
    if in_l1_shards(spec):
        return _norm_shards(program, weight, bias, rms=rms)
    wide = has_float32_sums(program, not rms)
    inner, block = (FLOAT32, 4) if wide else (BFLOAT16, 8)
    by_rows = spec.layout is Layout.ROW_MAJOR
    size_in, size_out = page_of(spec), page_of(result)
    size_more = 0 if residual is None else page_of(residual)

    def first(tiles: int) -> int:
        return tiles if residual is None else 2 * block

    in_rows = any(one is not None and one.layout is Layout.ROW_MAJOR for one in (weight, bias))

    def size_of(whole: int, *, large: bool) -> int:
        tiles_in, tiles_out = first(whole), whole if by_rows else 2 * block
        if by_rows and large:
            tiles_in = tiles_out = block
        size = tiles_in * size_in + tiles_out * size_out + 4 * BFLOAT16 + 2 * inner + 8 * inner
        size += whole * inner  # squares
        if not rms:
            size += 2 * inner
        if not rms or residual is not None or large:
            size += whole * inner
        if large:
            size += inner
        if by_rows:
            size += 2 * block * (size_in + size_out)
        if weight is not None or bias is not None:
            size += 2 * block * inner
        size += sum(whole * page_of(one) for one in (weight, bias) if one is not None)
        if residual is not None:
            size += 2 * block * size_more + (0 if rms else whole * inner)
        return size

    size = size_of(align(columns(spec), block), large=False)
    if size <= 0.95 * (program.free_l1 or L1_BYTES) or (in_rows and not by_rows):
        return size
    heavy = weight is not None or bias is not None or spec.dtype is DataType.FLOAT32
    tiles = (56 if heavy else 112) * BFLOAT16 // inner
    while tiles > block and size_of(tiles, large=True) > 0.95 * (program.free_l1 or L1_BYTES):
        tiles -= block
    return size_of(tiles, large=True)


def _norm_shards(program: ProgramCall, weight: TensorSpec | None, bias: TensorSpec | None, *, rms: bool) -> int:
    """Sums of a core's block, of the other cores' blocks, and of all."""
    spec = program.inputs[0]
    shards = spec.memory_config.shard_spec
    if shards is None:
        return 0
    inner = FLOAT32 if has_float32_sums(program, not rms) else BFLOAT16
    high, wide = (max(-(-extent // TILE), 1) for extent in shards.shape)
    box = shards.grid.bounding_box().grid_size()
    by_rows = shards.orientation is ShardOrientation.ROW_MAJOR
    alone = high == rows(spec) * max(
        spec.padded_shape.volume() // max(spec.padded_shape[-1] * spec.padded_shape[-2], 1), 1
    )
    blocks = shards.num_cores() if alone else box.x if by_rows else box.y
    external, own_rows = -(-columns(spec) // wide), -(-high // blocks)
    if alone and box.x > 1 and box.y > 1 and shards.num_cores() == box.x * box.y:
        external, own_rows = box.x + box.y - 1, -(-high // (box.x if by_rows else box.y))
    size = 2 * BFLOAT16 + inner * (1 + 2 * high + external + own_rows + high) + 2 * high * wide * inner
    if not rms:
        size += inner * (2 * high + external)
    return size + sum(wide * page_of(one) for one in (weight, bias) if one is not None)


@buffer_rule("layer_norm")
def layer_norm_buffers(program: ProgramCall) -> int:
    """With means."""
    return norm_buffers(program, rms=False)


@buffer_rule("rms_norm")
def rms_norm_buffers(program: ProgramCall) -> int:
    """Without means."""
    return norm_buffers(program, rms=True)


@buffer_rule("layer_norm_pre_all_gather", "rms_norm_pre_all_gather")
def statistics_buffers(program: ProgramCall) -> int:
    """Two rows of tiles of the input and of its squares."""
    spec, result = program.inputs[0], program.results[0]
    inner = FLOAT32 if has_float32_sums(program, False) else BFLOAT16
    if in_l1_shards(spec):
        return _norm_shards(program, None, None, rms=columns(result) == 1)
    return 2 * columns(spec) * (page_of(spec) + inner) + inner + columns(result) * page_of(result)


@buffer_rule("layer_norm_post_all_gather")
def gathered_layer_norm_buffers(program: ProgramCall) -> int:
    """A row of tiles of the input, of what is left of it and of the result; the sums of all chips."""
    return _gathered_norm(program, means=True)


@buffer_rule("rms_norm_post_all_gather")
def gathered_rms_norm_buffers(program: ProgramCall) -> int:
    """The same without means."""
    return _gathered_norm(program, means=False)


def _gathered_norm(program: ProgramCall, *, means: bool) -> int:
    spec, result, options = program.inputs[0], program.results[0], program.options
    statistics = program.inputs[1] if len(program.inputs) > 1 else spec
    weight, bias = (getattr(options.get(name), "spec", None) for name in ("weight", "bias"))
    inner = FLOAT32 if has_float32_sums(program, False) else BFLOAT16
    if in_l1_shards(spec):
        return _norm_shards(program, weight, bias, rms=not means) + columns(statistics) * page_of(statistics)
    width = columns(spec)
    size = width * (page_of(spec) + page_of(result)) + columns(statistics) * page_of(statistics) + 4 * inner
    if means:
        size += width * inner + 3 * inner
    given = [one for one in (weight, bias) if one is not None]
    return size + sum(width * page_of(one) for one in given) + (width * inner if given else 0)


@buffer_rule("batch_norm")
def batch_norm_buffers(program: ProgramCall) -> int:
    """Two tiles of every operand, present or not, and two on the way."""
    return 14 * page_of(program.inputs[0]) + 4 * BFLOAT16


@buffer_rule("moreh_softmax", "moreh_softmin", "moreh_logsoftmax")
def moreh_softmax_buffers(program: ProgramCall) -> int:
    """A row or a column of tiles of the input, the result, its powers and differences; other dims tile by tile."""
    spec, dim = program.inputs[0], program.options.get("dim")
    rank, inner = len(spec.shape), FLOAT32 if has_float32_sums(program, False) else page_of(spec)
    place = (int(dim) if isinstance(dim, int) else -1) % max(rank, 1)
    if place < rank - 2:
        return 5 * page_of(spec) + 5 * inner
    tiles = columns(spec) if place >= rank - 1 else rows(spec)
    return 2 * tiles * page_of(spec) + 2 * tiles * inner + 3 * page_of(spec) + 3 * inner


@buffer_rule("moreh_mean")
def moreh_mean_buffers(program: ProgramCall) -> int:
    """Tiles in and out, a mask, numbers and sums."""
    return 7 * page_of(program.inputs[0])


@buffer_rule("moreh_sum")
def moreh_sum_buffers(program: ProgramCall) -> int:
    """Tiles in and out, a mask, numbers and sums, by direction."""
    spec, rank = program.inputs[0], len(program.inputs[0].shape)
    stage = program.options.get("stage")
    dim = stage if isinstance(stage, int) else stage[0] if stage else program.options.get("dim")
    place = (int(dim) if isinstance(dim, int) else -1) % max(rank, 1)
    return (5 if place < rank - 2 else 8 if place == rank - 2 else 9) * page_of(spec)


@buffer_rule("moreh_layer_norm")
def moreh_layer_norm_buffers(program: ProgramCall) -> int:
    """All tiles that are normalised together, twice; where they do not fit, two blocks of up to four. Weights in blocks."""
    spec, options = program.inputs[0], program.options
    rank, outer = len(spec.shape), options.get("rows")
    if not options.get("layer", True) or rank < 2:
        return 0
    dims = next((n for n in range(1, rank + 1) if prod(spec.shape[: rank - n]) == outer), 1)
    inner = columns(spec) * (1 if dims == 1 else rows(spec) * prod(spec.shape[rank - dims : rank - 2]))
    wide = has_float32_sums(program, False)
    block = max(n for n in range(1, 3 if wide else 5) if inner % n == 0)
    given = sum(options.get(name) is not None for name in ("gamma", "beta"))
    masks = (spec.shape[-1] % TILE != 0) + (dims > 1 and spec.shape[-2] % TILE != 0)
    size, sums_size = page_of(spec), FLOAT32 if wide else page_of(spec)

    def usage(whole: int, squares: int) -> int:
        values = whole + 2 + 2 * block * (given + 1) + masks
        return values * size + (whole + squares + 6 + (2 * block if given else 0)) * sums_size

    small = usage(inner, 1)
    return small if small < L1_BYTES - program_base(program) else usage(2 * block, 2 * block)


@buffer_rule("moreh_dot")
def moreh_dot_buffers(program: ProgramCall) -> int:
    """Two tiles of each operand and of their products, and three more."""
    return 9 * page_of(program.inputs[0])


@buffer_rule("moreh_matmul")
def moreh_matmul_buffers(program: ProgramCall) -> int:
    """Tiles of both operands, their masks, the result, and sums."""
    return 20 * page_of(program.inputs[0])
