"""Functions of one element, of complex numbers, and chains of fused activations."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ttmesh.base.dtypes import DataType
from ttmesh.ops.goldens.quantize import typecast

Function = Callable[..., Tensor]
BITS = {DataType.BFLOAT16: torch.bfloat16, DataType.FLOAT32: torch.float32, DataType.INT32: torch.int32}
MAX_SHIFT = 62  # int64 holds every 32-bit number shifted by it


def exact(function: Function) -> Function:
    """A formula computed in float64, in the input's format; float32 for integers."""

    @functools.wraps(function)
    def golden(x: Tensor, *parameters: Any, **options: Any) -> Tensor:
        return function(x.double(), *parameters, **options).to(x.dtype if x.is_floating_point() else torch.float32)

    return golden


def _is_bfloat16(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype is torch.bfloat16


def keep_dtype(golden: Function) -> Function:
    """Make a golden compute bfloat16 in float32 and round its result once, as torch's own functions do."""

    @functools.wraps(golden)
    def rounded_golden(*args: Any, **options: Any) -> Any:
        result = golden(*(x.float() if _is_bfloat16(x) else x for x in args), **options)
        dtypes = {x.dtype for x in args if isinstance(x, Tensor)}
        if isinstance(result, Tensor) and result.dtype is torch.float32 and len(dtypes) == 1:
            (dtype,) = dtypes
            return result.to(dtype) if dtype.is_floating_point else result
        return result

    return rounded_golden


def gelu(x: Tensor, variant: Any = None) -> Tensor:
    """x times the normal distribution function of x, or the tanh approximation of it."""
    if getattr(variant, "name", variant) == "Tanh":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    result = 0.5 * x * torch.special.erfc(-x / math.sqrt(2))
    return torch.where(torch.isinf(x), x.clamp(min=0), result)


def leaky_relu(x: Tensor, negative_slope: float) -> Tensor:
    """Integers are truncated after the multiplication."""
    if x.is_floating_point():
        return F.leaky_relu(x, negative_slope)
    return torch.where(x < 0, torch.trunc(x.double() * negative_slope), x.double()).to(x.dtype)


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """Log odds; with eps above one half the upper bound is applied."""
    bounded = x if eps is None else torch.minimum(torch.maximum(x, torch.tensor(eps)), torch.tensor(1 - eps))
    return torch.log(bounded) - torch.log1p(-bounded)


def rotate90(x: Tensor) -> Tensor:
    """Pairs of the last dim are complex numbers, times i."""
    numbers = torch.view_as_complex(torch.unflatten(x.float(), -1, (-1, 2)).contiguous())
    return torch.view_as_real(1j * numbers).flatten(-2)


def selu(x: Tensor, scale: float = 1.0507, alpha: float = 1.67326) -> Tensor:
    """scale times elu, with TT-NN's defaults."""
    return torch.where(x > 0, scale * x, scale * alpha * torch.expm1(x))


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, linear above the threshold."""
    return torch.where(beta * x > threshold, x, torch.log1p(torch.exp(beta * x)) / beta)


def softcap(x: Tensor, beta: float) -> Tensor:
    """beta tanh(x / beta), by exponentials."""
    return beta * (1 - 2 / (torch.exp(2 * x / beta) + 1))


def xielu(x: Tensor, alpha_p: float = 0.8, alpha_n: float = 0.8) -> Tensor:
    """Expanded integral of elu."""
    negative = (torch.exp(torch.minimum(x, torch.tensor(-1e-6))) - 1 - x) * alpha_n + x / 2
    return torch.where(x > 0, alpha_p * torch.square(x) + x / 2, negative)


def bitcast(input_tensor: Tensor, dtype: torch.dtype | DataType) -> Tensor:
    """The same bits as another format; unsigned formats that torch lacks are returned as their values."""
    if isinstance(dtype, torch.dtype):
        return input_tensor.view(dtype)
    if dtype in BITS:
        return input_tensor.view(BITS[dtype])
    bits = input_tensor.element_size() * 8
    raw: Tensor = input_tensor.view(torch.int16 if bits == 16 else torch.int32)
    return torch.remainder(raw.long(), 2**bits)


# Functions of one argument, by the names of the operations.
PLAIN: dict[str, Function] = {
    "alt_complex_rotate90": rotate90,
    "cbrt": exact(lambda x: torch.copysign(torch.exp(torch.log(x.abs()) / 3), x)),
    "cosh": exact(lambda x: (torch.exp(x) + torch.exp(-x)) / 2),
    "eqz": lambda x: torch.eq(x, 0),
    "exp2": exact(lambda x: torch.pow(2.0, x)),
    "gez": lambda x: torch.ge(x, 0),
    "gtz": lambda x: torch.gt(x, 0),
    "hardmish": exact(lambda x: x * torch.clamp(x + 2, 0, 2) / 2),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "identity": torch.clone,
    "lez": lambda x: torch.le(x, 0),
    "log_sigmoid": F.logsigmoid,
    "ltz": lambda x: torch.lt(x, 0),
    "mish": F.mish,
    "multigammaln": exact(lambda x: torch.special.multigammaln(x, 4)),
    "nez": lambda x: torch.ne(x, 0),
    "reciprocal": exact(lambda x: 1 / x),
    "relu6": F.relu6,
    "sigmoid": exact(lambda x: 1 / (1 + torch.exp(-x))),
    "sigmoid_accurate": exact(lambda x: 1 / (1 + torch.exp(-x))),
    "silu": exact(F.silu),
    "sinh": exact(lambda x: (torch.expm1(x) - torch.expm1(-x)) / 2),  # a difference of powers loses small values
    "softsign": exact(F.softsign),
    "swish": exact(F.silu),
    "tanhshrink": exact(F.tanhshrink),
}
for _name in (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "deg2rad", "digamma", "erf", "erfc", "erfinv", "exp", "expm1",
    "i0", "lgamma", "log", "log10", "log1p", "log2", "rad2deg", "rsqrt", "sin", "sqrt", "tan", "tanh",
):  # fmt: skip
    PLAIN[_name] = exact(getattr(torch, _name))
PLAIN["i1"] = exact(torch.special.i1)
for _name in (
    "abs", "bitwise_not", "ceil", "floor", "frac", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "logical_not",
    "neg", "relu", "sign", "signbit", "square", "trunc",
):  # fmt: skip
    PLAIN[_name] = getattr(torch, _name)

# With parameters, in TT-NN's order and by TT-NN's names.
PARAMETRIC: dict[str, Function] = {
    "celu": lambda x, alpha=1.0: F.celu(x, alpha),
    "elu": lambda x, alpha=1.0: F.elu(x, alpha),
    "fill": lambda x, fill_value: torch.full(x.shape, fill_value, dtype=x.dtype),
    "gelu": exact(gelu),
    "hardshrink": lambda x, lambd=0.5: F.hardshrink(x, lambd),
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0: F.hardtanh(x, min_val, max_val),
    "heaviside": lambda x, value: torch.heaviside(x, torch.tensor(value, dtype=x.dtype)),
    "leaky_relu": leaky_relu,
    "logit": exact(logit),
    "polygamma": lambda x, k: torch.polygamma(k, x),
    "rdiv": lambda x, value, rounding_mode=None: torch.div(torch.tensor(value), x, rounding_mode=rounding_mode),
    "relu_max": lambda x, upper_limit: F.hardtanh(x, 0.0, max(upper_limit, 0.0)),
    "relu_min": lambda x, lower_limit: torch.maximum(x, torch.tensor(lower_limit, dtype=x.dtype)),
    "round": lambda x, decimals=0: torch.round(x, decimals=decimals) if x.is_floating_point() else x,
    "rpow": exact(lambda x, exponent: torch.pow(torch.tensor(exponent, dtype=x.dtype), x)),
    "selu": exact(selu),
    "softcap": exact(softcap),
    "softplus": exact(softplus),
    "softshrink": lambda x, lambd=0.5: F.softshrink(x, lambd),
    "threshold": lambda x, threshold, value: F.threshold(x, threshold, value),
    "xielu": exact(xielu),
}


def _operation(function: Function) -> Function:
    """A golden that accepts all arguments of an operation and ignores those that have no meaning in torch."""
    _, *names = inspect.signature(function).parameters

    def golden(input_tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        return function(input_tensor, *args, **{name: value for name, value in options.items() if name in names})

    return keep_dtype(golden)


def _plain_operation(function: Function) -> Function:
    return keep_dtype(lambda input_tensor, *_, **__: function(input_tensor))


UNARY: dict[str, Function] = {name: _plain_operation(function) for name, function in PLAIN.items()} | {
    name: _operation(function) for name, function in PARAMETRIC.items()
}


def _shift(x: Tensor, bits: float) -> Tensor:
    """Times a power of two, rounded down."""
    factor = 2 ** min(abs(int(bits)), MAX_SHIFT)
    return x * factor if bits > 0 else torch.div(x, factor, rounding_mode="floor")


# Activations whose name or parameters are not those of an operation.
CHAINED: dict[str, Function] = {
    "abs_int32": torch.abs,
    "add_unary_sfpu": torch.add,
    "bitwise_and": lambda x, value: torch.bitwise_and(x, int(value)),
    "bitwise_or": lambda x, value: torch.bitwise_or(x, int(value)),
    "bitwise_xor": lambda x, value: torch.bitwise_xor(x, int(value)),
    "clamp_tss": torch.clamp,
    "div_unary_sfpu": torch.div,
    "fmod": torch.fmod,
    "gelu": lambda x, *_: exact(gelu)(x),  # the parameter chooses the precision
    "gelu_tanh": lambda x, *_: exact(gelu)(x, "Tanh"),
    "left_shift": lambda x, value: _shift(x, value),
    "logical_not_unary": lambda x, *_: torch.logical_not(x),
    "logsigmoid": lambda x, *_: F.logsigmoid(x),
    "mac_tss": lambda x, factor, term: torch.add(torch.mul(x, factor), term),
    "maximum": lambda x, value: torch.clamp(x, min=value),
    "minimum": lambda x, value: torch.clamp(x, max=value),
    "mul_unary_sfpu": torch.mul,
    "power": torch.pow,
    "power_iterative": torch.pow,
    "prelu_sfpu": lambda x, weight: F.prelu(x.float(), torch.tensor([weight])),
    "recip": lambda x, *_: PLAIN["reciprocal"](x),
    "remainder": torch.remainder,
    "right_shift": lambda x, value: _shift(x, -value),
    "rsub": torch.rsub,
    "selu": lambda x, alpha=1.67326, scale=1.0507: exact(selu)(x, scale, alpha),
    "softplus": lambda x, beta=1.0, threshold=20.0, *_: exact(softplus)(x, beta, threshold),
    "sub_unary_sfpu": torch.sub,
    "typecast": lambda x, *formats: typecast(x, DataType(int(formats[-1]))),
    "unary_eq": torch.eq,
    "unary_ge": torch.ge,
    "unary_gt": torch.gt,
    "unary_le": torch.le,
    "unary_lt": torch.lt,
    "unary_ne": torch.ne,
    "where_tss": lambda x, yes, no: torch.where(x != 0, yes, no),
}


def activation_function(activation: Any) -> Callable[[Tensor], Tensor]:
    """The function of an activation: a string, a type, a type with its parameters, or a list of these."""
    kind, parameters = getattr(activation, "op_type", activation), tuple(getattr(activation, "params", ()))
    if isinstance(activation, (tuple, list)):
        kind, *values = activation
        parameters = tuple(values)
    name = (kind if isinstance(kind, str) else kind.name).lower().removesuffix("_approx")
    if name in CHAINED:
        return functools.partial(_with_parameters, CHAINED[name], parameters)
    if name in PLAIN:  # a parameter of these chooses the chip's precision
        return PLAIN[name]
    return functools.partial(_with_parameters, PARAMETRIC[name], parameters)


def _with_parameters(function: Function, parameters: tuple[Any, ...], x: Tensor) -> Tensor:
    return function(x, *parameters)


def activate(x: Tensor, activations: Iterable[Any]) -> Tensor:
    """Apply fused activations, left to right; results of comparisons become 1 and 0."""
    for activation in activations:
        x = activation_function(activation)(x.float() if x.dtype is torch.bool else x)
    return x


def unary_chain(input_tensor: Tensor, ops_chain: Iterable[Any], **_: Any) -> Tensor:
    """Several functions in one program."""
    return activate(input_tensor, ops_chain)


complex_tensor, real, imag, angle = torch.complex, torch.real, torch.imag, torch.angle
is_real, conj = torch.isreal, torch.conj


def is_imag(input_tensor: Tensor) -> Tensor:
    """Whether the real part is 0."""
    return torch.real(input_tensor) == 0


def polar(input_tensor: Tensor) -> Tensor:
    """The complex number with the input's real part as magnitude and its imaginary part as angle."""
    return torch.polar(torch.real(input_tensor), torch.imag(input_tensor))
