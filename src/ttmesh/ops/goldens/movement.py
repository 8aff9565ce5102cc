"""Data movement and creation: operations that change positions or shapes but no values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def assign(input: Tensor, *_: Any, **__: Any) -> Tensor:
    """The first tensor, whether it is copied or written into the second."""
    return input


def fill_implicit_tile_padding(input_tensor: Tensor, fill_value: float) -> Tensor:
    return input_tensor


def plus_one(input_tensor: Tensor, skip_negative_entries: bool = False) -> Tensor:
    return input_tensor + (input_tensor >= 0 if skip_negative_entries else 1)


def clone(input: Tensor) -> Tensor:
    return input.clone()


def copy(input_a: Tensor, input_b: Tensor) -> Tensor:
    return input_a


def move(input_tensor: Tensor) -> Tensor:
    return input_tensor


def full(shape: Sequence[int], fill_value: float, **_: Any) -> Tensor:
    return torch.full(tuple(shape), fill_value)


def arange(start: int, end: int | None = None, step: int = 1, **_: Any) -> Tensor:
    return torch.arange(0, start) if end is None else torch.arange(start, end, step)


def zeros(shape: Sequence[int], **_: Any) -> Tensor:
    return torch.zeros(tuple(shape))


def ones(shape: Sequence[int], **_: Any) -> Tensor:
    return torch.ones(tuple(shape))


def empty(shape: Sequence[int], **_: Any) -> Tensor:
    return torch.empty(tuple(shape))


def full_like(tensor: Tensor, fill_value: float, **_: Any) -> Tensor:
    return torch.full_like(tensor, fill_value)


def zeros_like(tensor: Tensor, **_: Any) -> Tensor:
    return torch.zeros_like(tensor)


def ones_like(tensor: Tensor, **_: Any) -> Tensor:
    return torch.ones_like(tensor)


def empty_like(tensor: Tensor, **_: Any) -> Tensor:
    return torch.empty_like(tensor)


def tril(input_tensor: Tensor, diagonal: int = 0) -> Tensor:
    return input_tensor * (_diagonals(input_tensor) <= diagonal)


def triu(input_tensor: Tensor, diagonal: int = 0) -> Tensor:
    return input_tensor * (_diagonals(input_tensor) >= diagonal)


def _diagonals(x: Tensor) -> Tensor:
    """The distance of each element of a matrix above the main diagonal."""
    rows, columns = x.shape[-2:]
    return torch.arange(columns) - torch.arange(rows)[:, None]


def concat(tensors: Sequence[Tensor], dim: int = 0, groups: int = 1) -> Tensor:
    if groups == 1:
        return torch.cat(list(tensors), dim)
    position = dim % tensors[0].dim()
    return torch.cat([torch.unflatten(tensor, position, (groups, -1)) for tensor in tensors], position + 1).flatten(
        position, position + 1
    )


def split(input_tensor: Tensor, split_size: int | Sequence[int], dim: int = 0) -> list[Tensor]:
    return list(torch.split(input_tensor, split_size if isinstance(split_size, int) else list(split_size), dim))


def stack(input_tensors: Sequence[Tensor], dim: int) -> Tensor:
    return torch.stack(list(input_tensors), dim)


def chunk(input_tensor: Tensor, chunks: int, dim: int) -> list[Tensor]:
    return list(torch.chunk(input_tensor, chunks, dim))


def repeat(input_tensor: Tensor, repeat_dims: Sequence[int]) -> Tensor:
    return torch.tile(input_tensor, tuple(repeat_dims))


def repeat_interleave(input_tensor: Tensor, repeats: int, dim: int) -> Tensor:
    return torch.repeat_interleave(input_tensor, repeats, dim)


def bcast(input_a: Tensor, input_b: Tensor, math_op: Any, dim: Any) -> Tensor:
    """The first row, column or element of the second operand is broadcast along H, W or both."""
    broadcast = {"H": input_b[..., :1, :], "W": input_b[..., :, :1], "HW": input_b[..., :1, :1]}[dim.name]
    functions: dict[str, Callable[..., Tensor]] = {"ADD": torch.add, "SUB": torch.sub, "MUL": torch.mul}
    return functions[math_op.name](input_a, broadcast.expand(input_a.shape))


def fill_corner(
    N: int, C: int, H: int, W: int, hOnes: int, wOnes: int, any: Tensor, val_hi: float = 1.0, val_lo: float = 0.0
) -> Tensor:
    corner = torch.full((N, C, hOnes, wOnes), val_hi)
    return F.pad(corner, (0, W - wOnes, 0, H - hOnes), value=val_lo)


def fold(
    input: Tensor,
    stride_h: int,
    stride_w: int,
    use_transpose_as_fold: bool = False,
    output_shape: Sequence[int] | None = None,
    padding: Sequence[int] = (0, 0),
    collapse_output: bool = False,
    **_: Any,
) -> Tensor:
    images = input if use_transpose_as_fold else input.permute(0, 3, 1, 2)
    borders = [int(n) for n in padding]
    if len(borders) == 2:
        borders = [borders[0], borders[0], borders[1], borders[1]]
    top, bottom, left, right, front, back = (*borders, 0, 0)[:6]
    images = F.pad(images, (left, right, top, bottom, front, back))
    channels = images.shape[1]
    blocks = F.unfold(images.float(), (stride_h, stride_w), stride=(stride_h, stride_w))
    blocks = blocks.reshape(len(images), channels, stride_h * stride_w, -1)  # unfold puts channels first
    rows = blocks.permute(0, 3, 2, 1).flatten(-2).to(input.dtype)
    size = images.shape[-2] // stride_h, images.shape[-1] // stride_w
    result = rows.reshape(len(images), *size, -1)
    if output_shape is not None:
        result = result[:, : output_shape[1], : output_shape[2], : output_shape[3]]
    return result.reshape(1, 1, -1, result.shape[-1]) if collapse_output else result


def broadcast_to(input: Tensor, output_shape: Sequence[int]) -> Tensor:
    return input.expand(tuple(output_shape))


def roll(input_tensor: Tensor, shifts: int | Sequence[int], dim: int | Sequence[int] | None = None) -> Tensor:
    if dim is None:
        rolled = torch.roll(input_tensor.flatten(), shifts if isinstance(shifts, int) else sum(shifts))
        return rolled.reshape(input_tensor.shape)
    return torch.roll(input_tensor, shifts, dim if isinstance(dim, int) else tuple(dim))


def permute(input_tensor: Tensor, dims: Sequence[int]) -> Tensor:
    return input_tensor.permute(tuple(dims))


def transpose(input_tensor: Tensor, dim1: int, dim2: int) -> Tensor:
    return input_tensor.transpose(dim1, dim2)


def convert_to_chw(input: Tensor) -> Tensor:
    return input.transpose(-1, -2)


def convert_to_hwc(input: Tensor) -> Tensor:
    return input.permute(0, 1, 3, 2).flatten(0, 2)[None, None]


def pad(
    input_tensor: Tensor,
    padding: Sequence[Any] = (),
    value: float = 0.0,
    output_padded_shape: Sequence[int] = (),
    input_tensor_start: Sequence[int] = (),
) -> Tensor:
    if output_padded_shape:
        sizes = zip(input_tensor.shape, output_padded_shape, input_tensor_start, strict=True)
        padding = [(start, padded_length - start - length) for length, padded_length, start in sizes]
    pairs = [(0, amount) if isinstance(amount, int) else tuple(amount) for amount in padding]
    pairs = [(0, 0)] * (input_tensor.dim() - len(pairs)) + pairs
    lengths = zip(input_tensor.shape, pairs, strict=True)
    result = torch.full(
        [before + length + after for length, (before, after) in lengths], value, dtype=input_tensor.dtype
    )
    inside = zip(input_tensor.shape, pairs, strict=True)
    result[tuple(slice(before, before + length) for length, (before, _) in inside)] = input_tensor
    return result


def interleaved_to_sharded(input_tensor: Tensor, sharded_memory_config: Any = None) -> Tensor:
    return input_tensor


def sharded_to_interleaved(input_tensor: Tensor) -> Tensor:
    return input_tensor


def reshard(input_tensor: Tensor, output_memory_config: Any) -> Tensor:
    return input_tensor


def reshape(input_tensor: Tensor, shape: Sequence[int] = (), logical_shape: Sequence[int] | None = None) -> Tensor:
    return input_tensor.reshape(tuple(shape if logical_shape is None else logical_shape))


def squeeze(input_tensor: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    if dim is None:
        return input_tensor.squeeze()
    return input_tensor.squeeze(tuple([dim] if isinstance(dim, int) else dim))


def unsqueeze_to_4d(tensor: Tensor) -> Tensor:
    return tensor.reshape(*[1] * (4 - tensor.dim()), *tensor.shape)


def unsqueeze(input_tensor: Tensor, dim: int) -> Tensor:
    return input_tensor.unsqueeze(dim)


def expand(input_tensor: Tensor, output_shape: Sequence[int]) -> Tensor:
    return input_tensor.expand(tuple(output_shape))


def slice_(
    input_tensor: Tensor,
    starts: Sequence[int] | None = None,
    ends: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    slice_start: Sequence[int] | None = None,
    slice_end: Sequence[int] | None = None,
    slice_step: Sequence[int] | None = None,
) -> Tensor:
    first, last = (starts or slice_start or ()), (ends or slice_end or ())
    return input_tensor[tuple(map(slice, first, last, steps or slice_step or [1] * len(first)))]


def narrow(input_tensor: Tensor, dim: int, start: int, length: int) -> Tensor:
    return torch.narrow(input_tensor, dim, start, length)
