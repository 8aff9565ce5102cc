"""Element-wise multiply, add and subtract of the FPU; a in SrcA, b in SrcB."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from ttmesh.base.dtypes import bfloat16
from ttmesh.chip.formats.kernels import fpu_elements
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.formats.storage import lane_dtype
from ttmesh.chip.numerics.float_bits import BIAS, NOTHING, compose, fields, shift_away
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.fpu_reference import phase_exponent, src_a_part, src_b_part, write_dest
from ttmesh.chip.numerics.packer import pack
from ttmesh.chip.numerics.unpacker import unpack


def multiply_elements(a: torch.Tensor, b: torch.Tensor, config: FpuConfig) -> torch.Tensor:
    """Destination registers of a * b, phase by phase: each phase rounds."""
    a, b = torch.broadcast_tensors(a, b)  # type: ignore[no-untyped-call]
    dest = torch.zeros_like(a)
    for phase in range(config.phases):
        a_sign, a_exponent, a_bits = src_a_part(a, phase)
        b_sign, b_exponent, b_bits = src_b_part(b, phase)
        exponent = a_exponent + b_exponent - BIAS - phase_exponent(phase)
        there = (a_exponent != 0) & (b_exponent != 0)
        product = torch.where(there, a_bits * b_bits * (a_sign * b_sign), 0)
        dest = write_dest((product, torch.where(there, exponent, NOTHING)), None, dest, config)
    return dest


def add_elements(a: torch.Tensor, b: torch.Tensor, config: FpuConfig, *, negate: bool = False) -> torch.Tensor:
    """Destination registers of a + b, or a - b: the smaller operand is aligned at 11 bits, the sum rounded once."""
    if a.shape != b.shape:
        a, b = torch.broadcast_tensors(a, b)  # type: ignore[no-untyped-call]
    if a.dtype is b.dtype is torch.float32 and fpu_elements.supports(a) and fpu_elements.supports(b):
        compiled = fpu_elements.add if config.fp32_dest else fpu_elements.add_narrow
        return compiled(a, b, negate=negate)
    a_term, a_exponent = _term(a)
    b_term, b_exponent = _term(b)
    common = torch.maximum(a_exponent, b_exponent)
    other = shift_away(b_term, common - b_exponent)
    total = shift_away(a_term, common - a_exponent) + (-other if negate else other)
    return compose(total << 13, common, 24 if config.fp32_dest else 8)


def accumulate_elements(dest: torch.Tensor, values: torch.Tensor, config: FpuConfig) -> torch.Tensor:
    """Destination registers with unpacked values added to what they hold: an addition that accumulates."""
    term, exponent = _term(values)
    return write_dest((term, exponent), None, dest, config)


def add_lanes(a: torch.Tensor, b: torch.Tensor, config: FpuConfig, *, negate: bool = False) -> torch.Tensor:
    """a + b or a - b of lanes, packed to the output format's lanes."""
    if a.shape != b.shape:
        a, b = torch.broadcast_tensors(a, b)  # type: ignore[no-untyped-call]
    half = not config.fp32_dest and a.dtype is b.dtype is torch.bfloat16
    kernels: Any = fpu_elements if fpu_elements.supports(a) else _gpu_kernels(a)
    if kernels is not None and half:
        dest: torch.Tensor = kernels.add(a, b, negate=negate)
        return dest if config.out_dtype is bfloat16 else pack(dest.float(), config.out_dtype).bfloat16()
    left = unpack(a, config.a_dtype, fp32_dest=config.fp32_dest)
    right = unpack(b, config.b_dtype, fp32_dest=config.fp32_dest)
    if kernels is not None and config.fp32_dest:
        dest = kernels.add(left, right, negate=negate)
    else:
        dest = add_elements(left, right, config, negate=negate)
    return pack(dest, config.out_dtype).to(lane_dtype(config.out_dtype))


def make_adder(config: FpuConfig, *, negate: bool = False) -> fpu_elements.Add:
    """add_lanes of one configuration, for calls that are repeated."""

    def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return add_lanes(a, b, config, negate=negate)

    half = not config.fp32_dest and config.out_dtype is bfloat16
    return fpu_elements.make_small_adder(add, negate=negate) if half else add


def _gpu_kernels(values: torch.Tensor) -> ModuleType | None:
    return find_gpu_kernels("gpu_fpu_elements") if values.is_cuda else None


def _term(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    sign, exponent, fraction = fields(values)
    return torch.where(exponent == 0, 0, (0x400 | (fraction >> 13)) * sign), exponent
