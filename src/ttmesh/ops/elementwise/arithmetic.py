"""Arithmetic that TT-NN composes of binary operations: addalpha, div_no_nan, floor_div, polyval, outer and others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ttmesh.base.dtypes import DataType, bfloat8_b, bfloat16, float32, int32, uint32
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.elementwise.binary import OPERANDS, fuse_activations
from ttmesh.ops.elementwise.binary_rules import (
    binary_spec,
    check_binary,
    check_broadcast,
    check_tile_broadcast,
    has_integers_and_number,
)
from ttmesh.ops.elementwise.ternary import equalize_operands
from ttmesh.ops.goldens import operands as goldens
from ttmesh.ops.lane_functions.unary_functions import to_float32
from ttmesh.ops.stages.composite_stages import outer_stages, polynomial_stages
from ttmesh.tensor.calls.operation import Call

EPSILON = 1.19209e-7  # the chip's sfpu_eps (tt-metal e4f9f0b wh_hal.cpp, bh_hal.cpp)


def _check_scaled(op_type: str) -> Callable[[Call], None]:
    """addalpha and subalpha: one format, or floats of several."""

    def check(call: Call) -> None:
        _check(call)
        a, b = (spec.dtype for spec in call.specs)
        floats = (bfloat16, float32, bfloat8_b, DataType.BFLOAT4_B)
        wrong = (
            f"Mixed dtype is not supported for binary operation BinaryOpType::{op_type}, dtype A: DataType::{a.name}, dtype "
            f"B: DataType::{b.name}"
        )
        fits = a is b or (a in floats and b in floats)
        require(fits, wrong, "operands of one format", "Convert one with ttnn.typecast.")

    return check


def _check(call: Call) -> None:
    if len(call.specs) > 1:
        check_tile_broadcast(*call.specs[:2])
    check_broadcast(*(spec.shape for spec in call.specs))


def _add_scaled(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    return torch.add(to_float32(a), to_float32(b), alpha=alpha)


@op(
    "ttnn.addalpha",
    golden=goldens.addalpha,
    out=binary_spec(),
    check=_check_scaled("ADD"),
    runtime=("alpha",),
)
def addalpha(input_tensor_a: Tensor, input_tensor_b: Tensor, alpha: float, lane_axes: int) -> Tensor:
    """a + alpha · b."""
    a, b = equalize_operands(lane_axes, input_tensor_a, input_tensor_b)
    return _add_scaled(a, b, alpha)


def _subtract_scaled(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    return torch.sub(to_float32(a), to_float32(b), alpha=alpha)


@op(
    "ttnn.subalpha",
    golden=goldens.subalpha,
    out=binary_spec(),
    check=_check_scaled("SUB"),
    runtime=("alpha",),
)
def subalpha(input_tensor_a: Tensor, input_tensor_b: Tensor, alpha: float, lane_axes: int) -> Tensor:
    """a - alpha · b."""
    a, b = equalize_operands(lane_axes, input_tensor_a, input_tensor_b)
    return _subtract_scaled(a, b, alpha)


def _div_no_nan(a: Tensor, b: Any) -> Tensor:
    a = to_float32(a)
    if not isinstance(b, Tensor):
        return a / b if b else torch.zeros_like(a)
    return torch.where(b == 0, 0.0, a / b)


def _floor_div(a: Tensor, b: Any) -> Tensor:
    a = to_float32(a)
    if not isinstance(b, Tensor):
        if not b:
            return torch.where(a == 0, math.nan, torch.sign(a) * math.inf)
        return torch.floor(a * (1 / b))
    quotient = a / b
    return torch.where(torch.isinf(quotient), quotient, torch.floor(quotient))


def _nextafter(a: Tensor, b: Tensor) -> Tensor:
    """TT-NN's definition: a step of the chip's epsilon, in the direction opposite to torch's."""
    a = to_float32(a)
    return torch.where(a < b, a - EPSILON, torch.where(a > b, a + EPSILON, a))


def _check_floor(call: Call) -> None:
    _check(call)
    whole = len(call.specs) > 1 and all(spec.dtype is uint32 for spec in call.specs)
    wrong = "Input tensor A dtype DataType::UINT32 is not supported for binary operation BinaryOpType::DIV"
    require(not whole, wrong, "floats or int32", "Convert it with ttnn.typecast.")
    dtype = call.specs[0].dtype
    wrong = f"Unary: UnaryOpType::FLOOR does not support integer input dtype DataType::{dtype.name}"
    small = dtype in (DataType.UINT16, DataType.UINT8)
    require(not small, wrong, "a float format", "Convert it with ttnn.typecast.")


def _check_div_no_nan(call: Call) -> None:
    """A division, then a choice by the divisor, whose format must be the quotient's."""
    _check(call)
    if len(call.specs) < 2:
        return
    a, b = (spec.dtype for spec in call.specs)
    wrong = f"Input tensor A dtype DataType::{a.name} is not supported for binary operation BinaryOpType::DIV"
    require(not (a is b is uint32), wrong, "floats or int32", "Convert it with ttnn.typecast.")
    floats = (bfloat16, float32, bfloat8_b, DataType.BFLOAT4_B)
    wrong = (
        f"Mixed dtype is not supported for binary operation BinaryOpType::WHERE_TST, dtype A: DataType::{b.name}, dtype B: "
        f"DataType::{a.name}"
    )
    require(
        a is b or a not in floats or b not in floats, wrong, "operands of one format", "Convert one with ttnn.typecast."
    )


def _quotient_dtype(call: Call) -> DataType | None:
    return float32 if all(spec.dtype in (int32, uint32) for spec in call.specs) else None


_check_nextafter = check_binary("NEXTAFTER", frozenset({DataType.BFLOAT16, DataType.FLOAT32}), mixed=False)
for _name, _function, _golden, _check_formats, _dtype in (
    ("div_no_nan", _div_no_nan, goldens.BINARY["div_no_nan"], _check_div_no_nan, _quotient_dtype),
    ("floor_div", _floor_div, goldens.BINARY["floor_div"], _check_floor, _quotient_dtype),
    ("nextafter", _nextafter, goldens.nextafter, _check_nextafter, None),
):
    _lane = fuse_activations(_function)
    _lane.__doc__ = f"{_name} of two tensors, or of a tensor and a number."
    op(
        f"ttnn.{_name}", golden=_golden, out=binary_spec(_dtype), check=_check_formats, runtime=("input_tensor_b",),
        names=OPERANDS, recheck=has_integers_and_number,
    )(_lane)  # fmt: skip


def _polyval(x: Tensor, coeffs: Sequence[float]) -> Tensor:
    x = to_float32(x)
    result = torch.full_like(x, coeffs[0])
    for coefficient in coeffs[1:]:
        result = result * x + coefficient
    return result


def _check_polyval(call: Call) -> None:
    require(
        len(call["coeffs"]) > 0,
        "coeffs should be 1 or more coefficients",
        "at least one coefficient",
        "Pass the coefficients, highest power first.",
    )


@op(
    "ttnn.polyval",
    golden=goldens.polyval,
    out=binary_spec(_quotient_dtype),
    check=_check_polyval,
    stages=polynomial_stages,
)
def polyval(input_tensor_a: Tensor, coeffs: Sequence[float]) -> Tensor:
    """A polynomial, highest power first."""
    return _polyval(input_tensor_a, coeffs)


def _check_outer(call: Call) -> None:
    a, b = call.specs
    wrong = f"ttnn.outer: inputs must be at least 1D, but got shapes {a.shape!r} and {b.shape!r}"
    require(len(a.shape) >= 1 and len(b.shape) >= 1, wrong, "vectors", "Reshape them to one dim.")
    require(
        {a.dtype, b.dtype} <= {bfloat16, bfloat8_b, float32, int32, uint32},
        f"ttnn.outer: unsupported dtype (got {a.dtype} and {b.dtype}); supported dtypes are BFLOAT16, BFLOAT8_B, FLOAT32, "
        "INT32, UINT32",
        "a supported dtype for both",
        "Convert with ttnn.typecast.",
    )
    wrong = f"ttnn.outer: inputs must have the same dtype, but got {a.dtype} and {b.dtype}"
    require(a.dtype is b.dtype, wrong, "equal dtypes", "Convert one with ttnn.typecast.")


@op(
    "ttnn.outer",
    golden=goldens.outer,
    out=binary_spec(),
    check=_check_outer,
    stages=outer_stages,
)
def outer(input_tensor_a: Tensor, input_tensor_b: Tensor, lane_axes: int) -> Tensor:
    """The outer product of two vectors; leading dims broadcast."""
    a, b = equalize_operands(lane_axes, input_tensor_a.unsqueeze(-1), input_tensor_b.unsqueeze(-2))
    result: Tensor = a * b
    return result
