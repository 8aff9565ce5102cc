"""Calls the compiled additions of the matrix engine."""

from __future__ import annotations

import ctypes
import functools

import torch

from ttmesh.chip.formats.kernels import threads
from ttmesh.chip.formats.kernels.loader import library


def supports(values: torch.Tensor) -> bool:
    """Whether the kernel can take these values."""
    return values.device.type == "cpu" and library("engine_elements") is not None


def add(a: torch.Tensor, b: torch.Tensor, *, negate: bool) -> torch.Tensor:
    """a + b or a - b of one shape: bfloat16 by a 16-bit destination, float32 patterns by a 32-bit one."""
    a, b = a.contiguous(), b.contiguous()
    out = torch.empty_like(a)
    team = threads.share(a.numel(), a.nbytes)
    options = a.numel(), int(negate), int(a.dtype is torch.bfloat16)
    _function()(ctypes.byref(team), a.data_ptr(), b.data_ptr(), out.data_ptr(), *options)
    return out


@functools.cache
def _function() -> ctypes._NamedFuncPointer:
    compiled = library("engine_elements")
    assert compiled is not None, "called without asking supports()"
    function: ctypes._NamedFuncPointer = compiled.add_elements
    function.argtypes = [threads.POINTER, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int, ctypes.c_int]
    function.restype = None
    return function
