"""Colour conversion: RGB frames as luma and chroma planes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import DataType, Layout, PrintedEnum
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import require_dtype
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import model_blocks as goldens
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec


class YUVColorSpace(PrintedEnum):
    """The standard that defines the weights of red and blue in luma."""

    BT601 = 0
    BT709 = 1
    BT2020 = 2


class RGBRange(PrintedEnum):
    """The range of the input's samples."""

    MinusOneToOne = 0
    ZeroToOne = 1


class YUVRange(PrintedEnum):
    """Whether the planes use all 256 values of a byte."""

    Full = 0
    Limited = 1


class YUVFormat(PrintedEnum):
    """How the chroma planes are subsampled."""

    YUV420Planar = 0


@dataclass(unsafe_hash=True)
class YUVCoefficients:
    """Weights of red, green and blue and an offset, for each plane."""

    y: Sequence[float] = field(default=(0.0, 0.0, 0.0, 0.0))
    cb: Sequence[float] = field(default=(0.0, 0.0, 0.0, 0.0))
    cr: Sequence[float] = field(default=(0.0, 0.0, 0.0, 0.0))

    def __post_init__(self) -> None:
        self.y, self.cb, self.cr = (tuple(float(term) for term in row) for row in (self.y, self.cb, self.cr))
        for name, row in (("y", self.y), ("cb", self.cb), ("cr", self.cr)):
            require(
                len(row) == 4, f"{name} has {len(row)} terms", "4: red, green, blue, offset", "Give the offset too."
            )


# The weights of red and blue in luma (ITU-R BT.601, BT.709, BT.2020).
LUMA_WEIGHTS = {YUVColorSpace.BT601: (0.299, 0.114), YUVColorSpace.BT709: (0.2126, 0.0722)}
LUMA_WEIGHTS[YUVColorSpace.BT2020] = (0.2627, 0.0593)


def yuv_coefficients(color_space: YUVColorSpace, input_range: RGBRange, output_range: YUVRange) -> YUVCoefficients:
    """The weights of a standard, for samples and bytes in these ranges."""
    red, blue = LUMA_WEIGHTS[color_space]
    green = 1 - red - blue
    input_min = -1.0 if input_range is RGBRange.MinusOneToOne else 0.0
    luma_swing, luma_offset, chroma_swing = (
        (219.0, 16.0, 224.0) if output_range is YUVRange.Limited else (255.0, 0.0, 255.0)
    )
    luma_scale = luma_swing / (1 - input_min)
    cb_scale, cr_scale = (chroma_swing / (1 - input_min) / (2 * (1 - weight)) for weight in (blue, red))
    return YUVCoefficients(
        (luma_scale * red, luma_scale * green, luma_scale * blue, luma_offset - luma_scale * input_min),
        (-cb_scale * red, -cb_scale * green, cb_scale * (1 - blue), 128.0),
        (cr_scale * (1 - red), -cr_scale * green, -cr_scale * blue, 128.0),
    )


def yuv_bt601_coefficients() -> YUVCoefficients:
    """BT.601 for samples between -1 and 1, limited bytes."""
    return yuv_coefficients(YUVColorSpace.BT601, RGBRange.MinusOneToOne, YUVRange.Limited)


def yuv_bt709_coefficients() -> YUVCoefficients:
    """BT.709 for samples between -1 and 1, limited bytes."""
    return yuv_coefficients(YUVColorSpace.BT709, RGBRange.MinusOneToOne, YUVRange.Limited)


def _choose_coefficients(coefficients: YUVCoefficients | None, *standard: Any) -> YUVCoefficients:
    space, samples, planes = standard
    return coefficients or yuv_coefficients(
        space or YUVColorSpace.BT601, samples or RGBRange.MinusOneToOne, planes or YUVRange.Limited
    )


def _check(call: Call) -> None:
    spec, shape = call.specs[0], call.specs[0].shape
    memory_config = call["memory_config"] or spec.memory_config
    wrong = (
        "Sharded output is not supported; output memory must be interleaved, got "
        f"TensorMemoryLayout::{memory_config.memory_layout.name}"
    )
    require(memory_config.interleaved, wrong, "an interleaved MemoryConfig", "Shard the planes afterwards.")
    require_dtype(spec, {DataType.BFLOAT16}, "Input must be bfloat16")
    row_major = spec.layout is Layout.ROW_MAJOR
    require(row_major, "Input must be row-major (CHWT)", "ROW_MAJOR_LAYOUT", "Convert it with ttnn.to_layout.")
    require(len(shape) == 4, "Input must be 4D (C, H, W, T)", "[3, H, W, T]", "Reshape it to four dims.")
    require(shape[0] == 3, "Input must have C=3 (RGB)", "three planes in dim 0", "Permute it with ttnn.permute.")
    for name, length in (("H", shape[1]), ("W", shape[2])):
        wrong = f"{name} must be even and >= 2 for 4:2:0 subsampling (got {length})"
        require(length >= 2 and length % 2 == 0, wrong, "an even number", "Pad the image.")
    input_memory = spec.memory_config
    wrong = f"Input memory must be interleaved, got {input_memory}"
    require(input_memory.interleaved, wrong, "interleaved memory", "Use ttnn.to_memory_config.")
    coefficients = call["coefficients"]
    for name in ("y", "cb", "cr") if coefficients is not None else ():
        for i, term in enumerate(getattr(coefficients, name)):
            wrong = f"{name} coefficient [{i}] is not finite"
            require(math.isfinite(term), wrong, "finite numbers", "Correct the coefficients.")


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    planes = [(call, shape, DataType.UINT8, i) for i, (shape, _) in enumerate(inferred)]
    return [make_output_spec(call_, shape, dtype=dtype, result=i) for call_, shape, dtype, i in planes]


def _to_bytes(plane: Lanes) -> Lanes:
    return (plane + 0.5).clamp(0, 255).to(torch.uint8)


@op("ttnn.experimental.rgb_to_yuv", golden=goldens.rgb_to_yuv, check=_check, out=_spec)
def rgb_to_yuv(
    input: Lanes,
    format: YUVFormat | None,  # there is one
    color_space: YUVColorSpace | None,
    input_range: RGBRange | None,
    output_range: YUVRange | None,
    coefficients: YUVCoefficients | None,
) -> tuple[Lanes, Lanes, Lanes]:
    """Luma at full size and two chroma planes of half the size, as bytes, of a [3, height, width, frames] image."""
    weights = _choose_coefficients(coefficients, color_space, input_range, output_range)
    red, green, blue = input.float().unbind(-4)

    def mix_colors(row: Sequence[float]) -> Lanes:
        return (row[0] * red + row[1] * green + row[2] * blue + row[3]).unsqueeze(-4)

    def halve(plane: Lanes) -> Lanes:
        blocks = torch.unflatten(torch.unflatten(plane, -3, (-1, 2)), -2, (-1, 2))
        return blocks.mean((-4, -2))

    return (
        _to_bytes(mix_colors(weights.y)),
        _to_bytes(halve(mix_colors(weights.cb))),
        _to_bytes(halve(mix_colors(weights.cr))),
    )
