"""Quantisation, casts between formats, and tilize and untilize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ttmesh.base.dtypes import FLOATS, DataType

FP8_BLOCK, FP8_LARGEST, FP8_MIN_AMAX = 128, 448.0, 1e-4  # values per scale; largest e4m3; lower bound of a block's amax


def typecast(
    input_tensor: Tensor,
    dtype: DataType | None = None,
    input_dtype: DataType | None = None,
    output_dtype: DataType | None = None,
) -> Tensor:
    target = dtype if output_dtype is None else output_dtype
    assert target is not None, "every overload has dtype or output_dtype"
    if target in FLOATS:
        return input_tensor
    values = input_tensor.double()
    if target is DataType.UINT16:
        return torch.round(values + 1e-9).clamp(0, 2**16 - 1).long()
    truncated = torch.trunc(values).long()
    if target is DataType.UINT8:
        return truncated % 2**8
    return truncated.clamp(min=0) if target is DataType.UINT32 and input_tensor.is_floating_point() else truncated


def identity(input_tensor: Tensor) -> Tensor:
    return input_tensor


def tilize_with_val_padding(input_tensor: Tensor, output_tensor_shape: Sequence[int], pad_value: float) -> Tensor:
    return input_tensor


def untilize_with_unpadding(input_tensor: Tensor, output_tensor_end: Sequence[int]) -> Tensor:
    return input_tensor[tuple(slice(0, end + 1) for end in output_tensor_end)]


def quantize(
    input_tensor: Tensor, scale: Any, zero_point: Any, *, axis: int | None = None, dtype: Any = None, **_: Any
) -> Tensor:
    if axis is None:
        steps = torch.round(input_tensor.double() / float(scale)) + float(zero_point)
    else:
        scales, zeros = (_per_channel(v, input_tensor, axis) for v in (scale, zero_point))
        channels = zip(input_tensor.double().unbind(axis), scales, zeros, strict=True)
        steps = torch.stack([torch.round(channel / s) + z for channel, s, z in channels], dim=axis)
    if dtype is DataType.INT8:
        steps = steps.clamp(-128, 127)
    return (steps.clamp(0, 255) if dtype is DataType.UINT8 else steps).int()


def _per_channel(value: Any, x: Tensor, axis: int) -> Tensor:
    """One number for every index of a dim."""
    return (
        value.double().flatten() if isinstance(value, Tensor) else torch.full((x.shape[axis],), float(value)).double()
    )


def dequantize(input_tensor: Tensor, scale: Any, zero_point: Any, *, axis: int | None = None, **_: Any) -> Tensor:
    if axis is None:
        return ((input_tensor.double() - float(zero_point)) * float(scale)).float()
    scales, zeros = (_per_channel(v, input_tensor, axis) for v in (scale, zero_point))
    channels = zip(input_tensor.double().unbind(axis), scales, zeros, strict=True)
    return torch.stack([(channel - z) * s for channel, s, z in channels], dim=axis).float()


def requantize(
    input_tensor: Tensor,
    in_scale: Any,
    in_zero_point: Any,
    out_scale: Any,
    out_zero_point: Any,
    *,
    axis: int | None = None,
    dtype: DataType | None = None,
    **_: Any,
) -> Tensor:
    values = dequantize(input_tensor, in_scale, in_zero_point, axis=axis)
    return quantize(values, out_scale, out_zero_point, axis=axis, dtype=dtype)


def per_token_cast_to_fp8(
    input_tensor: Tensor, *, round_scale_to_power_of_two: bool = False, **_: Any
) -> tuple[Tensor, Tensor]:
    scales, rows = [], []
    for block in torch.split(input_tensor.float(), FP8_BLOCK, dim=-1):
        scale = block.abs().max(-1, keepdim=True).values.clamp_min(FP8_MIN_AMAX) / FP8_LARGEST
        if round_scale_to_power_of_two:
            scale = 2.0 ** torch.ceil(torch.log2(scale))
        scales.append(scale)
        small = block / scale
        step = 2.0 ** (torch.floor(torch.log2(small.abs().clamp_min(2.0**-6))) - 3)  # e4m3 has three mantissa bits
        rows.append(torch.trunc(small / step) * step)
    return torch.cat(rows, -1), torch.cat(scales, -1)


def per_token_cast_back(
    input_e4m3: Tensor, input_scale: Tensor, *_: Any, narrow_scales_to_bf16: bool = False, **__: Any
) -> Tensor:
    scale = input_scale.bfloat16().float() if narrow_scales_to_bf16 else input_scale
    return input_e4m3.float() * scale.repeat_interleave(FP8_BLOCK, -1)
