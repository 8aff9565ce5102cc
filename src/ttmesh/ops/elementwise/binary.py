"""Binary operations: arithmetic, comparisons, logic and bits, with broadcasting, scalars and fused activations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, bfloat16, float32, int32, uint16, uint32
from ttmesh.base.errors import MeshError, require
from ttmesh.chip.formats.block_float import combine_and_quantise
from ttmesh.chip.formats.storage import finish
from ttmesh.ops.catalogue.definition import OpFunction, alias, catalogue, op
from ttmesh.ops.catalogue.program_keys import BY_VALUE, binary_programs
from ttmesh.ops.configs.activations import Activation, apply
from ttmesh.ops.elementwise.binary_rules import (
    ARITHMETIC,
    BITS,
    BITS_32,
    FLOAT,
    FLOAT_32_BIT,
    FLOAT_INT32,
    INT32,
    RELATIONAL,
    TAKES_ANY_NUMBER,
    binary_spec,
    check_binary,
    check_options,
    has_integers_and_number,
    is_tensor,
)
from ttmesh.ops.elementwise.elementwise_buffers import binary_buffers
from ttmesh.ops.elementwise.fpu_binary import specialise_addition
from ttmesh.ops.goldens import operands as goldens
from ttmesh.ops.lane_functions.binary_functions import (
    accept_number,
    make_extremum,
    make_remainder,
    raise_to_power,
    scale_by_power_of_two,
    shift_right_arithmetic,
    shift_right_logical,
)
from ttmesh.ops.lane_functions.lane_broadcast import equalize_ranks
from ttmesh.ops.lane_functions.unary_functions import pack_nan, to_float32
from ttmesh.ops.stages.binary_stages import binary_stages
from ttmesh.tensor.calls.lane_calls import rounds_result
from ttmesh.tensor.calls.operation import Call, Case, Specialise
from ttmesh.tensor.operators import fill

# Names of the two operands in TT-NN's overloads.
OPERANDS = {
    "input_a": "input_tensor_a", "input_tensor": "input_tensor_a", "input_b": "input_tensor_b",
    "value": "input_tensor_b", "scalar": "input_tensor_b", "exponent": "input_tensor_b",
}  # fmt: skip


COMPARISONS = (torch.eq, torch.ne, torch.gt, torch.ge, torch.lt, torch.le)
FUSED_ROUNDING = {torch.add: "add", torch.sub: "subtract", torch.mul: "multiply"}
FUSED = ("activations", "input_tensor_a_activations", "input_tensor_b_activations")


class BinaryKind(NamedTuple):
    """The lane function, formats and options of a binary operation."""

    function: Callable[[Any, Any], Tensor]
    op_type: str
    formats: frozenset[DataType]
    mixed: bool = False
    in_place: bool = False
    takes_dtype: bool = True
    dtype: Any = None
    extra_check: Callable[[Call], None] | None = None


def _float32_for_number(call: Call) -> DataType | None:
    """Integers of 32 bits are converted where the other operand is a floating-point number."""
    number = isinstance(call["input_tensor_b"], float) or isinstance(call["input_tensor_a"], float)
    return float32 if number and call.specs[0].dtype in (int32, uint32) else None


def _float32_for_isclose(call: Call) -> DataType | None:
    return float32 if call.specs[0].dtype is int32 else None


BINARY = {
    "add": BinaryKind(torch.add, "ADD", ARITHMETIC, mixed=True, in_place=True),
    "subtract": BinaryKind(torch.sub, "SUB", ARITHMETIC, mixed=True, in_place=True),
    "multiply": BinaryKind(torch.mul, "MUL", ARITHMETIC, mixed=True, in_place=True, dtype=_float32_for_number),
    "rsub": BinaryKind(lambda a, b: b - a, "RSUB", ARITHMETIC, mixed=True, in_place=True),
    "squared_difference": BinaryKind(
        lambda a, b: torch.square(to_float32(a) - b) if a.dtype.is_floating_point else torch.square(a - b),
        "SQUARED_DIFFERENCE", ARITHMETIC, mixed=True, in_place=True,
    ),
    "eq": BinaryKind(torch.eq, "EQ", RELATIONAL, mixed=True, in_place=True),
    "ne": BinaryKind(torch.ne, "NE", RELATIONAL, mixed=True, in_place=True),
    "gt": BinaryKind(torch.gt, "GT", RELATIONAL, mixed=True, in_place=True),
    "ge": BinaryKind(torch.ge, "GE", RELATIONAL, mixed=True, in_place=True),
    "lt": BinaryKind(torch.lt, "LT", RELATIONAL, mixed=True, in_place=True),
    "le": BinaryKind(torch.le, "LE", RELATIONAL, mixed=True, in_place=True),
    "logical_and": BinaryKind(accept_number(torch.logical_and), "LOGICAL_AND", ARITHMETIC, mixed=True, in_place=True),
    "logical_or": BinaryKind(accept_number(torch.logical_or), "LOGICAL_OR", ARITHMETIC, mixed=True, in_place=True),
    "logical_xor": BinaryKind(accept_number(torch.logical_xor), "LOGICAL_XOR", ARITHMETIC, mixed=True, in_place=True),
    "logaddexp": BinaryKind(
        accept_number(lambda a, b: torch.logaddexp(to_float32(a), to_float32(b))), "LOGADDEXP", FLOAT, in_place=True
    ),
    "logaddexp2": BinaryKind(
        accept_number(lambda a, b: torch.logaddexp2(to_float32(a), to_float32(b))), "LOGADDEXP2", FLOAT, in_place=True
    ),
    "ldexp": BinaryKind(scale_by_power_of_two, "LDEXP", FLOAT, in_place=True),
    "bias_gelu": BinaryKind(lambda a, b: functional.gelu(to_float32(a) + b), "BIAS_GELU", FLOAT, in_place=True),
    "xlogy": BinaryKind(accept_number(torch.xlogy), "XLOGY", FLOAT),
    "atan2": BinaryKind(torch.atan2, "ATAN2", FLOAT),
    "hypot": BinaryKind(lambda a, b: torch.hypot(to_float32(a), to_float32(b)), "HYPOT", FLOAT),
    "maximum": BinaryKind(make_extremum(torch.maximum, "min"), "MAXIMUM", FLOAT_32_BIT, takes_dtype=False),
    "minimum": BinaryKind(make_extremum(torch.minimum, "max"), "MINIMUM", FLOAT_32_BIT, takes_dtype=False),
    "gcd": BinaryKind(torch.gcd, "GCD", INT32, takes_dtype=False),
    "lcm": BinaryKind(torch.lcm, "LCM", INT32, takes_dtype=False),
    "pow": BinaryKind(raise_to_power, "POWER", FLOAT, takes_dtype=False),
    "remainder": BinaryKind(make_remainder(torch.remainder),
                      "REMAINDER", FLOAT_32_BIT, extra_check=lambda call: _check_divisor(call),
                      dtype=_float32_for_number),
    "fmod": BinaryKind(make_remainder(torch.fmod),
                       "FMOD", FLOAT_INT32, dtype=_float32_for_number),
    "bitwise_and": BinaryKind(lambda a, b: a & b, "BITWISE_AND", BITS),
    "bitwise_or": BinaryKind(lambda a, b: a | b, "BITWISE_OR", BITS),
    "bitwise_xor": BinaryKind(lambda a, b: a ^ b, "BITWISE_XOR", BITS),
    "bitwise_left_shift": BinaryKind(lambda a, b: a << b, "LEFT_SHIFT", BITS),
    "bitwise_right_shift": BinaryKind(shift_right_arithmetic, "RIGHT_SHIFT", BITS),
    "logical_left_shift": BinaryKind(lambda a, b: a << b, "LEFT_SHIFT", BITS),
    "logical_right_shift": BinaryKind(shift_right_logical, "LOGICAL_RIGHT_SHIFT", BITS_32),
}  # fmt: skip


def fuse_activations(function: Callable[[Any, Any], Tensor]) -> Callable[..., Tensor]:
    """Make a lane function of a function of two operands: it aligns ranks, accepts numbers, applies activations."""

    def lane(
        input_tensor_a: Any,
        input_tensor_b: Any,
        lane_axes: int,
        dtype: DataType | None = None,
        activations: Sequence[Activation] = (),
        input_tensor_a_activations: Sequence[Activation] = (),
        input_tensor_b_activations: Sequence[Activation] = (),
    ) -> Tensor:
        a, b = input_tensor_a, input_tensor_b
        if type(b) is Tensor and type(a) is Tensor and a.dim() != b.dim():
            a, b = equalize_ranks((a, b), lane_axes)
        if dtype is float32 and a.dtype is torch.bfloat16:
            a = a.float()
        if input_tensor_a_activations:
            a = apply(a, input_tensor_a_activations)
        if input_tensor_b_activations and type(b) is Tensor:
            b = apply(b, input_tensor_b_activations)
        result = function(a, b)
        if not activations:
            return result
        return apply(result.float() if result.dtype is torch.bool else result, activations)

    return lane


def specialise_plain(function: Callable[[Any, Any], Tensor]) -> Specialise:
    """Specialise to the bare function if no activation is fused; ranks that differ by one are made equal."""

    def specialise(case: Case) -> Callable[..., Tensor] | None:
        widens = case["dtype"] is float32 and case.specs[0].dtype is not float32
        is_plain = "input_tensor_a" in case.tensors and not any(map(case.arguments.get, FUSED))
        rank_difference = len(case.specs[0].shape) - len(case.specs[-1].shape)
        if not is_plain or widens or case["rounding_mode"] is not None or rank_difference not in (0, 1):
            return None
        if rank_difference:
            axes = case.lane_axes
            return lambda a, b: function(a, b.unsqueeze(axes))
        if function in COMPARISONS and case.one_format(bfloat16, float32, int32):
            return functools.partial(_compare, function)
        if (
            function in FUSED_ROUNDING
            and case.results[0].dtype in BLOCK_FLOATS
            and numerics_mode.current() == numerics_mode.IDEAL
        ):
            return _round_in_kernel(function, case.results[0].dtype)
        return function

    return specialise


def _round_in_kernel(function: Callable[[Any, Any], Tensor], dtype: DataType) -> Callable[..., Tensor]:
    """The function with its result rounded to a block float; on a GPU in the same kernel."""

    @rounds_result
    def compute(a: Tensor, b: Any) -> Tensor:
        fused = None
        if type(b) is Tensor and not (a.requires_grad or b.requires_grad):
            fused = combine_and_quantise(a, b, FUSED_ROUNDING[function], dtype)
        return finish(function(a, b), dtype) if fused is None else fused

    return compute


def _compare(compare: Callable[..., Tensor], a: Tensor, b: Any) -> Tensor:
    """Write 1 and 0 in the operands' format directly, which is several times faster than converting bools."""
    return compare(a, b, out=a.new_empty(0))


in_place: dict[str, OpFunction] = {}


def _check_divisor(call: Call) -> None:
    """Raise unless unsigned integers are divided by a positive integer."""
    divisor = call["input_tensor_b"]
    if call.specs[0].dtype is not uint32 or is_tensor(divisor):
        return
    wrong = "Expected integer scalar divisor (uint32 or int32)"
    require(not isinstance(divisor, float), wrong, "an integer", "Convert the tensor to a float format.")
    require(divisor > 0, f"Divisor must be positive, got {divisor}", "a positive number", "Pass a divisor above 0.")


def _bind_number(specialise: Specialise) -> Specialise:
    """The same with a number for the second operand, which plans of such operations keep."""

    def bind(case: Case) -> Callable[..., Tensor] | None:
        function, number = specialise(case), case["input_tensor_b"]
        if function is None or len(case.tensors) > 1:
            return function

        @functools.wraps(function)
        def compute(a: Tensor) -> Tensor:
            result: Tensor = function(a, number)
            return result

        return compute

    return bind


def _define_binary(name: str, kind: BinaryKind) -> OpFunction:
    lane = fuse_activations(kind.function)
    lane.__doc__ = f"{name} of two tensors, or of a tensor and a number."
    check = check_binary(kind.op_type, kind.formats, mixed=kind.mixed, extra_check=kind.extra_check)
    programs = binary_programs(kind.op_type)
    runtime = () if kind.op_type in BY_VALUE else ("input_tensor_b",)
    specialise = specialise_addition(kind.op_type, specialise_plain(kind.function))
    if kind.op_type in BY_VALUE:
        specialise = _bind_number(specialise)
    recheck = False if kind.op_type in TAKES_ANY_NUMBER else has_integers_and_number
    if kind.in_place:
        in_place[name] = op(
            f"ttnn.{name}_", golden=goldens.IN_PLACE[name], out=binary_spec(), check=check, runtime=runtime,
            programs=programs, stages=binary_stages(kind.op_type), scratch=binary_buffers, writes="input_tensor_a",
            names=OPERANDS, specialise=specialise, recheck=recheck,
        )(lane)  # fmt: skip
    rule = binary_spec(kind.dtype, takes_dtype=kind.takes_dtype)
    return op(
        f"ttnn.{name}", golden=goldens.BINARY[name], out=rule, check=check, runtime=runtime, programs=programs,
        stages=binary_stages(kind.op_type),
        scratch=binary_buffers, names=OPERANDS, specialise=specialise,
        recheck=kind.extra_check is not None or recheck,
    )(lane)  # fmt: skip


binary = {name: _define_binary(name, kind) for name, kind in BINARY.items()}


_check_close_formats = check_binary("ISCLOSE", FLOAT_INT32, mixed=True)


def _check_isclose(call: Call) -> None:
    _check_close_formats(call)
    a, b = (spec.dtype for spec in call.specs[:2])
    wrong = f"Mixed dtype is not supported for binary operation BinaryOpType.ISCLOSE, dtype A: {a}, dtype B: {b}"
    equal = a is b or not {a, b} & BLOCK_FLOATS
    require(equal, wrong, "operands of one format", "Convert one with ttnn.typecast.")


@op(
    "ttnn.isclose",
    golden=goldens.isclose,
    out=binary_spec(_float32_for_isclose),
    check=_check_isclose,
    programs=binary_programs("ISCLOSE"),
    stages=binary_stages("ISCLOSE"),
    scratch=binary_buffers,
)
def isclose(
    input_tensor_a: Tensor, input_tensor_b: Tensor, rtol: float, atol: float, equal_nan: bool, lane_axes: int
) -> Tensor:
    """1 where two tensors are equal within tolerances, else 0."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not 0 <= value < float("inf"):
            raise MeshError(
                f"isclose: {name} must be a finite, non-negative value, got {value}",
                expected="a finite number of 0 or more",
                fix="Use a small positive number.",
            )
    a, b = equalize_ranks((input_tensor_a, input_tensor_b), lane_axes)
    if a.dtype is not b.dtype:
        a, b = to_float32(a), to_float32(b)
    return torch.isclose(a, b, rtol, atol, equal_nan)


def _divide(a: Any, b: Any, rounding_mode: str | None) -> Tensor:
    if rounding_mode is None:
        return torch.div(a if a.dtype.is_floating_point else to_float32(a), b)  # of integers torch's default dtype
    integers = not (a.dtype.is_floating_point or isinstance(b, float))
    return torch.div(a if integers else to_float32(a), b, rounding_mode=rounding_mode)


def _divide_on_chip(a: Any, b: Any, rounding_mode: str | None) -> Tensor:
    return pack_nan(_divide(a, b, rounding_mode), a.dtype)


_specialise_division = specialise_plain(lambda a, b: _divide_on_chip(a, b, None))


def _is_integer_division(call: Call) -> bool:
    return all(spec.dtype is int32 for spec in call.specs)


_check_div = check_binary("DIV", FLOAT_32_BIT, mixed=True)


def check_div(call: Call) -> None:
    """Raise TT-NN's errors for integer division and rounding modes."""
    mode = call["rounding_mode"]
    wrong = None
    if mode not in (None, "trunc", "floor"):
        wrong = "Incorrect rounding mode (expected None, 'trunc', or 'floor')"
    elif _is_integer_division(call):
        if call["fast_and_approximate_mode"]:
            wrong = "Integer Division does not support fast_and_approximate_mode=true"
        elif mode is None and call["dtype"] not in (None, float32):
            wrong = (
                "Incorrect output_dtype value for Integer Division(rounding_mode=None) ; valid input values are None or "
                "ttnn.float32"
            )
        elif mode is None and call.outputs and call.outputs[0] is not None and call.outputs[0].dtype is not float32:
            wrong = "For integer division, supported output dtype is FLOAT32"
    if wrong:
        raise MeshError(wrong, expected="a supported division", fix="Change rounding_mode, dtype or the operands.")
    _check_unsigned_division(call)
    if len(call.specs) > 1:
        _check_div(call)
    else:
        check_options(call)


def _check_unsigned_division(call: Call) -> None:
    """uint32 is divided by or with floats alone, uint16 not at all."""
    operands = [call["input_tensor_a"], call["input_tensor_b"]]
    floats = any(isinstance(value, float) or getattr(value, "dtype", None) in FLOAT for value in operands)
    for letter, spec in zip("AB", call.specs, strict=False):
        wrong = f"Input tensor {letter} dtype {spec.dtype} is not supported for binary operation BinaryOpType.DIV"
        refused = spec.dtype is uint16 or (spec.dtype is uint32 and not floats)
        require(not refused, wrong, "floats or int32", "Convert it with ttnn.typecast.")


def _div_dtype(call: Call) -> DataType | None:
    if _is_integer_division(call) and call["rounding_mode"] is None:
        return float32
    return _float32_for_number(call)


def _div_lane(
    input_tensor_a: Any,
    input_tensor_b: Any,
    lane_axes: int,
    rounding_mode: str | None = None,
    activations: Sequence[Activation] = (),
    input_tensor_a_activations: Sequence[Activation] = (),
    input_tensor_b_activations: Sequence[Activation] = (),
) -> Tensor:
    """The quotient, rounded as rounding_mode says."""
    return fuse_activations(lambda a, b: _divide_on_chip(a, b, rounding_mode))(
        input_tensor_a, input_tensor_b, lane_axes, None, activations, input_tensor_a_activations,
        input_tensor_b_activations,
    )  # fmt: skip


div = op(
    "ttnn.div", golden=goldens.div, out=binary_spec(_div_dtype, takes_dtype=False), check=check_div,
    programs=binary_programs("DIV"), scratch=binary_buffers, runtime=("input_tensor_b",), names=OPERANDS,
    stages=binary_stages("DIV"), specialise=_specialise_division,
)(_div_lane)  # fmt: skip
alias("ttnn.divide", div)
divide_ = op(
    "ttnn.divide_", golden=goldens.div, out=binary_spec(), check=check_div, runtime=("input_tensor_b",),
    programs=binary_programs("DIV"), stages=binary_stages("DIV"), scratch=binary_buffers, writes="input_tensor_a",
    names=OPERANDS, specialise=_specialise_division,
)(_div_lane)  # fmt: skip

for _short, _name in {"sub": "subtract", "mul": "multiply"}.items():
    alias(f"ttnn.{_short}", binary[_name])
    alias(f"ttnn.{_short}_", in_place[_name])
alias("ttnn.div_", divide_)

fill(divide=div, **{name: binary[name] for name in ("add", "subtract", "multiply", "rsub", "pow")})
fill(**{name: binary[name] for name in ("eq", "ne", "gt", "ge", "lt", "le")})

SHORT_NAMES = {"sub": "subtract", "mul": "multiply", "sub_": "subtract_", "mul_": "multiply_", "div_": "divide_"}
for _short, _full in SHORT_NAMES.items():
    alias(f"ttnn.{_short}", catalogue[f"ttnn.{_full}"].function)
