"""Stages of binary operations: integers beside floats are cast, rows beside tiles are tilized, quotients are rounded."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.ops.catalogue.program_keys import WITH_NUMBER, binary_call_key, binary_key, unary_key
from ttmesh.ops.stages.movement_stages import tile_spec, typecast
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call, StageRule
from ttmesh.tensor.spec.tensor_spec import TensorSpec

CAST_FOR_NUMBER = frozenset({"MUL", "DIV", "FMOD", "REMAINDER"})
PROMOTES = frozenset({"MUL", "DIV"})  # take 32-bit integers beside floats
WORDS = (DataType.INT32, DataType.UINT32)
FLOATS = (DataType.BFLOAT16, DataType.FLOAT32, DataType.BFLOAT8_B, DataType.BFLOAT4_B)


def binary_stages(op_type: str) -> StageRule:
    """The casts and layout changes around the program; None where it runs alone."""

    def stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
        final, c = results[0], Composition()
        number = len(call.specs) == 1
        if op_type == "BIAS_GELU" and number and not any(call.outputs) and bool(final.shape.volume()):
            return _add_then_gelu(c, call.specs[0], final)
        if (op_type in WITH_NUMBER - CAST_FOR_NUMBER and number) or not all(prod(spec.shape) for spec in call.specs):
            return None
        operands = [PlannedTensor(spec) for spec in call.specs]
        cast = _cast_for_number(c, call, operands, op_type) if number else _cast_integers(c, operands, op_type)
        if number and op_type in WITH_NUMBER and cast[0] is operands[0]:
            return None
        in_rows = all(x.spec.layout is Layout.ROW_MAJOR for x in cast)
        sharded = any(x.spec.memory_config.is_sharded() for x in cast)
        tiled = [_tilize(c, x) for x in cast] if sharded or not in_rows else cast
        returns_rows = in_rows and sharded
        rounding = _find_rounding(call, op_type)
        requested = call["memory_config"]
        chosen = requested is not None and requested.is_sharded() and requested.shard_spec is None
        if rounding is None and not chosen and all(x is source for x, source in zip(tiled, operands, strict=True)):
            return None
        computed = tile_spec(final.shape, final.dtype, final.memory_config) if returns_rows else final
        specs = [x.spec for x in tiled]
        c.launch(binary_call_key(op_type, call, specs, final.memory_config, rounds=rounding is None))
        made = c.allocate(computed)
        temporaries = [x for x in (*reversed(tiled), *reversed(cast)) if x.allocation is not None]
        if returns_rows:
            made = c.replace(made, c.run("untilize", final, made))
        for x in temporaries:
            c.free(x)
        if rounding is not None:
            c.launch(unary_key(f"ttnn.{rounding}", made.spec, final.memory_config))
            made = c.replace(made, c.allocate(final))
        return c, [made]

    return stages


def _add_then_gelu(c: Composition, spec: TensorSpec, final: TensorSpec) -> tuple[Composition, Sequence[PlannedTensor]]:
    """bias_gelu with a number: the sum, and the function of it."""
    c.launch(binary_key("ADD", (spec,), final.dtype, final.memory_config, ("number", None)))
    total = c.allocate(final)
    c.launch(unary_key("ttnn.gelu", final, final.memory_config))
    made = c.allocate(final)
    c.free(total)
    return c, [made]


def _cast_integers(c: Composition, operands: Sequence[PlannedTensor], op_type: str) -> list[PlannedTensor]:
    """32-bit integers become floats of the other operand's width."""
    if op_type == "ISCLOSE":
        return [typecast(c, x, DataType.FLOAT32) if x.spec.dtype is DataType.INT32 else x for x in operands]
    if op_type not in PROMOTES or len(operands) < 2:
        return list(operands)
    wide = any(x.spec.dtype is DataType.FLOAT32 for x in operands)
    wanted = DataType.FLOAT32 if wide else DataType.BFLOAT16
    mixed = any(x.spec.dtype in FLOATS for x in operands)
    return [typecast(c, x, wanted) if mixed and x.spec.dtype in WORDS else x for x in operands]


def _cast_for_number(
    c: Composition, call: Call, operands: Sequence[PlannedTensor], op_type: str
) -> list[PlannedTensor]:
    """32-bit integers become float32 where the other operand is a floating-point number."""
    numbers = isinstance(call["input_tensor_b"], float) or isinstance(call["input_tensor_a"], float)
    casts = op_type in CAST_FOR_NUMBER and numbers and operands[0].spec.dtype in WORDS
    return [typecast(c, operands[0], DataType.FLOAT32)] if casts else list(operands)


def _tilize(c: Composition, x: PlannedTensor) -> PlannedTensor:
    if x.spec.layout is Layout.TILE:
        return x
    return c.run("tilize", tile_spec(x.spec.shape, x.spec.dtype, x.spec.memory_config), x)


def _find_rounding(call: Call, op_type: str) -> str | None:
    """Quotients of floats are rounded by a second program."""
    whole = all(spec.dtype is DataType.INT32 for spec in call.specs)
    mode: str | None = call["rounding_mode"]
    return None if op_type != "DIV" or whole else mode
