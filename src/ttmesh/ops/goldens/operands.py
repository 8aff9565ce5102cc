"""Functions of two and three operands: arithmetic, comparisons, logic, bits, gates and bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ttmesh.base.dtypes import DataType
from ttmesh.ops.goldens.elementwise import activate, exact, gelu, keep_dtype, softcap

Function = Callable[..., Tensor]


def fuse_activations(function: Function) -> Function:
    """A function of two operands with the activations that TT-NN fuses around it."""

    def golden(input_tensor_a: Any, input_tensor_b: Any, *_: Any, **options: Any) -> Tensor:
        a, b = input_tensor_a, input_tensor_b
        a = activate(a, options.get("input_tensor_a_activations") or ())
        if isinstance(b, Tensor):
            b = activate(b, options.get("input_tensor_b_activations") or ())
        result = function(a.float() if options.get("dtype") is DataType.FLOAT32 else a, b)
        return activate(result, options.get("activations") or ())

    return keep_dtype(golden)


def _in_place(golden: Function) -> Function:
    def golden_in_place(input_tensor_a: Tensor, *args: Any, **options: Any) -> Tensor:
        return golden(input_tensor_a, *args, **options).to(input_tensor_a.dtype)

    return golden_in_place


def _scalar_to_tensor(function: Function) -> Function:
    """Make a torch function of two tensors accept a number as its second operand."""

    def golden(a: Tensor, b: Any) -> Tensor:
        if isinstance(b, Tensor):
            return function(a, b)
        both_integers = not a.is_floating_point() and isinstance(b, int)
        return function(a, torch.tensor(b, dtype=a.dtype if a.is_floating_point() or both_integers else torch.float32))

    return golden


def _shift_right(a: Tensor, bits: Any) -> Tensor:
    """Divide by a power of two, rounding down; shifts of 62 or more are clamped."""
    shift = torch.as_tensor(bits).long().clamp(max=62)
    return torch.div(a.long(), 2**shift, rounding_mode="floor")


_FUNCTIONS: dict[str, Function] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "rsub": lambda a, b: torch.neg(torch.sub(a, b)),
    "squared_difference": lambda a, b: torch.square(torch.sub(a, b)),
    "eq": torch.eq,
    "ne": torch.ne,
    "gt": torch.gt,
    "ge": torch.ge,
    "lt": torch.lt,
    "le": torch.le,
    "logical_and": _scalar_to_tensor(torch.logical_and),
    "logical_or": _scalar_to_tensor(torch.logical_or),
    "logical_xor": _scalar_to_tensor(torch.logical_xor),
    "logaddexp": _scalar_to_tensor(torch.logaddexp),
    "logaddexp2": _scalar_to_tensor(torch.logaddexp2),
    "ldexp": _scalar_to_tensor(torch.ldexp),
    "bias_gelu": lambda a, b: exact(gelu)(torch.add(a, b)),
    "xlogy": torch.xlogy,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "maximum": _scalar_to_tensor(torch.maximum),
    "minimum": _scalar_to_tensor(torch.minimum),
    "gcd": torch.gcd,
    "lcm": torch.lcm,
    "pow": torch.pow,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "bitwise_left_shift": torch.bitwise_left_shift,
    "logical_left_shift": torch.bitwise_left_shift,
    "bitwise_right_shift": lambda a, b: _shift_right(a.to(torch.int32), b).to(a.dtype),
    "logical_right_shift": lambda a, b: _shift_right(a.long() % 2**32, b),
    "div_no_nan": lambda a, b: torch.nan_to_num(torch.div(a, b), 0.0, 0.0, 0.0),
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
}
BINARY: dict[str, Function] = {name: fuse_activations(function) for name, function in _FUNCTIONS.items()}
IN_PLACE: dict[str, Function] = {name: _in_place(golden) for name, golden in BINARY.items()}
nextafter = torch.nextafter


def div(a: Any, b: Any, rounding_mode: str | None = None, **options: Any) -> Tensor:
    return fuse_activations(lambda x, y: torch.div(x, y, rounding_mode=rounding_mode))(a, b, **options)


def isclose(a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False, **_: Any) -> Tensor:
    return torch.isclose(a, b, rtol, atol, equal_nan)


def addalpha(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    return torch.add(a, b, alpha=alpha)


def subalpha(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    return torch.sub(a, b, alpha=alpha)


@exact
def polyval(x: Tensor, coeffs: Sequence[float]) -> Tensor:
    """The sum of all powers."""
    powers = range(len(coeffs) - 1, -1, -1)
    return torch.stack([coefficient * x**power for coefficient, power in zip(coeffs, powers, strict=True)]).sum(0)


def outer(a: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("...i,...j->...ij", a, b)


def where(predicate: Tensor, true_value: Any, false_value: Any) -> Tensor:
    return torch.where(predicate != 0, true_value, false_value)


def addcmul(input_a: Tensor, input_b: Tensor, input_c: Tensor, value: float = 1.0) -> Tensor:
    return torch.addcmul(input_a, input_b, input_c, value=value if input_a.is_floating_point() else int(value))


@keep_dtype
def addcdiv(a: Tensor, b: Tensor, c: Tensor, value: float = 1.0) -> Tensor:
    return torch.addcdiv(a, b, c, value=value)


@keep_dtype
def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    return torch.lerp(input, end, weight)


@keep_dtype
def mac(a: Any, b: Any, c: Any) -> Tensor:
    return torch.add(torch.mul(a, b), c)


def _gate(gate: Callable[[Tensor], Tensor]) -> Function:
    """The first half of the last dim times a function of the second."""

    def golden(input_tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        value, gate_input = torch.tensor_split(input_tensor, 2, -1)
        return torch.mul(value, gate(gate_input))

    return keep_dtype(golden)


GATES: dict[str, Function] = {
    "glu": keep_dtype(lambda input_tensor, *_, **__: F.glu(input_tensor, -1)),
    "reglu": _gate(lambda x: x * (x > 0)),
    "geglu": _gate(exact(gelu)),
    "swiglu": _gate(exact(lambda x: x / (1 + torch.exp(-x)))),
}


@keep_dtype
def situ_glu(gate: Tensor, up: Tensor, beta1: float, beta2: float) -> Tensor:
    """A soft-capped silu of the gate times a soft-capped value."""
    return exact(softcap)(gate, beta1) * torch.sigmoid(gate) * exact(softcap)(up, beta2)


@keep_dtype
def clamped_silu_glu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu of the gate, bounded above, times the bounded value."""
    bounded = torch.minimum(gate, torch.tensor(limit))
    return bounded * torch.sigmoid(bounded) * F.hardtanh(up, -limit, limit)


@exact
def snake_beta(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """x + sin²(alpha x) / beta, by the double angle."""
    return x + (1 - torch.cos(2 * alpha * x)) / (2 * beta)


def prelu(input_tensor_a: Tensor, weight: Any) -> Tensor:
    if not isinstance(weight, Tensor):
        weight = torch.tensor(list(weight) if isinstance(weight, (list, tuple)) else [weight], dtype=torch.float32)
    return F.prelu(input_tensor_a.float(), weight.flatten().float())


def clamp(input_tensor: Tensor, min: Any = None, max: Any = None) -> Tensor:
    return torch.clamp(input_tensor, min, max)
