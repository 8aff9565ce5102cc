"""A GEMM of cut bfloat16 operands on tensor cores whose sums are rounded as a 16-bit destination is (see engine_gemm.c)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.nn.functional import pad

TILE = tl.constexpr(32)
STEP = tl.constexpr(16)  # of K between two writes to the destination
ROWS, COLUMNS, WARPS = 64, 128, 8


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
def _multiply(
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
    TWICE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A tile of the output of x [rows, depth] times w [depth, columns], all padded."""
    across = columns // COLUMNS
    row = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    step = tl.arange(0, STEP)
    batch = tl.program_id(1).to(tl.int64)
    x = x_pointer + batch * rows * depth + row[:, None].to(tl.int64) * depth + step[None, :]
    w = w_pointer + batch * depth * columns + step[:, None] * columns + column[None, :]
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
    tl.store(out, dest)


def multiply(a: torch.Tensor, b: torch.Tensor, x_mask: int, w_mask: int, *, block: int, lower: float) -> torch.Tensor:
    """Destination registers of bfloat16 lanes [n, M, K] @ [n, K, N]; masks are of float32 patterns, blocks whole tiles."""
    batches, rows, depth = a.shape
    columns = b.shape[-1]
    down, right, deep = -rows % ROWS, -columns % COLUMNS, -depth % TILE.value
    x, w = pad(a, (0, deep, 0, down)).contiguous(), pad(b, (0, right, 0, deep)).contiguous()
    out = torch.empty(batches, rows + down, columns + right, device=a.device)
    grid = ((rows + down) // ROWS * ((columns + right) // COLUMNS), batches)
    _multiply[grid](
        *(x, w, out, rows + down, columns + right, depth + deep, min(block, depth + deep)),
        *(x_mask >> 16, w_mask >> 16, lower),
        TWICE=lower > 0,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        num_warps=WARPS,
    )
    return out[:, :rows, :columns]


def warm_up() -> None:
    """Compile and launch once: what cannot work here fails now."""
    ones = torch.ones((1, 32, 32), device="cuda", dtype=torch.bfloat16)
    multiply(ones, ones, -1, -1, block=32, lower=0.0)
