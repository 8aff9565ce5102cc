"""GEMMs of masked bfloat16 operands on tensor cores whose sums are rounded as a destination is (see fpu_gemm.c).

A 16-bit destination is rounded after every 16 of K (chip/numerics/realistic_matmul.py). In a large matmul only the sum in
L1 is, after each block of K up to 64; where blocks are longer, after every 64, with few rows after every 128, and what the
other roundings would have done is drawn from the sum's own last bits. A 32-bit destination is not rounded.
"""

from __future__ import annotations

import math

import torch
import triton
from torch.nn.functional import pad
from triton.tools.tensor_descriptor import TensorDescriptor

from ttmesh.chip.formats.kernels.gpu.gpu_fpu_gemm_kernels import (
    STEP,
    TILE,
    mask_both,
    multiply_blocks,
    multiply_steps,
    multiply_tiles,
    pack_elements,
)

SHORT_BLOCK = 64  # of K: in large matmuls up to this length only the sum is rounded
DECODE_ROWS = 64  # up to so many the weights are read once, and masked on the way,
DECODE_BLOCK = 128  # in pieces of so much of K
PACK_BLOCK = 2048
MASK_BLOCK = 2048  # on an H200 4096 take 1 % of a matmul longer
ALIGNED = 8  # elements of bfloat16: the unit that copies tiles takes rows of whole 16 bytes
STEP_PRODUCTS = 1 << 27  # up to so many, registers are rounded after every 16 of K: 20 times a GEMM's time
# How many roundings of the whole sum spread results as far as those after every 16 of K do, for each of these: as measured
# on normal numbers (more) and uniform ones (fewer), K = 1024 to 4096. The second for fidelities that write twice.
_ROUNDINGS_PER_STEP = (3.0, 5.0)


def pack_bfloat16(dest: torch.Tensor) -> torch.Tensor:
    """Float32 registers as the packer writes bfloat16."""
    source = dest.contiguous()
    target = torch.empty(source.shape, dtype=torch.bfloat16, device=source.device)
    if source.numel():
        pack_elements[(triton.cdiv(source.numel(), PACK_BLOCK),)](source, target, source.numel(), BLOCK=PACK_BLOCK)
    return target


def multiply(
    a: torch.Tensor,
    b: torch.Tensor,
    x_mask: int,
    w_mask: int,
    *,
    block: int | None,
    lower: float,
    packed: bool,
) -> torch.Tensor:
    """Destination registers of bfloat16 lanes [n, M, K] @ [n, K, N]; masks are of float32 patterns.

    Args:
        block: of K, whole tiles, added up in L1; None: a 32-bit destination.
        lower: the share of a tile's sum that the last write to a 16-bit destination brings; 0: there is no such write.
        packed: in bfloat16, as the packer writes it, rather than in float32.
    """
    batches, rows, depth = a.shape
    columns = b.shape[-1]
    out = torch.empty(batches, rows, columns, device=a.device, dtype=torch.bfloat16 if packed else torch.float32)
    if out.numel() == 0 or depth == 0:
        return out.zero_()
    is_large = batches * rows * depth * columns > STEP_PRODUCTS
    period = DECODE_BLOCK if rows <= DECODE_ROWS else SHORT_BLOCK
    if block is None or (is_large and block <= period == SHORT_BLOCK):
        return _multiply_short(a, b, out, x_mask, w_mask, period if block is None else block, None, block is not None)
    if is_large:
        spread = _choose_spread(depth, min(block, depth), period, writes_twice=lower > 0)
        return _multiply_short(a, b, out, x_mask, w_mask, period, spread, True)
    x, w = _pad_depth(a, -1, TILE.value), _pad_depth(b, -2, TILE.value)
    deep = x.shape[-1]
    options = {"ROWS": 64, "COLUMNS": 128, "BAND": 8, "num_warps": 8, "num_stages": 3}
    if rows <= DECODE_ROWS:
        # 32 at most: with 64 ptxas 12.8 drops the products of this loop, and the result is zero.
        options = {"ROWS": min(32, _rows_of(rows)), "COLUMNS": 32, "BAND": 1, "num_warps": 4, "num_stages": 4}
    multiply_steps[_grid(out, options)](
        *(x, w, out, rows, columns, deep, min(block, deep), x_mask >> 16, w_mask >> 16, lower, *_strides(x, w)),
        TWICE=lower > 0,
        PACK=packed,
        **options,
    )
    return out


def _choose_spread(depth: int, block: int, period: int, *, writes_twice: bool) -> tuple[float, float]:
    """How far `_spread` moves a sum that was rounded once a period of K and should have been after every 16 of a block.

    A step's rounding moves it by 1/16 of the last place on average, while that grows from nothing to the sum's.
    """
    steps = block / STEP.value
    wanted = _ROUNDINGS_PER_STEP[writes_twice] * steps + depth / block
    missing = max(0.0, wanted - depth / period)
    drift = steps / 16
    width = math.sqrt(max(0.0, missing - drift * drift))
    return (width + drift) / 2, (width - drift) / 2


def _multiply_short(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    x_mask: int,
    w_mask: int,
    whole: int,
    spread: tuple[float, float] | None,
    narrow: bool,
) -> torch.Tensor:
    """Tensor cores read operands from shared memory, so they are masked beforehand; but few rows read weights once."""
    rows, columns = out.shape[1:]
    is_decode = rows <= DECODE_ROWS
    left, right = (a, b) if is_decode else mask_operands(a, b, x_mask, w_mask)
    x, w = _pad_depth(left, -1, whole), _pad_depth(right, -2, whole)
    deep = x.shape[-1]
    forms = {
        "NARROW": narrow,
        "SPREAD": spread is not None,
        "PACK": out.dtype is torch.bfloat16,
        "BLOCK": whole,
    }
    if not is_decode and columns % ALIGNED == 0:
        options = {"ROWS": 128, "COLUMNS": 128, "BAND": 8, "num_warps": 8, "num_stages": 3}
        tiles = _describe_tiles(x, (128, whole)), _describe_tiles(w, (whole, 128))
        sizes = rows, columns, deep, 0 if len(x) == 1 else rows, 0 if len(w) == 1 else deep
        multiply_tiles[_grid(out, options)](*tiles, out, *sizes, *(spread or (0.0, 0.0)), **forms, **options)
        return out
    options = {"ROWS": 128, "COLUMNS": 128, "BAND": 8, "num_warps": 4, "num_stages": 3}  # two programs at a time
    if is_decode:
        options = {"ROWS": _rows_of(rows), "COLUMNS": 32, "BAND": 1, "num_warps": 4, "num_stages": 4}
    multiply_blocks[_grid(out, options)](
        *(x, w, out, rows, columns, deep, x_mask >> 16, w_mask >> 16, *_strides(x, w), *(spread or (0.0, 0.0))),
        X_MASK=is_decode and not keeps_all(x_mask),
        W_MASK=is_decode and not keeps_all(w_mask),
        **forms,
        **options,
    )
    return out


def _describe_tiles(matrices: torch.Tensor, tile: tuple[int, int]) -> TensorDescriptor:
    """Contiguous matrices, one below the other."""
    flat = matrices.flatten(0, 1)
    if flat.data_ptr() % (2 * ALIGNED):
        flat = flat.clone()
    return TensorDescriptor(flat, list(flat.shape), list(flat.stride()), list(tile))


def mask_operands(a: torch.Tensor, b: torch.Tensor, x_mask: int, w_mask: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bfloat16 operands with the bits of masks of float32; the same tensors where those keep all."""
    if keeps_all(x_mask) or keeps_all(w_mask) or not (a.is_contiguous() and b.is_contiguous()):
        return _mask_operand(a, x_mask), _mask_operand(b, w_mask)
    x, w = torch.empty_like(a), torch.empty_like(b)
    blocks = triton.cdiv(a.numel(), MASK_BLOCK) + triton.cdiv(b.numel(), MASK_BLOCK)
    counts, masks = (a.numel(), b.numel()), (x_mask >> 16, w_mask >> 16)
    mask_both[(blocks,)](a, b, x, w, *counts, *masks, BLOCK=MASK_BLOCK, num_warps=4)
    return x, w


def _mask_operand(values: torch.Tensor, mask: int) -> torch.Tensor:
    if keeps_all(mask):
        return values
    return (values.view(torch.int16) & (mask >> 16)).view(torch.bfloat16)


def keeps_all(mask: int) -> bool:
    """Whether a mask of float32 patterns keeps every bit of a bfloat16."""
    return (mask >> 16) & 0xFFFF == 0xFFFF


def _rows_of(rows: int) -> int:
    """Of a tile for few rows: tensor cores take 16 at least."""
    return max(16, 1 << (rows - 1).bit_length())


def _strides(x: torch.Tensor, w: torch.Tensor) -> tuple[int, int]:
    """The stride from one batch to the next; 0 where all batches share one matrix."""
    return 0 if len(x) == 1 else x.stride(0), 0 if len(w) == 1 else w.stride(0)


def _grid(out: torch.Tensor, options: dict[str, int]) -> tuple[int, int]:
    batches, rows, columns = out.shape
    return triton.cdiv(rows, options["ROWS"]) * triton.cdiv(columns, options["COLUMNS"]), batches


def _pad_depth(values: torch.Tensor, dim: int, whole: int) -> torch.Tensor:
    """Contiguous matrices with K in whole pieces; one matrix if all batches share it."""
    if values.stride(0) == 0:
        values = values[:1]
    missing = -values.shape[dim] % whole
    if missing:
        values = pad(values, (0, missing) if dim == -1 else (0, 0, 0, missing))
    return values.contiguous()


def warm_up() -> None:
    """Compile and launch once: what cannot work here fails now."""
    ones = torch.ones((1, 32, 32), device="cuda", dtype=torch.bfloat16)
    multiply(ones, ones, -1, -1, block=32, lower=0.0, packed=False)
