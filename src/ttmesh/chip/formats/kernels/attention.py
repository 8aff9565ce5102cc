"""Calls the compiled attention of a few rows per head over many keys: the decode steps of models."""

from __future__ import annotations

import ctypes

import torch

from ttmesh.chip.formats.kernels import threads
from ttmesh.chip.formats.kernels.loader import find_function, library

MOST_ROWS, MOST_WIDTH, LANES = 16, 256, 16  # as in attention.c; a width is whole vectors

_FIELDS = (
    ("batches", "heads", "rows", "keys", "width"),
    ("q_batch", "q_head", "q_row", "q_half"),
    ("k_batch", "k_head", "k_key", "k_half"),
    ("v_batch", "v_head", "v_key", "v_half"),
    ("mask_batch", "mask_head", "mask_row", "out_half"),
)


class _AttentionShape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for names in _FIELDS for name in names]


_SIGNATURE = (threads.POINTER, *[ctypes.c_void_p] * 5, ctypes.POINTER(_AttentionShape), ctypes.c_float)


def supports(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether the kernel can take q [batch, heads, rows, width] and k, v [batch, heads, keys, width]."""
    rows, width = q.shape[-2:]
    fits = 0 < rows <= MOST_ROWS and 0 < width <= MOST_WIDTH and width % LANES == 0 and k.shape == v.shape
    if not fits or k.shape[:2] != q.shape[:2] or k.shape[-1] != width or q.numel() == 0 or k.numel() == 0:
        return False
    known = all(x.is_cpu and x.dtype in (torch.bfloat16, torch.float32) for x in (q, k, v))
    return known and library("attention") is not None


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, mask: torch.Tensor | None
) -> torch.Tensor:
    """softmax(q·kᵀ·scale + mask)·v in float32, rounded to the query's dtype; a row that sees no key has zeros.

    Args:
        mask: added to the scores, [batch | 1, heads | 1, rows | 1, keys].
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    batches, heads, rows, width = q.shape
    keys = k.shape[-2]
    if mask is not None:
        mask = mask.float().contiguous().expand(batches, heads, rows, keys)
        mask = mask if mask.stride(-1) == 1 or keys == 1 else mask.contiguous()
    out = torch.empty(q.shape, dtype=q.dtype, device="cpu")
    shape = _AttentionShape(
        *(batches, heads, rows, keys, width),
        *(x for t in (q, k, v) for x in (*t.stride()[:3], t.dtype is torch.bfloat16)),
        *((0, 0, 0) if mask is None else mask.stride()[:3]),
        out.dtype is torch.bfloat16,
    )
    team = threads.share(batches * heads, k.numel() * k.element_size() * 2)
    pointers = q.data_ptr(), k.data_ptr(), v.data_ptr(), None if mask is None else mask.data_ptr(), out.data_ptr()
    find_function("attention", "attend", *_SIGNATURE)(ctypes.byref(team), *pointers, ctypes.byref(shape), scale)
    return out
