"""Matmul close to the chip's at about the cost of a GEMM: a fidelity's dropped bits, and the rounding of the destination.

With a 32-bit destination only the dropped bits show. A 16-bit one is rounded after every 16 of K, to 11 bits and then to
8, ties away, which is adding 9/16 of the last place and truncating: sums drift upwards. Fidelities above LoFi write the
products of the weights' lower bits afterwards; they are taken for a fixed share of the tile's sum. docs/numerics.md says
what is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch.nn.functional import pad

from ttmesh.base.dtypes import DataType, MathFidelity, bfloat4_b, bfloat8_b, bfloat16, float32
from ttmesh.chip.formats.kernels import fpu_gemm, fpu_matmul
from ttmesh.chip.formats.kernels.fpu_gemm import OperandMasks
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.numerics import exact_matmul
from ttmesh.chip.numerics.exact_matmul import batch_shape
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.packer import add_block, pack_lanes
from ttmesh.chip.numerics.unpacker import BF16_MASK

EXACT_PRODUCTS = 1 << 22  # 2 ms of one core, by benchmarks/numerics.py
TILE, STEP = 32, 16  # of K: a tile, and what is added between two writes to the destination
# Fraction bits that reach the multiplier: SrcB's upper 6 and all 10, SrcA's upper 4 and all but the last.
_A_UPPER, _A_FULL = ~0x1FFFF, ~0x1FFF
_B_UPPER, _B_FULL = ~0x7FFFF, ~0x3FFF
# The share of a weight in the bits that LoFi drops, on average over normal and uniform numbers.
_LOWER_SHARES = {bfloat8_b: 0.012, bfloat4_b: 0.0}
_LOWER_SHARE = 0.02

Gemm = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def matmul(a: torch.Tensor, b: torch.Tensor, config: FpuConfig, *, gemm: Gemm = torch.matmul) -> torch.Tensor:
    """[..., M, K] @ [..., K, N] of lanes, packed to the output format's lanes; batch dims broadcast."""
    packed = config.out_dtype is bfloat16  # then the kernel writes what the packer would
    return pack_lanes(dest_of_lanes(a, b, config, gemm=gemm, packed=packed), config.out_dtype)


def dest_of_lanes(
    a: torch.Tensor, b: torch.Tensor, config: FpuConfig, *, gemm: Gemm, packed: bool = False
) -> torch.Tensor:
    """Destination registers before they are packed, in float32; or `packed` to bfloat16 where a kernel does both."""
    if a.is_meta or b.is_meta:
        return torch.matmul(a.float(), b.float())
    if computes_exactly(a, b, config):
        return exact_matmul.dest_of_lanes(a, b, config)
    if exact_matmul.is_shared(b):  # the same weights for all: one GEMM
        rows = _dest(a.reshape(1, -1, a.shape[-1]), b.reshape(1, *b.shape[-2:]), config, gemm, packed)
        return rows.reshape(*a.shape[:-1], b.shape[-1])
    batch = batch_shape(a, b)
    dest = _dest(exact_matmul.three_dims(a, batch), exact_matmul.three_dims(b, batch), config, gemm, packed)
    return dest.reshape(*batch, a.shape[-2], b.shape[-1])


def computes_exactly(a: torch.Tensor, b: torch.Tensor, config: FpuConfig) -> bool:
    """Whether a call takes the exact kernel: 16-bit destination, no sums in L1, and not too large."""
    blocks = len(config.block_starts(a.shape[-1]))
    if config.fp32_dest or exact_matmul.accumulates_in_l1(config, blocks):
        return False
    batch = batch_shape(a, b).numel()
    return batch * a.shape[-2] * a.shape[-1] * b.shape[-1] <= EXACT_PRODUCTS and fpu_matmul.supports(a)


def _dest(a: torch.Tensor, b: torch.Tensor, config: FpuConfig, gemm: Gemm, packed: bool) -> torch.Tensor:
    """[n, M, K] @ [n, K, N] in one of the two destinations."""
    masks = choose_masks(config)
    block = None if config.fp32_dest else l1_block(config, a.shape[-1])
    lower = lower_share(config)
    if fpu_gemm.supports(a, b):
        return fpu_gemm.multiply(a, b, masks, block=block, lower=lower, packed=packed)
    halves = a.dtype is b.dtype is torch.bfloat16
    kernels = find_gpu_kernels("gpu_fpu_gemm") if a.is_cuda and (halves or block is not None) else None
    if kernels is not None:
        return _on_gpu(kernels, a, b, masks, block, lower, packed)
    operands = _mask_operands(a.float(), b.float(), masks)
    if block is None:
        products = [_each(gemm, left, right) for left, right in operands]
        return products[0] if len(products) == 1 else products[0] + products[1]
    return _add_steps(*operands[0], block, lower, gemm)


def _on_gpu(
    kernels: ModuleType,
    a: torch.Tensor,
    b: torch.Tensor,
    masks: OperandMasks,
    block: int | None,
    lower: float,
    packed: bool,
) -> torch.Tensor:
    """By tensor cores. Two products that are added are one of twice the depth."""
    x_mask, w_mask = masks.x_mask, masks.w_mask
    if masks.terms > 1:
        pairs = _mask_operands(a.float(), b.float(), masks)
        a, b = (torch.cat([pair[i] for pair in pairs], dim).bfloat16() for i, dim in ((0, -1), (1, -2)))
        x_mask = w_mask = ~0
    if block is None and (a.shape[1] > kernels.DECODE_ROWS or kernels.keeps_all(w_mask)):
        left, right = kernels.mask_operands(a, b, x_mask, w_mask)
        wide = torch.bmm(left, right, out_dtype=torch.float32)
        return kernels.pack_bfloat16(wide) if packed else wide
    options = {"block": block, "lower": lower, "packed": packed}
    dest: torch.Tensor = kernels.multiply(_upper_half(a), _upper_half(b), x_mask, w_mask, **options)
    return dest


def choose_masks(config: FpuConfig) -> OperandMasks:
    """The bits of both operands that the fidelity's phases multiply.

    HiFi3 lacks lower bits times lower bits, 1 / 16,000 of a sum: only a float32 result shows it, and takes two products.
    """
    a_unpacked = b_unpacked = ~0
    if not config.fp32_dest:  # float32 is truncated to bfloat16 by the unpacker
        a_unpacked = b_unpacked = BF16_MASK
    if config.fidelity is MathFidelity.LoFi:
        return OperandMasks(_A_UPPER & a_unpacked, _B_UPPER & b_unpacked)
    if config.fidelity is MathFidelity.HiFi2:
        return OperandMasks(_A_UPPER & a_unpacked, _B_FULL & b_unpacked)
    if config.fidelity is MathFidelity.HiFi3 and config.fp32_dest and config.out_dtype is float32:
        return OperandMasks(_A_UPPER, _B_FULL, _A_FULL, _B_UPPER)
    return OperandMasks(_A_FULL & a_unpacked, _B_FULL & b_unpacked)


def l1_block(config: FpuConfig, depth: int) -> int:
    """Elements of K that are added up in L1 with a 16-bit destination; where partials are reloaded, all of K."""
    whole = max(TILE, -(-depth // TILE) * TILE)
    in_l1 = exact_matmul.accumulates_in_l1(config, len(config.block_starts(depth)))
    return min(whole, -(-(config.k_block or whole) // TILE) * TILE) if in_l1 else whole


def lower_share(config: FpuConfig) -> float:
    """The share of a sum that the weights' lower bits bring, where they are written on their own."""
    if config.fp32_dest or config.fidelity is MathFidelity.LoFi:
        return 0.0
    weights: DataType = config.b_dtype
    return _LOWER_SHARES.get(weights, _LOWER_SHARE)


def _mask_operands(a: torch.Tensor, b: torch.Tensor, masks: OperandMasks) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of matrices whose products, added, are what is multiplied."""
    first = _mask(a, masks.x_mask)
    pairs = [(first, _mask(b, masks.w_mask))]
    if masks.terms > 1:
        pairs.append((_mask(a, masks.x_full) - first, _mask(b, masks.w_upper)))
    return pairs


def _mask(values: torch.Tensor, mask: int) -> torch.Tensor:
    return (values.view(torch.int32) & mask).view(torch.float32)


def _upper_half(values: torch.Tensor) -> torch.Tensor:
    """Bfloat16 as the unpacker makes it for a 16-bit destination: float32 is cut."""
    return values if values.dtype is torch.bfloat16 else _mask(values, BF16_MASK).bfloat16()


def _each(gemm: Gemm, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return gemm(a[0], b[0]).unsqueeze(0) if a.shape[0] == 1 else torch.matmul(a, b)


def _add_steps(a: torch.Tensor, b: torch.Tensor, block: int, lower: float, gemm: Gemm) -> torch.Tensor:
    """A GEMM per 16 of K, rounded as the register is; blocks are added in bfloat16, as the packer does in L1."""
    padding = -a.shape[-1] % TILE
    a, b = pad(a, (0, padding)), pad(b, (0, 0, 0, padding))
    depth = a.shape[-1]
    dest = torch.zeros(a.shape[0], a.shape[1], b.shape[2], device=a.device, dtype=torch.float32)
    held: torch.Tensor | None = None
    for k in range(0, depth, TILE):
        if k and k % block == 0:
            held = add_block(held, dest, bfloat16)
            dest = held if k + block >= depth else torch.zeros_like(dest)  # the last block is computed on top
        before = dest
        dest = round_dest(dest + _each(gemm, a[..., k : k + STEP], b[:, k : k + STEP]))
        total = dest + _each(gemm, a[..., k + STEP : k + TILE], b[:, k + STEP : k + TILE])
        second = (total - before) * lower
        second = second.masked_fill(total.view(torch.int32) & 0xFFFF == 0, 0.0)
        dest = round_dest(round_dest(total - second) + second)
    return dest


def round_dest(values: torch.Tensor) -> torch.Tensor:
    """Rounded to 11 bits and then to 8, ties away: 9/16 of the last place added, and the rest truncated."""
    return ((values.view(torch.int32) + 0x9000) & ~0xFFFF).view(torch.float32)
