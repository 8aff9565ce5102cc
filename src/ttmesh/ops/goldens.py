"""Plain torch that element-wise operations are compared with: no lane function uses anything of this file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Function = Callable[..., Tensor]


def exact(function: Function) -> Function:
    """A formula computed in float64 and given in the input's own format, float32 for integers."""

    def golden(x: Tensor, *parameters: Any, **options: Any) -> Tensor:
        return function(x.double(), *parameters, **options).to(x.dtype if x.is_floating_point() else torch.float32)

    return golden


def _gelu(x: Tensor, variant: Any = None) -> Tensor:
    if getattr(variant, "name", "") == "Tanh":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    result = 0.5 * x * torch.special.erfc(-x / math.sqrt(2))
    return torch.where(torch.isinf(x), x.clamp(min=0), result)


def _leaky_relu(x: Tensor, negative_slope: float) -> Tensor:
    if x.is_floating_point():
        return functional.leaky_relu(x, negative_slope)
    return torch.where(x < 0, torch.trunc(x.double() * negative_slope), x.double()).to(x.dtype)


def _logit(x: Tensor, eps: float | None = None) -> Tensor:
    kept = x if eps is None else torch.minimum(torch.maximum(x, torch.tensor(eps)), torch.tensor(1 - eps))
    return torch.log(kept) - torch.log1p(-kept)


def _rotated(x: Tensor) -> Tensor:
    numbers = torch.view_as_complex(torch.unflatten(x.float(), -1, (-1, 2)).contiguous())
    return torch.view_as_real(1j * numbers).flatten(-2)


def _selu(x: Tensor, scale: float = 1.0507, alpha: float = 1.67326) -> Tensor:
    return torch.where(x > 0, scale * x, scale * alpha * torch.expm1(x))


def _softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return torch.where(beta * x > threshold, x, torch.log1p(torch.exp(beta * x)) / beta)


def _xielu(x: Tensor, alpha_p: float = 0.8, alpha_n: float = 0.8) -> Tensor:
    negative = (torch.exp(torch.minimum(x, torch.tensor(-1e-6))) - 1 - x) * alpha_n + x / 2
    return torch.where(x > 0, alpha_p * torch.square(x) + x / 2, negative)


# What is no single torch function in the tables of unary_functions.py.
UNARY: dict[str, Function] = {
    "alt_complex_rotate90": _rotated,
    "cbrt": exact(lambda x: torch.copysign(torch.exp(torch.log(x.abs()) / 3), x)),
    "celu": functional.celu,
    "cosh": exact(lambda x: (torch.exp(x) + torch.exp(-x)) / 2),
    "elu": functional.elu,
    "eqz": lambda x: torch.eq(x, 0),
    "exp2": exact(lambda x: torch.pow(2.0, x)),
    "fill": lambda x, fill_value: torch.full(x.shape, fill_value, dtype=x.dtype),
    "gelu": exact(_gelu),
    "gez": lambda x: torch.ge(x, 0),
    "gtz": lambda x: torch.gt(x, 0),
    "hardmish": exact(lambda x: x * torch.clamp(x + 2, 0, 2) / 2),
    "hardshrink": functional.hardshrink,
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0: functional.hardtanh(x, min_val, max_val),
    "heaviside": lambda x, value: torch.heaviside(x, torch.tensor(value, dtype=x.dtype)),
    "i1": exact(torch.special.i1),
    "identity": torch.clone,
    "isneginf": torch.isneginf,
    "isposinf": torch.isposinf,
    "leaky_relu": _leaky_relu,
    "lez": lambda x: torch.le(x, 0),
    "log_sigmoid": functional.logsigmoid,
    "logit": exact(_logit),
    "ltz": lambda x: torch.lt(x, 0),
    "mish": functional.mish,
    "multigammaln": exact(lambda x: torch.special.multigammaln(x, 4)),
    "nez": lambda x: torch.ne(x, 0),
    "polygamma": lambda x, k: torch.polygamma(k, x),
    "rdiv": lambda x, value, rounding_mode=None: torch.div(torch.tensor(value), x, rounding_mode=rounding_mode),
    "relu_max": lambda x, upper_limit: functional.hardtanh(x, 0.0, max(upper_limit, 0.0)),
    "relu_min": lambda x, lower_limit: torch.maximum(x, torch.tensor(lower_limit, dtype=x.dtype)),
    "round": lambda x, decimals=0: torch.round(x, decimals=decimals) if x.is_floating_point() else x,
    "rpow": exact(lambda x, exponent: torch.pow(torch.tensor(exponent, dtype=x.dtype), x)),
    "selu": exact(_selu),
    "sinh": exact(lambda x: (torch.expm1(x) - torch.expm1(-x)) / 2),  # the difference of powers loses small values
    "softcap": exact(lambda x, beta: beta * (1 - 2 / (torch.exp(2 * x / beta) + 1))),
    "softplus": exact(_softplus),
    "softshrink": functional.softshrink,
    "softsign": exact(functional.softsign),
    "tanhshrink": exact(functional.tanhshrink),
    "threshold": functional.threshold,
    "xielu": exact(_xielu),
}


def _number(b: Any, a: Tensor) -> Tensor:
    """A tensor as it is, a number as a tensor that does not change the other's format."""
    if isinstance(b, Tensor):
        return b
    return torch.tensor(b, dtype=a.dtype if a.is_floating_point() or isinstance(b, int) else torch.float32)


def _with_number(function: Function) -> Function:
    return lambda a, b: function(a, _number(b, a))


def _halved(a: Tensor, times: Any) -> Tensor:
    """Rounded down; shifted out altogether from 32 on."""
    by = torch.as_tensor(times).long().clamp(max=62)
    return torch.div(a.long(), 2**by, rounding_mode="floor")


# What is no single torch function in the table of binary.py.
BINARY: dict[str, Function] = {
    "rsub": lambda a, b: torch.neg(torch.sub(a, b)),
    "squared_difference": lambda a, b: torch.square(torch.sub(a, b)),
    "logical_and": _with_number(torch.logical_and),
    "logical_or": _with_number(torch.logical_or),
    "logical_xor": _with_number(torch.logical_xor),
    "logaddexp": _with_number(torch.logaddexp),
    "logaddexp2": _with_number(torch.logaddexp2),
    "ldexp": _with_number(torch.ldexp),
    "bias_gelu": lambda a, b: UNARY["gelu"](torch.add(a, b)),
    "xlogy": torch.xlogy,
    "hypot": torch.hypot,
    "maximum": _with_number(torch.maximum),
    "minimum": _with_number(torch.minimum),
    "pow": torch.pow,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "bitwise_left_shift": torch.bitwise_left_shift,
    "logical_left_shift": torch.bitwise_left_shift,
    "bitwise_right_shift": lambda a, b: _halved(a.to(torch.int32), b).to(a.dtype),
    "logical_right_shift": lambda a, b: _halved(a.long() % 2**32, b),
}


# Members of chains that are no operation of one operand.
CHAINED: dict[str, Function] = {
    "add_unary_sfpu": torch.add,
    "sub_unary_sfpu": torch.sub,
    "mul_unary_sfpu": torch.mul,
    "div_unary_sfpu": torch.div,
    "rsub": torch.rsub,
    "power": torch.pow,
    "power_iterative": torch.pow,
    "maximum": BINARY["maximum"],
    "minimum": BINARY["minimum"],
}


# Their parameter chooses the chip's precision.
PRECISE = ("exp", "sqrt", "rsqrt", "log", "log1p", "log2", "log10", "tanh", "erf", "erfc", "sigmoid")


def activated(x: Tensor, activations: Iterable[Any], other: Callable[[Any], Function]) -> Tensor:
    """Fused activations, left to right.

    Args:
        other: gives the function of an activation that is neither here nor torch's own.
    """
    for activation in activations:
        kind, parameters = getattr(activation, "op_type", activation), getattr(activation, "params", ())
        if isinstance(activation, (tuple, list)):
            kind, *parameters = activation
        name = (kind if isinstance(kind, str) else kind.name).lower()
        known = UNARY.get(name) or CHAINED.get(name)
        if known is not None:
            x = known(x, *parameters)
        else:
            own = getattr(functional, name, None) or getattr(torch, name, None)
            x = own(x) if own is not None and (not parameters or name in PRECISE) else other(activation)(x)
    return x
