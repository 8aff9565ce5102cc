"""Calls the compiled additions of the FPU."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

from ttmesh.chip.formats.kernels import threads
from ttmesh.chip.formats.kernels.loader import library

Add = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SMALL_ELEMENTS = threads.SPLIT_BYTES // 2  # of bfloat16: below this one thread serves


def supports(values: torch.Tensor) -> bool:
    """Whether the kernel can take these values."""
    return values.device.type == "cpu" and library("fpu_elements") is not None


def add(a: torch.Tensor, b: torch.Tensor, *, negate: bool) -> torch.Tensor:
    """a + b or a - b of one shape: bfloat16 by a 16-bit destination, float32 patterns by a 32-bit one."""
    return _add(a, b, negate=negate, narrow=a.dtype is torch.bfloat16)


def add_narrow(a: torch.Tensor, b: torch.Tensor, *, negate: bool) -> torch.Tensor:
    """a + b or a - b of one shape, by a 16-bit destination; its registers in the operands' dtype."""
    return _add(a, b, negate=negate, narrow=True)


def _add(a: torch.Tensor, b: torch.Tensor, *, negate: bool, narrow: bool) -> torch.Tensor:
    a, b = a.contiguous(), b.contiguous()
    out = torch.empty_like(a)
    team = threads.share(a.numel(), a.nbytes)
    options = a.numel(), int(negate), int(a.dtype is torch.bfloat16), int(narrow)
    _function()(ctypes.byref(team), a.data_ptr(), b.data_ptr(), out.data_ptr(), *options)
    return out


def make_small_adder(general: Add, *, negate: bool) -> Add:
    """a + b or a - b of small bfloat16 tensors of one shape in one frame; anything else is handed to `general`."""
    if library("fpu_elements") is None:
        return general
    function, flag = _function(), int(negate)

    def add_small(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        size = a.numel()
        if (
            size > SMALL_ELEMENTS or a.shape != b.shape or not (a.is_cpu and b.is_cpu)
            or a.requires_grad or b.requires_grad or not (a.dtype is b.dtype is torch.bfloat16)
        ):  # fmt: skip
            return general(a, b)
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty_like(a)
        function(threads.ALONE, a.data_ptr(), b.data_ptr(), out.data_ptr(), size, flag, 1, 1)
        return out

    return add_small


@functools.cache
def _function() -> ctypes._NamedFuncPointer:
    compiled = library("fpu_elements")
    assert compiled is not None, "called without asking supports()"
    function: ctypes._NamedFuncPointer = compiled.add_elements
    function.argtypes = [threads.POINTER, *[ctypes.c_void_p] * 3, ctypes.c_int64, *[ctypes.c_int] * 3]
    function.restype = None
    return function
