"""Rules of binary operations: accepted formats, broadcasting, layout and memory of the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from math import prod

from ttmesh.base.dtypes import (
    DataType,
    Layout,
    bfloat4_b,
    bfloat8_b,
    bfloat16,
    float32,
    int32,
    uint8,
    uint16,
    uint32,
)
from ttmesh.base.errors import ShapeError, one_of, require
from ttmesh.ops.catalogue.spec_rules import Inferred, shard_over_all_cores
from ttmesh.tensor.calls.lane_calls import Arguments
from ttmesh.tensor.calls.operation import Call, SpecRule
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

TILE_ROWS = 32

# tt-metal e4f9f0b binary_op_dtype_policy.hpp
FLOAT = frozenset({bfloat16, float32, bfloat8_b, bfloat4_b})
ARITHMETIC = FLOAT | {uint32, uint16, int32}
RELATIONAL = ARITHMETIC | {uint8}
FLOAT_32_BIT = FLOAT | {int32, uint32}
FLOAT_INT32 = FLOAT | {int32}
BITS = frozenset({uint32, uint16, int32})
BITS_32 = frozenset({uint32, int32})
INT32 = frozenset({int32})
RANGES = {int32: (-(2**31), 2**31 - 1), uint32: (0, 2**32 - 1)}  # numbers that integers of 32 bits represent
UNARY_WITH_NUMBER = frozenset({"FMOD", "REMAINDER", "MAXIMUM", "MINIMUM"})  # with a number they are unary operations
TAKES_ANY_NUMBER = frozenset({"MUL", "DIV", "MAXIMUM", "MINIMUM", "FMOD", "REMAINDER", "POWER"})  # these convert it


def check_binary(
    op_type: str, formats: frozenset[DataType], *, mixed: bool, extra_check: Callable[[Call], None] | None = None
) -> Callable[[Call], None]:
    """The checks of one operation.

    Args:
        op_type: TT-NN's BinaryOpType, for the messages.
        mixed: whether the operands may have different float formats.
        extra_check: a further check of this operation.
    """
    name = f"BinaryOpType.{op_type}"

    def check(call: Call) -> None:
        if call.outputs and call.outputs[0] is not None:
            wrong = "If both output dtype and output tensor are provided, their dtypes should match"
            given = call.outputs[0].dtype
            require(call["dtype"] in (None, given), wrong, f"dtype={given}", "Leave dtype out.")
        if call.outputs and call.outputs[0] is not None and call.outputs[0] is call.tensors[0]:
            check_options(call)  # of an operation in place they come first
        if len(call.specs) > 1:
            check_tile_broadcast(*call.specs[:2])
            _check_output_shape(call)
        if len(call.specs) == 1 and op_type not in TAKES_ANY_NUMBER:
            _check_number(call, name)
        if len(call.specs) == 1 and op_type == "POWER" and call.specs[0].dtype in BITS:
            _check_integer_power(call.specs[0], call["input_tensor_b"])
            return
        for letter, spec in zip("AB", call.specs, strict=False):
            wrong = f"Input tensor {letter} dtype {spec.dtype} is not supported for binary operation {name}"
            if len(call.specs) == 1 and op_type in UNARY_WITH_NUMBER:
                wrong = (
                    f"Unary: UnaryOpType::{op_type} does not support integer input dtype DataType::{spec.dtype.name}"
                )
            if len(call.specs) == 1 and op_type == "BIAS_GELU" and not call.name.endswith("_"):
                wrong = f"Unary: UnaryOpType::GELU does not support integer input dtype DataType::{spec.dtype.name}"
            if len(call.specs) == 1 and (op_type.startswith("BITWISE") or op_type in ("LEFT_SHIFT", "RIGHT_SHIFT")):
                wrong = (
                    f"Unsupported input dtype for bitwise/shift op_type UnaryOpType::{op_type}: expected Int32, UInt32, or "
                    "UInt16."
                )
            require(spec.dtype in formats, wrong, one_of(sorted(formats)), "Convert it with ttnn.typecast.")
        if len(call.specs) > 1:
            a, b = call.specs[0].dtype, call.specs[1].dtype
            promoted = op_type in ("MUL", "DIV", "ISCLOSE") and {a, b} & FLOAT and {a, b} & {int32, uint32}
            require(
                a is b or bool(promoted) or (mixed and a in FLOAT and b in FLOAT) or {a, b} == {uint8, uint16},
                f"Mixed dtype is not supported for binary operation {name}, dtype A: {a}, dtype B: {b}",
                "operands of one format",
                "Convert one with ttnn.typecast.",
            )
            _check_shapes(call)
        check_options(call)
        if extra_check is not None:
            extra_check(call)

    return check


def has_integers_and_number(arguments: Arguments) -> bool:
    """Whether an operand holds integers and the other is a floating-point number, whose value is checked at every call."""
    first, second = arguments.get("input_tensor_a"), arguments.get("input_tensor_b")
    tensor, number = (first, second) if isinstance(first, Tensor) else (second, first)
    return isinstance(number, float) and isinstance(tensor, Tensor) and tensor.dtype in RANGES


def _check_integer_power(base: TensorSpec, exponent: float) -> None:
    wrong = f"pow: DataType::{base.dtype.name} input requires an integral exponent, got {exponent:g}"
    require(float(exponent).is_integer(), wrong, "an integer", "Convert the tensor with ttnn.typecast.")
    wrong = f"pow: integers to negative integer powers are not allowed, got {exponent:g}"
    require(exponent >= 0, wrong, "0 or more", "Convert the tensor with ttnn.typecast.")
    if exponent > 1:  # 0 and 1 are a fill and a copy, which take every layout
        wrong = f"pow_int: input must be in TILE layout, got Layout::{base.layout.name}"
        require(base.layout is Layout.TILE, wrong, "TILE layout", "Convert it with ttnn.to_layout.")


def _check_number(call: Call, name: str) -> None:
    """A number beside 32-bit integers must be one of them, as TT-NN packs it so."""
    dtype, second = call.specs[0].dtype, call["input_tensor_b"]
    number = call["input_tensor_a"] if isinstance(second, Tensor) else second
    if dtype not in RANGES or not isinstance(number, float):
        return
    check_represented(f"Binary operation {name}", dtype, number)


def check_represented(operation: str, dtype: DataType, number: float) -> None:
    """Raise for a number that TT-NN would not pack as a 32-bit integer of this format."""
    lowest, highest = RANGES[dtype]
    text = f"{number:g}"
    wrong = (
        f"{operation} with a DataType::{dtype.name} tensor cannot represent the scalar {text}: only a finite "
        f"integer within the range of DataType::{dtype.name} survives being packed as one, and this value would be changed "
        "silently. Typecast the input to a floating-point dtype first."
    )
    represented = number.is_integer() and lowest <= number <= highest
    require(represented, wrong, f"an integer from {lowest} to {highest}", "Convert the tensor with ttnn.typecast.")


def _check_output_shape(call: Call) -> None:
    """A given output has the shape to which the operands broadcast; TT-NN looks at it before formats."""
    given = call.outputs[0] if call.outputs else None
    shapes = [tuple(reversed(spec.shape)) for spec in call.specs[:2]]
    pairs = list(zip_longest(*shapes, fillvalue=1))
    in_place = bool(call.tensors) and given is call.tensors[0]  # there the longer of two lengths counts first
    if given is not None and (in_place or all(a == b or 1 in (a, b) for a, b in pairs)):
        require_output_shape(given, [max(a, b) if 0 not in (a, b) else 0 for a, b in reversed(pairs)])


def _check_shapes(call: Call) -> None:
    """Raise unless the operands broadcast; if there is an output tensor, TT-NN's error names that one."""
    given = call.outputs[0] if call.outputs else None
    try:
        check_broadcast(call.specs[0].shape, call.specs[1].shape)
    except ShapeError as problem:
        if given is None or given is call.tensors[0]:
            raise
        raise ShapeError(
            f"Shape of Output tensor {given.shape!r} provided does not match the broadcasted output shape of operands "
            f"{list(call.specs[0].shape)} and {list(call.specs[1].shape)}, which have none",
            expected="operands that broadcast to the output's shape",
            fix="Reshape one of the operands.",
        ) from problem


def check_options(call: Call) -> None:
    """Check the options that all binary operations share."""
    require(
        call["sub_core_grids"] is None or call["sub_device_id"] is None,
        "Cannot specify both sub_core_grids and sub_device_id",
        "sub_core_grids or sub_device_id",
        "Leave one of the two out.",
    )
    given = call.outputs[0] if call.outputs else None
    if given is None:
        return
    wrong = "If both output dtype and output tensor are provided, their dtypes should match"
    require(call["dtype"] in (None, given.dtype), wrong, f"dtype={given.dtype}", "Leave dtype out.")
    require(
        any(spec.layout is Layout.TILE for spec in call.specs),
        "Optional output tensor with Row Major input is not supported right now for Elementwise operations",
        "an operand in TILE layout",
        "Convert one with ttnn.to_layout.",
    )


def check_tile_broadcast(a: TensorSpec, b: TensorSpec) -> None:
    """Raise where heights or widths differ and none of them is 1."""
    extents = [tuple((1, 1, *spec.shape)[-2:]) for spec in (a, b)]
    fits = extents[0] == extents[1] or 1 in (*extents[0], *extents[1])
    wrong = f"Invalid subtile broadcast type: {list(a.shape)} and {list(b.shape)} do not broadcast"
    require(fits, wrong, "equal heights and widths, or 1", "Reshape one of the operands.")


def check_broadcast(*shapes: Sequence[int]) -> None:
    """Raise TT-NN's error for shapes that do not broadcast."""
    rank = max(map(len, shapes))
    for i, dims in enumerate(zip_longest(*map(reversed, shapes), fillvalue=1), start=1):
        lengths = {dim for dim in dims if dim != 1}
        lengths_text = ", ".join(f"dim {letter}: {dim}" for letter, dim in zip("abc", dims, strict=False))
        if len(lengths) > 1:
            raise ShapeError(
                f"Broadcasting rule violation at dimension index {-i} (output rank {rank}), {lengths_text}",
                expected="equal lengths, or 1",
                fix="Reshape one of the operands.",
            )
        if i > 6 and len(set(dims)) > 1:
            raise ShapeError(
                f"Broadcasting rule violation for rank >= 7 at dimension index {-i} (output rank {rank}). "
                f"Broadcast is supported up to rank 6. {lengths_text}",
                expected="equal lengths beyond rank 6",
                fix="Reshape to at most 6 dims.",
            )


def binary_spec(
    dtype: Callable[[Call], DataType | None] | DataType | None = None, *, takes_dtype: bool = True
) -> SpecRule:
    """A rule for the output spec of a binary operation.

    Args:
        dtype: the format that the operation chooses, if it is not the first operand's.
        takes_dtype: False if TT-NN accepts dtype= and ignores it.
    """

    def rule(call: Call, inferred: Inferred) -> list[TensorSpec]:
        default_dtype = dtype(call) if callable(dtype) else dtype
        requested = call["dtype"] if takes_dtype else None
        return [result_spec(call, shape, requested or default_dtype or promoted_dtype(call)) for shape, _ in inferred]

    return rule


def promoted_dtype(call: Call) -> DataType:
    """The first operand's format; an integer and a float give a float, uint8 gives uint16."""
    first = call.specs[0].dtype
    if first is uint8:
        return uint16
    if first in BITS and len(call.specs) > 1 and call.specs[1].dtype in FLOAT:
        return float32 if call.specs[1].dtype is float32 else bfloat16
    return first


def require_output_shape(given: Tensor, shape: Sequence[int]) -> None:
    """Raise unless a given output has the result's shape; leading ones do not count, as in TT-NN."""
    if _strip(given.shape) != _strip(shape):
        raise ShapeError(
            f"Shape of Output tensor {given.shape!r} provided does not match the broadcasted output shape "
            f"Shape({list(shape)})",
            expected="equal shapes",
            fix="Allocate the output with the result's shape.",
        )


def _strip(shape: Sequence[int]) -> tuple[int, ...]:
    first = next((i for i, extent in enumerate(shape) if extent != 1), len(shape))
    return tuple(shape)[first:]


def result_spec(call: Call, shape: Sequence[int], dtype: DataType) -> TensorSpec:
    """The output spec with the layout and memory that TT-NN chooses, or the spec of the given output tensor."""
    given = call.outputs[0] if call.outputs else None
    if given is not None:
        require_output_shape(given, shape)
        return given.spec if tuple(given.shape) == tuple(shape) else given.spec.with_shape(shape)
    layout = Layout.ROW_MAJOR if all(s.layout is Layout.ROW_MAJOR for s in call.specs) else Layout.TILE
    tiled = next((spec for spec in call.specs if spec.layout is Layout.TILE), None)
    return TensorSpec(
        shape,
        dtype,
        layout,
        tile=tiled.tile if tiled is not None else None,
        memory_config=_choose_memory(call, shape, layout),
    )


def _choose_memory(call: Call, shape: Sequence[int], layout: Layout) -> MemoryConfig:
    requested: MemoryConfig | None = call["memory_config"]
    sources = [spec for spec in call.specs if not spec.memory_config.interleaved]
    if requested is None:
        config = call.specs[0].memory_config
        for spec in call.specs[1:]:
            other = spec.memory_config
            if not other.interleaved and (
                (config.interleaved and config.is_dram()) or _count_cores(other) > _count_cores(config) > 0
            ):
                config = other
        if config.interleaved:
            return config
        requested = MemoryConfig(config.memory_layout, config.buffer_type)
        sources = [spec for spec in sources if spec.memory_config is config or spec.memory_config == config]
        if sources and tuple(sources[0].shape) == tuple(shape):
            return config
    if requested.interleaved or requested.shard_spec is not None or requested.nd_shard_spec is not None:
        return requested
    plain = TensorSpec(shape, DataType.BFLOAT16, layout)
    for spec in sources:
        held = spec.memory_config
        if held.shard_spec is not None:
            shards = scale_shards(held.shard_spec, spec.padded_shape, plain.padded_shape)
            layout_of_shards = requested.memory_layout if len(call.specs) == 1 else held.memory_layout
            return MemoryConfig(layout_of_shards, requested.buffer_type, shards)
    return shard_over_all_cores(requested, plain, call)


def scale_shards(shards: ShardSpec, before: Sequence[int], after: Sequence[int]) -> ShardSpec:
    """A shard spec scaled from one shape to another (tt-metal e4f9f0b ternary_op_utils.cpp)."""
    rows = max(shards.shape[0] * prod(after[:-1]) // prod(before[:-1]), TILE_ROWS)
    columns = max(shards.shape[1] * after[-1] // before[-1], TILE_ROWS)
    return ShardSpec(shards.grid, [rows, columns], shards.orientation)


def _count_cores(config: MemoryConfig) -> int:
    return config.shard_spec.num_cores() if config.shard_spec is not None else 0


def is_tensor(value: object) -> bool:
    """Whether an operand is a tensor rather than a number."""
    return isinstance(value, Tensor)
