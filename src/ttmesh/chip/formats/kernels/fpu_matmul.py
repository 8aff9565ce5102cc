"""Calls the compiled matmuls of the FPU."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from ttmesh.chip.formats.kernels import threads
from ttmesh.chip.formats.kernels.loader import find_function, library

PACKED_BYTES = 64 << 20  # of activations prepared at once; more goes in slices of rows
_PREPARED = 13  # bytes per element
SPLIT_PRODUCTS = 1 << 20  # below this many a second thread does not pay
COLUMNS = 8  # at least these many make one piece of work


class _Shape(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "batches",
            "rows",
            "depth",
            "columns",
            "x_batch",
            "x_row",
            "w_batch",
            "w_row",
            "phases",
            "wide_dest",
            "minus_one_fault",
            "keep",
        )
    ]


_SIGNATURES: dict[str, list[Any]] = {
    "fpu_matmul": [threads.POINTER, *[ctypes.c_void_p] * 3, ctypes.POINTER(_Shape)],
    "accumulate_block": [threads.POINTER, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int],
}


def supports(values: torch.Tensor) -> bool:
    """Whether the kernel can take these values."""
    return values.device.type == "cpu" and library("fpu_matmul") is not None


def multiply(
    a: torch.Tensor, b: torch.Tensor, dest: torch.Tensor | None, *, phases: int, fp32_dest: bool, fault: bool
) -> torch.Tensor:
    """Destination registers after [n, M, K] @ [n, K, N] of unpacked float32 operands, on top of `dest`."""
    a, b = _neighbours(a), _neighbours(b)
    batches, rows, depth = a.shape
    out = (
        torch.empty(batches, rows, b.shape[-1], dtype=torch.float32, device="cpu")
        if dest is None
        else dest.clone(memory_format=torch.contiguous_format)
    )
    if out.numel() == 0:
        return out
    if batches > 1 and batches * rows * depth * _PREPARED > PACKED_BYTES:
        for i in range(batches):
            _run(a[i : i + 1], b[i : i + 1], out[i : i + 1], (phases, fp32_dest, fault, dest is not None))
        return out
    at_once = max(COLUMNS, PACKED_BYTES // (batches * max(depth, 1) * _PREPARED))
    for row in range(0, rows, at_once) if batches == 1 else [0]:
        slice_ = slice(row, row + at_once) if batches == 1 else slice(None)
        _run(a[:, slice_], b, out[:, slice_], (phases, fp32_dest, fault, dest is not None))
    return out


def accumulate_block(held: torch.Tensor, block: torch.Tensor, *, first: bool) -> None:
    """Contiguous float32 sums of a block packed to bfloat16 and added in place to what L1 holds; the first replaces it."""
    team = threads.share(held.numel(), held.nbytes)
    options = held.data_ptr(), block.data_ptr(), held.numel(), int(first)
    _function("accumulate_block")(ctypes.byref(team), *options)


def _run(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, options: tuple[int, bool, bool, bool]) -> None:
    batches, rows, depth = a.shape
    columns = b.shape[-1]
    strides = a.stride(0), a.stride(1), b.stride(0), b.stride(1)
    shape = _Shape(batches, rows, depth, columns, *strides, *(int(option) for option in options))
    pieces = batches * -(-(rows if columns == 1 else columns) // COLUMNS)
    count = torch.get_num_threads() if batches * rows * depth * columns >= SPLIT_PRODUCTS else 1
    team = threads.Threads(threads.parallel() if count > 1 else None, min(count, pieces), 1)
    done = _function("fpu_matmul")(ctypes.byref(team), a.data_ptr(), b.data_ptr(), out.data_ptr(), ctypes.byref(shape))
    if not done:
        raise MemoryError(f"no memory to prepare {a.nbytes * 3} B of activations")


def _neighbours(values: torch.Tensor) -> torch.Tensor:
    """With unit stride in the last dim."""
    return values if values.stride(-1) == 1 or values.shape[-1] == 1 else values.contiguous()


def _function(name: str) -> ctypes._NamedFuncPointer:
    return find_function("fpu_matmul", name, *_SIGNATURES[name])
