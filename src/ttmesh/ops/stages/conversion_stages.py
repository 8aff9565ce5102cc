"""Stages of operations that TT-NN gives converted operands: rows in tiles, tiles in rows, masks scaled, images padded."""

from __future__ import annotations

from collections.abc import Sequence

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.ops.catalogue.program_keys import binary_key, unary_key
from ttmesh.ops.stages.divided_columns import TILE, count_cores, count_parts, reduce_parts
from ttmesh.ops.stages.movement_stages import reshape, tile_spec, tilize
from ttmesh.ops.stages.rows_stages import row_spec, untilize
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

Composed = tuple[Composition, Sequence[PlannedTensor]]


def _key(call: Call) -> tuple[object, ...]:
    """The operation's own program: all its arguments."""
    return (call.name, *(key_of(value) for value in call.arguments.values()))


def masked_attention_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """A mask is divided by the scale first."""
    if call["attn_mask"] is None:
        return None
    c, mask = Composition(), call["attn_mask"].spec
    c.launch(binary_key("MUL", (mask,), mask.dtype, mask.memory_config, ("number", None)))
    scaled = c.allocate(mask)
    c.launch(_key(call))
    made = c.allocate(results[0])
    c.free(scaled)
    return c, [made]


def tilized_input_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Interleaved rows are tilized first."""
    c, x = Composition(), PlannedTensor(call.specs[0])
    if x.spec.layout is Layout.TILE or x.spec.memory_config.is_sharded() or any(call.outputs):
        return None
    tiled = tilize(c, x, x.spec.memory_config)
    c.launch(_key(call))
    made = c.allocate(results[0])
    c.free(tiled)
    return c, [made]


def tilized_operands_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Every operand in rows is tilized first, in its own memory."""
    c, rows = Composition(), [spec for spec in call.specs if spec.layout is Layout.ROW_MAJOR]
    if not rows or any(call.outputs):
        return None
    tiled = [tilize(c, PlannedTensor(spec), spec.memory_config) for spec in rows]
    c.launch(_key(call))
    made = c.allocate(results[0])
    for stage in tiled:
        c.free(stage)
    return c, [made]


def embedding_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """A table in tiles is brought into rows first."""
    c, table = Composition(), PlannedTensor(call["weight"].spec)
    if table.spec.layout is Layout.ROW_MAJOR or table.spec.memory_config.is_sharded() or any(call.outputs):
        return None
    rows = untilize(c, table)
    c.launch(_key(call))
    made = c.allocate(results[0])
    c.free(rows)
    return c, [made]


def fold_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Images are padded by a separate program."""
    c, x = Composition(), PlannedTensor(call.specs[0])
    padding = tuple(call["padding"] or ())
    plain = x.spec.layout is Layout.ROW_MAJOR and not x.spec.memory_config.is_sharded()
    if not any(padding) or call["use_transpose_as_fold"] or not plain or len(padding) > 4:
        return None
    top, bottom, left, right = padding if len(padding) == 4 else (padding[0], padding[0], padding[1], padding[1])
    n, height, width, channels = x.spec.shape
    shape = (n, height + top + bottom, width + left + right, channels)
    wide = c.run("pad", row_spec(shape, x.spec.dtype, x.spec.memory_config), x, options=padding)
    c.launch(_key(call))
    made = c.allocate(results[0])
    c.free(wide)
    return c, [made]


def concat_gradient_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Both gradients get their memory; each is a slice, and a copy of it."""
    c, grad = Composition(), call.specs[0]
    made = [c.allocate(result) for result in results]
    for i, result in enumerate(results):
        c.launch(("slice into", grad, result, i))
        c.launch(("copy", result, result))
    return c, made


def prod_gradient_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Along the last dim: the product, the gradient's first column, a reciprocal, and their products."""
    grad, x = (PlannedTensor(spec) for spec in call.specs[:2])
    if call["dim"] not in (-1, 3) or x.spec.layout is not Layout.TILE or len(x.spec.shape) != 4:
        return None
    c, config, dtype = Composition(), results[0].memory_config, x.spec.dtype
    n, k, height, width = x.spec.shape
    moved = c.run("permute", tile_spec((width, n, k, height), dtype, config), x, options=((3, 0, 1, 2), 0.0))
    first = c.allocate(tile_spec((1, n, k, height), dtype, config))
    c.launch(("prod_nc", moved.spec, first.spec, False))
    back = c.run("permute", tile_spec((n, k, 1, height), dtype, config), first, options=((1, 2, 0, 3), 0.0))
    product = c.run("transpose", tile_spec((n, k, height, 1), dtype, config), back, options=((2, 3), 0.0))
    for stage in (first, back, moved):
        c.free(stage)
    gk, gh = grad.spec.shape[1], grad.spec.shape[2]
    transposed = tile_spec((grad.spec.shape[3], n, gk, gh), grad.spec.dtype, config)
    head = c.run("permute", transposed, grad, options=((3, 0, 1, 2), 0.0))
    column = c.run("permute", tile_spec((n, gk, gh, 1), grad.spec.dtype, config), head, options=((1, 2, 3, 0), 0.0))
    c.free(head)
    c.launch(("ttnn.reciprocal", dtype, config))
    inverse = c.allocate(tile_spec(x.spec.shape, dtype, config))
    c.launch(binary_key("MUL", (product.spec, column.spec), dtype, config))
    scaled = c.allocate(product.spec)
    made = c.run("bcast", results[0], inverse, scaled)
    for stage in (scaled, inverse, column, product):
        c.free(stage)
    return c, [made]


def tosa_gather_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Of rows: the index in three dims, repeated along the columns; both are gathered along the last dim."""
    x, index, final = PlannedTensor(call.specs[0]), PlannedTensor(call.specs[1]), results[0]
    if x.spec.layout is not Layout.ROW_MAJOR or index.spec.layout is not Layout.ROW_MAJOR:
        return None
    c, config = Composition(), final.memory_config
    (n, rows, columns), wanted = x.spec.shape, index.spec.shape[1]
    held = index.spec.memory_config
    wide = c.run("reshape_view", row_spec((n, wanted, 1), index.spec.dtype, held), index)
    spread = c.run(
        "repeat_codegen", row_spec((n, wanted, columns), index.spec.dtype, held), wide, options=(-1, columns)
    )
    c.free(wide)
    transposed = c.run("permute", row_spec((n, columns, wanted), index.spec.dtype, held), spread, options="rows")
    moved = c.run("permute", row_spec((n, columns, rows), x.spec.dtype, x.spec.memory_config), x, options="rows")
    found = c.run("gather", row_spec((n, columns, wanted), x.spec.dtype, config), moved, transposed)
    made = c.run("permute", final, found, options="rows")
    for stage in (found, moved, transposed, spread):
        c.free(stage)
    return c, [made]


def isin_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Both tensors as one row, the elements found, and the row in the shape and layout of the elements."""
    c, final = Composition(), results[0]
    if any(call.outputs):
        return None
    rows: list[PlannedTensor] = []
    for x in (PlannedTensor(spec) for spec in call.specs[:2]):
        flat = x
        if x.spec.layout is Layout.TILE:
            flat = untilize(c, flat)
        if len(x.spec.shape) > 1:
            line = row_spec((x.spec.shape.volume(),), x.spec.dtype, x.spec.memory_config)
            flat = c.replace(flat, c.run("reshape_view", line, flat))
        rows.append(flat)
    config = final.memory_config
    c.launch((call.name, call["invert"], tuple(row.spec for row in rows)))
    made = c.allocate(row_spec((final.shape.volume(),), final.dtype, config))
    if len(final.shape) > 1:
        made = c.replace(made, c.run("reshape_view", row_spec(final.shape, final.dtype, config), made))
    if final.layout is Layout.TILE:
        made = c.replace(made, c.run("tilize", final, made))
    for row in rows:
        c.free(row)
    return c, [c.view(made, final)]


def per_channel_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """The zero points as a tensor like the scales, converted, and the program; for quantize the scales are inverted too."""
    scale, final = call["scale"], results[0]
    last = call["axis"] in (-1, len(final.shape) - 1)
    if not isinstance(scale, Tensor) or isinstance(call["zero_point"], Tensor) or not last or any(call.outputs):
        return None
    c, spec = Composition(), scale.spec
    wide = tile_spec((*[1] * (len(final.shape) - 1), spec.shape[-1]), DataType.FLOAT32, spec.memory_config)
    c.launch(("typecast", spec.dtype, spec.layout, wide.memory_config))
    zeros = c.allocate(wide)
    stages = [zeros]
    if call.name == "ttnn.quantize":
        c.launch(unary_key("ttnn.reciprocal", wide, wide.memory_config))
        stages.append(c.allocate(wide))
    first = call.specs[0]
    c.launch((call.name, first.dtype, first.layout, first.memory_config, final.dtype, final.memory_config))
    made = c.allocate(final)
    for stage in reversed(stages):
        c.free(stage)
    return c, [made]


def global_pool_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Rows of channels are reduced to one row per image, tilized, and given four dims again."""
    x, final, c = PlannedTensor(call.specs[0]), results[0], Composition()
    plain = not x.spec.memory_config.is_sharded() and len(x.spec.shape) == 4
    if not plain or x.spec.dtype is not DataType.BFLOAT16 or final.dtype is not x.spec.dtype:
        return None
    if x.spec.layout is Layout.TILE:
        return _pool_tiles(call, x, final)
    shape = (1, 1, x.spec.shape[0], x.spec.shape[-1])
    sums = c.run("reduce", row_spec(shape, x.spec.dtype, final.memory_config), x, options="images")
    tiled = c.replace(sums, c.run("tilize", tile_spec(shape, x.spec.dtype, final.memory_config), sums))
    made = reshape(c, tiled, final)
    return c, [c.replace(tiled, made)]


def _pool_tiles(call: Call, x: PlannedTensor, final: TensorSpec) -> Composed:
    """Pixels are columns of tiles where they fill them, else rows; their mean is one row per image."""
    c, dtype, config = Composition(), x.spec.dtype, final.memory_config
    images, height, width, channels = x.spec.shape
    pixels = (images, height * width, channels)
    if height * width % TILE == 0:
        flat = reshape(c, x, tile_spec(pixels, dtype, x.spec.memory_config))
    else:
        flat = c.view(untilize(c, x), row_spec(pixels, dtype, x.spec.memory_config))
    kept = row_spec if flat.spec.layout is Layout.ROW_MAJOR and images > 1 else tile_spec
    parts = count_parts(flat.spec, "mean", count_cores(call))
    made = reduce_parts(c, flat, kept((images, 1, channels), dtype, config), parts, "mean", ("H", "mean"))
    if flat.allocation != x.allocation:
        c.free(flat)
    for spec in (tile_spec((images, channels), dtype, config), final):
        if made.spec.layout is Layout.ROW_MAJOR:
            made = c.replace(made, c.run("tilize", spec, made))
        made = c.replace(made, reshape(c, made, spec))
    return c, [made]
