"""Indices clamped to their range on a GPU, and the smallest and largest of them noted, in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _clamp(source, target, extremes, count, low, high, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    first = tl.load(source + tl.program_id(0).to(tl.int64) * BLOCK)  # stands for those beyond the end
    values = tl.load(source + offsets, mask=inside, other=0)
    tl.store(target + offsets, tl.minimum(tl.maximum(values, low), high), mask=inside)
    values = tl.where(inside, values, first).to(tl.int64)
    tl.atomic_min(extremes, tl.min(values))
    tl.atomic_max(extremes + 1, tl.max(values))


def clamp(index: torch.Tensor, low: int, high: int, extremes: torch.Tensor) -> torch.Tensor:
    """The indices within [low, high]; `extremes` [2] are widened by them as they were."""
    source = index.contiguous()
    target = torch.empty_like(source)
    count = source.numel()
    _clamp[(triton.cdiv(count, BLOCK),)](source, target, extremes, count, low, high, BLOCK)
    return target


def warm_up() -> None:
    """Compile and launch once: what cannot work here fails now."""
    index = torch.zeros(1, dtype=torch.int64, device="cuda")
    clamp(index, 0, 1, torch.zeros(2, dtype=torch.int64, device="cuda"))
