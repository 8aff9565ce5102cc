"""Sums over mesh axes: per element one float32 chain in lane order, rounded once."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence

import torch

from ttmesh.chip.formats.kernels import threads
from ttmesh.chip.formats.kernels.loader import library

# torch.sum is one chain up to this many lanes (beyond, it adds partial sums in an order that depends on the shape) ...
TORCH_CHAIN = 4
# ... and below this many bytes its single call is cheaper than ours (benchmarks/formats.py).
TORCH_BYTES = 64 << 10

_FLOATS = (torch.float32, torch.bfloat16)


class _Lanes(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("rows", "columns", "row_stride", "column_stride", "length", "sum_rows", "sum_columns")
    ]


def lane_sum(values: torch.Tensor, axes: Sequence[int], *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Lanes [rows, cols, ...] summed over mesh axes, which keep size 1; `dtype` is the result's, else the values'.

    Integers are summed exactly and wrapped to the result's width.
    """
    out_dtype = dtype or values.dtype
    assert set(axes) <= {0, 1}, f"mesh axes are 0 and 1, not {axes}"
    rows = values.shape[0] if 0 in axes else 1
    columns = values.shape[1] if 1 in axes else 1
    if not axes:
        return values.to(out_dtype)
    if not values.dtype.is_floating_point:
        return values.sum(tuple(axes), keepdim=True, dtype=torch.int64).to(out_dtype)
    if values.is_meta or (rows * columns <= TORCH_CHAIN and values.nbytes < TORCH_BYTES):
        return values.sum(tuple(axes), keepdim=True, dtype=torch.float32).to(out_dtype)
    if _kernel_takes(values, out_dtype):
        return _compiled(values, axes, out_dtype)
    return _chained(values, tuple(sorted(axes)), out_dtype)


def _kernel_takes(values: torch.Tensor, out_dtype: torch.dtype) -> bool:
    if values.device.type != "cpu" or values.dtype not in _FLOATS or out_dtype not in _FLOATS:
        return False
    return (values.is_contiguous() or values[0, 0].is_contiguous()) and library("lane_sum") is not None


def _compiled(values: torch.Tensor, axes: Sequence[int], out_dtype: torch.dtype) -> torch.Tensor:
    rows, columns, *shape = values.shape
    length = math.prod(shape)
    over_rows, over_columns = 0 in axes, 1 in axes
    target = torch.empty((1 if over_rows else rows, 1 if over_columns else columns, *shape), dtype=out_dtype)
    lanes = _Lanes(rows, columns, *values.stride()[:2], length, over_rows, over_columns)
    function = _function()
    pointers = values.data_ptr(), target.data_ptr()
    options = ctypes.byref(lanes), values.dtype == torch.bfloat16, out_dtype == torch.bfloat16
    if values.nbytes < threads.SPLIT_BYTES:
        function(*pointers, 0, length, *options)
    else:
        threads.run(lambda begin, end: function(*pointers, begin, end, *options), length, values.nbytes)
    return target


def _chained(values: torch.Tensor, axes: tuple[int, ...], out_dtype: torch.dtype) -> torch.Tensor:
    """The same additions by torch, one lane after the other."""
    moved = values.movedim(axes, tuple(range(len(axes)))).flatten(0, len(axes) - 1)
    total = torch.zeros(moved.shape[1:], dtype=torch.float32, device=values.device)
    for lane in moved:
        total = total + lane.float()
    shape = [1 if axis in axes else size for axis, size in enumerate(values.shape)]
    return total.reshape(shape).to(out_dtype)


@functools.cache
def _function() -> ctypes._NamedFuncPointer:
    compiled = library("lane_sum")
    assert compiled is not None, "called without a library"
    pointer, count, integer = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    compiled.lane_sum.argtypes = [pointer, pointer, count, count, ctypes.POINTER(_Lanes), integer, integer]
    compiled.lane_sum.restype = None
    return compiled.lane_sum
