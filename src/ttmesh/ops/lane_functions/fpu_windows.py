"""Convolutions and window sums by the chip's FPU: windows become rows of a matmul, as on the chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch.nn import functional as F

from ttmesh.chip.numerics import fpu

MOST_ELEMENTS = 1 << 25  # of windows laid out; larger convolutions cut the operands' bits and round once


def list_windows(
    images: torch.Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> torch.Tensor:
    """A view [N, C, *outputs, *kernel] of [N, C, *sizes]: the elements that each output sees."""
    held = images.contiguous()
    sizes, steps = held.shape[2:], held.stride()[2:]
    outputs = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)]
    moves = [s * step for s, step in zip(stride, steps, strict=True)]
    within = [d * step for d, step in zip(dilation, steps, strict=True)]
    return held.as_strided((*held.shape[:2], *outputs, *kernel), (*held.stride()[:2], *moves, *within))


def convolve_on_fpu(
    images: torch.Tensor,
    filters: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    ideal: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """[N, C, *sizes] with filters [out, C / groups, *kernel]: destination registers, K in the order kernel, channels.

    Args:
        padding: before and after each spatial dim, the same.
        ideal: the convolution of two float32 tensors by torch.
    """
    kernel = filters.shape[2:]
    outputs = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, d, p in zip(images.shape[2:], kernel, stride, dilation, padding, strict=True)
    ]
    depth = prod(filters.shape[1:])
    if images.shape[0] * prod(outputs) * depth * groups > MOST_ELEMENTS:
        return fpu.keep(fpu.multiply_linear(images, filters, ideal))
    sides = [side for extent in reversed(padding) for side in (extent, extent)]
    windows = list_windows(F.pad(images, sides), kernel, stride, dilation)
    spatial = len(kernel)
    rows = torch.unflatten(windows, 1, (groups, -1))  # [N, groups, c, *outputs, *kernel]
    rows = rows.movedim(1, 0).movedim(2, -1).flatten(-spatial - 1)  # [groups, N, *outputs, kernel · c]
    columns = torch.unflatten(filters, 0, (groups, -1)).movedim(2, -1).flatten(2)  # [groups, out / groups, kernel · c]
    shape = rows.shape[:-1]
    block = kernel[-1] * filters.shape[1] if fpu.accumulates_in_l1() else None
    result = fpu.matmul(rows.reshape(groups, -1, depth), columns.mT, k_block=block)
    result = result.reshape(*shape, columns.shape[1])  # [groups, N, *outputs, out / groups]
    return result.movedim(-1, 1).flatten(0, 1).movedim(0, 1)


def sum_windows(
    images: torch.Tensor, window: Sequence[int], stride: Sequence[int], padding: Sequence[int], scaler: float
) -> torch.Tensor:
    """Sums of windows of [N, C, H, W] times a scaler: the elements of a window are rows of a tile, channels columns."""
    top, bottom, left, right = padding
    windows = list_windows(F.pad(images, (left, right, top, bottom)), window, stride, (1, 1))
    sticks = windows.flatten(-2).movedim(1, -1)  # [N, H, W, window, C]
    return fpu.total(sticks, (-2,), scaler=scaler).movedim(-1, 1)


def average_adaptively(images: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Means of [N, C, H, W] over windows that cover it, size[0] down and size[1] across, each as one sum."""
    down, across = (
        [(i * extent // count, -(-(i + 1) * extent // count)) for i in range(count)]
        for extent, count in zip(images.shape[-2:], size, strict=True)
    )
    rows = []
    for top, bottom in down:
        sticks = [images[..., top:bottom, left:right].flatten(-2).mT for left, right in across]  # [N, window, C]
        rows.append(torch.stack([fpu.total(stick, (-2,), scaler=1 / stick.shape[-2]) for stick in sticks], -1))
    return torch.stack(rows, -2)
