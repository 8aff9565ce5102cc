"""Gradients of unary operations: grad times the derivative, in float32. Goldens differentiate the operation with torch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.special import polygamma

from ttmesh.base.errors import MeshError
from ttmesh.ops.catalogue.definition import OpFunction, op
from ttmesh.ops.catalogue.spec_rules import like
from ttmesh.ops.lane_functions.unary_functions import PLAIN, SELU_ALPHA, SELU_SCALE, WITH_PARAMETERS, softplus, wide
from ttmesh.tensor.calls.launch_op import Call

Gradient = Callable[..., Tensor]  # of (grad, x, parameters…)
Forward = Callable[..., Tensor]  # of (x, parameters…)


def _zero(g: Tensor, x: Tensor) -> Tensor:
    return torch.zeros_like(g)


def _gelu(g: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "none":
        density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        # erfc, for 1 + erf of a negative number loses every digit
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


def _within(g: Tensor, x: Tensor, low: Any, high: Any) -> Tensor:
    """grad where x lies between two bounds."""
    inside = torch.ones_like(x, dtype=torch.bool)
    if low is not None:
        inside = inside & (x >= low)
    if high is not None:
        inside = inside & (x <= high)
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
    if not exponent:  # the gradient of 0**x is taken for 0
        return torch.zeros_like(g)
    return g * torch.pow(exponent, x) * math.log(exponent)


def _logiteps(g: Tensor, x: Tensor, eps: float = 0.0) -> Tensor:
    return torch.where((x < eps) | (x > 1 - eps), 0.0, g / (x * (1 - x)))


def _elu(g: Tensor, x: Tensor, alpha: float = 1.0) -> Tensor:
    return g * torch.where(x > 0, 1.0, alpha * torch.exp(x))


def _rdiv(g: Tensor, x: Tensor, scalar: float, rounding_mode: str | None = None) -> Tensor:
    return torch.zeros_like(g) if rounding_mode else -g * scalar / (x * x)


def _power(g: Tensor, x: Tensor, exponent: float) -> Tensor:
    return g * exponent * torch.pow(x, exponent - 1)


# name -> (gradient, the operation to differentiate for the golden)
GRADIENTS: dict[str, tuple[Gradient, Forward]] = {
    "abs": (lambda g, x: g * torch.sign(x), torch.abs),
    "acos": (lambda g, x: -g * torch.rsqrt(1 - x * x), torch.acos),
    "acosh": (lambda g, x: g * torch.rsqrt(x * x - 1), torch.acosh),
    "asin": (lambda g, x: g * torch.rsqrt(1 - x * x), torch.asin),
    "asinh": (lambda g, x: g * torch.rsqrt(x * x + 1), torch.asinh),
    "atan": (lambda g, x: g / (1 + x * x), torch.atan),
    "atanh": (lambda g, x: g / (1 - x * x), torch.atanh),
    "ceil": (_zero, torch.ceil),
    "celu": (lambda g, x, alpha=1.0: g * torch.where(x > 0, 1.0, torch.exp(x / alpha)), WITH_PARAMETERS["celu"]),
    "clamp": (_clamp, lambda x, min=None, max=None: torch.clamp(x, min, max)),
    "clip": (_clamp, lambda x, min=None, max=None: torch.clip(x, min, max)),
    "cos": (lambda g, x: -g * torch.sin(x), torch.cos),
    "cosh": (lambda g, x: g * torch.sinh(x), torch.cosh),
    "deg2rad": (lambda g, x: g * (math.pi / 180), torch.deg2rad),
    "digamma": (lambda g, x: g * polygamma(1, x), torch.digamma),
    "elu": (_elu, WITH_PARAMETERS["elu"]),
    "erf": (lambda g, x: g * (2 / math.sqrt(math.pi)) * torch.exp(-x * x), torch.erf),
    "erfc": (lambda g, x: -g * (2 / math.sqrt(math.pi)) * torch.exp(-x * x), torch.erfc),
    "erfinv": (lambda g, x: g * (math.sqrt(math.pi) / 2) * torch.exp(torch.erfinv(x) ** 2), torch.erfinv),
    "exp": (lambda g, x: g * torch.exp(x), torch.exp),
    "exp2": (lambda g, x: g * math.log(2) * torch.exp2(x), torch.exp2),
    "expm1": (lambda g, x: g * torch.exp(x), torch.expm1),
    "fill": (_zero, lambda x: x * 0),
    "fill_zero": (_zero, lambda x: x * 0),
    "floor": (_zero, torch.floor),
    "frac": (lambda g, x: g, torch.frac),
    "gelu": (_gelu, lambda x, approximate="none": functional.gelu(x, approximate=approximate)),
    "hardshrink": (lambda g, x, lambd=0.5: torch.where(x.abs() > lambd, g, 0.0), WITH_PARAMETERS["hardshrink"]),
    "hardsigmoid": (lambda g, x: torch.where((x > -3) & (x < 3), g / 6, 0.0), functional.hardsigmoid),
    "hardswish": (_hardswish, functional.hardswish),
    "hardtanh": (
        lambda g, x, min=-1.0, max=1.0: torch.where((x > min) & (x < max), g, 0.0),
        lambda x, min=-1.0, max=1.0: functional.hardtanh(x, min, max),
    ),
    "i0": (lambda g, x: g * torch.special.i1(x), torch.special.i0),
    "leaky_relu": (
        lambda g, x, negative_slope=0.01: g * torch.where(x > 0, 1.0, negative_slope),
        lambda x, negative_slope=0.01: functional.leaky_relu(x, negative_slope),
    ),
    "lgamma": (lambda g, x: g * torch.digamma(x), torch.lgamma),
    "log": (lambda g, x: g / x, torch.log),
    "log10": (lambda g, x: g / (x * math.log(10)), torch.log10),
    "log1p": (lambda g, x: g / (1 + x), torch.log1p),
    "log2": (lambda g, x: g / (x * math.log(2)), torch.log2),
    "log_sigmoid": (lambda g, x: g * torch.sigmoid(-x), functional.logsigmoid),
    "logit": (_logit, torch.logit),
    "logiteps": (_logiteps, lambda x, eps=0.0: torch.logit(x, eps=eps)),
    "multigammaln": (lambda g, x: g * sum(torch.digamma(x - k / 2) for k in range(4)), PLAIN["multigammaln"]),
    "neg": (lambda g, x: -g, torch.neg),
    "polygamma": (lambda g, x, n: g * polygamma(n + 1, x), lambda x, n: polygamma(n, x)),
    "pow": (_power, lambda x, exponent: torch.pow(x, exponent)),
    "rad2deg": (lambda g, x: g * (180 / math.pi), torch.rad2deg),
    "rdiv": (_rdiv, lambda x, scalar, rounding_mode=None: torch.div(scalar, x, rounding_mode=rounding_mode)),
    "reciprocal": (lambda g, x: -g / (x * x), torch.reciprocal),
    "relu": (lambda g, x: torch.where(x > 0, g, 0.0), torch.relu),
    "relu6": (lambda g, x: torch.where((x > 0) & (x < 6), g, 0.0), functional.relu6),
    "round": (_zero, torch.round),
    "rpow": (_rpow, lambda x, exponent: torch.pow(exponent, x)),
    "rsqrt": (lambda g, x: -0.5 * g * torch.rsqrt(x) / x, torch.rsqrt),
    "selu": (
        lambda g, x: g * SELU_SCALE * torch.where(x > 0, 1.0, SELU_ALPHA * torch.exp(x)),
        functional.selu,
    ),
    "sigmoid": (lambda g, x: g * torch.sigmoid(x) * torch.sigmoid(-x), torch.sigmoid),
    "sign": (_zero, torch.sign),
    "silu": (_silu, functional.silu),
    "sin": (lambda g, x: g * torch.cos(x), torch.sin),
    "sinh": (lambda g, x: g * torch.cosh(x), torch.sinh),
    "softplus": (_softplus, softplus),
    "softshrink": (lambda g, x, lambd=0.5: torch.where(x.abs() > lambd, g, 0.0), WITH_PARAMETERS["softshrink"]),
    "softsign": (lambda g, x: g / torch.square(1 + x.abs()), functional.softsign),
    "sqrt": (lambda g, x: 0.5 * g * torch.rsqrt(x), torch.sqrt),
    "square": (lambda g, x: 2 * g * x, torch.square),
    "tan": (lambda g, x: g * (1 + torch.square(torch.tan(x))), torch.tan),
    "tanh": (_tanh, torch.tanh),
    "tanhshrink": (lambda g, x: g * torch.square(torch.tanh(x)), functional.tanhshrink),
    "threshold": (
        lambda g, x, min, max: torch.where(x > min, g, 0.0),
        lambda x, min, max: functional.threshold(x, min, max),
    ),
    "trunc": (_zero, torch.trunc),
}


def differentiated(forward: Forward, grad: Tensor, *operands: Any, **options: Any) -> list[Tensor]:
    """torch's gradients of the tensor operands; parts of complex ones side by side, as TT-NN's goldens give them."""
    with torch.enable_grad():
        leaves = [x.detach().clone().requires_grad_() if isinstance(x, Tensor) else x for x in operands]
        torch.autograd.backward(forward(*leaves, **options), grad)
    found = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves if isinstance(leaf, Tensor)]
    return [torch.cat((grad.real, grad.imag), -1) if grad.is_complex() else grad for grad in found]


def _check_gelu(call: Call) -> None:
    if call["approximate"] not in ("none", "tanh"):
        raise MeshError(
            "Incorrect approximation type (expected 'none', 'tanh')",
            expected="'none' or 'tanh'",
            fix="Leave approximate out.",
        )


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


CHECKS = {"gelu": _check_gelu, "pow": _check_exponent}


def _enter(name: str, gradient: Gradient, forward: Forward) -> OpFunction:
    _, _, *rest = inspect.signature(gradient).parameters.values()

    def lane(grad_tensor: Tensor, input_tensor: Tensor, **parameters: Any) -> list[Tensor]:
        return [gradient(wide(grad_tensor), wide(input_tensor), **parameters)]

    def golden(grad_tensor: Tensor, input_tensor: Tensor, *args: Any, **options: Any) -> list[Tensor]:
        meant = {key: value for key, value in options.items() if key in {p.name for p in rest}}
        return differentiated(lambda x: forward(x, *args, **meant), grad_tensor, input_tensor)

    lane.__doc__ = f"The gradient of {name}, in a list."
    return op(
        f"ttnn.{name}_bw",
        golden=golden,
        out=like(1),
        check=CHECKS.get(name),
        recheck=name == "pow",
        runtime=[p.name for p in rest if p.name not in ("approximate", "rounding_mode")],
        outputs=("input_grad",),
        takes=["grad_tensor", "input_tensor", *(p.name for p in rest)],
    )(lane)


unary_bw = {name: _enter(name, gradient, forward) for name, (gradient, forward) in GRADIENTS.items()}


@op(
    "ttnn.experimental.gelu_bw",
    golden=lambda grad, x, approximate="none", **_: differentiated(
        lambda y: functional.gelu(y, approximate=approximate), grad, x
    ),
    out=like(1),
    check=_check_experimental_gelu,
    outputs=("input_grad",),
)
def experimental_gelu_bw(grad_output_tensor: Tensor, input_tensor: Tensor, approximate: str) -> Tensor:
    """The gradient of gelu by one fused program; a tensor, not a list."""
    return _gelu(wide(grad_output_tensor), wide(input_tensor), approximate)
