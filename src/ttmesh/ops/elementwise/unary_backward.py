"""Gradients of unary operations: grad times the derivative, in float32."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.special import polygamma

from ttmesh.base.dtypes import INTEGERS, DataType
from ttmesh.base.errors import MeshError, require
from ttmesh.ops.catalogue.definition import OpFunction, op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_like_rule
from ttmesh.ops.goldens import autodiff as goldens
from ttmesh.ops.lane_functions.lane_broadcast import equalize_ranks
from ttmesh.ops.lane_functions.unary_functions import SELU_ALPHA, SELU_SCALE, to_float32
from ttmesh.tensor.calls.operation import Call, SpecRule
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Gradient = Callable[..., Tensor]  # of (grad, x, parameters…)


def _zero(g: Tensor, x: Tensor) -> Tensor:
    return torch.zeros_like(g)


def _gelu(g: Tensor, x: Tensor, approximate: str = "none", variant: Any = None) -> Tensor:
    if approximate == "none" and getattr(variant, "name", "") != "Tanh":
        density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        # erfc, because 1 + erf of a negative number cancels
        return g * (0.5 * torch.erfc(-x / math.sqrt(2)) + x * density)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    tanh = torch.tanh(inner)
    slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return g * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * slope)


def _tanh(g: Tensor, x: Tensor) -> Tensor:
    """1 / cosh², written so that it neither overflows nor loses digits in the tails."""
    small = torch.exp(-2 * x.abs())
    return g * (4 * small / torch.square(1 + small))


def _silu(g: Tensor, x: Tensor) -> Tensor:
    sigmoid = torch.sigmoid(x)
    return g * sigmoid * (1 + x * (1 - sigmoid))


def _within(g: Tensor, x: Tensor, lower: Any, upper: Any) -> Tensor:
    """grad where x is between two bounds, else 0."""
    inside = torch.ones_like(x, dtype=torch.bool)
    if lower is not None:
        inside = inside & (x >= lower)
    if upper is not None:
        inside = inside & (x <= upper)
    return torch.where(inside, g, 0.0)


def _clamp(g: Tensor, x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    return _within(g, x, min, max)


def _hardswish(g: Tensor, x: Tensor) -> Tensor:
    slope = torch.where(x < 3, x / 3 + 0.5, 1.0)
    return g * torch.where(x <= -3, 0.0, slope)


def _softplus(g: Tensor, x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return g * torch.where(x * beta > threshold, 1.0, torch.sigmoid(x * beta))


def _logit(g: Tensor, x: Tensor) -> Tensor:
    return torch.where((x < 0) | (x > 1), math.nan, g / (x * (1 - x)))


def _rpow(g: Tensor, x: Tensor, exponent: float) -> Tensor:
    if not exponent:  # TT-NN defines the gradient of 0**x as 0
        return torch.zeros_like(g)
    return g * torch.pow(exponent, x) * (math.log(exponent) if exponent > 0 else math.nan)


def _logiteps(g: Tensor, x: Tensor, eps: float = 0.0) -> Tensor:
    return torch.where((x < eps) | (x > 1 - eps), 0.0, g / (x * (1 - x)))


def _elu(g: Tensor, x: Tensor, alpha: float = 1.0) -> Tensor:
    return g * torch.where(x > 0, 1.0, alpha * torch.exp(x))


def _rdiv(g: Tensor, x: Tensor, scalar: float, rounding_mode: str | None = None) -> Tensor:
    return torch.zeros_like(g) if rounding_mode else -g * scalar / (x * x)


def _power(g: Tensor, x: Tensor, exponent: float) -> Tensor:
    return g * exponent * torch.pow(x, exponent - 1)


GRADIENTS: dict[str, Gradient] = {
    "abs": lambda g, x: g * torch.sign(x),
    "acos": lambda g, x: -g * torch.rsqrt(1 - x * x),
    "acosh": lambda g, x: g * torch.rsqrt(x * x - 1),
    "asin": lambda g, x: g * torch.rsqrt(1 - x * x),
    "asinh": lambda g, x: g * torch.rsqrt(x * x + 1),
    "atan": lambda g, x: g / (1 + x * x),
    "atanh": lambda g, x: g / (1 - x * x),
    "ceil": _zero,
    "celu": lambda g, x, alpha=1.0: g * torch.where(x > 0, 1.0, torch.exp(x / alpha)),
    "clamp": _clamp,
    "clip": _clamp,
    "cos": lambda g, x: -g * torch.sin(x),
    "cosh": lambda g, x: g * torch.sinh(x),
    "deg2rad": lambda g, x: g * (math.pi / 180),
    "digamma": lambda g, x: g * polygamma(1, x),
    "elu": _elu,
    "erf": lambda g, x: g * (2 / math.sqrt(math.pi)) * torch.exp(-x * x),
    "erfc": lambda g, x: -g * (2 / math.sqrt(math.pi)) * torch.exp(-x * x),
    "erfinv": lambda g, x: g * (math.sqrt(math.pi) / 2) * torch.exp(torch.erfinv(x) ** 2),
    "exp": lambda g, x: g * torch.exp(x),
    "exp2": lambda g, x: g * math.log(2) * torch.exp2(x),
    "expm1": lambda g, x: g * torch.exp(x),
    "fill": _zero,
    "fill_zero": _zero,
    "floor": _zero,
    "frac": lambda g, x: g,
    "gelu": _gelu,
    "hardshrink": lambda g, x, lambd=0.5: torch.where(x.abs() > lambd, g, 0.0),
    "hardsigmoid": lambda g, x: torch.where((x > -3) & (x < 3), g / 6, 0.0),
    "hardswish": _hardswish,
    "hardtanh": lambda g, x, min=-1.0, max=1.0: torch.where((x > min) & (x < max), g, 0.0),
    "i0": lambda g, x: g * torch.special.i1(x),
    "leaky_relu": lambda g, x, negative_slope=0.01: g * torch.where(x > 0, 1.0, negative_slope),
    "lgamma": lambda g, x: g * torch.digamma(x),
    "log": lambda g, x: g / x,
    "log10": lambda g, x: g / (x * math.log(10)),
    "log1p": lambda g, x: g / (1 + x),
    "log2": lambda g, x: g / (x * math.log(2)),
    "log_sigmoid": lambda g, x: g * torch.sigmoid(-x),
    "logit": _logit,
    "logiteps": _logiteps,
    "multigammaln": lambda g, x: g * sum(torch.digamma(x - k / 2) for k in range(4)),
    "neg": lambda g, x: -g,
    "polygamma": lambda g, x, n: g * polygamma(n + 1, x),
    "pow": _power,
    "rad2deg": lambda g, x: g * (180 / math.pi),
    "rdiv": _rdiv,
    "reciprocal": lambda g, x: -g / (x * x),
    "relu": lambda g, x: torch.where(x > 0, g, 0.0),
    "relu6": lambda g, x: torch.where((x > 0) & (x < 6), g, 0.0),
    "round": _zero,
    "rpow": _rpow,
    "rsqrt": lambda g, x: -0.5 * g * torch.rsqrt(x) / x,
    "selu": lambda g, x: g * SELU_SCALE * torch.where(x > 0, 1.0, SELU_ALPHA * torch.exp(x)),
    "sigmoid": lambda g, x: g * torch.sigmoid(x) * torch.sigmoid(-x),
    "sign": _zero,
    "silu": _silu,
    "sin": lambda g, x: g * torch.cos(x),
    "sinh": lambda g, x: g * torch.cosh(x),
    "softplus": _softplus,
    "softshrink": lambda g, x, lambd=0.5: torch.where(x.abs() > lambd, g, 0.0),
    "softsign": lambda g, x: g / torch.square(1 + x.abs()),
    "sqrt": lambda g, x: 0.5 * g * torch.rsqrt(x),
    "square": lambda g, x: 2 * g * x,
    "tan": lambda g, x: g * (1 + torch.square(torch.tan(x))),
    "tanh": _tanh,
    "tanhshrink": lambda g, x: g * torch.square(torch.tanh(x)),
    "threshold": lambda g, x, min, max: torch.where(x > min, g, 0.0),
    "trunc": _zero,
}


def _check_gelu(call: Call) -> None:
    if call["approximate"] not in ("none", "tanh"):
        raise MeshError(
            "Incorrect approximation type (expected 'none', 'tanh')",
            expected="'none' or 'tanh'",
            fix="Leave approximate out.",
        )


def _check_fused(call: Call) -> None:
    """One program computes these gradients: of floats, of one layout and shape."""
    if call.name == "ttnn.gelu_bw":
        _check_gelu(call)
    kind, (g, x) = call.name.removeprefix("ttnn.").upper(), call.specs[:2]
    for operand, spec in (("grad_output", g), ("input", x)):
        wrong = (
            f"{kind} operation only supports floating-point dtypes (bfloat16, float32, bfloat8_b, bfloat4_b), but the "
            f"{operand} tensor has dtype DataType::{spec.dtype.name}."
        )
        require(spec.dtype not in INTEGERS, wrong, "a float format", "Convert it with ttnn.typecast.")
    same = f"{kind} operation requires grad_output and input to have the same"
    wrong = f"{same} layout, but got {g.layout} and {x.layout}."
    require(g.layout is x.layout, wrong, "equal layouts", "Convert one with ttnn.to_layout.")
    wrong = f"{same} logical shape, but got {g.shape!r} and {x.shape!r}."
    require(tuple(g.shape) == tuple(x.shape), wrong, "equal shapes", "Reshape one of the tensors.")


def _check_exponent(call: Call) -> None:
    if call["exponent"] < 0:
        raise MeshError(
            "exponent >= 0.0: negative exponents are not supported; use recip(pow(input,abs(exponent)))",
            expected=f"0 or more, not {call['exponent']}",
            fix="Differentiate the reciprocal of the power.",
        )


def _check_experimental_gelu(call: Call) -> None:
    _check_gelu(call)
    grad, x = call.specs[0].dtype, call.specs[1].dtype
    if grad is not x:
        raise MeshError(
            f"GELU_BW operation requires grad_output and input data types to match. Grad output data type: {grad}, "
            f"Input data type: {x}",
            expected="one format",
            fix="Convert one with ttnn.typecast.",
        )


def _check_bounds(call: Call) -> None:
    wrong = "Only one of 'min' or 'max' can be None. Please provide one value"
    given = call["min"] is not None or call["max"] is not None
    require(given, wrong, "a lower or an upper bound", "Pass min=, max= or both.")


CHECKS = {
    "gelu": _check_fused,
    "tanh": _check_fused,
    "sigmoid": _check_fused,
    "pow": _check_exponent,
    "clamp": _check_bounds,
    "clip": _check_bounds,
}


# Gradients whose programs multiply by a number, which makes float32 of 32-bit integers.
FLOAT32_OF_INTEGERS = (
    "deg2rad", "div_no_nan", "erf", "erfinv", "hardsigmoid", "hardswish", "log10", "log2", "rad2deg", "reciprocal", "rpow",
    "square",
)  # fmt: skip


OF_GRADIENT_ALONE = frozenset(
    {"ceil", "deg2rad", "fill", "fill_zero", "floor", "frac", "neg", "rad2deg", "round", "sign", "trunc"}
)  # the input's shape has no part in them
# options that decide which programs run, or whether integers are taken
DECIDE_PROGRAMS = ("approximate", "variant", "rounding_mode", "exponent", "lambd", "n", "eps", "min", "max")


def _gradient_rule(name: str) -> SpecRule:
    if name not in FLOAT32_OF_INTEGERS:
        return make_like_rule(1)

    def rule(call: Call, inferred: Inferred) -> list[TensorSpec]:
        whole = call.specs[1].dtype in (DataType.INT32, DataType.UINT32)
        return list(make_like_rule(1, dtype=DataType.FLOAT32 if whole else None)(call, inferred))

    return rule


def _define_gradient(name: str, gradient: Gradient) -> OpFunction:
    _, _, *options = inspect.signature(gradient).parameters.values()

    def lane(grad_tensor: Tensor, input_tensor: Tensor, lane_axes: int, **parameters: Any) -> list[Tensor]:
        g, x = to_float32(grad_tensor), to_float32(input_tensor)
        if name not in OF_GRADIENT_ALONE:
            g, x = equalize_ranks((g, x), lane_axes)
        return [gradient(g, x, **parameters)]

    lane.__doc__ = f"The gradient of {name}, in a list."
    return op(
        f"ttnn.{name}_bw",
        golden=goldens.UNARY_BW[name],
        out=_gradient_rule(name),
        check=CHECKS.get(name),
        recheck=name in ("pow", "clamp", "clip"),
        runtime=[p.name for p in options if p.name not in DECIDE_PROGRAMS],
        outputs=("input_grad",),
        takes=["grad_tensor", "input_tensor", "lane_axes", *(p.name for p in options)],
        hands_back="grad_tensor" if name == "frac" else None,
    )(lane)


unary_bw = {name: _define_gradient(name, gradient) for name, gradient in GRADIENTS.items()}


@op(
    "ttnn.experimental.gelu_bw",
    golden=goldens.experimental_gelu_bw,
    out=make_like_rule(1),
    check=_check_experimental_gelu,
    outputs=("input_grad",),
)
def experimental_gelu_bw(grad_output_tensor: Tensor, input_tensor: Tensor, approximate: str) -> Tensor:
    """The gradient of gelu by one fused program; a tensor, not a list."""
    return _gelu(to_float32(grad_output_tensor), to_float32(input_tensor), approximate)
