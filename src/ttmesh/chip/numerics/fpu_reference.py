"""The multiplication of the FPU by its rules, in torch: slow, plain, the reference of the compiled kernel.

The multiplier takes 5 bits of SrcA (weights) and 7 of SrcB (activations); fidelity phases bring the other bits. Sixteen
of K make two groups of eight products, each aligned to its own largest exponent without guard bits.
"""

from __future__ import annotations

import torch

from ttmesh.chip.numerics.float_bits import BIAS, NOTHING, compose, fields, shift_away, shift_up
from ttmesh.chip.numerics.fpu_config import FpuConfig

GROUP = 8
STEP = 16  # of K in one instruction
TILE = 32
CHUNK = 1 << 22  # products held at once
_DEST_BITS, _STEP_BITS, _NARROW_BITS = 24, 11, 8

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # sign, exponent (0: the operand is zero), 5 or 7 bits


def multiply(a: torch.Tensor, b: torch.Tensor, config: FpuConfig, dest: torch.Tensor | None = None) -> torch.Tensor:
    """Destination registers after [n, M, K] @ [n, K, N] of unpacked operands, on top of `dest`; float32."""
    n, rows, depth = a.shape
    columns = b.shape[-1]
    start = torch.zeros(n, rows, columns, device=a.device, dtype=torch.float32) if dest is None else dest
    at_once = max(1, CHUNK // max(1, n * GROUP * columns))
    padding = -depth % TILE
    a = torch.nn.functional.pad(a, (0, padding))
    b = torch.nn.functional.pad(b, (0, 0, 0, padding))
    blocks = [_multiply(x, b, config, d) for x, d in zip(_rows(a, at_once), _rows(start, at_once), strict=True)]
    return torch.cat(blocks, 1)


def _rows(values: torch.Tensor, at_once: int) -> list[torch.Tensor]:
    return [values[:, row : row + at_once] for row in range(0, values.shape[1], at_once)]


def _multiply(a: torch.Tensor, b: torch.Tensor, config: FpuConfig, dest: torch.Tensor) -> torch.Tensor:
    for tile in range(0, a.shape[-1], TILE):
        for phase in range(config.phases):
            for k in range(tile, tile + TILE, STEP):
                first = _sum_group(a[..., k : k + GROUP], b[..., k : k + GROUP, :], phase)
                second = _sum_group(a[..., k + GROUP : k + STEP], b[..., k + GROUP : k + STEP, :], phase)
                dest = write_dest(first, second, dest, config)
    return dest


def src_a_part(values: torch.Tensor, phase: int) -> Parts:
    """The 5 bits of a SrcA operand that a phase multiplies."""
    sign, exponent, fraction = fields(values)
    return sign, exponent, (fraction >> 14) & 0x1F if phase & 1 else 0x10 | (fraction >> 19)


def src_b_part(values: torch.Tensor, phase: int) -> Parts:
    """The 7 bits of a SrcB operand that a phase multiplies."""
    sign, exponent, fraction = fields(values)
    return sign, exponent, ((fraction >> 13) & 0xF) << 3 if phase & 2 else 0x40 | (fraction >> 17)


def phase_exponent(phase: int) -> int:
    """How far below the operands' exponents a phase's products are."""
    return (5 if phase & 1 else 0) + (7 if phase & 2 else 0)


def _sum_group(a: torch.Tensor, b: torch.Tensor, phase: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum and exponent of a group: [n, M, 8] @ [n, 8, N], every product rounded at the group's largest exponent."""
    a_sign, a_exponent, a_bits = (part.unsqueeze(-1) for part in src_b_part(a, phase))
    b_sign, b_exponent, b_bits = (part.unsqueeze(-3) for part in src_a_part(b, phase))
    there = (a_exponent != 0) & (b_exponent != 0)
    exponent = torch.where(there, a_exponent + b_exponent - BIAS - phase_exponent(phase), NOTHING)
    largest = exponent.amax(-2, keepdim=True)
    magnitude = torch.where(there, a_bits * b_bits, 0)
    products = shift_up(magnitude, largest - exponent) * (a_sign * b_sign)
    return products.sum(-2, dtype=torch.int32), largest.squeeze(-2)


def _above_zero(total: torch.Tensor, exponent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A sum as the destination takes it: nothing of one whose exponent is 0 or less, however large the sum."""
    there = exponent > 0
    return torch.where(there, total, 0), torch.where(there, exponent, NOTHING)


def write_dest(
    first: tuple[torch.Tensor, torch.Tensor],
    second: tuple[torch.Tensor, torch.Tensor] | None,
    dest: torch.Tensor,
    config: FpuConfig,
) -> torch.Tensor:
    """Sums (10 fraction bits, with their exponents) and destination at the largest exponent, added and rounded."""
    sign, exponent, fraction = fields(dest)
    held = torch.where(exponent == 0, 0, (fraction | 0x800000) * sign)
    held_exponent = torch.where(exponent == 0, NOTHING, exponent)
    sums = [_above_zero(*group) for group in ([first] if second is None else [first, second])]
    common = held_exponent
    for _, own in sums:
        common = torch.maximum(common, own)
    terms = [shift_up(total << 13, common - own) for total, own in sums]
    held = shift_away(held, common - held_exponent)
    spare = _DEST_BITS - _STEP_BITS
    if not config.fp32_dest:
        terms = [shift_up(term, spare) << spare for term in terms]
        held = shift_away(held, spare) << spare
    total = sum(terms, held)
    if config.has_minus_one_fault:
        total = torch.where(total == -1, -(1 << 27), total)
    return compose(total, common, _DEST_BITS if config.fp32_dest else _NARROW_BITS)
