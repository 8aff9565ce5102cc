"""Matmuls of lanes; one GEMM if the weights are the same on every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import torch

from ttmesh.chip.formats.kernels import sgemm
from ttmesh.chip.numerics import fpu, ideal_matmul
from ttmesh.chip.numerics.exact_matmul import batch_shape

# Below this many multiplications oneDNN's call costs more than it saves over MKL (benchmarks of both on 2 cores).
LARGE = 1 << 22
LEAST_ROWS = 4  # with fewer torch only reads the weights, which the compiled GEMM copies
FEW_ROWS = 64  # with more rows oneDNN is ahead of the compiled GEMM, for one matrix ...
FRESH_BYTES = 32 << 20  # ... whose result is not fresh memory, which the compiled GEMM maps in large pages


def _find_one_dnn() -> Callable[..., torch.Tensor] | None:
    """torch's private function for oneDNN's float32 GEMM, or None.

    MKL leaves AVX-512 alone on AMD, and oneDNN is ahead there; with AVX2 MKL is, by a quarter.
    """
    is_wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")  # type: ignore[no-untyped-call]
    if not is_wide or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


_linear_pointwise = _find_one_dnn()


def matmul_lanes(a: torch.Tensor, b: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """a @ b per device, with TT-NN's rules for ranks: local dims are aligned at the last one."""
    drop_row, drop_column = a.dim() - lane_axes == 1, b.dim() - lane_axes == 1
    if drop_row:
        a = a.unsqueeze(-2)
    if drop_column:
        b = b.unsqueeze(-1)
    a, b = equalize_pair(a, b, lane_axes)
    chip = fpu.fpu_for(a, b)
    if chip is None:
        result = ideal_matmul.matmul(*_to_common_float(a, b), gemm=_multiply_batches)
    else:
        result = fpu.fpu_matmul(chip, a, b)
    if drop_column:
        result = result.squeeze(-1)
    return result.squeeze(-1 if drop_column else -2) if drop_row else result


def equalize_pair(a: torch.Tensor, b: torch.Tensor, lane_axes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Give both tensors the same rank by inserting dims of length 1 after the mesh dims."""
    missing = a.dim() - b.dim()
    if missing > 0:
        b = b.reshape(*b.shape[:lane_axes], *[1] * missing, *b.shape[lane_axes:])
    elif missing < 0:
        a = a.reshape(*a.shape[:lane_axes], *[1] * -missing, *a.shape[lane_axes:])
    return a, b


def _to_common_float(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if a.dtype == b.dtype and a.is_floating_point():
        return a, b
    return a.float(), b.float()


def _multiply_batches(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[..., M, K] @ [..., K, N]. Dims along which B is broadcast become rows of one larger matmul."""
    shared_dims = [i for i in range(a.dim() - 2) if b.shape[i] == 1]
    if len(shared_dims) == a.dim() - 2:
        rows = multiply_matrices(a.reshape(prod(a.shape[:-1]), a.shape[-1]), b.reshape(b.shape[-2], b.shape[-1]))
        return rows.reshape(*a.shape[:-1], b.shape[-1])
    merged_dims = [i for i in shared_dims if a.shape[i] != 1]
    if not merged_dims:
        return _multiply_each(a, b)
    batch_dims = [i for i in range(a.dim() - 2) if i not in merged_dims]
    order = [*batch_dims, *merged_dims, a.dim() - 2, a.dim() - 1]
    permuted = a.permute(order)  # only A is copied, never the expanded B
    large_a = permuted.reshape(*(a.shape[i] for i in batch_dims), -1, a.shape[-1])
    weights = b.reshape(*(b.shape[i] for i in batch_dims), *b.shape[-2:])
    result = _multiply_each(large_a, weights)
    lengths = [*result.shape[: len(batch_dims)], *(a.shape[i] for i in merged_dims), a.shape[-2], b.shape[-1]]
    return result.reshape(lengths).permute(_invert_permutation(order))


def _multiply_each(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A matmul per batch; large float32 ones with the compiled GEMM, or with oneDNN, one after the other."""
    rows, depth = a.shape[-2:]
    columns = b.shape[-1]
    b = _gather_batches(b)
    if rows * depth * columns < LARGE:
        return torch.matmul(a, b)
    if rows >= LEAST_ROWS and sgemm.supports(a, b):
        return sgemm.multiply(a, b)
    if not _takes_one_dnn(a, b):
        return torch.matmul(a, b)
    batch = batch_shape(a, b)
    result = torch.empty(*batch, rows, columns, dtype=a.dtype, device=a.device)
    lefts, rights = a.expand(*batch, rows, depth).flatten(0, -3), b.expand(*batch, depth, columns).flatten(0, -3)
    for left, right, out in zip(lefts, rights, result.view(-1, rows, columns), strict=True):
        out.copy_(multiply_matrices(left, right))
    return result


def _gather_batches(x: torch.Tensor) -> torch.Tensor:
    """Transposed matrices of batches with gaps between them (heads), copied as stored; torch would transpose them too."""
    if x.dim() < 4 or x.stride(-2) != 1 or x.stride(-1) == 1 or not x.is_cpu:
        return x
    return x if _has_batch_stride(x) else x.mT.contiguous().mT


def _has_batch_stride(x: torch.Tensor) -> bool:
    """Whether the batch dims can be one dim."""
    dims = [(size, step) for size, step in zip(x.shape[:-2], x.stride()[:-2], strict=True) if size != 1]
    return all(outer == inner * size for (_, outer), (size, inner) in pairwise(dims))


def _invert_permutation(order: Sequence[int]) -> list[int]:
    inverse = [0] * len(order)
    for position, source in enumerate(order):
        inverse[source] = position
    return inverse


def multiply_matrices(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply two matrices; large float32 ones with the compiled GEMM, or with oneDNN."""
    rows, columns = a.shape[0], b.shape[-1]
    if a.numel() * columns < LARGE:
        return torch.mm(a, b)
    suits = LEAST_ROWS <= rows <= FEW_ROWS or rows * columns * 4 >= FRESH_BYTES
    if suits and sgemm.supports(a, b):
        return sgemm.multiply(a, b)
    if _linear_pointwise is None or not _takes_one_dnn(a, b):
        return torch.mm(a, b)
    return _linear_pointwise(a, b.t(), None, "none", [], "")


def _takes_one_dnn(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        _linear_pointwise is not None
        and a.dtype is torch.float32
        and a.device.type == "cpu"
        and prod(b.shape) > 0
        and not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad))
    )
