"""Functions of one element, on lanes: what unary operations, chains and fused activations compute.

torch computes bfloat16 in float32 and rounds once, so single torch functions are used as they are; formulas of several
steps go to float32 first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Function = Callable[..., Tensor]

FLAT = 30.0  # for larger |x| gelu is x or 0 in every format
SMALLEST_NORMAL = 2.0**-126  # of float32 and bfloat16
SELU_SCALE, SELU_ALPHA = 1.0507, 1.67326  # TT-NN's defaults, shorter than torch's


def to_float32(x: Tensor) -> Tensor:
    """Convert to float32, for formulas of several steps."""
    return x if x.dtype is torch.float32 else x.float()


def flush_subnormals(x: Tensor) -> Tensor:
    """Replace subnormal values by 0, as the chip does."""
    return torch.where(x.abs() < SMALLEST_NORMAL, 0.0, x)


def exp2(x: Tensor) -> Tensor:
    """2 to the power of every element."""
    return flush_subnormals(torch.exp2(x))


def i1(x: Tensor) -> Tensor:
    """The modified Bessel function of order 1; the chip clamps its argument, so the result stays finite."""
    result: Tensor = torch.special.i1(to_float32(x).clamp(-88.5, 88.5))
    return result


def pack_nan(x: Tensor, lanes: torch.dtype) -> Tensor:
    """Replace NaN by infinity in bfloat16, as the chip's packer does."""
    return x if lanes is not torch.bfloat16 else torch.nan_to_num(x, math.inf, math.inf, -math.inf)


def cbrt(x: Tensor) -> Tensor:
    """The real cube root."""
    x = to_float32(x)
    return torch.sgn(x) * torch.pow(torch.abs(x), 1 / 3)


def hardmish(x: Tensor) -> Tensor:
    """x · clamp(x/2 + 1, 0, 1)."""
    x = to_float32(x)
    return x * (0.5 * x + 1).clamp(0, 1)


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x clamped between two bounds; unlike clamp's, its gradient at the bounds is 0."""
    return functional.hardtanh(x, min_val, max_val) if x.requires_grad else x.clamp(min_val, max_val)


def gelu(x: Tensor, variant: Any = None) -> Tensor:
    """gelu, exact or with the tanh approximation."""
    if getattr(variant, "name", "") == "Tanh":
        return functional.gelu(x, approximate="tanh")
    result = functional.gelu(x)
    # torch's vector code for the CPU returns NaN for infinities; a sum finds them with one pass over the values.
    if x.device.type == "cpu" and torch.isnan(result.sum()):
        result = torch.where(x > FLAT, x, torch.where(x < -FLAT, 0.0, result))
    return result


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta·x)) / beta, x itself above the threshold."""
    return functional.softplus(to_float32(x), beta, threshold)


def multigammaln(x: Tensor) -> Tensor:
    """The logarithm of the multivariate gamma function of order 4."""
    x = to_float32(x)
    steps = (torch.lgamma(x - k / 2) for k in range(4))
    return sum(steps, start=torch.full_like(x, 3.434189657547))  # 3·log π, TT-NN's constant


def xielu(x: Tensor, alpha_p: float = 0.8, alpha_n: float = 0.8) -> Tensor:
    """Expanded integral of ELU."""
    x = to_float32(x)
    below = alpha_n * torch.expm1(x.clamp(max=-1e-6)) - alpha_n * x + 0.5 * x
    return torch.where(x > 0, alpha_p * x * x + 0.5 * x, below)


def selu(x: Tensor, scale: float = SELU_SCALE, alpha: float = SELU_ALPHA) -> Tensor:
    """scale · elu(x, alpha)."""
    return scale * functional.elu(to_float32(x), alpha)


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), x clamped to [eps, 1 - eps]; with eps above 1/2 the upper bound is applied, as in TT-NN."""
    x = to_float32(x)
    if eps is not None:
        x = x.clamp(eps, 1 - eps)
    return torch.log(x / (1 - x))


def heaviside(x: Tensor, value: float) -> Tensor:
    """0 below zero, 1 above, the value at zero."""
    return torch.where(x == 0, value, (x > 0).to(x.dtype))


def softcap(x: Tensor, beta: float) -> Tensor:
    """beta · tanh(x / beta)."""
    return beta * torch.tanh(to_float32(x) / beta)


def tanhshrink(x: Tensor) -> Tensor:
    """x - tanh(x); in float64, because the difference cancels near 0."""
    return (x.double() - torch.tanh(x.double())).float()


def cosh(x: Tensor) -> Tensor:
    """cosh in float64: the float32 version overflows before the result does."""
    return torch.cosh(x.double()).float()


def sinh(x: Tensor) -> Tensor:
    """sinh in float64: the float32 version overflows before the result does."""
    return torch.sinh(x.double()).float()


def leaky_relu(x: Tensor, negative_slope: float) -> Tensor:
    """x, or slope · x for negative x; unsigned integers are unchanged."""
    if not x.dtype.is_floating_point:
        return torch.where(x < 0, x * negative_slope, x.double()).to(x.dtype)
    return functional.leaky_relu(to_float32(x), negative_slope)


def rotate90(x: Tensor) -> Tensor:
    """Pairs (re, im) in the last dim times i: (-im, re)."""
    width = x.shape[-1]
    whole = torch.nn.functional.pad(x, (0, width % 2)) if width % 2 else x  # the last one pairs with the padding
    pairs = whole.reshape(*whole.shape[:-1], -1, 2)
    return torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).reshape(whole.shape)[..., :width]


def bitwise_not(x: Tensor) -> Tensor:
    """All bits inverted; of floats, those of their bfloat16 or float32."""
    if not x.dtype.is_floating_point:
        return torch.bitwise_not(x)
    bits = torch.int32 if x.dtype is torch.float32 else torch.int16
    return torch.bitwise_not(x.view(bits)).view(x.dtype)


def rdiv(x: Tensor, value: float, rounding_mode: str | None = None) -> Tensor:
    """value / x."""
    return torch.div(torch.full_like(to_float32(x), value), to_float32(x), rounding_mode=rounding_mode)


def round_to(x: Tensor, decimals: int = 0) -> Tensor:
    """Round half to even."""
    return torch.round(to_float32(x), decimals=decimals) if x.dtype.is_floating_point else x


# Functions without parameters, by the names of TT-NN's operations.
PLAIN: dict[str, Function] = {
    "abs": torch.abs, "acos": torch.acos, "acosh": torch.acosh, "alt_complex_rotate90": rotate90, "asin": torch.asin,
    "asinh": torch.asinh, "atan": torch.atan, "atanh": torch.atanh, "bitwise_not": bitwise_not, "cbrt": cbrt,
    "ceil": torch.ceil, "cos": torch.cos, "cosh": cosh, "deg2rad": torch.deg2rad, "digamma": torch.digamma,
    "eqz": lambda x: x == 0, "erf": torch.erf, "erfc": torch.erfc, "erfinv": torch.erfinv, "exp": torch.exp,
    "exp2": exp2, "expm1": torch.expm1, "floor": torch.floor, "frac": torch.frac, "gez": lambda x: x >= 0,
    "gtz": lambda x: x > 0, "hardmish": hardmish, "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish, "i0": torch.special.i0, "i1": i1,
    "identity": lambda x: x, "isfinite": torch.isfinite, "isinf": torch.isinf, "isnan": torch.isnan,
    "isneginf": lambda x: x == -math.inf, "isposinf": lambda x: x == math.inf, "lez": lambda x: x <= 0,
    "lgamma": torch.lgamma, "log": torch.log, "log10": torch.log10, "log1p": torch.log1p, "log2": torch.log2,
    "log_sigmoid": lambda x: functional.logsigmoid(to_float32(x)), "logical_not": torch.logical_not,
    "ltz": lambda x: x < 0, "mish": lambda x: functional.mish(to_float32(x)), "multigammaln": multigammaln,
    "neg": torch.neg, "nez": lambda x: x != 0, "rad2deg": torch.rad2deg, "reciprocal": torch.reciprocal,
    "relu": torch.relu, "relu6": functional.relu6, "rsqrt": torch.rsqrt, "sigmoid": torch.sigmoid,
    "sigmoid_accurate": torch.sigmoid, "sign": torch.sign, "signbit": torch.signbit, "silu": functional.silu,
    "sin": torch.sin, "sinh": sinh, "softsign": lambda x: to_float32(x) / (1 + to_float32(x).abs()), "sqrt": torch.sqrt,
    "square": torch.square, "swish": functional.silu, "tan": torch.tan, "tanh": torch.tanh,
    "tanhshrink": tanhshrink, "trunc": torch.trunc,
}  # fmt: skip

# Functions with parameters in TT-NN's order, by the names of TT-NN's operations.
WITH_PARAMETERS: dict[str, Function] = {
    "celu": lambda x, alpha=1.0: functional.celu(to_float32(x), alpha),
    "elu": lambda x, alpha=1.0: functional.elu(to_float32(x), alpha),
    "fill": lambda x, fill_value: torch.full_like(x, fill_value),
    "gelu": gelu,
    "hardshrink": lambda x, lambd=0.5: functional.hardshrink(to_float32(x), lambd),
    "hardtanh": hardtanh,
    "heaviside": heaviside,
    "leaky_relu": leaky_relu,
    "logit": logit,
    "polygamma": lambda x, k: torch.special.polygamma(k, to_float32(x)),
    "rdiv": rdiv,
    "relu_max": lambda x, upper_limit: torch.relu(x.clamp(max=upper_limit)),
    "relu_min": lambda x, lower_limit: x.clamp(min=lower_limit),
    "round": round_to,
    "rpow": lambda x, exponent: torch.pow(exponent, to_float32(x)),
    "selu": selu,
    "softcap": softcap,
    "softplus": softplus,
    "softshrink": lambda x, lambd=0.5: functional.softshrink(to_float32(x), lambd),
    "threshold": lambda x, threshold, value: functional.threshold(to_float32(x), threshold, value),
    "xielu": xielu,
}
