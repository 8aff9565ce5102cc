"""Matmul as the chip computes it, bit for bit: blocks of K, partials in L1, the compiled kernel where there is one."""

from __future__ import annotations

from itertools import zip_longest
from types import ModuleType

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, bfloat16, float32
from ttmesh.chip.formats.kernels import fpu_matmul
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.formats.storage import lane_dtype
from ttmesh.chip.numerics import fpu_reference
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.packer import add_block, pack, pack_lanes
from ttmesh.chip.numerics.unpacker import unpack


def matmul(a: torch.Tensor, b: torch.Tensor, config: FpuConfig) -> torch.Tensor:
    """[..., M, K] @ [..., K, N] of lanes, packed to the output format's lanes; batch dims broadcast."""
    if a.is_meta or b.is_meta:
        return torch.matmul(a.float(), b.float()).to(lane_dtype(config.out_dtype))
    return pack_lanes(dest_of_lanes(a, b, config), config.out_dtype)


def dest_of_lanes(a: torch.Tensor, b: torch.Tensor, config: FpuConfig) -> torch.Tensor:
    """Destination registers before they are packed."""
    wide_a = unpack(a, config.a_dtype, fp32_dest=config.fp32_dest)
    wide_b = unpack(b, config.b_dtype, fp32_dest=config.fp32_dest)
    return dest_of_matmul(wide_a, wide_b, config)


def dest_of_matmul(a: torch.Tensor, b: torch.Tensor, config: FpuConfig) -> torch.Tensor:
    """Destination registers after the last block of unpacked operands."""
    batch = batch_shape(a, b)
    if is_shared(b):  # the same weights for all: rows of one larger matmul
        rows = _blocks(a.reshape(1, -1, a.shape[-1]), b.reshape(1, *b.shape[-2:]), config)
        return rows.reshape(*a.shape[:-1], b.shape[-1])
    left, right = three_dims(a, batch), three_dims(b, batch)
    dest = _blocks(left, right, config)
    return dest.reshape(*batch, a.shape[-2], b.shape[-1])


def multiply_onto(a: torch.Tensor, b: torch.Tensor, dest: torch.Tensor | None, config: FpuConfig) -> torch.Tensor:
    """Destination registers after one block of unpacked [..., M, K] @ [..., K, N] on top of what they held."""
    lead = a.shape[:-2]
    left, right = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
    held = None if dest is None else dest.expand(*lead, *dest.shape[-2:]).reshape(-1, *dest.shape[-2:])
    return _multiply(left, right, config, held).reshape(*lead, a.shape[-2], b.shape[-1])


def is_shared(b: torch.Tensor) -> bool:
    """Whether there is one matrix for all batches."""
    return all(size == 1 for size in b.shape[:-2])


def batch_shape(a: torch.Tensor, b: torch.Tensor) -> torch.Size:
    """The dims before the matrices, broadcast."""
    # torch.broadcast_shapes would do, but imports a library for symbols at its first call.
    extents = zip_longest(reversed(a.shape[:-2]), reversed(b.shape[:-2]), fillvalue=1)
    return torch.Size(tuple(n if m == 1 else m for m, n in extents)[::-1])


def three_dims(values: torch.Tensor, batch: torch.Size) -> torch.Tensor:
    """Matrices in one batch dim, expanded to what the other operand has."""
    if values.dim() == 2 or all(size == 1 for size in values.shape[:-2]):
        return values.reshape(1, *values.shape[-2:]).expand(batch.numel(), -1, -1)
    return values.expand(*batch, *values.shape[-2:]).reshape(-1, *values.shape[-2:])


def partial_dtype(config: FpuConfig) -> DataType:
    """The format in which blocks leave their sums in L1."""
    if config.fp32_dest:
        return float32
    return bfloat16 if config.packer_l1_acc else config.out_dtype


def accumulates_in_l1(config: FpuConfig, blocks: int) -> bool:
    """Whether the packer adds blocks up in L1: with two and no bias there is one partial, which is reloaded."""
    return config.packer_l1_acc and blocks > (1 if config.fused_bias else 2)


def _blocks(a: torch.Tensor, b: torch.Tensor, config: FpuConfig) -> torch.Tensor:
    starts = config.block_starts(a.shape[-1])
    size = config.k_block or a.shape[-1]
    blocks = [(a[..., k : k + size], b[..., k : k + size, :]) for k in starts]
    form = partial_dtype(config)
    in_l1 = accumulates_in_l1(config, len(blocks))
    all_in_l1 = in_l1 and config.fused_bias
    at_once = in_l1 or form not in BLOCK_FLOATS or len(blocks) == 1
    if at_once and not all_in_l1 and (kernels := _gpu_kernels(a, b)) is not None:
        return _on_gpu(kernels, a, b, config, None, block=size if in_l1 else None)
    if in_l1:
        held: torch.Tensor | None = None
        for block in blocks if all_in_l1 else blocks[:-1]:
            held = add_block(held, _multiply(*block, config), form)
        return held if all_in_l1 and held is not None else _multiply(*blocks[-1], config, held)
    if len(blocks) == 1 or form not in BLOCK_FLOATS:  # a reload loses nothing: as if there were one block
        return _multiply(a, b, config)
    dest = _multiply(*blocks[0], config)
    for block in blocks[1:]:
        dest = _multiply(*block, config, pack(dest, form))
    return dest


def _multiply(a: torch.Tensor, b: torch.Tensor, config: FpuConfig, dest: torch.Tensor | None = None) -> torch.Tensor:
    if fpu_matmul.supports(a):
        fault = config.has_minus_one_fault
        return fpu_matmul.multiply(a, b, dest, phases=config.phases, fp32_dest=config.fp32_dest, fault=fault)
    if (kernels := _gpu_kernels(a, b)) is not None:
        return _on_gpu(kernels, a, b, config, dest)
    return fpu_reference.multiply(a, b, config, dest)


def _gpu_kernels(a: torch.Tensor, b: torch.Tensor) -> ModuleType | None:
    """The Triton kernels, where there are some and every exponent is in their range."""
    kernels = find_gpu_kernels("gpu_fpu_matmul") if a.is_cuda else None
    return kernels if kernels is not None and kernels.supports(a, b) else None


def _on_gpu(
    kernels: ModuleType,
    a: torch.Tensor,
    b: torch.Tensor,
    config: FpuConfig,
    dest: torch.Tensor | None,
    *,
    block: int | None = None,
) -> torch.Tensor:
    options = {"phases": config.phases, "fp32_dest": config.fp32_dest, "fault": config.has_minus_one_fault}
    result: torch.Tensor = kernels.multiply(a, b, dest, **options, block=block)
    return result
