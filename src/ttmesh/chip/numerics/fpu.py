"""What operations compute matmuls and sums with: torch's float32, or the chip's FPU while a call's body runs in it.

A plan made in the modes realistic or exact wraps its lane function with `run_in`; then the functions below follow that
FPU. Outside, on meta and where torch records gradients, they are torch's own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, bfloat16, float32
from ttmesh.chip.formats.storage import finish
from ttmesh.chip.numerics import exact_matmul, fpu_pools, fpu_sums, ideal_matmul, realistic_matmul
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.fpu_elementwise import add_elements, multiply_elements
from ttmesh.chip.numerics.packer import add_block, pack, pack_block_floats, to_bfloat16
from ttmesh.chip.numerics.unpacker import unpack

Dims = Sequence[int]


@dataclass(frozen=True)
class Fpu:
    """The FPU of one call: its settings, and whether every bit is followed."""

    config: FpuConfig
    exact: bool


class _Active(threading.local):
    fpu: Fpu | None = None


_active = _Active()


def run_in(fpu: Fpu, lane: Callable[..., Any]) -> Callable[..., Any]:
    """The lane function, run with this FPU."""

    @functools.wraps(lane)
    def run(*args: Any, **kwargs: Any) -> Any:
        before = _active.fpu
        _active.fpu = fpu
        try:
            return lane(*args, **kwargs)
        finally:
            _active.fpu = before

    return run


def differentiates(*operands: torch.Tensor) -> bool:
    """Whether torch records gradients: those follow the ideal arithmetic."""
    return torch.is_grad_enabled() and any(operand.requires_grad for operand in operands)


def active_config() -> FpuConfig | None:
    """The settings of the FPU that the running body is computed with; None: torch computes."""
    return None if _active.fpu is None else _active.fpu.config


def fpu_for(*operands: torch.Tensor) -> Fpu | None:
    """The FPU that computes with these operands; None: torch does."""
    fpu = _active.fpu
    if fpu is not None:
        for operand in operands:  # asked at every step of a kernel: one frame
            if (
                operand.is_meta
                or not operand.is_floating_point()
                or (operand.requires_grad and torch.is_grad_enabled())
            ):
                return None
    return fpu


def matmul(a: torch.Tensor, b: torch.Tensor, *, k_block: int | None = None) -> torch.Tensor:
    """[..., M, K] @ [..., K, N]; batch dims broadcast. Operands of different dtypes are widened.

    Args:
        k_block: elements of K that are multiplied into fresh registers and added to the sum in L1, where the
          operation's own kernel does that whatever the compute config says.
    """
    fpu = fpu_for(a, b)
    if fpu is None:
        return ideal_matmul.matmul(a, b) if a.dtype == b.dtype else torch.matmul(a.float(), b.float())
    return fpu_matmul(fpu, a, b, k_block=k_block)


def fpu_matmul(fpu: Fpu, a: torch.Tensor, b: torch.Tensor, *, k_block: int | None = None) -> torch.Tensor:
    """Destination registers of a matmul by this FPU, in float32."""
    config = _config_of_lanes(fpu.config, k_block)
    if fpu.exact:
        return exact_matmul.dest_of_lanes(a, b, config)
    return realistic_matmul.dest_of_lanes(a, b, config, gemm=torch.matmul)


@functools.lru_cache(maxsize=1024)
def _config_of_lanes(config: FpuConfig, k_block: int | None) -> FpuConfig:
    """The settings for operands as lanes hold them: cutting bfloat16 as if it were float32 cuts nothing."""
    config = replace(config, a_dtype=float32, b_dtype=float32)
    return config if k_block is None else replace(config, k_block=k_block, packer_l1_acc=True)


def multiply_linear(
    a: torch.Tensor, b: torch.Tensor, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """A function that is linear in both operands (a convolution), of the bits that the fidelity multiplies; not rounded."""
    fpu = fpu_for(a, b)
    if fpu is None:
        return function(a, b)
    left, right = _unpack_pair(a, b, fpu)
    masks = realistic_matmul.choose_masks(fpu.config)
    return function(_mask(left, masks.x_mask), _mask(right, masks.w_mask))


def accumulates_in_l1() -> bool:
    """Whether the running call's blocks of K are added up in L1."""
    config = active_config()
    return config is not None and config.packer_l1_acc


def total(
    values: torch.Tensor,
    dims: Dims,
    *,
    keepdim: bool = False,
    scaler: float = 1.0,
    between: Callable[[FpuConfig], DataType | None] = lambda config: None,
) -> torch.Tensor:
    """The sum over dims times a scaler, in float32; dims count from the end.

    Args:
        between: the format of a tensor between two programs; None: as wide as the destination.
    """
    fpu = fpu_for(values)
    if fpu is None:
        summed = values.sum(tuple(dims), keepdim, dtype=torch.float32)
        return summed if scaler == 1.0 else summed * scaler
    config, form = fpu.config, between(fpu.config)
    return fpu_sums.total(values, dims, config, keepdim=keepdim, scaler=scaler, exact=fpu.exact, between=form)


def add_up(values: torch.Tensor, dims: Dims) -> torch.Tensor:
    """The sum over outer dims, which stay with length 1: each, from the last, adds tiles in the destination."""
    fpu = fpu_for(values)
    if fpu is None:
        return values.sum(tuple(dims), keepdim=True, dtype=torch.float32)
    for step, dim in enumerate(sorted(dims, reverse=True)):
        tiles = keep_in_tensor(values) if step else values
        values = fpu_sums.add_up(tiles, dim, fpu.config, exact=fpu.exact)
    return values


def add_up_through_l1(values: torch.Tensor, dim: int) -> torch.Tensor:
    """The sum over a dim, which stays with length 1: tiles are added to a sum that goes through L1 every time."""
    if not is_emulated(values) or not values.numel():
        return values.sum(dim, keepdim=True, dtype=torch.float32)
    held, *others = values.float().unbind(dim)
    for tiles in others:
        held = keep(add(tiles, held))
    return held.unsqueeze(dim)


def add_up_in_l1(values: torch.Tensor, dim: int) -> torch.Tensor:
    """The sum over a dim, which stays with length 1: the packer adds every tile to what L1 holds."""
    fpu = fpu_for(values)
    if fpu is None or not values.numel():
        return values.sum(dim, keepdim=True, dtype=torch.float32)
    held: torch.Tensor | None = None
    for tiles in values.unbind(dim):
        held = add_block(held, tiles, float32 if fpu.config.fp32_dest else bfloat16)
    assert held is not None, "a sum over no tiles"
    return held.unsqueeze(dim)


def mean(values: torch.Tensor, dims: Dims, *, keepdim: bool = False) -> torch.Tensor:
    """The mean over dims, in float32; dims count from the end."""
    count = 1
    for dim in dims:
        count *= values.shape[dim]
    if fpu_for(values) is None:
        return values.float().mean(tuple(dims), keepdim=keepdim)
    return total(values, dims, keepdim=keepdim, scaler=1.0 / max(count, 1))


def largest(values: torch.Tensor, dims: Dims, keepdim: bool = False) -> torch.Tensor:
    """The maxima over dims."""
    fpu = fpu_for(values)
    if fpu is None:
        return values.amax(tuple(dims), keepdim)
    return fpu_pools.largest(values, dims, fpu.config, keepdim=keepdim, exact=fpu.exact)


def smallest(values: torch.Tensor, dims: Dims, keepdim: bool = False) -> torch.Tensor:
    """The minima over dims."""
    fpu = fpu_for(values)
    if fpu is None:
        return values.amin(tuple(dims), keepdim)
    return fpu_pools.smallest(values, dims, fpu.config, keepdim=keepdim, exact=fpu.exact)


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a + b by the element-wise unit (a in SrcA)."""
    fpu = fpu_for(a, b)
    if fpu is None:
        return a + b
    return add_elements(*_unpack_pair(a, b, fpu), fpu.config)


def subtract(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a - b by the element-wise unit."""
    fpu = fpu_for(a, b)
    if fpu is None:
        return a - b
    return add_elements(*_unpack_pair(a, b, fpu), fpu.config, negate=True)


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a * b by the element-wise unit, phase by phase where every bit is followed."""
    fpu = fpu_for(a, b)
    if fpu is None:
        return a * b
    left, right = _unpack_pair(a, b, fpu)
    if fpu.exact:
        return multiply_elements(left, right, fpu.config)
    return keep(left * right)


def keep(values: torch.Tensor) -> torch.Tensor:
    """What a circular buffer keeps of intermediate values: bfloat16 for a 16-bit destination. In float32."""
    fpu = fpu_for(values)
    if fpu is None or fpu.config.fp32_dest:
        return values
    return to_bfloat16(values.float()) if fpu.exact else values.bfloat16().float()


def keep_in_tensor(values: torch.Tensor) -> torch.Tensor:
    """What a tensor between two programs of a call keeps of their values: the result's format. In float32."""
    fpu = fpu_for(values)
    return values if fpu is None else pack(values.float(), fpu.config.out_dtype)


def write_packed(values: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Values rounded to a format as its packer writes them."""
    if dtype in BLOCK_FLOATS and fpu_for(values) is not None:
        return pack_block_floats(values, dtype)
    return finish(values, dtype)


def is_emulated(*operands: torch.Tensor) -> bool:
    """Whether the chip's FPU computes with these operands."""
    return fpu_for(*operands) is not None


def _unpack_pair(a: torch.Tensor, b: torch.Tensor, fpu: Fpu) -> tuple[torch.Tensor, torch.Tensor]:
    wide = fpu.config.fp32_dest
    left = unpack(a, float32, fp32_dest=wide)
    return left, left if b is a else unpack(b, float32, fp32_dest=wide)


def _mask(values: torch.Tensor, mask: int) -> torch.Tensor:
    return (values.contiguous().view(torch.int32) & mask).view(torch.float32)
