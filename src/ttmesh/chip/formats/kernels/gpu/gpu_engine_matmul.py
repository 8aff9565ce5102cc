"""The matrix engine's products on a GPU, bit for bit, by engine_matmul.c's form, where no exponent can leave the range.

Eight products aligned and rounded are eight fused multiply-adds onto 1.5 * 2^23 (see the C file for why).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.nn.functional import pad

TILE = tl.constexpr(32)
ROWS, COLUMNS, WARPS = 32, 64, 4
LEAST, MOST = 83, 172  # biased exponents of operands: products, sums and what is left when they cancel stay normal
_MAGIC = tl.constexpr(0x4B400000)  # 1.5 * 2^23
_NOTHING = tl.constexpr(-1000)


@triton.jit
def _exponent(values):
    """Biased exponents; those of zeros lie below all others."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(bits << 1 == 0, _NOTHING, (bits >> 23) & 0xFF)


@triton.jit
def _keep_bits(values, MASK: tl.constexpr):
    return (values.to(tl.int32, bitcast=True) & MASK).to(tl.float32, bitcast=True)


@triton.jit
def _add_product(x, w, unit, first, second, third, fourth, PHASES: tl.constexpr):
    """One of eight products onto the sums of every phase."""
    x_high = _keep_bits(x, -0x20000)
    w_high = _keep_bits(w, -0x80000)
    first = tl.fma(x_high * w_high, unit, first)
    if PHASES > 1:
        w_low = (_keep_bits(w, -0x4000) - w_high) * 32.0
        second = tl.fma(x_high * w_low, unit, second)
        if PHASES > 2:
            x_low = (_keep_bits(x, -0x2000) - x_high) * 128.0
            third = tl.fma(x_low * w_high, unit, third)
            if PHASES > 3:
                fourth = tl.fma(x_low * w_low, unit, fourth)
    return first, second, third, fourth


@triton.jit
def _sum_group(x, w, x_step, w_step, PHASES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sums of eight products in every phase, as integers, and their exponent."""
    x0 = tl.load(x)
    x1 = tl.load(x + x_step)
    x2 = tl.load(x + 2 * x_step)
    x3 = tl.load(x + 3 * x_step)
    x4 = tl.load(x + 4 * x_step)
    x5 = tl.load(x + 5 * x_step)
    x6 = tl.load(x + 6 * x_step)
    x7 = tl.load(x + 7 * x_step)
    w0 = tl.load(w)
    w1 = tl.load(w + w_step)
    w2 = tl.load(w + 2 * w_step)
    w3 = tl.load(w + 3 * w_step)
    w4 = tl.load(w + 4 * w_step)
    w5 = tl.load(w + 5 * w_step)
    w6 = tl.load(w + 6 * w_step)
    w7 = tl.load(w + 7 * w_step)
    most = _exponent(x0) + _exponent(w0)
    most = tl.maximum(most, _exponent(x1) + _exponent(w1))
    most = tl.maximum(most, _exponent(x2) + _exponent(w2))
    most = tl.maximum(most, _exponent(x3) + _exponent(w3))
    most = tl.maximum(most, _exponent(x4) + _exponent(w4))
    most = tl.maximum(most, _exponent(x5) + _exponent(w5))
    most = tl.maximum(most, _exponent(x6) + _exponent(w6))
    most = tl.maximum(most, _exponent(x7) + _exponent(w7))
    unit = (((391 - tl.maximum(most, 140)) << 23) | 0x200).to(tl.float32, bitcast=True)
    a = tl.full((ROWS, COLUMNS), 12582912.0, tl.float32)
    b = a
    c = a
    d = a
    a, b, c, d = _add_product(x0, w0, unit, a, b, c, d, PHASES)
    a, b, c, d = _add_product(x1, w1, unit, a, b, c, d, PHASES)
    a, b, c, d = _add_product(x2, w2, unit, a, b, c, d, PHASES)
    a, b, c, d = _add_product(x3, w3, unit, a, b, c, d, PHASES)
    a, b, c, d = _add_product(x4, w4, unit, a, b, c, d, PHASES)
    a, b, c, d = _add_product(x5, w5, unit, a, b, c, d, PHASES)
    a, b, c, d = _add_product(x6, w6, unit, a, b, c, d, PHASES)
    a, b, c, d = _add_product(x7, w7, unit, a, b, c, d, PHASES)
    a = a.to(tl.int32, bitcast=True) - _MAGIC
    b = b.to(tl.int32, bitcast=True) - _MAGIC
    c = c.to(tl.int32, bitcast=True) - _MAGIC
    d = d.to(tl.int32, bitcast=True) - _MAGIC
    return a, b, c, d, most - 127


@triton.jit
def _shift(values, by):
    """Right, to nearest, ties up: values come with one bit more below, which one is added to and which is cut at the end."""
    return ((values >> tl.minimum(by, 31)) + 1) >> 1


@triton.jit
def _write(
    first, second, most, first_gap, second_gap, dest, LOWER: tl.constexpr, WIDE: tl.constexpr, FAULT: tl.constexpr
):
    """Two sums and the destination at their largest exponent, added and rounded: the new destination's pattern."""
    held = (dest >> 23) & 0xFF
    held = tl.where(held == 0, _NOTHING, held)
    top = most - LOWER
    exponent = tl.maximum(top, held)
    gap = exponent - top
    a = _shift(first << 14, gap + first_gap)
    b = _shift(second << 14, gap + second_gap)
    d = _shift(((dest & 0x7FFFFF) | 0x800000) << 1, exponent - held)
    sign = dest >> 31
    if WIDE:
        total = a + b + ((d ^ sign) - sign)
        if FAULT:
            total = tl.where(total == -1, -(1 << 27), total)
        magnitude = tl.abs(total)
        # Above 24 bits the conversion rounds to even: one bit more below makes ties go away.
        doubled = magnitude + magnitude + (magnitude > 0xFFFFFF).to(tl.int32)
        bits = doubled.to(tl.float32).to(tl.int32, bitcast=True)
        place = exponent - 151
    else:
        a = (a + 4096) >> 13
        b = (b + 4096) >> 13
        d = (d + 4096) >> 13
        total = a + b + ((d ^ sign) - sign)
        number = (tl.abs(total) | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
        bits = (number.to(tl.int32, bitcast=True) + 0x8000) & -0x10000
        place = exponent - 137
    result = (bits + (place << 23)) | ((total >> 31) << 31)
    return tl.where(total == 0, 0, result)


@triton.jit
def _add_in_l1(held, block, WIDE: tl.constexpr):
    """What L1 holds and a block, to nearest even."""
    total = held + block
    if not WIDE:
        bits = total.to(tl.int32, bitcast=True)
        total = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    return total


@triton.jit
def _multiply(
    x_pointer,
    w_pointer,
    out_pointer,
    rows,
    columns,
    depth,
    x_batch,
    w_batch,
    block,
    PHASES: tl.constexpr,
    WIDE: tl.constexpr,
    FAULT: tl.constexpr,
    KEEP: tl.constexpr,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A tile of the output: x [depth, rows] transposed times w [depth, columns], all padded."""
    across = columns // COLUMNS
    row = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    batch = tl.program_id(1).to(tl.int64)
    x = x_pointer + batch * x_batch + row[:, None]
    w = w_pointer + batch * w_batch + column[None, :]
    out = out_pointer + batch * rows * columns + row[:, None].to(tl.int64) * columns + column[None, :]
    dest = tl.zeros((ROWS, COLUMNS), tl.int32)
    held = tl.zeros((ROWS, COLUMNS), tl.float32)
    if KEEP:
        dest = tl.load(out)
    for start in range(0, depth, block):
        for k in range(start, tl.minimum(start + block, depth), TILE):
            x_tile = x + tl.cast(k, tl.int64) * rows
            w_tile = w + tl.cast(k, tl.int64) * columns
            a0, a1, a2, a3, ea = _sum_group(x_tile, w_tile, rows, columns, PHASES, ROWS, COLUMNS)
            b0, b1, b2, b3, eb = _sum_group(
                x_tile + 8 * rows, w_tile + 8 * columns, rows, columns, PHASES, ROWS, COLUMNS
            )
            c0, c1, c2, c3, ec = _sum_group(
                x_tile + 16 * rows, w_tile + 16 * columns, rows, columns, PHASES, ROWS, COLUMNS
            )
            d0, d1, d2, d3, ed = _sum_group(
                x_tile + 24 * rows, w_tile + 24 * columns, rows, columns, PHASES, ROWS, COLUMNS
            )
            left = tl.maximum(ea, eb)
            right = tl.maximum(ec, ed)
            ea = left - ea
            eb = left - eb
            ec = right - ec
            ed = right - ed
            dest = _write(a0, b0, left, ea, eb, dest, 0, WIDE, FAULT)
            dest = _write(c0, d0, right, ec, ed, dest, 0, WIDE, FAULT)
            if PHASES > 1:
                dest = _write(a1, b1, left, ea, eb, dest, 5, WIDE, FAULT)
                dest = _write(c1, d1, right, ec, ed, dest, 5, WIDE, FAULT)
            if PHASES > 2:
                dest = _write(a2, b2, left, ea, eb, dest, 7, WIDE, FAULT)
                dest = _write(c2, d2, right, ec, ed, dest, 7, WIDE, FAULT)
            if PHASES > 3:
                dest = _write(a3, b3, left, ea, eb, dest, 12, WIDE, FAULT)
                dest = _write(c3, d3, right, ec, ed, dest, 12, WIDE, FAULT)
        if ADD:
            value = dest.to(tl.float32, bitcast=True)
            held = tl.where(start == 0, value, _add_in_l1(held, value, WIDE))
            on_top = tl.where(start + 2 * block >= depth, held.to(tl.int32, bitcast=True), 0)
            dest = tl.where(start + block >= depth, dest, on_top)  # the last block is computed on top of the others
    tl.store(out, dest)


def supports(*operands: torch.Tensor) -> bool:
    """Whether every exponent of these float32 values is in range; waits for the GPU."""
    inside = [_in_range(values) for values in operands]
    return bool(torch.stack(inside).all())


def _in_range(values: torch.Tensor) -> torch.Tensor:
    exponents = (values.view(torch.int32) >> 23) & 0xFF
    return ((exponents == 0) | ((exponents >= LEAST) & (exponents <= MOST))).all()


def multiply(
    a: torch.Tensor,
    b: torch.Tensor,
    dest: torch.Tensor | None,
    *,
    phases: int,
    fp32_dest: bool,
    fault: bool,
    block: int | None = None,
) -> torch.Tensor:
    """Destination registers after [n, M, K] @ [n, K, N] of unpacked float32 operands, on top of `dest`.

    Args:
        block: of K, added up in L1; None: all of K in the destination.
    """
    batches, rows, depth = a.shape
    columns = b.shape[-1]
    down, right, deep = -rows % ROWS, -columns % COLUMNS, -depth % TILE.value
    x = _flush(pad(a.mT, (0, down, 0, deep))).contiguous()
    w = _flush(pad(b, (0, right, 0, deep))).contiguous()
    out = torch.empty(batches, rows + down, columns + right, dtype=torch.int32, device=a.device)
    if dest is not None:
        out = pad(dest.contiguous().view(torch.int32), (0, right, 0, down)).contiguous()
    grid = ((rows + down) // ROWS * ((columns + right) // COLUMNS), batches)
    whole = depth + deep
    _multiply[grid](
        *(x, w, out, rows + down, columns + right, whole),
        *(x.stride(0), w.stride(0), min(block or whole, whole)),
        PHASES=phases,
        WIDE=fp32_dest,
        FAULT=fault,
        KEEP=dest is not None,
        ADD=block is not None,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        num_warps=WARPS,
    )
    return out.view(torch.float32)[:, :rows, :columns]


def _flush(values: torch.Tensor) -> torch.Tensor:
    """Subnormals count as zero."""
    return values.masked_fill(values.abs() < 2.0**-126, 0.0)


def warm_up() -> None:
    """Compile and launch once: what cannot work here fails now."""
    ones = torch.ones((1, 32, 32), device="cuda")
    multiply(ones, ones, None, phases=1, fp32_dest=False, fault=False)
