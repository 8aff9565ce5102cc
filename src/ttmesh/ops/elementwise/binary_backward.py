"""Gradients of binary and ternary operations, in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ttmesh.base.dtypes import BLOCK_FLOATS, INTEGERS
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.definition import OpFunction, op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.elementwise.ternary import equalize_operands
from ttmesh.ops.elementwise.unary_backward import GRADIENTS
from ttmesh.ops.goldens import autodiff as goldens
from ttmesh.ops.lane_functions.unary_functions import to_float32
from ttmesh.tensor.calls.lane_calls import Arguments
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

# Names of the operands and of the output tensors in TT-NN's overloads.
NAMES = {
    "input_tensor_a": "input_tensor", "input_tensor_b": "other_tensor", "scalar": "other_tensor",
    "bias": "other_tensor", "input_a_grad": "input_grad", "input_b_grad": "other_grad",
}  # fmt: skip
Gradients = Callable[..., Sequence[Tensor]]  # of (grad, a, b, options…)
ALL = (True, True)


def sum_to_operand(grad: Tensor, operand: Tensor, lane_axes: int) -> Tensor:
    """Sum a gradient over the local dims along which the operand was broadcast; mesh dims are not summed."""
    extra = grad.dim() - operand.dim()
    if extra:
        grad = grad.sum(tuple(range(lane_axes, lane_axes + extra)))
    dims = [d for d in range(lane_axes, grad.dim()) if operand.shape[d] == 1 and grad.shape[d] != 1]
    return grad.sum(dims, keepdim=True) if dims else grad


def _div(g: Tensor, a: Tensor, b: Any, rounding_mode: str | None = None) -> Sequence[Tensor]:
    if rounding_mode is not None:
        return torch.zeros_like(g), torch.zeros_like(g)
    return g / b, -g * a / (b * b)


def _extremum(g: Tensor, a: Tensor, b: Tensor, larger: bool) -> Sequence[Tensor]:
    """The gradient goes to the operand that was chosen, half to each if they are equal."""
    first_chosen = (a > b) if larger else (a < b)
    weight = torch.where(a == b, 0.5, first_chosen.to(g.dtype))
    return g * weight, g * (1 - weight)


def _bias_gelu(g: Tensor, a: Tensor, b: Any, approximate: str = "none") -> Sequence[Tensor]:
    gradient = GRADIENTS["gelu"](g, a + b, approximate)
    return gradient, gradient


def _atan2(g: Tensor, a: Tensor, b: Tensor) -> Sequence[Tensor]:
    square = a * a + b * b
    return g * b / square, -g * a / square


def _hypot(g: Tensor, a: Tensor, b: Tensor) -> Sequence[Tensor]:
    size = torch.hypot(a, b)
    return g * a / size, g * b / size


def _logaddexp2(g: Tensor, a: Tensor, b: Tensor) -> Sequence[Tensor]:
    return g * torch.sigmoid((a - b) * math.log(2)), g * torch.sigmoid((b - a) * math.log(2))


def _ldexp(g: Tensor, a: Tensor, b: Tensor) -> Sequence[Tensor]:
    scaled = g * torch.exp2(b)
    return scaled, scaled * a * math.log(2)


def _squared_difference(g: Tensor, a: Tensor, b: Tensor) -> Sequence[Tensor]:
    twice = 2 * g * (a - b)
    return twice, -twice


BINARY: dict[str, Gradients] = {
    "add": lambda g, a, b, alpha=1.0: (g, alpha * g),
    "sub": lambda g, a, b, alpha=1.0: (g, -alpha * g),
    "mul": lambda g, a, b: (g * b, g * a),
    "div": _div,
    "rsub": lambda g, a, b: (-g, g),
    "addalpha": lambda g, a, b, alpha=1.0: (g, alpha * g),
    "subalpha": lambda g, a, b, alpha=1.0: (g, -alpha * g),
    "assign": lambda g, a, b=None: (g, g),
    "atan2": _atan2,
    "bias_gelu": _bias_gelu,
    "div_no_nan": lambda g, a, b: (g / b if b else torch.zeros_like(g), g),
    "fmod": lambda g, a, b: (g, -g * torch.trunc(a / b)),
    "hypot": _hypot,
    "ldexp": _ldexp,
    "logaddexp": lambda g, a, b: (g * torch.sigmoid(a - b), g * torch.sigmoid(b - a)),
    "logaddexp2": _logaddexp2,
    "max": lambda g, a, b: _extremum(g, a, b, larger=True),
    "min": lambda g, a, b: _extremum(g, a, b, larger=False),
    "remainder": lambda g, a, b: (g, -g * torch.floor(a / b)),
    "squared_difference": _squared_difference,
    "xlogy": lambda g, a, b: (g * torch.log(b), g * a / b),
}


def _hand_gradient_back(arguments: Arguments) -> Any:
    """The gradient itself, where it is assigned to one tensor alone."""
    return arguments["grad_tensor"] if arguments.get("other_tensor") is None else None


HANDED_BACK: Mapping[str, str | Callable[[Arguments], Any]] = {
    "fmod": "grad_tensor",
    "remainder": "grad_tensor",
    "assign": _hand_gradient_back,
}


def gradient_specs(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """Every gradient has the spec of its operand; the first tensor is the incoming gradient."""
    required = call["are_required_outputs"] or ALL
    sources = [i + 1 for i, _ in enumerate(call.specs[1:]) if i >= len(required) or required[i]]
    sources = sources if len(sources) == len(inferred) else list(range(1, 1 + len(inferred)))
    return [
        make_output_spec(call, shape, source=source if source < len(call.specs) else 1, result=i)
        for i, (source, (shape, _)) in enumerate(zip(sources, inferred, strict=True))
    ]


def _check(call: Call) -> None:
    if call.name == "ttnn.rsub_bw" and len(call.specs) < 3:
        raise TypeError("ttnn.rsub_bw(): incompatible function arguments. input_tensor_b must be a tensor")
    if call.name == "ttnn.mul_bw" and len(call.specs) == 2:
        dtype = call.specs[0].dtype
        wrong = (
            f"mul_bw requires floating-point grad_output; got dtype DataType::{dtype.name}. int/uint operands are not "
            "supported by binary_backward."
        )
        require(dtype not in INTEGERS, wrong, "a float format", "Convert it with ttnn.typecast.")
        dtype = call.specs[1].dtype
        wrong = (
            f"mul_bw requires floating-point input; got dtype DataType::{dtype.name}. int/uint operands are not supported "
            "by binary_backward."
        )
        require(dtype not in INTEGERS, wrong, "a float format", "Convert it with ttnn.typecast.")
    required = call["are_required_outputs"]
    wrong = "At least one gradient is expected to be calculated."
    require(
        required is None or any(required), wrong, "are_required_outputs with a True", "Ask for at least one gradient."
    )
    blocks = call.name.startswith("ttnn.logaddexp") and any(spec.dtype in BLOCK_FLOATS for spec in call.specs)
    wrong = "BFLOAT8_B/BFLOAT4_B dtypes are not supported !!"
    require(not blocks, wrong, "bfloat16 or float32", "Convert it with ttnn.typecast.")
    rounding, approximation = call["rounding_mode"], call["approximate"]
    wrong = "Incorrect rounding mode (expected None, 'trunc', or 'floor')"
    require(
        rounding in (None, "trunc", "floor"),
        wrong,
        f"None, 'trunc' or 'floor', not {rounding!r}",
        "Change rounding_mode.",
    )
    wrong = "Incorrect approximation type (expected 'none', 'tanh')"
    require(
        approximation in (None, "none", "tanh"),
        wrong,
        f"'none' or 'tanh', not {approximation!r}",
        "Change approximate.",
    )


def _define_gradients(name: str, gradients: Gradients) -> OpFunction:
    sums = name == "mul"  # by a program of its own; elsewhere a gradient has the shape of what it is computed from

    def lane(
        grad_tensor: Tensor,
        input_tensor: Tensor,
        lane_axes: int,
        other_tensor: Any = None,
        are_required_outputs: Sequence[bool] = ALL,
        **options: Any,
    ) -> list[Tensor | None]:
        if name in ("fmod", "remainder") and not isinstance(other_tensor, Tensor):
            return [grad_tensor]  # whatever the input's shape
        operands = [input_tensor] + ([other_tensor] if isinstance(other_tensor, Tensor) else [])
        g, a, b = equalize_operands(
            lane_axes,
            *(to_float32(x) if isinstance(x, Tensor) else x for x in (grad_tensor, input_tensor, other_tensor)),
        )
        computed = gradients(g, a, b, **options)
        if name in HANDED_BACK:
            computed = (to_float32(grad_tensor), *computed[1:])
        return [
            (sum_to_operand(gradient, operand, lane_axes) if sums else gradient) if is_required else None
            for gradient, operand, is_required in zip(computed, operands, are_required_outputs, strict=False)
        ]

    options_taken = [option for option in ("alpha", "rounding_mode", "approximate") if option in _parameters(gradients)]
    arguments_taken = [
        "grad_tensor",
        "input_tensor",
        "lane_axes",
        "other_tensor",
        "are_required_outputs",
        *options_taken,
    ]
    lane.__doc__ = f"Gradients of {name}, in a list."
    return op(
        f"ttnn.{name}_bw",
        golden=goldens.BINARY_BW[name],
        out=gradient_specs,
        check=_check,
        runtime=("alpha",) if name not in ("div_no_nan",) else (),
        outputs=("input_grad", "other_grad"),
        names=NAMES,
        takes=arguments_taken,
        hands_back=HANDED_BACK.get(name),
        shares_result=name == "bias_gelu",
    )(lane)


def _parameters(function: Callable[..., Any]) -> Sequence[str]:
    return function.__code__.co_varnames[: function.__code__.co_argcount]


binary_bw = {name: _define_gradients(name, gradients) for name, gradients in BINARY.items()}


def _addcmul(g: Tensor, a: Tensor, b: Tensor, c: Tensor, alpha: float) -> list[Tensor]:
    return [g, g * alpha * c, g * alpha * b]


def _addcdiv(g: Tensor, a: Tensor, b: Tensor, c: Tensor, alpha: float) -> list[Tensor]:
    return [g, g * alpha / c, -g * alpha * b / (c * c)]


for _name, _gradients, _golden in (
    ("addcmul", _addcmul, goldens.addcmul_bw),
    ("addcdiv", _addcdiv, goldens.addcdiv_bw),
):

    def _lane(
        grad_tensor: Tensor,
        input_tensor_a: Tensor,
        input_tensor_b: Tensor,
        input_tensor_c: Tensor,
        alpha: float,
        lane_axes: int,
        _gradients: Callable[..., list[Tensor]] = _gradients,
    ) -> list[Tensor]:
        """Gradients of all three operands."""
        operands = (input_tensor_a, input_tensor_b, input_tensor_c)
        g, a, b, c = equalize_operands(lane_axes, *map(to_float32, (grad_tensor, *operands)))
        return [to_float32(grad_tensor), *_gradients(g, a, b, c, alpha)[1:]]

    op(f"ttnn.{_name}_bw", golden=_golden, out=gradient_specs, runtime=("alpha",), hands_back="grad_tensor")(_lane)


@op(
    "ttnn.lerp_bw",
    golden=goldens.lerp_bw,
    out=gradient_specs,
    runtime=("input_tensor_c",),
    names={"scalar": "input_tensor_c"},
)
def lerp_bw(
    grad_tensor: Tensor, input_tensor_a: Tensor, input_tensor_b: Tensor, input_tensor_c: Any, lane_axes: int
) -> list[Tensor]:
    """Gradients of start and end, and of the weight where it is a tensor."""
    operands = [x for x in (input_tensor_a, input_tensor_b, input_tensor_c) if isinstance(x, Tensor)]
    weight = to_float32(input_tensor_c) if isinstance(input_tensor_c, Tensor) else input_tensor_c
    g, a, b, w = equalize_operands(
        lane_axes, to_float32(grad_tensor), to_float32(input_tensor_a), to_float32(input_tensor_b), weight
    )
    return [g * (1 - w), g * w, g * (b - a)][: len(operands)]


def _where_specs(call: Call, inferred: Inferred) -> list[TensorSpec]:
    required = call["are_required_outputs"]
    sources = [i + 2 for i, is_required in enumerate(required) if is_required]
    return [
        make_output_spec(call, shape, source=source, result=i)
        for i, (source, (shape, _)) in enumerate(zip(sources, inferred, strict=True))
    ]


@op(
    "ttnn.where_bw",
    golden=goldens.where_bw,
    out=_where_specs,
    check=_check,
    outputs=("input_a_grad", "input_b_grad"),
)
def where_bw(
    grad_tensor: Tensor,
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    input_tensor_c: Tensor,
    are_required_outputs: Sequence[bool],
    lane_axes: int,
) -> list[Tensor | None]:
    """Gradients of the two values."""
    g, predicate = equalize_operands(lane_axes, to_float32(grad_tensor), input_tensor_a)
    computed = (torch.where(predicate != 0, g, 0.0), torch.where(predicate == 0, g, 0.0))
    return [
        gradient if is_required else None for gradient, is_required in zip(computed, are_required_outputs, strict=True)
    ]
