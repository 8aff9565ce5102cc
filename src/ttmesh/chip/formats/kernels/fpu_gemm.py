"""Calls the compiled GEMM of masked operands and rounded sums, and the compiled packer to bfloat16."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from ttmesh.chip.formats.kernels import threads
from ttmesh.chip.formats.kernels.loader import find_function, library

TILE = 32
PACKED_BYTES = 16 << 20  # of activations prepared at once; more goes in slices of rows
SPLIT_PRODUCTS = 1 << 22  # below this many a second thread does not pay
PIECE = 24  # columns that make one piece of work

_FIELDS = (
    ("batches", "rows", "depth", "columns"),
    ("x_batch", "x_row", "x_half"),
    ("w_batch", "w_row", "w_column", "w_half"),
    ("x_mask", "w_mask", "terms", "x_full", "w_upper", "narrow", "block", "out_half"),
)


class _GemmShape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for names in _FIELDS for name in names]


@dataclass(frozen=True)
class OperandMasks:
    """Which bits of the operands are multiplied: x_mask times w_mask, and what x_mask leaves of x_full times w_upper."""

    x_mask: int
    w_mask: int
    x_full: int = 0
    w_upper: int = 0

    @property
    def terms(self) -> int:
        """How many matmuls are added."""
        return 2 if self.x_full else 1


_SIGNATURES: dict[str, list[Any]] = {
    "fpu_gemm": [threads.POINTER, *[ctypes.c_void_p] * 3, ctypes.POINTER(_GemmShape), ctypes.c_float],
    "pack_bfloat16": [threads.POINTER, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64],
}


def supports(*operands: torch.Tensor) -> bool:
    """Whether the kernel can take these values."""
    known = all(o.device.type == "cpu" and o.dtype in (torch.bfloat16, torch.float32) for o in operands)
    return known and library("fpu_gemm") is not None


def multiply(
    a: torch.Tensor, b: torch.Tensor, masks: OperandMasks, *, block: int | None, lower: float, packed: bool = False
) -> torch.Tensor:
    """Destination registers of lanes [n, M, K] @ [n, K, N].

    Args:
        block: of K, whole tiles, added up in L1; None: a 32-bit destination, without roundings.
        lower: the share of a tile's sum that the last write to a 16-bit destination brings; 0: there is no such write.
        packed: in bfloat16, as the packer writes it, rather than in float32.
    """
    a = a if a.stride(-1) == 1 or a.shape[-1] == 1 else a.contiguous()
    batches, rows, depth = a.shape
    out = torch.empty(batches, rows, b.shape[-1], dtype=torch.bfloat16 if packed else torch.float32, device="cpu")
    if out.numel() == 0:
        return out
    at_once = max(1, PACKED_BYTES // max(1, rows * depth * 4 * masks.terms))  # whole batches
    if at_once > 1 or batches > 1:
        for i in range(0, batches, at_once):
            _run(a[i : i + at_once], b[i : i + at_once], out[i : i + at_once], masks, block, lower)
        return out
    at_once = max(256, PACKED_BYTES // max(1, depth * 4 * masks.terms))
    for row in range(0, rows, at_once):
        _run(a[:, row : row + at_once], b, out[:, row : row + at_once], masks, block, lower)
    return out


def pack_bfloat16(dest: torch.Tensor) -> torch.Tensor:
    """Registers as the packer writes bfloat16."""
    dest = dest.contiguous()
    packed = torch.empty(dest.shape, dtype=torch.bfloat16, device="cpu")
    team = threads.share(dest.numel(), dest.nbytes)
    _function("pack_bfloat16")(ctypes.byref(team), dest.data_ptr(), packed.data_ptr(), dest.numel())
    return packed


def _run(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, masks: OperandMasks, block: int | None, lower: float
) -> None:
    batches, rows, depth = a.shape
    columns = b.shape[-1]
    deep = -(-max(depth, 1) // TILE) * TILE
    shape = _GemmShape(
        *(batches, rows, depth, columns),
        *(a.stride(0), a.stride(1), a.dtype is torch.bfloat16),
        *(b.stride(0), b.stride(1), b.stride(2), b.dtype is torch.bfloat16),
        *(masks.x_mask & 0xFFFFFFFF, masks.w_mask & 0xFFFFFFFF, masks.terms),
        *(masks.x_full & 0xFFFFFFFF, masks.w_upper & 0xFFFFFFFF),
        *(block is not None, block or deep, out.dtype is torch.bfloat16),
    )
    pieces = batches * -(-columns // PIECE)
    count = torch.get_num_threads() if batches * rows * depth * columns >= SPLIT_PRODUCTS else 1
    team = threads.Threads(threads.parallel() if count > 1 else None, min(count, pieces), 1)
    pointers = a.data_ptr(), b.data_ptr(), out.data_ptr()
    if not _function("fpu_gemm")(ctypes.byref(team), *pointers, ctypes.byref(shape), lower):
        raise MemoryError(f"no memory to prepare {batches * (rows + columns) * deep * 4 * masks.terms} B of operands")


def _function(name: str) -> ctypes._NamedFuncPointer:
    return find_function("fpu_gemm", name, *_SIGNATURES[name])
