"""Sums over mesh axes on a GPU: one pass over the lanes, one float32 chain per element in lane order."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import triton
import triton.language as tl

BLOCK = 2048
ALIGNMENT = 16  # bytes: Triton compiles another kernel for pointers that are less aligned
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
    and there are `runs` in it. "whole": runs are whole blocks, so that one division finds a block's run.
    """
    lane = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    inside = offsets < length
    first_step = tl.cast(first_stride, tl.int64)
    second_step = tl.cast(second_stride, tl.int64)
    origin = offsets
    if SCATTER == "whole":
        run = start // shard_run
        origin = offsets + ((run % runs) * shards + run // runs - run) * shard_run
    elif SCATTER == "ragged":
        run = offsets // shard_run
        origin = offsets + ((run % runs) * shards + run // runs - run) * shard_run
    base = source + lane * outer_stride + origin
    total = tl.zeros((BLOCK,), dtype=WIDE)
    for first in tl.static_range(FIRST):
        for second in tl.static_range(SECOND):
            term = tl.load(base + first * first_step + second * second_step, mask=inside, other=0)
            total += term.to(WIDE)
    tl.store(target + lane * length + offsets, total.to(target.dtype.element_ty), mask=inside)


def kernel_for(
    values: torch.Tensor, axes: tuple[int, ...], dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The sum of lanes of this shape and these strides on a GPU."""
    return _kernel(tuple(values.shape), values.stride(), values.dtype, axes, dtype, values.device)


def scatter_kernel_for(values: torch.Tensor, dim: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The sum over axis 1 of lanes [groups, n, *local] as [groups, n, *shard]: n shards along `dim` of the local dims."""
    return _scatter_kernel(tuple(values.shape), values.stride(), values.dtype, dim, values.device)


@functools.lru_cache(maxsize=1024)
def _kernel(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    axes: tuple[int, ...],
    out_dtype: torch.dtype,
    device: torch.device,
) -> Callable[[torch.Tensor], torch.Tensor]:
    rows, columns, *local = shape
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
) -> Callable[[torch.Tensor], torch.Tensor]:
    groups, n, *local = shape
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
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Decided once, for it is called often."""
    length = lanes[0]
    block = BLOCK if length * outer >= BLOCK * 256 else SMALL_BLOCK
    scatter = None if not run else "whole" if run % block == 0 else "ragged"
    grid = (triton.cdiv(length, block), outer, 1)
    scalars = (*lanes, *shards, *forms, scatter, block)
    warps = 8 if block == BLOCK else 4
    empty_like = torch.empty_like
    launch: Callable[..., object] | None = None

    def kernel(values: torch.Tensor) -> torch.Tensor:
        nonlocal launch
        target = empty_like(like)
        if values.data_ptr() % ALIGNMENT:
            _sum_lanes[grid](values, target, *scalars, num_warps=warps)
        elif launch is None:
            launch = _sum_lanes[grid](values, target, *scalars, num_warps=warps)[grid]
        else:  # Triton looks at every argument again at a plain call: 21 µs instead of 11
            launch(values, target, *scalars)
        return target

    return kernel


def _wide(dtype: torch.dtype) -> object:
    return tl.float32 if dtype.is_floating_point else tl.int64


def warm_up() -> None:
    """Compile and launch once: what cannot work here fails now."""
    lanes = torch.ones((1, 2, 32), device="cuda")
    kernel_for(lanes, (1,), torch.float32)(lanes)
