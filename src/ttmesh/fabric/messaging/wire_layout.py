"""How a tensor is passed to an engine: flat and contiguous, in a dtype that it knows, in pieces that 32-bit counts allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from ttmesh.base.errors import RankError, ShapeError, one_of

ENGINE_DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.int8, torch.uint8)
WIDER = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float8_e4m3fn: torch.float32,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
}
PIECE_BYTES = 1 << 30  # MPI counts are 32-bit ints; larger tensors go in pieces


def _max_(total: torch.Tensor, row: torch.Tensor) -> None:
    torch.maximum(total, row, out=total)


def _min_(total: torch.Tensor, row: torch.Tensor) -> None:
    torch.minimum(total, row, out=total)


def _add_(total: torch.Tensor, row: torch.Tensor) -> None:
    total.add_(row)


COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], None]] = {"sum": _add_, "max": _max_, "min": _min_}


def sum_dtype(dtype: torch.dtype, op: str) -> torch.dtype:
    """The dtype in which the engine reduces; raises for dtypes that cannot be reduced."""
    if op not in COMBINE:
        raise RankError(f"no reduction named {op!r}", expected=one_of(COMBINE), fix="Pass one of these as op.")
    engine_dtype = WIDER.get(dtype, dtype)
    if engine_dtype not in ENGINE_DTYPES:
        raise RankError(
            f"{dtype} cannot be reduced between ranks",
            expected=one_of(map(str, (*ENGINE_DTYPES, *WIDER))),
            fix="Convert the tensor to one of these dtypes first.",
        )
    return engine_dtype


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory, as flat uint8."""
    return tensor.view(-1).view(torch.uint8)


def split_pieces(flat: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Spans of at most PIECE_BYTES; none for an empty tensor, which costs no message on any rank."""
    step = max(1, PIECE_BYTES // flat.element_size())
    for a in range(0, flat.numel(), step):
        yield a, min(a + step, flat.numel())


def pair_pieces(source: torch.Tensor, into: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Matching pieces of two contiguous tensors; the tensors themselves if one piece is enough, since a slice costs 1 µs."""
    if 0 < source.nbytes <= PIECE_BYTES:
        yield source, into
        return
    flat, result = source.view(-1), into.view(-1)
    for a, b in split_pieces(flat):
        yield flat[a:b], result[a:b]


def check_out(out: torch.Tensor | None, shape: Sequence[int], like: torch.Tensor) -> None:
    """Raise if `out` cannot hold the result, before anything is sent."""
    if out is not None and (tuple(out.shape) != tuple(shape) or out.dtype != like.dtype):
        raise ShapeError(
            f"out has shape {list(out.shape)} and {out.dtype}",
            expected=f"shape {list(shape)} and {like.dtype}",
            fix="Pass a matching tensor, or leave out `out`.",
        )


def get_output_memory(
    out: torch.Tensor | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The memory that the engine writes: `out` itself if possible, otherwise new memory."""
    if out is not None and out.dtype == dtype and out.device == device and out.is_contiguous():
        return out
    return torch.empty(tuple(shape), dtype=dtype, device=device)


def deliver(result: torch.Tensor, shape: Sequence[int], like: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """The result in the caller's dtype, device and shape, in `out` when there is one."""
    if out is result:
        return out
    if out is None:
        if result.dtype is not like.dtype or result.device != like.device:
            result = result.to(device=like.device, dtype=like.dtype)
        return result if result.shape == shape else result.view(tuple(shape))
    if out.data_ptr() != result.data_ptr() or out.dtype != result.dtype or out.device != result.device:
        out.copy_(result.view(out.shape))
    return out
