"""Stages of element-wise composites: gated activations, outer products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ttmesh.base.dtypes import INTEGERS, DataType, Layout
from ttmesh.ops.catalogue.program_keys import WITH_NUMBER, binary_key, unary_key
from ttmesh.ops.stages.movement_stages import fill_padding, reshape, tile_spec, typecast
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call, StageRule
from ttmesh.tensor.spec.tensor_spec import TensorSpec

PROMOTES = frozenset({"MUL", "DIV"})  # take an integer operand beside a float one


GATES = {"glu": "ttnn.sigmoid", "reglu": "ttnn.relu", "geglu": "ttnn.geglu", "swiglu": "ttnn.silu"}


def gate_stages(name: str) -> StageRule:
    """Two halves, the second through an activation, multiplied."""

    def stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
        c, final = Composition(), results[0]
        x = PlannedTensor(call.specs[0])
        if x.spec.layout is not Layout.TILE or not prod(final.shape):
            return None
        halves = [c.run("slice", final, x, options=("half", i)) for i in range(2)]
        c.launch(unary_key(GATES[name], final, final.memory_config))
        active = c.allocate(final)
        c.launch(binary_key("MUL", (final, final), final.dtype, final.memory_config))
        made = c.allocate(final)
        for stage in (active, *halves):
            c.free(stage)
        return c, [made]

    return stages


def normalize_stages(*, whole: bool) -> StageRule:
    """Mean, difference, square root of the mean square, quotient; the whole tensor is normalized as one matrix."""

    def stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
        c, final = Composition(), results[0]
        x = PlannedTensor(call.specs[0])
        dtype, config = x.spec.dtype, final.memory_config
        if x.spec.layout is not Layout.TILE or config.is_sharded() or len(x.spec.shape) != 4:
            return None
        matrix = (1, 1, prod(x.spec.shape[:-1]), x.spec.shape[-1])
        moves = whole and prod(x.spec.shape[:-2]) > 1
        now = c.run("reshape_on_device", tile_spec(matrix, dtype, config), x) if moves else x
        mean = _reduce_matrix(c, now, "mean", dtype)
        centred = c.run("bcast", now.spec.with_memory_config(config), now, mean)
        c.launch(("SQUARE", dtype, config))
        squares = c.allocate(centred.spec)
        power = _reduce_matrix(c, squares, "sum", DataType.FLOAT32 if dtype is DataType.BFLOAT16 else dtype)
        c.free(squares)
        c.launch(("DIV", dtype, config))
        made = c.allocate(centred.spec)
        for stage in (power, centred, mean, now):
            c.free(stage)
        if moves:
            made = c.replace(made, c.run("reshape_on_device", final, made))
        return c, [made]

    return stages


def spread_hw_stages(*, root: bool) -> StageRule:
    """var_hw and std_hw: mean, difference, square, mean of the squares, and its root."""

    def stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
        c, final = Composition(), results[0]
        x = PlannedTensor(call.specs[0])
        dtype, config = x.spec.dtype, final.memory_config
        if x.spec.layout is not Layout.TILE or x.spec.memory_config.is_sharded() or len(x.spec.shape) != 4:
            return None
        fill_padding(c, x, 0.0)
        mean = _reduce_matrix(c, x, "mean", dtype)
        centred = c.run("bcast", x.spec.with_memory_config(config), x, mean)
        c.launch(("SQUARE", dtype, config))
        squares = c.allocate(centred.spec)
        fill_padding(c, squares, 0.0)
        made = _reduce_matrix(c, squares, "sum", DataType.FLOAT32 if dtype is DataType.BFLOAT16 else dtype)
        for stage in (squares, centred, mean):
            c.free(stage)
        if root:
            c.launch(("SQRT", dtype, config))
            made = c.replace(made, c.allocate(made.spec))
        return c, [c.view(made, final)]

    return stages


def polynomial_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """Horner's rule: a multiplication and an addition per power, each into new memory."""
    c, final = Composition(), results[0]
    powers = len(call["coeffs"]) - 1
    kind = (final.dtype, final.layout, final.memory_config)
    if powers < 1:
        c.launch(("FILL", *kind))
        return c, [c.allocate(final)]
    now: PlannedTensor | None = None
    for _ in range(powers):
        for program in ("MUL" if now is not None else "MUL number", "ADD number"):
            c.launch((program, *kind))
            made = c.allocate(final)
            now = made if now is None else c.replace(now, made)
    assert now is not None, "a polynomial of degree one or more has a first product"
    return c, [now]


def _reduce_matrix(c: Composition, x: PlannedTensor, kind: str, between: DataType) -> PlannedTensor:
    """Both axes of a matrix: width, then height."""
    batches, config = x.spec.shape[:-2], x.spec.memory_config
    kind = "sum" if x.spec.dtype is DataType.FLOAT32 else kind
    column = tile_spec((*batches, x.spec.shape[-2], 1), between, config)
    by_width = c.run("reduce", column, x, options=("W", kind, None, None))
    one = tile_spec((*batches, 1, 1), x.spec.dtype, config)
    made = c.run("reduce", one, by_width, options=("H", kind, None, None))
    c.free(by_width)
    return made


def outer_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """The first vector as a column, times the second as a row."""
    c, final = Composition(), results[0]
    a, b = (PlannedTensor(spec) for spec in call.specs[:2])
    if a.spec.layout is not Layout.TILE or b.spec.layout is not Layout.TILE:
        return None
    column = tile_spec((1, 1, a.spec.shape[-1], 1), a.spec.dtype, a.spec.memory_config)
    transposed = reshape(c, a, column)
    made = c.run("matmul", final, transposed, b)
    if transposed.allocation != a.allocation:
        c.free(transposed)
    return c, [made]


def _promote_stages(op_type: str, call: Call, final: TensorSpec) -> tuple[Composition, Sequence[PlannedTensor]]:
    """Integers become floats of the other operand's width first."""
    c, specs = Composition(), call.specs
    wide = any(spec.dtype is DataType.FLOAT32 for spec in specs)
    wanted = DataType.FLOAT32 if wide else DataType.BFLOAT16
    operands = [PlannedTensor(spec) for spec in specs]
    operands = [typecast(c, x, wanted) if x.spec.dtype in INTEGERS else x for x in operands]
    c.launch((op_type, "promoted", tuple((x.spec.dtype, x.spec.memory_config, x.spec.layout) for x in operands)))
    made = c.allocate(final)
    for operand in operands:
        c.free(operand)
    return c, [made]


def row_shard_stages(op_type: str) -> StageRule:
    """Rows in shards are computed on in tiles: into tiles, the program, and out of them again."""

    def stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
        final, c = results[0], Composition()
        if op_type in WITH_NUMBER and len(call.specs) == 1:
            return None
        if op_type in PROMOTES and len({spec.dtype in INTEGERS for spec in call.specs}) == 2 and not any(call.outputs):
            return _promote_stages(op_type, call, final)
        in_rows = all(spec.layout is Layout.ROW_MAJOR for spec in call.specs)
        sharded = any(spec.memory_config.is_sharded() for spec in call.specs)
        if not in_rows or not sharded or final.layout is not Layout.ROW_MAJOR or call.outputs:
            return None
        if any(prod(spec.shape[-2:-1]) % 32 or spec.shape[-1] % 32 for spec in call.specs[:1] if spec.shape):
            return None
        tiles = [c.run("tilize", tile_spec(s.shape, s.dtype, s.memory_config), PlannedTensor(s)) for s in call.specs]
        c.launch((op_type, "tiles", tuple((t.spec.dtype, t.spec.memory_config) for t in tiles), final.memory_config))
        computed = c.allocate(tile_spec(final.shape, final.dtype, final.memory_config))
        made = c.run("untilize", final, computed)
        for stage in (computed, *tiles):
            c.free(stage)
        return c, [made]

    return stages
