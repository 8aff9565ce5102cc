"""Calls the compiled float32 GEMM, on processors with AVX-512."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch

from ttmesh.chip.formats.kernels import threads
from ttmesh.chip.formats.kernels.loader import find_function, library

SPLIT_PRODUCTS = 1 << 20  # below this many a second thread does not pay
PIECE = 64  # rows and columns that make one piece of work, at least

_FIELDS = ("batches", "rows", "depth", "columns", "x_batch", "x_row", "x_column", "w_batch", "w_row", "w_column")


class _SgemmShape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS]


class _Plan(NamedTuple):
    shape: _SgemmShape
    result: tuple[int, ...]
    most_threads: int


_SIGNATURE = (threads.POINTER, *[ctypes.c_void_p] * 3, ctypes.POINTER(_SgemmShape))


@functools.cache
def has_wide_vectors() -> bool:
    """Whether torch uses AVX-512 here: with less its own GEMM is ahead."""
    return bool(torch.backends.cpu.get_cpu_capability().startswith("AVX512"))  # type: ignore[no-untyped-call]


def supports(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the kernel can take [..., M, K] @ [..., K, N] with the same number of dims."""
    if not (a.dtype is b.dtype is torch.float32 and a.is_cpu and b.is_cpu):
        return False
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return False
    plan = _plan(a.shape, a.stride(), b.shape, b.stride())
    return plan is not None and has_wide_vectors() and library("sgemm") is not None


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[..., M, K] @ [..., K, N], contiguous; per element one chain of multiply-adds for every 512 of K, then their sum."""
    plan = _plan(a.shape, a.stride(), b.shape, b.stride())
    assert plan is not None, "called without asking supports()"
    out = torch.empty(plan.result, dtype=torch.float32, device="cpu")
    count = min(torch.get_num_threads(), plan.most_threads)
    team = threads.Threads(threads.parallel() if count > 1 else None, count, 1)
    pointers = a.data_ptr(), b.data_ptr(), out.data_ptr()
    find_function("sgemm", "sgemm", *_SIGNATURE)(ctypes.byref(team), *pointers, ctypes.byref(plan.shape))
    return out


@functools.lru_cache(maxsize=1024)
def _plan(
    a_shape: tuple[int, ...], a_stride: tuple[int, ...], b_shape: tuple[int, ...], b_stride: tuple[int, ...]
) -> _Plan | None:
    """The arguments of a call; None if nothing is multiplied or if batches are not stored at equal distances."""
    *a_batch, rows, depth = a_shape
    *b_batch, _, columns = b_shape
    batch = [max(pair) if min(pair) else 0 for pair in zip(a_batch, b_batch, strict=True)]
    x_batch, w_batch = _merge_strides(batch, a_batch, a_stride), _merge_strides(batch, b_batch, b_stride)
    products = prod(batch) * rows * depth * columns
    if x_batch is None or w_batch is None or not products:
        return None
    shape = _SgemmShape(prod(batch), rows, depth, columns, x_batch, *a_stride[-2:], w_batch, *b_stride[-2:])
    most = prod(batch) * -(-columns // PIECE) * -(-rows // PIECE) if products >= SPLIT_PRODUCTS else 1
    return _Plan(shape, (*batch, rows, columns), most)


def _merge_strides(batch: Sequence[int], own: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of all batch dims as one, some of them broadcast; None if there is no such stride."""
    inner, expected = 0, None
    for size, length, stride in zip(reversed(batch), reversed(own), reversed(strides[: len(own)]), strict=True):
        if size == 1:
            continue
        step = 0 if length == 1 else stride
        if expected is None:
            inner = step
        elif step != expected:
            return None
        expected = step * size
    return inner
