"""Operations of three operands: where, addcmul, addcdiv, lerp, mac."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout, bfloat8_b, bfloat16, float32, int32, uint32
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.program_keys import ternary_call_key, ternary_programs
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.elementwise.binary_rules import (
    FLOAT,
    FLOAT_32_BIT,
    RANGES,
    binary_spec,
    check_broadcast,
    check_represented,
    check_tile_broadcast,
    is_tensor,
)
from ttmesh.ops.elementwise.elementwise_buffers import ternary_buffers
from ttmesh.ops.goldens import operands as goldens
from ttmesh.ops.lane_functions.lane_broadcast import equalize_ranks
from ttmesh.ops.lane_functions.unary_functions import pack_nan, to_float32
from ttmesh.ops.stages.movement_stages import typecast
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call, Case, Specialise
from ttmesh.tensor.spec.tensor_spec import TensorSpec


def equalize_operands(lane_axes: int, *values: Any) -> list[Any]:
    """Equalize the local ranks of tensor operands; numbers stay as they are."""
    tensors = iter(equalize_ranks([value for value in values if isinstance(value, Tensor)], lane_axes))
    return [next(tensors) if isinstance(value, Tensor) else value for value in values]


def specialise_equal_ranks(function: Callable[..., Tensor], *formats: DataType) -> Specialise:
    """Specialise to the bare function if all operands are tensors of one rank (and of one of these formats)."""

    def specialise(case: Case) -> Callable[..., Tensor] | None:
        fits = not formats or case.one_format(*formats)
        return function if fits and len(case.tensors) == 3 and case.equal_ranks() else None

    return specialise


def _check_shapes(call: Call) -> None:
    for i, first in enumerate(call.specs):
        for second in call.specs[i + 1 :]:
            check_tile_broadcast(first, second)
    check_broadcast(*(spec.shape for spec in call.specs))


def _where_dtype(call: Call) -> DataType | None:
    for name in ("true_value", "false_value"):
        if is_tensor(call[name]):
            return call[name].dtype  # type: ignore[no-any-return]
    predicate = call.specs[0].dtype
    floats = isinstance(call["true_value"], float) or isinstance(call["false_value"], float)
    return float32 if predicate not in FLOAT and floats else predicate


def _where_spec(call: Call, inferred: Inferred) -> Sequence[TensorSpec]:
    """As for binary operations; if one value is a number, the result gets the memory of the other, not the predicate's."""
    specs = binary_spec(_where_dtype)(call, inferred)
    if len(call.specs) != 2 or call["memory_config"] is not None or call["output_tensor"] is not None:
        return specs
    value = call.specs[1]
    fits = value.memory_config.interleaved or tuple(value.shape) == tuple(specs[0].shape)
    return [specs[0].with_memory_config(value.memory_config)] if fits else specs


def _casts_predicate(specs: Sequence[TensorSpec]) -> bool:
    """Whether integers choose between floats: TT-NN casts them first."""
    return specs[0].dtype not in FLOAT and len(specs) > 1 and all(spec.dtype in FLOAT for spec in specs[1:])


def _check_where(call: Call) -> None:
    """Three tensors broadcast in fewer ways than two; with one number the program takes one format."""
    specs = call.specs
    if len(specs) == 3:
        extents = [tuple((1, 1, *spec.shape)[-2:]) for spec in specs]
        fits = all(len({extent[i] for extent in extents} - {1}) < 2 for i in range(2))
        shapes = f"{specs[0].shape!r}, {specs[1].shape!r} and {specs[2].shape!r}"
        wrong = f"ttnn.where: shapes {shapes} do not broadcast in a pattern the ternary kernel supports"
        require(fits, wrong, "equal heights and widths, or 1", "Reshape one of the operands.")
    elif len(specs) == 2:
        number = call["false_value"] if is_tensor(call["true_value"]) else call["true_value"]
        if specs[1].dtype in RANGES and isinstance(number, float):
            check_represented("ttnn.where", specs[1].dtype, number)
        kind = "WHERE_TTS" if is_tensor(call["true_value"]) else "WHERE_TST"
        check_tile_broadcast(*specs)
        a, b = (specs[1].dtype if _casts_predicate(specs) else specs[0].dtype), specs[1].dtype
        for letter, dtype in (("A", a), ("B", b)):
            wrong = f"Input tensor {letter} dtype {dtype} is not supported for binary operation BinaryOpType.{kind}"
            require(dtype in FLOAT_32_BIT, wrong, "floats or 32-bit integers", "Convert it with ttnn.typecast.")
        wrong = f"Mixed dtype is not supported for binary operation BinaryOpType.{kind}, dtype A: {a}, dtype B: {b}"
        require(a is b, wrong, "operands of one format", "Convert one with ttnn.typecast.")
    else:
        dtype = specs[0].dtype
        wrong = f"Unary: UnaryOpType::WHERE_TSS does not support integer input dtype DataType::{dtype.name}"
        taken = dtype not in (DataType.UINT16, DataType.UINT8)
        require(taken, wrong, "floats or 32-bit integers", "Convert it with ttnn.typecast.")
    _check_shapes(call)


def _where_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """Integers that choose between floats are cast to their format."""
    specs = call.specs
    if not _casts_predicate(specs):
        return None
    c = Composition()
    cast = typecast(c, PlannedTensor(specs[0]), specs[1].dtype)
    c.launch(ternary_call_key("WHERE", WHERE_OPERANDS, call, (cast.spec, *specs[1:])))
    made = c.allocate(results[0])
    c.free(cast)
    return c, [made]


WHERE_OPERANDS = ("predicate", "true_value", "false_value")


@op(
    "ttnn.where",
    golden=goldens.where,
    out=_where_spec,
    check=_check_where,
    programs=ternary_programs("WHERE", *WHERE_OPERANDS),
    stages=_where_stages,
    scratch=ternary_buffers,
    runtime=("true_value", "false_value"),
    specialise=specialise_equal_ranks(lambda predicate, yes, no: torch.where(predicate.bool(), yes, no)),
)
def where(predicate: Tensor, true_value: Any, false_value: Any, lane_axes: int) -> Tensor:
    """The first value where the predicate is not 0, else the second; either may be a number."""
    condition, yes, no = equalize_operands(lane_axes, predicate, true_value, false_value)
    result = torch.where(condition.bool(), yes, no)
    numbers = [value for value in (yes, no) if isinstance(value, float)]
    return pack_nan(result, condition.dtype) if any(map(math.isnan, numbers)) else result


def _check_addcmul(call: Call) -> None:
    dtypes = [spec.dtype for spec in call.specs]
    require(
        dtypes[0] in (bfloat16, bfloat8_b, float32, int32, uint32),
        f"Addcmul supports only BFLOAT16, BFLOAT8_B, FLOAT32, INT32, and UINT32 dtypes. Got {dtypes[0]}",
        "a supported dtype",
        "Convert with ttnn.typecast.",
    )
    require(
        len(set(dtypes)) == 1,
        f"Addcmul TTT requires all input tensors to have the same dtype. Got input_a={dtypes[0]}, input_b={dtypes[1]}, "
        f"input_c={dtypes[2]}",
        "equal dtypes",
        "Convert with ttnn.typecast.",
    )
    _check_shapes(call)


def _addcmul(input_a: Tensor, input_b: Tensor, input_c: Tensor, value: float = 1.0) -> Tensor:
    if not input_a.dtype.is_floating_point:
        # A float value reaches the chip as float32.
        factor = int(torch.tensor(value, dtype=torch.float32, device="cpu")) if isinstance(value, float) else value
        return input_a + (input_b * input_c) * factor
    return torch.addcmul(to_float32(input_a), to_float32(input_b), to_float32(input_c), value=value)


@op(
    "ttnn.addcmul",
    golden=goldens.addcmul,
    out=binary_spec(),
    check=_check_addcmul,
    programs=ternary_programs("ADDCMUL", "input_a", "input_b", "input_c"),
    scratch=ternary_buffers,
    runtime=("value",),
    # torch's own kernel computes bfloat16 in float32 and rounds once.
    specialise=specialise_equal_ranks(lambda a, b, c, value: torch.addcmul(a, b, c, value=value), bfloat16, float32),
)
def addcmul(input_a: Tensor, input_b: Tensor, input_c: Tensor, value: float, lane_axes: int) -> Tensor:
    """a + value · b · c."""
    a, b, c = equalize_operands(lane_axes, input_a, input_b, input_c)
    return _addcmul(a, b, c, value)


def _check_addcdiv(call: Call) -> None:
    wrong = "Addcdiv TTT does not support INT32 inputs."
    require(all(spec.dtype is not int32 for spec in call.specs), wrong, "floats", "Convert with ttnn.typecast.")
    _check_shapes(call)


def _addcdiv(input_a: Tensor, input_b: Tensor, input_c: Tensor, value: float = 1.0) -> Tensor:
    return to_float32(input_a) + value * to_float32(input_b) / to_float32(input_c)


@op(
    "ttnn.addcdiv",
    golden=goldens.addcdiv,
    out=binary_spec(),
    check=_check_addcdiv,
    programs=ternary_programs("ADDCDIV", "input_a", "input_b", "input_c"),
    scratch=ternary_buffers,
    runtime=("value",),
)
def addcdiv(input_a: Tensor, input_b: Tensor, input_c: Tensor, value: float, lane_axes: int) -> Tensor:
    """a + value · b / c."""
    a, b, c = equalize_operands(lane_axes, input_a, input_b, input_c)
    return _addcdiv(a, b, c, value)


def _takes_several_programs(specs: Sequence[TensorSpec]) -> bool:
    """Whether lerp runs binary programs: of integers, and where the ternary one does not broadcast these shapes."""
    extents = [tuple((1, 1, *spec.shape)[-2:]) for spec in specs]
    whole = tuple(map(max, zip(*extents, strict=True)))
    uneven = any(extent != whole for extent in extents)
    broadcasts = all(length in (1, most) for extent in extents for length, most in zip(extent, whole, strict=True))
    blocks = any(spec.dtype in BLOCK_FLOATS for spec in specs)
    return not broadcasts or (blocks and uneven) or all(spec.dtype is int32 for spec in specs)


def _check_lerp(call: Call) -> None:
    """Several programs take operands of one format; the ternary program takes rows in shards alone."""
    if _takes_several_programs(call.specs):
        for name, spec in zip(("end", "weight"), call.specs[1:], strict=False):
            wrong = f"Expected the same dtype as start (input), for {name}"
            same = spec.dtype is call.specs[0].dtype
            require(same, wrong, f"{call.specs[0].dtype.name.lower()}", "Convert it with ttnn.typecast.")
    _check_tiles(call)


def _check_tiles(call: Call) -> None:
    """One ternary program takes rows in shards alone."""
    _check_shapes(call)
    wrong = (
        "Ternary operation requires tensor to be in Tile layout when working with non-sharded input tensor. Input tensor "
        "layout: 0"
    )
    first = call.specs[0]
    several = _takes_several_programs(call.specs) and first.dtype not in FLOAT
    tiled = first.layout is Layout.TILE or first.memory_config.is_sharded() or several
    require(tiled, wrong, "TILE layout", "Convert it with ttnn.to_layout.")


def _lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    return to_float32(input) + (to_float32(weight) if isinstance(weight, Tensor) else weight) * (
        to_float32(end) - to_float32(input)
    )


@op(
    "ttnn.lerp",
    golden=goldens.lerp,
    out=binary_spec(),
    check=_check_lerp,
    programs=ternary_programs("LERP", "input", "end", "weight"),
    scratch=ternary_buffers,
    runtime=("weight",),
)
def lerp(input: Tensor, end: Tensor, weight: Any, lane_axes: int) -> Tensor:
    """start + weight · (end - start)."""
    return _lerp(*equalize_operands(lane_axes, input, end, weight))


# Overloads with numbers in place of the second or third operand.
_MAC_NAMES = {"value": "input_tensor_c", "value1": "input_tensor_b", "value2": "input_tensor_c"}


def _mac(a: Tensor, b: Any, c: Any) -> Tensor:
    if not a.dtype.is_floating_point:
        result: Tensor = a * b + c
    else:
        result = to_float32(a) * b + c
    return result


@op(
    "ttnn.mac",
    golden=goldens.mac,
    out=binary_spec(),
    check=_check_tiles,
    programs=ternary_programs("MAC", "input_tensor_a", "input_tensor_b", "input_tensor_c"),
    scratch=ternary_buffers,
    runtime=("input_tensor_b", "input_tensor_c"),
    names=_MAC_NAMES,
)
def mac(input_tensor_a: Tensor, input_tensor_b: Any, input_tensor_c: Any, lane_axes: int) -> Tensor:
    """a · b + c with one rounding."""
    return _mac(*equalize_operands(lane_axes, input_tensor_a, input_tensor_b, input_tensor_c))
