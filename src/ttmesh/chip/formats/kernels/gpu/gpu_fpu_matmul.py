"""The FPU's products on a GPU, bit for bit, by fpu_matmul.cu, where no exponent can leave the range.

CUDA C rather than Triton: eight of a thread's products at a time stay in registers, exponents are compared two in a word,
and additions round down, none of which Triton can say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import pad

TILE, ROWS, COLUMNS, THREADS = 32, 64, 64, 256  # as in fpu_matmul.cu
LEAST, MOST = 83, 172  # biased exponents of operands: products, sums and what is left when they cancel stay normal


def supports(*operands: torch.Tensor) -> bool:
    """Whether every exponent of these float32 values is in range; waits for the GPU."""
    inside = [_in_range(values) for values in operands]
    return bool(torch.stack(inside).all())


def _in_range(values: torch.Tensor) -> torch.Tensor:
    exponents = (values.view(torch.int32) >> 23) & 0xFF
    return ((exponents == 0) | ((exponents >= LEAST) & (exponents <= MOST))).all()


def multiply(
    a: torch.Tensor,
    b: torch.Tensor,
    dest: torch.Tensor | None,
    *,
    phases: int,
    fp32_dest: bool,
    fault: bool,
    block: int | None = None,
) -> torch.Tensor:
    """Destination registers after [n, M, K] @ [n, K, N] of unpacked float32 operands, on top of `dest`.

    Args:
        block: of K, added up in L1; None: all of K in the destination.
    """
    batches, rows, depth = a.shape
    columns = b.shape[-1]
    padded_rows, padded_columns, deep = (
        rows + -rows % ROWS,
        columns + -columns % COLUMNS,
        max(TILE, depth + -depth % TILE),
    )
    if dest is None:
        out = torch.empty(batches, padded_rows, padded_columns, device=a.device, dtype=torch.float32)
    else:
        out = pad(dest, (0, padded_columns - columns, 0, padded_rows - rows)).contiguous()
    if out.numel() == 0:
        return out[:, :rows, :columns]
    x = _prepare("false", a, rows, depth, padded_rows, deep)
    w = _prepare("true", b, columns, depth, padded_columns, deep)
    kernel = _kernel(f"multiply<{phases}, {str(fp32_dest).lower()}>")
    kernel(
        grid=(padded_rows // ROWS * (padded_columns // COLUMNS), batches, 1),
        block=(THREADS, 1, 1),
        args=[
            *(*x, *w, out, padded_rows, padded_columns, deep, len(x[0]), len(w[0])),
            *(block or 0, int(dest is not None), int(fault)),
        ],
    )
    return out[:, :rows, :columns]


def _prepare(
    is_src_a: str, values: torch.Tensor, extent: int, depth: int, padded: int, deep: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Upper bits, lower bits and exponents [n, K, extent], padded; n is 1 if all batches share one matrix."""
    source = (values[:1] if values.stride(0) == 0 else values).contiguous()
    shape = len(source), deep, padded
    high, low = (
        torch.empty(shape, device=values.device, dtype=torch.float32),
        torch.empty(shape, device=values.device, dtype=torch.float32),
    )
    exponents = torch.empty(shape, dtype=torch.int32, device=values.device)
    _kernel(f"prepare<{is_src_a}>")(
        grid=(-(-padded // THREADS), deep, len(source)),
        block=(THREADS, 1, 1),
        args=[source, high, low, exponents, extent, depth, padded, deep],
    )
    return high, low, exponents


@functools.cache
def _kernel(name: str) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.cuda._compile_kernel(_source(), name)
    return compiled


@functools.cache
def _source() -> str:
    return Path(__file__).with_name("fpu_matmul.cu").read_text()


def warm_up() -> None:
    """Compile and launch once: what cannot work here fails now."""
    ones = torch.ones((1, 32, 32), device="cuda", dtype=torch.float32)
    multiply(ones, ones, None, phases=1, fp32_dest=False, fault=False)
