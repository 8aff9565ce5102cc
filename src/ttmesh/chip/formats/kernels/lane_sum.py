"""Sums over mesh axes: per element one float32 chain in lane order, rounded once."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Protocol

import torch

from ttmesh.chip.formats.kernels import threads
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.formats.kernels.loader import cached_until_forgotten, library

# Without a compiler: torch.sum is one chain up to this many lanes (beyond, it adds partial sums in an order that depends
# on the shape) and below this many bytes.
TORCH_CHAIN = 4
TORCH_BYTES = 64 << 10
MOVED_BYTES = 1 << 20  # below, torch's own copy takes less of the host
LOOK_BYTES = 4 << 10  # results like a tensor with memory are made a twentieth of a microsecond sooner
STEP = 1024  # threads take multiples of this many elements: whole cache lines, whole runs of the kernel

_FLOATS = (torch.float32, torch.bfloat16)


class SumKernel(Protocol):
    """A compiled sum, into contiguous memory of the caller's where that is given."""

    def __call__(self, values: torch.Tensor, into: torch.Tensor | None = None) -> torch.Tensor:
        """The sum."""


class _Lanes(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("rows", "columns", "row_stride", "column_stride", "length", "sum_rows", "sum_columns")
    ]


class _Sum(ctypes.Structure):
    _fields_ = [("lanes", _Lanes), ("narrow_in", ctypes.c_int64), ("narrow_out", ctypes.c_int64)]


def lane_sum(values: torch.Tensor, axes: Sequence[int], *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Lanes [rows, cols, ...] summed over mesh axes, which keep size 1; `dtype` is the result's, else the values'.

    Integers are summed exactly and wrapped to the result's width.
    """
    found = values.dtype
    out_dtype = dtype or found
    if values.is_cpu:  # as kernel_for, without its call
        stride = None if values.is_contiguous() else values.stride()
        kernel = _kernel(values.shape, stride, found, tuple(axes), out_dtype)
        if kernel is not None:
            return kernel(values)
    elif values.is_cuda and axes and (kernels := find_gpu_kernels("gpu_lane_sum")) is not None:
        gpu_kernel = kernels.kernel_for(values, (0, 1) if len(axes) == 2 else tuple(axes), out_dtype)
        if gpu_kernel is not None:
            total: torch.Tensor = gpu_kernel(values)
            return total
    assert set(axes) <= {0, 1}, f"mesh axes are 0 and 1, not {axes}"
    if not axes:
        return values.to(out_dtype)
    if not values.dtype.is_floating_point:
        return values.sum(tuple(axes), keepdim=True, dtype=torch.int64).to(out_dtype)
    rows = values.shape[0] if 0 in axes else 1
    columns = values.shape[1] if 1 in axes else 1
    if values.is_meta or (rows * columns <= TORCH_CHAIN and values.nbytes < TORCH_BYTES):
        return values.sum(tuple(axes), keepdim=True, dtype=torch.float32).to(out_dtype)
    return _sum_in_order(values, tuple(sorted(axes)), out_dtype)


def scatter_lane_sum(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Lanes [groups, n, *local] summed over the n: [groups, n, *shard], n shards along a dim of the local ones."""
    groups, n, *local = values.shape
    if values.is_cuda and (kernels := find_gpu_kernels("gpu_lane_sum")) is not None:
        gpu_kernel = kernels.scatter_kernel_for(values, dim)
        if gpu_kernel is not None:
            shards: torch.Tensor = gpu_kernel(values)
            return shards
    total = lane_sum(values, (1,))
    split = total.view(groups, *local[:dim], n, local[dim] // n, *local[dim + 1 :])
    return split.movedim(dim + 1, 1).contiguous()


def move_lanes(values: torch.Tensor, dim: int, to: int) -> torch.Tensor:
    """A dim of the lanes moved behind others; on a GPU large ones are written out in that order at once."""
    if values.is_cuda and values.nbytes >= MOVED_BYTES and to > dim and values.is_contiguous():
        kernels = find_gpu_kernels("gpu_moves")
        if kernels is not None and math.prod(values.shape[dim + 1 : to + 1]) > 1:
            moved: torch.Tensor = kernels.swap_rows(values, dim, to - dim)
            return moved
    return values.movedim(dim, to)


def kernel_for(values: torch.Tensor, axes: tuple[int, ...], dtype: torch.dtype) -> SumKernel | None:
    """The compiled sum of values of this shape and these strides in host memory, or None where torch must compute it."""
    return _kernel(values.shape, values.stride(), values.dtype, axes, dtype)


@cached_until_forgotten
def _kernel(
    shape: tuple[int, ...],
    stride: tuple[int, ...] | None,
    dtype: torch.dtype,
    axes: tuple[int, ...],
    out_dtype: torch.dtype,
) -> SumKernel | None:
    """Decided once, for it is called often; without a stride for contiguous values."""
    rows, columns, *local = shape
    length = math.prod(local)
    size_bytes = rows * columns * length * dtype.itemsize
    if not axes or not length or dtype not in _FLOATS or out_dtype not in _FLOATS:
        return None
    compiled = library("lane_sum")
    stride = stride or (columns * length, length, *(math.prod(local[dim:]) for dim in range(1, len(local) + 1)))
    if compiled is None or not _is_dense(local, stride[2:]):
        return None
    _declare(compiled)
    described = _Lanes(rows, columns, *stride[:2], length, 0 in axes, 1 in axes)
    narrow = dtype == torch.bfloat16, out_dtype == torch.bfloat16
    options = ctypes.byref(described), *narrow
    whole = ctypes.cast(ctypes.pointer(_Sum(described, *narrow)), ctypes.c_void_p)  # the quickest to hand over
    target_shape = (1 if 0 in axes else rows, 1 if 1 in axes else columns, *local)
    # Copying the look of a tensor takes two thirds of the time of naming it. A large one has the look without the memory.
    held = target_shape if length * out_dtype.itemsize <= LOOK_BYTES else (1,) * len(target_shape)
    like, empty_like = torch.empty(held, dtype=out_dtype, device="cpu").expand(target_shape), torch.empty_like
    alone, together, team = compiled.lane_sum_whole, compiled.lane_sum_team, threads.team
    if size_bytes < threads.SPLIT_BYTES:

        def small(values: torch.Tensor, into: torch.Tensor | None = None) -> torch.Tensor:
            target = empty_like(like) if into is None else into
            alone(values.data_ptr(), target.data_ptr(), whole)
            return target

        return small

    def kernel(values: torch.Tensor, into: torch.Tensor | None = None) -> torch.Tensor:
        target = empty_like(like) if into is None else into
        source, result = values.data_ptr(), target.data_ptr()
        count = team.size(size_bytes)
        if count == 1:
            alone(source, result, whole)
        else:
            step = -(-length // (count * STEP)) * STEP
            shared = threads.Threads(threads.parallel(), count, step)
            team.report(size_bytes, together(ctypes.byref(shared), source, result, *options))
        return target

    return kernel


def _is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _sum_in_order(values: torch.Tensor, axes: tuple[int, ...], out_dtype: torch.dtype) -> torch.Tensor:
    """The same additions by torch, one lane after the other."""
    moved = values.movedim(axes, tuple(range(len(axes)))).flatten(0, len(axes) - 1)
    total = torch.zeros(moved.shape[1:], dtype=torch.float32, device=values.device)
    for lane in moved:
        total = total + lane.float()
    shape = [1 if axis in axes else size for axis, size in enumerate(values.shape)]
    return total.reshape(shape).to(out_dtype)


def _declare(compiled: ctypes.CDLL) -> None:
    pointer, count, integer = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    lanes = ctypes.POINTER(_Lanes)
    compiled.lane_sum_whole.argtypes = [pointer, pointer, pointer]
    compiled.lane_sum_team.argtypes = [threads.POINTER, pointer, pointer, lanes, integer, integer]
    compiled.lane_sum_whole.restype, compiled.lane_sum_team.restype = None, count
