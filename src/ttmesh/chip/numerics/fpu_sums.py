"""Sums of the FPU: over W a multiplication with ones (data in SrcB), over H a pooling (data in SrcA)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch

from ttmesh.base.dtypes import DataType, MathFidelity, bfloat4_b, bfloat16, float32
from ttmesh.chip.numerics import realistic_matmul
from ttmesh.chip.numerics.exact_matmul import dest_of_matmul
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.fpu_elementwise import accumulate_elements, add_elements
from ttmesh.chip.numerics.packer import pack
from ttmesh.chip.numerics.unpacker import unpack

EXACT_ELEMENTS = 1 << 18  # 10 ms of one core
WIDTH, HEIGHT = -1, -2
_SRC_B_UPPER, _SRC_A_UPPER = ~0x1FFFF, ~0x7FFFF  # what the first phase multiplies: 6 and 4 fraction bits


def total(
    values: torch.Tensor,
    dims: Sequence[int],
    config: FpuConfig,
    *,
    keepdim: bool = False,
    scaler: float = 1.0,
    exact: bool = False,
    between: DataType | None = None,
) -> torch.Tensor:
    """Destination registers of the sums over dims (which count from the end) times a scaler, in float32.

    W first, then H; other dims are brought to H beforehand, as TT-NN does. In between sums have the format `between`:
    unless given float32 for a 32-bit destination and bfloat16 for a 16-bit one. The scaler is what the scaler tile holds:
    bfloat16, in the last step.
    """
    if not dims:
        return values.float() if scaler == 1.0 else values.float() * scaler
    wide = values.float()
    if not wide.numel():
        return wide.sum(tuple(dims), keepdim)
    factor = _scaler_of(scaler, values.dtype is torch.float32)
    if not exact and config.fp32_dest:
        return _close(wide, dims, config, keepdim) * factor
    outer = sorted(dim for dim in dims if dim < HEIGHT)
    steps = [dim for dim in (WIDTH, HEIGHT) if dim in dims] + ([HEIGHT] if outer else [])
    for i, dim in enumerate(steps):
        last = i == len(steps) - 1
        if last and outer:  # all of them in one column
            wide = _columns_of(wide, outer)
        close = not exact and wide.numel() > EXACT_ELEMENTS
        unpacked = unpack(wide, float32, fp32_dest=config.fp32_dest)
        wide = _sum(unpacked, dim, config, factor if last else 1.0, close=close)
        wide = wide if last else pack(wide, between or (float32 if config.fp32_dest else bfloat16))
    shape = [1 if i - values.dim() in dims else extent for i, extent in enumerate(values.shape)]
    if not keepdim:
        shape = [extent for i, extent in enumerate(values.shape) if i - values.dim() not in dims]
    return wide.reshape(shape)


def add_up(values: torch.Tensor, dim: int, config: FpuConfig, *, exact: bool) -> torch.Tensor:
    """Destination registers to which every tile along an outer dim was added; the dim stays with length 1."""
    unpacked = unpack(values, float32, fp32_dest=config.fp32_dest)
    if not values.numel() or (config.fp32_dest and not exact):
        return unpacked.sum(dim, keepdim=True)
    held = torch.zeros_like(unpacked.select(dim, 0))
    for tiles in unpacked.unbind(dim):
        held = accumulate_elements(held, tiles, config) if exact else add_elements(held, tiles, config)
    return held.unsqueeze(dim)


@functools.lru_cache(maxsize=1024)
def _scaler_of(scaler: float, wide: bool) -> float:
    """What the scaler's tile holds: bfloat16, or for float32 operands what SrcA keeps of a float32."""
    if not wide:
        return float(torch.tensor(scaler, dtype=torch.float32, device="cpu").bfloat16())
    return float(unpack(torch.tensor([scaler], dtype=torch.float32, device="cpu"), float32, fp32_dest=True))


def _sum(values: torch.Tensor, dim: int, config: FpuConfig, scaler: float, *, close: bool) -> torch.Tensor:
    flat = values.dim() < 2
    matrix = values.unsqueeze(0) if flat else values
    if dim == WIDTH:
        a, b = matrix, torch.full((matrix.shape[-1], 1), scaler, device=values.device, dtype=torch.float32)
        config = _config_with_scaler(config)
    else:
        a, b = torch.full((1, matrix.shape[-2]), scaler, device=values.device, dtype=torch.float32), matrix
    if close:
        result = realistic_matmul.dest_of_lanes(a, b, config, gemm=torch.matmul)
    else:
        result = dest_of_matmul(a, b, config)
    return result.squeeze(0) if flat else result


@functools.lru_cache(maxsize=1024)
def _config_with_scaler(config: FpuConfig) -> FpuConfig:
    """Of a scaler no lower bits are written."""
    return replace(config, b_dtype=bfloat4_b)


def _columns_of(values: torch.Tensor, outer: Sequence[int]) -> torch.Tensor:
    """[kept outer dims, summed ones as H, all the rest as W]."""
    rank = values.dim()
    summed = [dim + rank for dim in outer]
    kept = [i for i in range(rank) if i not in summed]
    moved = values.permute(*summed, *kept)
    return moved.reshape(prod(values.shape[i] for i in summed), -1)


def _close(wide: torch.Tensor, dims: Sequence[int], config: FpuConfig, keepdim: bool) -> torch.Tensor:
    """Operands cut to the bits that the fidelity multiplies, summed in float32."""
    truncated = unpack(wide, float32, fp32_dest=config.fp32_dest)
    if WIDTH in dims and config.fidelity in (MathFidelity.LoFi, MathFidelity.HiFi2):
        truncated = _truncate(truncated, _SRC_B_UPPER)
    elif WIDTH not in dims and config.fidelity is MathFidelity.LoFi:
        truncated = _truncate(truncated, _SRC_A_UPPER)
    return truncated.sum(tuple(dims), keepdim)


def _truncate(values: torch.Tensor, mask: int) -> torch.Tensor:
    return (values.view(torch.int32) & mask).view(torch.float32)
