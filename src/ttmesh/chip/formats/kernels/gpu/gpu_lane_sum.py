"""Sums over mesh axes on a GPU: one pass over the lanes, one float32 chain per element in lane order."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from ttmesh.chip.formats.kernels.gpu.gpu_launch import bind_launch

BLOCK = 2048
ALIGNMENT = 16  # bytes: Triton compiles another kernel for pointers that are less aligned
SumKernel = Callable[[torch.Tensor], torch.Tensor]
SMALL_BLOCK = 512  # short lanes: more programs than multiprocessors


@triton.jit
def _sum_lanes(
    source,
    target,
    length,
    outer_stride,
    first_stride,
    second_stride,
    shards,
    shard_run,
    runs,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    WIDE: tl.constexpr,
    SCATTER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Target lane `program_id(1)` is the sum over FIRST x SECOND source lanes.

    SCATTER: its shards one after the other; a shard is every `shards`-th of the source's runs of `shard_run` elements,
    and there are `runs` in it. "whole": runs are whole blocks, so that one division finds a block's run. Lanes are read as
    they lie, and only the sum is written elsewhere.
    """
    lane = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    inside = offsets < length
    first_step = tl.cast(first_stride, tl.int64)
    second_step = tl.cast(second_stride, tl.int64)
    place = offsets
    if SCATTER == "whole":
        run = start // shard_run
        place = offsets + (run % shards * runs + run // shards - run) * shard_run
    elif SCATTER == "ragged":  # narrow numbers are divided several times faster
        run = offsets.to(tl.int32) // shard_run
        place = offsets + (run % shards * runs + run // shards - run) * shard_run
    elif SCATTER == "long":
        run = offsets // shard_run
        place = offsets + (run % shards * runs + run // shards - run) * shard_run
    base = source + lane * outer_stride + offsets
    total = tl.zeros((BLOCK,), dtype=WIDE)
    for first in tl.static_range(FIRST):
        for second in tl.static_range(SECOND):
            term = tl.load(base + first * first_step + second * second_step, mask=inside, other=0)
            total += term.to(WIDE)
    tl.store(target + lane * length + place, total.to(target.dtype.element_ty), mask=inside)


def kernel_for(values: torch.Tensor, axes: tuple[int, ...], dtype: torch.dtype) -> SumKernel | None:
    """The sum of lanes of this shape and these strides on a GPU; None where a lane is not one piece of memory."""
    return _kernel(values.shape, values.stride(), values.dtype, axes, dtype, values.device)


def scatter_kernel_for(values: torch.Tensor, dim: int) -> SumKernel | None:
    """The sum over axis 1 of lanes [groups, n, *local] as [groups, n, *shard]: n shards along `dim` of the local dims."""
    return _scatter_kernel(values.shape, values.stride(), values.dtype, dim, values.device)


@functools.lru_cache(maxsize=1024)
def _kernel(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    axes: tuple[int, ...],
    out_dtype: torch.dtype,
    device: torch.device,
) -> SumKernel | None:
    rows, columns, *local = shape
    if not math.prod(shape) or not _is_dense(local, stride[2:]):
        return None
    both = axes == (0, 1)
    outer, outer_stride = (1, 0) if both else (columns, stride[1]) if axes == (0,) else (rows, stride[0])
    first, first_stride = (rows, stride[0]) if 0 in axes else (1, 0)
    second, second_stride = (columns, stride[1]) if 1 in axes else (1, 0)
    target_shape = (1 if 0 in axes else rows, 1 if 1 in axes else columns, *local)
    like = torch.empty((), dtype=out_dtype, device=device).expand(target_shape)
    lanes = (math.prod(local), outer_stride, first_stride, second_stride)
    return _launcher(like, outer, lanes, (1, 1, 1), (first, second, _wide(dtype)), 0)


@functools.lru_cache(maxsize=1024)
def _scatter_kernel(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, dim: int, device: torch.device
) -> SumKernel | None:
    groups, n, *local = shape
    if not math.prod(shape) or not _is_dense(local, stride[2:]):
        return None
    shard = [*local]
    shard[dim] //= n
    run = math.prod(shard[dim:])
    like = torch.empty((), dtype=dtype, device=device).expand((groups, n, *shard))
    lanes = (math.prod(local), stride[0], 0, stride[1])
    return _launcher(like, groups, lanes, (n, run, math.prod(shard[:dim])), (1, n, _wide(dtype)), run)


def _launcher(
    like: torch.Tensor,
    outer: int,
    lanes: tuple[int, ...],
    shards: tuple[int, int, int],
    forms: tuple[object, ...],
    run: int,
) -> SumKernel:
    """Decided once, for it is called often."""
    length = lanes[0]
    block = BLOCK if length * outer >= BLOCK * 256 else SMALL_BLOCK
    scatter = None if not run else "whole" if run % block == 0 else "ragged" if length < 1 << 31 else "long"
    grid = (triton.cdiv(length, block), outer, 1)
    scalars = (*lanes, *shards, *forms, scatter, block)
    warps = 8 if block == BLOCK else 4
    empty_like = torch.empty_like
    launch: Callable[[int, int], None] | None = None

    def kernel(values: torch.Tensor) -> torch.Tensor:
        nonlocal launch
        target, source = empty_like(like), values.data_ptr()
        if launch is not None and not source % ALIGNMENT:
            launch(source, target.data_ptr())
            return target
        compiled = _sum_lanes[grid](values, target, *scalars, num_warps=warps)
        if not source % ALIGNMENT:
            launch = bind_launch(compiled, grid, scalars)
        return target

    return kernel


def _is_dense(shape: list[int], stride: tuple[int, ...]) -> bool:
    """Whether a lane is one piece of memory, in order."""
    steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return all(size == 1 or step == wanted for size, step, wanted in zip(shape, stride, steps, strict=True))


def _wide(dtype: torch.dtype) -> object:
    return tl.float32 if dtype.is_floating_point else tl.int64


def warm_up() -> None:
    """Compile and launch once: what cannot work here fails now."""
    lanes = torch.ones((1, 2, 32), device="cuda", dtype=torch.float32)
    kernel = kernel_for(lanes, (1,), torch.float32)
    assert kernel is not None, "a lane is one piece of memory"
    kernel(lanes)
