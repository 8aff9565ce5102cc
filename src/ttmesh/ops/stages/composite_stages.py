"""Stages of element-wise composites: gated activations, outer products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.ops.catalogue.program_keys import binary_key, unary_key
from ttmesh.ops.stages.movement_stages import fill_padding, reshape, tile_spec
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call, StageRule
from ttmesh.tensor.spec.tensor_spec import TensorSpec

NO_BROADCAST = (False, False, False, False)
GATES = {"glu": "ttnn.sigmoid", "reglu": "ttnn.relu", "geglu": "ttnn.geglu", "swiglu": "ttnn.silu"}


def gate_stages(name: str) -> StageRule:
    """Two halves, the second through an activation, multiplied."""

    def stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
        c, final = Composition(), results[0]
        x = PlannedTensor(call.specs[0])
        if not prod(final.shape) or (x.spec.layout is Layout.ROW_MAJOR and final.memory_config.is_sharded()):
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
    c, final, x = Composition(), results[0], call.specs[0]
    powers = len(call["coeffs"]) - 1
    if powers < 1:
        c.launch(("FILL", final.dtype, final.layout, final.memory_config))
        return c, [c.allocate(final)]
    now: PlannedTensor | None = None
    number = ("number", None)
    for _ in range(powers):
        first = now is None
        operands = (x,) if first else (x, final)
        c.launch(binary_key("MUL", operands, final.dtype, final.memory_config, number if first else NO_BROADCAST))
        made = c.allocate(final)
        now = made if now is None else c.replace(now, made)
        c.launch(binary_key("ADD", (final,), final.dtype, final.memory_config, number))
        now = c.replace(now, c.allocate(final))
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
    if a.spec.layout is not Layout.TILE or b.spec.layout is not Layout.TILE or not a.spec.shape.volume():
        return None
    column = tile_spec((1, 1, a.spec.shape[-1], 1), a.spec.dtype, a.spec.memory_config)
    transposed = reshape(c, a, column)
    made = c.run("matmul", final, transposed, b)
    if transposed.allocation != a.allocation:
        c.free(transposed)
    return c, [made]
