"""A convolution's sums as the chip keeps them: with fp32_dest_acc_en=False they are bfloat16 all along.

The matrix engine multiplies 16 taps at a time and adds them to a 16-bit register (MVMUL in Tenstorrent's ISA
documentation). How it rounds inside one such step is not documented; here a step is exact and rounds to nearest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.ops.conv_weights import ROW_CHANNELS
from ttmesh.tensor.sharding import round_up

DEPTH = 16  # taps of one step
TF32, BF16 = -(1 << 13), -(1 << 16)  # masks over the bits of a float32


def as_operand(values: Lanes, wide_sums: bool) -> Lanes:
    """float32 as the matrix engine sees it: unpackers drop the bits behind TF32, or behind bfloat16 without fp32 sums."""
    if values.dtype is not torch.float32 or values.is_meta:
        return values.float()
    kept = (values.detach().view(torch.int32) & (TF32 if wide_sums else BF16)).view(torch.float32)
    return values + (kept - values).detach() if values.requires_grad else kept


class Step(NamedTuple):
    """What is added at once: taps of one row of the kernel, channels of a group."""

    row: int
    taps: slice
    channels: slice


def steps_of(channels: int, per_group: int, kernel: tuple[int, int]) -> Iterator[Step]:
    """In the order of the weight matrix: rows of taps, taps, channels. Other groups' channels add zeros."""
    together = max(DEPTH // round_up(channels, ROW_CHANNELS), 1)
    for row in range(kernel[0]):
        for tap in range(0, kernel[1], together):
            taps = slice(tap, min(tap + together, kernel[1]))
            for first in range(0, per_group, DEPTH):
                yield Step(row, taps, slice(first, min(first + DEPTH, per_group)))


def slide_in_steps(
    images: Lanes, filters: Lanes, channels: int, stride: tuple[int, int], dilation: tuple[int, int], groups: int
) -> Lanes:
    """F.conv2d of padded float32 images with sums in bfloat16, given as float32; `channels` are one device's."""
    per_group, kernel = filters.shape[1], (filters.shape[2], filters.shape[3])
    high, wide = (
        (extent - d * (k - 1) - 1) // s + 1
        for extent, d, k, s in zip(images.shape[-2:], dilation, kernel, stride, strict=True)
    )
    grouped = torch.unflatten(images, 1, (groups, per_group))
    sums: Lanes | None = None
    for row, taps, part in steps_of(channels, per_group, kernel):
        top, left = row * dilation[0], taps.start * dilation[1]
        across = dilation[1] * (taps.stop - taps.start - 1) + stride[1] * (wide - 1) + 1
        seen = grouped[:, :, part, top : top + stride[0] * (high - 1) + 1, left : left + across].flatten(1, 2)
        weights = filters[:, part, row : row + 1, taps]
        more = F.conv2d(seen, weights, None, stride, 0, (1, dilation[1]), groups)
        sums = (more if sums is None else more + sums).bfloat16()
    assert sums is not None, "a kernel has taps"
    return sums.float()
