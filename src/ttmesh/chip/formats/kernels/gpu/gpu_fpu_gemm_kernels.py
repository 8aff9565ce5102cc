"""Triton kernels of GEMMs whose sums are rounded as a destination is; `gpu_fpu_gemm.py` chooses among them."""

from __future__ import annotations

import triton
import triton.language as tl

TILE = tl.constexpr(32)
STEP = tl.constexpr(16)  # of K between two writes to the destination


@triton.jit
def _keep_bits(values, mask):
    return (values.to(tl.int16, bitcast=True) & mask.to(tl.int16)).to(tl.bfloat16, bitcast=True)


@triton.jit
def _round(values):
    """To 11 bits and then to 8, ties away."""
    bits = (values.to(tl.int32, bitcast=True) + 0x9000) & -0x10000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _round_even(values):
    bits = values.to(tl.int32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def _round_pairs(values):
    """To bfloat16, nearest even: Triton converts one at a time, at a sixth of this speed."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 both;
        cvt.rn.bf16x2.f32 both, $3, $2;
        shl.b32 $0, both, 16;
        and.b32 $1, both, 0xFFFF0000;
        }
        """,
        "=r,=r,r,r",
        args=[values],
        dtype=tl.float32,
        is_pure=True,
        pack=2,
    )


@triton.jit
def _pack(dest):
    """Bfloat16 as the packer writes it: ties away, NaN becomes infinity, subnormals and -0 become +0."""
    bits = dest.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    rounded = tl.where(magnitude > 0x7F7F7FFF, 0x7F800000, magnitude + 0x8000) | (bits & -0x80000000)
    packed = tl.where(magnitude < 0x800000, 0, rounded)
    return (packed >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _spread(values, above, below):
    """Moved by a random part of their last place (of 8 bits): up to `above` away from zero and `below` towards it.

    Drawn from the 16 and from the 8 lowest bits: a sum that needs no rounding stays as it is.
    """
    bits = values.to(tl.int32, bitcast=True)
    first = values - (bits & -0x10000).to(tl.float32, bitcast=True)
    second = values - (bits & -0x100).to(tl.float32, bitcast=True)
    return values + first * above - second * (below * 256)


@triton.jit
def _place(rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BAND: tl.constexpr):
    """A program's first row and column: bands of BAND tiles of rows, so that neighbours share what they read."""
    down = tl.cdiv(rows, ROWS)
    across = tl.cdiv(columns, COLUMNS)
    number = tl.program_id(0)
    first = number // (BAND * across) * BAND
    high = tl.minimum(down - first, BAND)
    inside = number % (BAND * across)
    return (first + inside % high) * ROWS, inside // high * COLUMNS


@triton.jit
def multiply_blocks(
    x_pointer,
    w_pointer,
    out_pointer,
    rows,
    columns,
    depth,
    x_mask,
    w_mask,
    x_batch,
    w_batch,
    above,
    below,
    NARROW: tl.constexpr,
    SPREAD: tl.constexpr,
    X_MASK: tl.constexpr,
    W_MASK: tl.constexpr,
    PACK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    BAND: tl.constexpr,
):
    """A tile of the output of x [rows, depth] times w [depth, columns]; depth is padded to whole blocks, the rest is not."""
    top, edge = _place(rows, columns, ROWS, COLUMNS, BAND)
    row, column = top + tl.arange(0, ROWS), edge + tl.arange(0, COLUMNS)
    batch = tl.program_id(1).to(tl.int64)
    step = tl.arange(0, BLOCK)
    read_row = row % rows  # what lies outside is computed again and not stored
    read_column = column % columns
    x = x_pointer + batch * x_batch + read_row[:, None].to(tl.int64) * depth + step[None, :]
    w = w_pointer + batch * w_batch + step[:, None].to(tl.int64) * columns + read_column[None, :]
    dest = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(0, depth, BLOCK):
        left = tl.load(x)
        right = tl.load(w)
        if X_MASK:
            left = _keep_bits(left, x_mask)
        if W_MASK:
            right = _keep_bits(right, w_mask)
        if NARROW:  # what L1 holds, to nearest even
            dest = _round_pairs(dest)
        dest = tl.dot(left, right, dest)
        x += BLOCK
        w += tl.cast(columns, tl.int64) * BLOCK
    if SPREAD:
        dest = _spread(dest, above, below)
    out = out_pointer + batch * rows * columns + row[:, None].to(tl.int64) * columns + column[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(out, _pack(dest) if PACK else dest, mask=inside)


@triton.jit
def multiply_tiles(
    x_tiles,
    w_tiles,
    out_pointer,
    rows,
    columns,
    depth,
    x_rows,
    w_rows,
    above,
    below,
    NARROW: tl.constexpr,
    SPREAD: tl.constexpr,
    PACK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    BAND: tl.constexpr,
):
    """The same for many rows, with the unit that copies tiles: x [n * x_rows, depth], w [n * w_rows, columns]."""
    top, edge = _place(rows, columns, ROWS, COLUMNS, BAND)
    batch = tl.program_id(1)
    x_top, w_top = batch * x_rows + top, batch * w_rows
    dest = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(0, depth, BLOCK):
        left = x_tiles.load([x_top, k])
        right = w_tiles.load([w_top + k, edge])
        if NARROW:
            dest = _round_pairs(dest)
        dest = tl.dot(left, right, dest)
    if SPREAD:
        dest = _spread(dest, above, below)
    row, column = top + tl.arange(0, ROWS), edge + tl.arange(0, COLUMNS)
    out = out_pointer + batch.to(tl.int64) * rows * columns + row[:, None].to(tl.int64) * columns + column[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(out, _pack(dest) if PACK else dest, mask=inside)


@triton.jit
def multiply_steps(
    x_pointer,
    w_pointer,
    out_pointer,
    rows,
    columns,
    depth,
    block,
    x_mask,
    w_mask,
    lower,
    x_batch,
    w_batch,
    TWICE: tl.constexpr,
    PACK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BAND: tl.constexpr,
):
    """The same with a register that is rounded after every 16 of K; depth is padded to whole tiles."""
    top, edge = _place(rows, columns, ROWS, COLUMNS, BAND)
    row, column = top + tl.arange(0, ROWS), edge + tl.arange(0, COLUMNS)
    step = tl.arange(0, STEP)
    batch = tl.program_id(1).to(tl.int64)
    x = x_pointer + batch * x_batch + (row % rows)[:, None].to(tl.int64) * depth + step[None, :]
    w = w_pointer + batch * w_batch + step[:, None].to(tl.int64) * columns + (column % columns)[None, :]
    dest = tl.zeros((ROWS, COLUMNS), tl.float32)
    held = dest
    for start in range(0, depth, block):
        for k in range(start, tl.minimum(start + block, depth), TILE):
            before = dest
            left = _keep_bits(tl.load(x + k), x_mask)
            right = _keep_bits(tl.load(w + tl.cast(k, tl.int64) * columns), w_mask)
            dest = _round(tl.dot(left, right, dest))
            left = _keep_bits(tl.load(x + k + STEP), x_mask)
            right = _keep_bits(tl.load(w + tl.cast(k + STEP, tl.int64) * columns), w_mask)
            dest = tl.dot(left, right, dest)
            if TWICE:
                second = tl.where(dest.to(tl.int32, bitcast=True) << 16 == 0, 0.0, (dest - before) * lower)
                dest = _round(_round(dest - second) + second)
            else:
                dest = _round(dest)
        held = tl.where(start == 0, dest, _round_even(held + dest))
        on_top = tl.where(start + 2 * block >= depth, held, 0.0)
        dest = tl.where(start + block >= depth, dest, on_top)  # the last block is computed on top of the others
    out = out_pointer + batch * rows * columns + row[:, None].to(tl.int64) * columns + column[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(out, _pack(dest) if PACK else dest, mask=inside)


@triton.jit
def pack_elements(source, target, count, BLOCK: tl.constexpr):
    """Registers as the packer writes bfloat16."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, _pack(tl.load(source + at, mask=at < count)), mask=at < count)


@triton.jit
def mask_both(x, w, x_out, w_out, x_count, w_count, x_mask, w_mask, BLOCK: tl.constexpr):
    """Both operands in one launch; the GPU's cache is to keep what the matmul reads next."""
    x_blocks = tl.cdiv(x_count, BLOCK)
    number = tl.program_id(0)
    if number < x_blocks:
        at = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(x + at, mask=at < x_count, eviction_policy="evict_first")
        tl.store(x_out + at, _keep_bits(values, x_mask), mask=at < x_count, eviction_policy="evict_last")
    else:
        at = (number - x_blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(w + at, mask=at < w_count, eviction_policy="evict_first")
        tl.store(w_out + at, _keep_bits(values, w_mask), mask=at < w_count, eviction_policy="evict_last")
