"""Quantisation: floats to integers by scale and zero point, back, and from one scale to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import FLOATS, DataType, Layout
from ttmesh.base.errors import ShapeError
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import quantize as goldens
from ttmesh.ops.stages.conversion_stages import per_channel_stages
from ttmesh.tensor.calls.operation import Call, SpecRule
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

Number = float | Lanes
RANGES: dict[DataType | None, tuple[int, int]] = {DataType.UINT8: (0, 255), DataType.INT8: (-128, 127)}
QUANTIZED = {DataType.INT32, DataType.INT8, DataType.UINT8}


def _make_spec_rule(default: DataType) -> SpecRule:
    def rule(call: Call, inferred: Inferred) -> list[TensorSpec]:
        layout = Layout.TILE if isinstance(call["scale"], Tensor) else None
        return [make_output_spec(call, inferred[0][0], dtype=default, layout=layout)]

    return rule


def _check_formats(operation: str, x: DataType, out: DataType | None, axis: int | None) -> None:
    if operation == "Quantize":
        if x not in FLOATS:
            raise ShapeError(
                "Quantize only takes floating-point number inputs",
                expected="a float tensor",
                fix="Convert it with ttnn.typecast.",
            )
    elif x not in QUANTIZED:
        raise ShapeError(
            f"{operation} only supports int32, int8 or uint8 inputs for now, got DataType::{x.name}",
            expected="int32, int8 or uint8",
            fix="Convert it with ttnn.typecast.",
        )
    if operation == "Dequantize":
        if out not in (None, DataType.FLOAT32, DataType.BFLOAT16):
            raise ShapeError(
                "Dequantize only supports bf16/f32 outputs for now",
                expected="dtype=ttnn.bfloat16 or ttnn.float32",
                fix="Pass one of these formats, or leave dtype out.",
            )
        return
    if out is not None and out not in QUANTIZED:
        raise ShapeError(
            f"{operation} only supports int32, int8 or uint8 outputs for now, got DataType::{out.name}",
            expected="int32, int8 or uint8",
            fix="Pass one of these formats as dtype.",
        )
    if axis is not None and out in RANGES:
        raise ShapeError(
            f"Per-channel (axis) {operation.lower()} does not support int8/uint8 output yet; use int32 output or "
            f"per-tensor {operation.lower()}",
            expected="dtype=int32",
            fix="Pass dtype=ttnn.int32, or leave axis out.",
        )


def _check(operation: str, *names: str) -> Callable[[Call], None]:
    def check(call: Call) -> None:
        x, axis = call["input_tensor"].spec, call["axis"]
        _check_formats(operation, x.dtype, call["dtype"], axis)
        rank = len(x.shape)
        if axis is not None:
            if not -rank <= axis < rank:
                raise ShapeError(
                    f"Axis {axis} is outside the range [{-rank}, {rank - 1}]",
                    expected="a dim of the input",
                    fix="Choose an axis of the input.",
                )
            for name in names:
                given = call[name]
                if isinstance(given, Tensor) and len(given.shape) != 1:
                    raise ShapeError(
                        "Per-channel quantization expects 1D scale tensors",
                        expected="one value per channel",
                        fix="Reshape the scale to one dim.",
                    )
        for name in names:
            given = call[name]
            zero = "zero_point" in name
            if zero and isinstance(given, Tensor) and given.dtype is not DataType.INT32:
                raise ShapeError(
                    "Quantization only takes int32 zero-points for now",
                    expected="int32",
                    fix="Pass an int, or convert the tensor with ttnn.typecast.",
                )
            if zero and isinstance(given, float):
                raise ShapeError(
                    "Quantization only takes int32 zero-points for now",
                    expected="an int",
                    fix="Pass an int, or convert the tensor with ttnn.typecast.",
                )

    return check


def _broadcast_along(value: Any, x: Lanes, axis: int | None, lane_axes: int) -> Any:
    """A number, or per-tensor or per-channel values that broadcast over x."""
    if not isinstance(value, Lanes):
        return value
    local = x.dim() - lane_axes
    shape = [1] * local
    if axis is not None:
        shape[axis % local] = -1
    return value.float().reshape(*value.shape[:lane_axes], *shape)


def _quantize(x: Lanes, scale: Any, zero: Any) -> Lanes:
    result: Lanes = torch.round(x.float() / scale) + zero
    return result


def _saturate(values: Lanes, dtype: DataType | None) -> Lanes:
    """Clamp to the range of a narrow format."""
    return values if dtype not in RANGES else values.clamp(*RANGES[dtype])


@op(
    "ttnn.quantize",
    golden=goldens.quantize,
    out=_make_spec_rule(DataType.INT32),
    check=_check("Quantize", "scale", "zero_point"),
    runtime=("scale", "zero_point"),
    stages=per_channel_stages,
)
def quantize(
    input_tensor: Lanes, scale: Number, zero_point: Number, axis: int | None, dtype: DataType | None, lane_axes: int
) -> Lanes:
    """round(x / scale) + zero_point."""
    operands = (_broadcast_along(v, input_tensor, axis, lane_axes) for v in (scale, zero_point))
    return _saturate(_quantize(input_tensor, *operands), dtype)


def _dequantize(x: Lanes, scale: Any, zero: Any) -> Lanes:
    result: Lanes = (x.float() - zero) * scale
    return result


@op(
    "ttnn.dequantize",
    golden=goldens.dequantize,
    out=_make_spec_rule(DataType.BFLOAT16),
    check=_check("Dequantize", "scale", "zero_point"),
    runtime=("scale", "zero_point"),
    stages=per_channel_stages,
)
def dequantize(input_tensor: Lanes, scale: Number, zero_point: Number, axis: int | None, lane_axes: int) -> Lanes:
    """(x - zero_point) · scale."""
    return _dequantize(input_tensor, *(_broadcast_along(v, input_tensor, axis, lane_axes) for v in (scale, zero_point)))


def _requantize(x: Lanes, in_scale: Any, in_zero: Any, out_scale: Any, out_zero: Any) -> Lanes:
    result: Lanes = torch.round((x.float() - in_zero) * (in_scale / out_scale)) + out_zero
    return result


@op(
    "ttnn.requantize",
    golden=goldens.requantize,
    out=_make_spec_rule(DataType.INT32),
    check=_check("Requantize", "in_scale", "in_zero_point", "out_scale", "out_zero_point"),
    runtime=("in_scale", "in_zero_point", "out_scale", "out_zero_point"),
)
def requantize(
    input_tensor: Lanes,
    in_scale: Number,
    in_zero_point: Number,
    out_scale: Number,
    out_zero_point: Number,
    axis: int | None,
    dtype: DataType | None,
    lane_axes: int,
) -> Lanes:
    """Convert integers from one scale and zero point to another."""
    operands = (in_scale, in_zero_point, out_scale, out_zero_point)
    return _saturate(
        _requantize(input_tensor, *(_broadcast_along(v, input_tensor, axis, lane_axes) for v in operands)), dtype
    )
