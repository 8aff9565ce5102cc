"""Matmuls of float32 sums, rounded once: torch's own, by the fastest route that the processor has."""

from __future__ import annotations

from collections.abc import Callable

import torch

Gemm = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

FAST_BFLOAT16: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # whether this CPU multiplies bfloat16 itself


def matmul(a: torch.Tensor, b: torch.Tensor, *, gemm: Gemm = torch.matmul) -> torch.Tensor:
    """gemm(a, b) of one dtype; on a CPU without bfloat16 in float32, as torch's own loop is 50 times slower there."""
    if a.dtype is torch.bfloat16 and not FAST_BFLOAT16 and a.device.type == "cpu":
        return gemm(a.float(), b.float()).bfloat16()
    return gemm(a, b)
