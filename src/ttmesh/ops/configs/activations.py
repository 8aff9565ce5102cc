"""Chains of unary functions: the types that users pass, and how they are applied to lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch

from ttmesh.base.dtypes import DataType, PrintedEnum
from ttmesh.base.errors import MeshError, NotEmulatedError, suggest_names
from ttmesh.chip.formats.storage import finish
from ttmesh.ops.goldens import elementwise as goldens
from ttmesh.ops.lane_functions.unary_functions import PLAIN, WITH_PARAMETERS, to_float32


class UnaryOpType(PrintedEnum):
    """Every unary function of chains, in the order of tt-metal e4f9f0b's unary_op_types.hpp."""

    (
        EXP, RECIP, GELU, GELU_TANH, RELU, SQRT, SIGMOID, LOG, LOG1P, TANH, LOG2, LOG10, SIN, COS, COSH, SINH, ABS,
        ABS_INT32, SIGN, SQUARE, EQZ, NEZ, GTZ, LTZ, GEZ, LEZ, RELU_MAX, RELU_MIN, POWER, POWER_ITERATIVE, LEAKY_RELU,
        ELU, EXP2, HEAVISIDE, EXPM1, SIGNBIT, ASIN, ACOS, ACOSH, RSQRT, RELU6, ATAN, ASINH, ATANH, ERF, ERFC, ISINF,
        ISPOSINF, ISNEGINF, ISNAN, LOGICAL_NOT_UNARY, ISFINITE, ERFINV, I0, I1, TAN, RSUB, RDIV, SILU, SOFTPLUS,
        IDENTITY, NEG, ADD_UNARY_SFPU, SUB_UNARY_SFPU, MUL_UNARY_SFPU, DIV_UNARY_SFPU, UNARY_NE, UNARY_EQ, UNARY_GT,
        UNARY_LT, UNARY_GE, UNARY_LE, TILED_PROD, TYPECAST, BITCAST, BITWISE_XOR, BITWISE_NOT, BITWISE_AND, BITWISE_OR,
        RIGHT_SHIFT, FLOOR, CEIL, TRUNC, FRAC, ROUND, LEFT_SHIFT, REMAINDER, FMOD, DROPOUT, FILL, PRELU_SFPU,
        ZERO_POINT, ALT_COMPLEX_ROTATE90, MISH, HARDMISH, MAXIMUM, MINIMUM, TANHSHRINK, THRESHOLD, SOFTSHRINK,
        HARDSHRINK, HARDTANH, HARDSIGMOID, HARDSWISH, WHERE_TSS, MAC_TSS, SOFTSIGN, CELU, CLAMP_TSS, SELU, RPOW, CBRT,
        LOGSIGMOID, LOGIT, XIELU, LGAMMA, DIGAMMA, POLYGAMMA, SOFTCAP,
    ) = range(119)  # fmt: skip


class GeluVariant(Enum):
    """How gelu is computed; only Tanh changes the function."""

    Accurate = auto()
    FastLut = auto()
    Tanh = auto()


class SigmoidMode(Enum):
    """How sigmoid is computed; precision only."""

    Accurate = auto()
    AccurateWithFastExp = auto()
    FastApproximate = auto()


@dataclass(init=False, eq=False, repr=False)
class UnaryWithParam:
    """A unary function with its parameters: UnaryWithParam(UnaryOpType.ELU, 0.5)."""

    op_type: UnaryOpType
    params: tuple[float, ...]

    def __init__(self, op_type: UnaryOpType | Sequence[Any], *params: float) -> None:
        self.op_type, *more = (op_type,) if isinstance(op_type, UnaryOpType) else op_type
        self.params = (*more, *params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnaryWithParam) and (self.op_type, self.params) == (other.op_type, other.params)

    def __hash__(self) -> int:
        return hash((self.op_type, self.params))

    def __repr__(self) -> str:
        params = f", params=[{', '.join(map(str, self.params))}]" if self.params else ""
        return f"UnaryWithParam(op_type={self.op_type}{params})"


Activation = UnaryWithParam | UnaryOpType | tuple[UnaryOpType, float] | str


def as_activation(activation: Activation | Sequence[Any] | None) -> UnaryWithParam | str | None:
    """Convert an activation to the form that configs store: UnaryOpType.RELU becomes a UnaryWithParam."""
    return (
        activation
        if activation is None or isinstance(activation, (UnaryWithParam, str))
        else UnaryWithParam(activation)
    )


# Names that differ from the operation's, and functions that are not operations.
_OPERATION_NAMES = {
    "RECIP": "reciprocal", "LOGICAL_NOT_UNARY": "logical_not", "LOGSIGMOID": "log_sigmoid", "ABS_INT32": "abs",
}  # fmt: skip
_OTHER_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "GELU": lambda x, *_: WITH_PARAMETERS["gelu"](x),  # the parameter chooses precision, like those dropped below
    "GELU_TANH": lambda x, *_: torch.nn.functional.gelu(x, approximate="tanh"),
    "SIGMOID": lambda x, *_: torch.sigmoid(x),
    "SOFTPLUS": lambda x, beta=1.0, threshold=20.0, *_: WITH_PARAMETERS["softplus"](x, beta, threshold),
    "SELU": lambda x, alpha=1.67326, scale=1.0507: WITH_PARAMETERS["selu"](x, scale, alpha),
    "POWER": lambda x, exponent: torch.pow(to_float32(x), exponent),
    "POWER_ITERATIVE": lambda x, exponent: torch.pow(to_float32(x), exponent),
    "RSUB": lambda x, value: value - x,
    "ADD_UNARY_SFPU": lambda x, value: x + value,
    "SUB_UNARY_SFPU": lambda x, value: x - value,
    "MUL_UNARY_SFPU": lambda x, value: x * value,
    "DIV_UNARY_SFPU": lambda x, value: x / value,
    "UNARY_NE": lambda x, value: (x != value).to(x.dtype),
    "UNARY_EQ": lambda x, value: (x == value).to(x.dtype),
    "UNARY_GT": lambda x, value: (x > value).to(x.dtype),
    "UNARY_LT": lambda x, value: (x < value).to(x.dtype),
    "UNARY_GE": lambda x, value: (x >= value).to(x.dtype),
    "UNARY_LE": lambda x, value: (x <= value).to(x.dtype),
    "BITWISE_XOR": lambda x, value: x ^ int(value),
    "BITWISE_AND": lambda x, value: x & int(value),
    "BITWISE_OR": lambda x, value: x | int(value),
    "RIGHT_SHIFT": lambda x, value: x >> int(value),
    "LEFT_SHIFT": lambda x, value: x << int(value),
    "REMAINDER": lambda x, value: torch.remainder(x, value),
    "FMOD": lambda x, value: torch.fmod(x, value),
    "PRELU_SFPU": lambda x, weight: torch.where(x < 0, x * weight, x),
    "MAXIMUM": lambda x, value: x.clamp(min=value),
    "MINIMUM": lambda x, value: x.clamp(max=value),
    "CLAMP_TSS": lambda x, low, high: x.clamp(low, high),
    "WHERE_TSS": lambda x, yes, no: torch.where(x != 0, yes, no),
    "MAC_TSS": lambda x, factor, term: to_float32(x) * factor + term,
    "TYPECAST": lambda x, *dtypes: finish(x, DataType(int(dtypes[-1]))),
}
# Functions whose parameter only chooses precision in TT-NN: it is dropped.
_APPROXIMATE = {"EXP", "SQRT", "RSQRT", "LOG", "LOG1P", "LOG2", "LOG10", "TANH", "ERF", "ERFC", "MISH", "HARDMISH"}

_STRINGS = (
    "relu", "relu6", "gelu", "gelu_approx", "gelu_tanh", "silu", "sigmoid", "sigmoid_approx", "hardsigmoid",
    "hardtanh", "sqrt", "rsqrt", "exp", "recip", "log", "log1p", "log2", "log10", "tanh", "sin", "cos", "cosh",
    "sinh", "abs", "abs_int32", "sign", "square", "softplus", "xielu", "selu", "alt_complex_rotate90", "hardmish",
    "mish", "mish_approx",
)  # fmt: skip


def string_to_unary_with_param(name: str) -> UnaryWithParam:
    """The function for a string as in matmul's `activation=`."""
    if name not in _STRINGS:
        raise MeshError(f"Unknown unary op: {name}", expected=f"one of {_STRINGS}", fix=suggest_names(name, _STRINGS))
    return UnaryWithParam(UnaryOpType[name.removesuffix("_approx").upper()])


def as_unary(activation: Activation) -> UnaryWithParam:
    """Convert any form of a unary function to a UnaryWithParam."""
    if isinstance(activation, UnaryWithParam):
        return activation
    if isinstance(activation, str):
        return string_to_unary_with_param(activation)
    return UnaryWithParam(activation)


def function_of(activation: Activation) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function that an activation applies to lanes."""
    unary = as_unary(activation)
    name, params = unary.op_type.name, unary.params
    function = _OTHER_FUNCTIONS.get(name)
    if function is None:
        operation_name = _OPERATION_NAMES.get(name, name.lower())
        function = PLAIN.get(operation_name) or WITH_PARAMETERS.get(operation_name)
        if name in _APPROXIMATE or operation_name in PLAIN:
            params = ()
    if function is None:
        raise NotEmulatedError(
            f"{unary.op_type} is not emulated in chains",
            expected="a function of one element",
            fix="Call the operation of that name instead.",
        )
    return lambda x: function(x, *params)


def apply(x: torch.Tensor, activations: Iterable[Activation]) -> torch.Tensor:
    """Apply all activations to lanes, left to right, without rounding in between."""
    for activation in activations:
        x = function_of(activation)(x)
    return x


def get_golden_function_for_activation(
    activation: Activation | None,
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The torch function of an activation, as TT-NN's tests ask for it."""
    if activation is None:
        return None
    function_of(activation)  # raises for functions that chains do not have
    return goldens.activation_function(as_unary(activation))
