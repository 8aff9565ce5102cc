"""Matmul close to the chip's at about the cost of a GEMM: fidelity's cut bits, and the roundings between blocks of K.

What it leaves out is inside a block: products aligned at 12 bits, and the destination's rounding after every 16 of K. With
a 32-bit destination that hardly shows. With a 16-bit one it is most of the error, so without L1 accumulation, where one
block is all of K, matmuls up to a size are computed exactly, and larger ones lack that error (docs/numerics.md).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ttmesh.base.dtypes import MathFidelity, bfloat16
from ttmesh.chip.formats.kernels import engine_matmul
from ttmesh.chip.formats.storage import lane_dtype
from ttmesh.chip.numerics import exact_matmul
from ttmesh.chip.numerics.engine_config import EngineConfig
from ttmesh.chip.numerics.exact_matmul import batch_shape
from ttmesh.chip.numerics.packer import add_block, pack
from ttmesh.chip.numerics.unpacker import unpack

EXACT_PRODUCTS = 1 << 26  # 32 ms of one core, by benchmarks/numerics.py
# Fraction bits that reach the multiplier: SrcB's upper 6 and all 10, SrcA's upper 4 and all but the last.
_A_UPPER, _A_WHOLE = ~0x1FFFF, ~0x1FFF
_B_UPPER, _B_WHOLE = ~0x7FFFF, ~0x3FFF

Operands = list[tuple[torch.Tensor, torch.Tensor]]
Gemm = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def matmul(a: torch.Tensor, b: torch.Tensor, config: EngineConfig, *, gemm: Gemm = torch.matmul) -> torch.Tensor:
    """[..., M, K] @ [..., K, N] of lanes, packed to the output format's lanes; batch dims broadcast."""
    dest = dest_of_lanes(a, b, config, gemm=gemm)
    return pack(dest, config.out_dtype).to(lane_dtype(config.out_dtype))


def dest_of_lanes(a: torch.Tensor, b: torch.Tensor, config: EngineConfig, *, gemm: Gemm) -> torch.Tensor:
    """Destination registers before they are packed."""
    if computes_exactly(a, b, config):
        return exact_matmul.dest_of_lanes(a, b, config)
    if exact_matmul.is_shared(b):  # the same weights for all: one GEMM
        rows = _dest(a.reshape(-1, a.shape[-1]), b.reshape(b.shape[-2:]), config, gemm)
        return rows.reshape(*a.shape[:-1], b.shape[-1])
    return _dest(a, b, config, gemm)


def _dest(a: torch.Tensor, b: torch.Tensor, config: EngineConfig, gemm: Gemm) -> torch.Tensor:
    wide_a = unpack(a, config.a_dtype, fp32_dest=config.fp32_dest)
    wide_b = unpack(b, config.b_dtype, fp32_dest=config.fp32_dest)
    operands = _phase_operands(wide_a, wide_b, config.fidelity)
    return _multiply(operands, gemm) if config.fp32_dest or a.is_meta else _add_blocks(operands, config, gemm)


def computes_exactly(a: torch.Tensor, b: torch.Tensor, config: EngineConfig) -> bool:
    """Whether a call takes the exact kernel: 16-bit destination, no sums in L1, and not too large."""
    blocks = len(config.block_starts(a.shape[-1]))
    if config.fp32_dest or a.is_meta or exact_matmul.accumulates_in_l1(config, blocks):
        return False
    batch = batch_shape(a, b).numel()
    return batch * a.shape[-2] * a.shape[-1] * b.shape[-1] <= EXACT_PRODUCTS and engine_matmul.serves(a)


def _phase_operands(a: torch.Tensor, b: torch.Tensor, fidelity: MathFidelity) -> Operands:
    """Pairs of matrices whose products, added, are what the fidelity's phases multiply."""
    if a.is_meta:
        return [(a, b)]
    if fidelity is MathFidelity.LoFi:
        return [(_cut(a, _A_UPPER), _cut(b, _B_UPPER))]
    if fidelity is MathFidelity.HiFi2:
        return [(_cut(a, _A_UPPER), _cut(b, _B_WHOLE))]
    if fidelity is MathFidelity.HiFi4:
        return [(_cut(a, _A_WHOLE), _cut(b, _B_WHOLE))]
    upper = _cut(a, _A_UPPER)
    return [(upper, _cut(b, _B_WHOLE)), (a - upper, _cut(b, _B_UPPER))]


def _cut(values: torch.Tensor, mask: int) -> torch.Tensor:
    return (values.view(torch.int32) & mask).view(torch.float32)


def _multiply(operands: Operands, gemm: Gemm) -> torch.Tensor:
    products = [gemm(a, b) for a, b in operands]
    return products[0] if len(products) == 1 else products[0] + products[1]


def _add_blocks(operands: Operands, config: EngineConfig, gemm: Gemm) -> torch.Tensor:
    """A GEMM per block of K, rounded to bfloat16 and added in bfloat16, as the packer does in L1."""
    depth = operands[0][0].shape[-1]
    size = config.k_block or depth
    held: torch.Tensor | None = None
    for k in config.block_starts(depth):
        block = _multiply([(a[..., k : k + size], b[..., k : k + size, :]) for a, b in operands], gemm)
        held = add_block(held, block, bfloat16)
    assert held is not None, "K has at least one block"
    return held
