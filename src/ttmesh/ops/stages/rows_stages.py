"""Stages of moves that TT-NN makes in rows or in whole tiles: slice, pad, repeat, concat."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import normalize_dim
from ttmesh.ops.stages.movement_stages import fill_padding, interleave, reshape, tile_spec, transpose, typecast
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.page_extents import element_bytes
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Composed = tuple[Composition, Sequence[PlannedTensor]]


def row_spec(shape: Sequence[int], dtype: DataType, config: MemoryConfig) -> TensorSpec:
    """A tensor in rows; block floats become bfloat16."""
    kept = DataType.BFLOAT16 if dtype in BLOCK_FLOATS else dtype
    return TensorSpec(tuple(shape), kept, Layout.ROW_MAJOR, memory_config=config)


def untilize(c: Composition, x: PlannedTensor, program: str = "untilize") -> PlannedTensor:
    """The tensor in rows, interleaved."""
    if x.spec.layout is Layout.ROW_MAJOR:
        return x
    return c.run(program, row_spec(x.spec.shape, x.spec.dtype, interleave(x.spec.memory_config)), x)


def tilize_rows(c: Composition, x: PlannedTensor, config: MemoryConfig) -> PlannedTensor:
    """Rows in tiles."""
    return c.run("tilize", tile_spec(x.spec.shape, x.spec.dtype, config), x)


def slice_rows(
    c: Composition, x: PlannedTensor, bounds: tuple[tuple[int, int, int], ...], final: TensorSpec
) -> PlannedTensor:
    """A slice that begins inside a tile: out of tiles, sliced, into tiles; the argument keeps its memory."""
    wrong = "Can only tilize bfloat16/float32 or int32/uint32/uint16 or fp8_e4m3 tensors"
    require(x.spec.dtype is not DataType.UINT8, wrong, "bfloat16 or float32", "Convert it with ttnn.typecast.")
    rows = untilize(c, x)
    sliced = c.run(
        "slice", row_spec(final.shape, rows.spec.dtype, interleave(final.memory_config)), rows, options=bounds
    )
    made = tilize_rows(c, sliced, final.memory_config)
    c.free(sliced)
    if rows is not x:
        c.free(rows)
    return c.view(made, final)


def pad_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Padding of tiles is filled first; bfloat8_b is padded as bfloat16."""
    spec, c = call.specs[0], Composition()
    if spec.layout is not Layout.TILE or spec.memory_config.is_sharded():
        return None
    x = PlannedTensor(spec)
    source = typecast(c, x, DataType.BFLOAT16) if spec.dtype in BLOCK_FLOATS else x
    fill_padding(c, source, call["value"])
    wide = TensorSpec(results[0].shape, source.spec.dtype, Layout.TILE, memory_config=results[0].memory_config)
    made = c.run("pad", wide, source, options=(call["padding"], call["value"]))
    if source is not x:
        narrow = typecast(c, made, spec.dtype)
        made = c.replace(made, narrow)
        c.free(source)
    return c, [c.view(made, results[0])]


def repeat_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """A program for every dim that is repeated; tiles that are not filled there are repeated in rows."""
    spec, c, final = call.specs[0], Composition(), results[0]
    if not prod(final.shape) or not spec.shape or any(call.outputs):
        return None
    shape = [1] * (len(final.shape) - len(spec.shape)) + list(spec.shape)
    counts = [after // before for after, before in zip(final.shape, shape, strict=True)]
    if all(count == 1 for count in counts):
        return None
    for dim in range(len(shape) - 3, 0, -1):  # along a dim of length 1 the next one is repeated more often
        if shape[dim - 1] == 1 and counts[dim] > 1 and counts[dim - 1] > 1:
            counts[dim], counts[dim - 1] = counts[dim] * counts[dim - 1], 1
    if spec.layout is Layout.ROW_MAJOR:
        made = _repeat_rows(c, PlannedTensor(spec), shape, counts, final)
    else:
        made = _repeat_tiles(c, PlannedTensor(spec), shape, counts, final)
    return c, [c.view(made, final)]


def _repeat_tiles(
    c: Composition, x: PlannedTensor, shape: list[int], counts: list[int], final: TensorSpec
) -> PlannedTensor:
    """Tiles are repeated from the first dim on; more than four dims are interleaved for that."""
    spec, several = x.spec, len(shape) > 4
    ragged = [n % 32 != 0 for n in (1, *shape)[-2:]]
    repeats = [count > 1 for count in (1, *counts)[-2:]]
    in_rows = any(ragged) and (several or any(repeats))
    if in_rows:
        older = several or spec.dtype in BLOCK_FLOATS
        rows = untilize(c, x, "untilize" if older else "untilize_codegen")
        plain = row_spec(final.shape, rows.spec.dtype, interleave(final.memory_config))
        made = _repeat_dims(c, rows, shape, counts, [plain.memory_config] * len(shape), older=older)
        return c.replace(made, c.run("tilize", final, made))
    config = final.memory_config
    plain_config = interleave(config)
    if several and config.is_sharded():
        leaves = spec.memory_config.is_sharded()
        now = c.run("sharded_to_interleaved", spec.with_memory_config(plain_config), x) if leaves else x
        made = _repeat_dims(c, now, shape, counts, [plain_config] * len(shape), older=True)
        return c.replace(made, c.run("interleaved_to_sharded", final, made))
    last = max(dim for dim, count in enumerate(counts) if count > 1)
    configs = [config if dim == last else plain_config for dim in range(len(shape))]
    return _repeat_dims(c, x, shape, counts, configs, older=several, forwards=not several)


def _repeat_rows(
    c: Composition, x: PlannedTensor, shape: list[int], counts: list[int], final: TensorSpec
) -> PlannedTensor:
    """Rows are repeated from the last dim on; shards that split rows are joined before and made again after."""
    held, config = x.spec.memory_config.shard_spec, final.memory_config
    whole = held is None or held.shape[1] == x.spec.shape[-1]
    now = x
    if not whole and counts[-1] > 1:
        now = c.run("sharded_to_interleaved", x.spec.with_memory_config(DRAM_MEMORY_CONFIG), x)
    steps = config if whole else interleave(config)
    made = _repeat_dims(c, now, shape, counts, [steps] * len(shape), older=len(shape) > 4)
    if steps != config:
        made = c.replace(made, c.run("interleaved_to_sharded", final, made))
    return made


def _repeat_dims(
    c: Composition,
    x: PlannedTensor,
    shape: Sequence[int],
    counts: Sequence[int],
    configs: Sequence[MemoryConfig],
    *,
    older: bool,
    forwards: bool = False,
) -> PlannedTensor:
    """One program per dim that is repeated; what a program of this call made goes back once it was read."""
    rank, now, grown = len(shape), x, list(shape)
    for dim in range(rank) if forwards else range(rank - 1, -1, -1):
        if counts[dim] == 1:
            continue
        grown[dim] *= counts[dim]
        spec = TensorSpec(tuple(grown), now.spec.dtype, now.spec.layout, memory_config=configs[dim])
        made = c.run("repeat" if older else "repeat_codegen", spec, now, options=(dim - rank, counts[dim]))
        c.free(now)
        now = made
    return now


def concat_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Shards leave their cores; tiles that are not filled along the dim are joined in rows."""
    first, c, final = call.specs[0], Composition(), results[0]
    if len(call.specs) < 2 or call["groups"] != 1 or final.memory_config.is_sharded() or not prod(final.shape):
        return None
    inputs = [PlannedTensor(spec) for spec in call.specs]
    made = concat(c, inputs, normalize_dim(call["dim"], len(first.shape)), final)
    return c, [c.view(made, final)]


def concat(c: Composition, inputs: Sequence[PlannedTensor], dim: int, final: TensorSpec) -> PlannedTensor:
    """Tensors one behind the other along a negative dim; the arguments keep their memory."""
    first, config = inputs[0].spec, final.memory_config
    if first.memory_config.is_sharded():
        return _concat_shards(c, inputs, dim, final)
    tiles = first.layout is Layout.TILE
    shifts = dim == -1 and first.dtype in (DataType.BFLOAT16, DataType.FLOAT32)  # its program moves columns in tiles
    ragged = (
        tiles
        and not (shifts and len(first.shape) > 1)
        and any(len(x.spec.shape) == 1 or x.spec.shape[dim] != x.spec.padded_shape[dim] for x in inputs if dim >= -2)
    )
    rows = [untilize(c, x) for x in inputs] if ragged else list(inputs)
    alignment = 32 if first.memory_config.buffer_type.name == "DRAM" else 16
    thin = dim == -1 and rows[0].spec.layout is Layout.ROW_MAJOR and len(first.shape) > 1 and any(
        x.spec.shape[-1] * element_bytes(x.spec.dtype) % alignment for x in rows
    )  # fmt: skip
    if thin:
        shape = list(final.shape)
        shape[-1], shape[-2] = shape[-2], shape[-1]
        transposed = [_transpose_rows(c, x) for x in rows]
        for x, source in zip(rows, inputs, strict=True):
            if x is not source:
                c.free(x)
        joined = c.run("concat", row_spec(shape, rows[0].spec.dtype, config), *transposed, options=-2)
        made = _transpose_rows(c, joined)
        parts = [joined, *transposed]
    else:
        kept = rows[0].spec.dtype if ragged else first.dtype
        layout = Layout.ROW_MAJOR if ragged else first.layout
        made = c.run("concat", TensorSpec(final.shape, kept, layout, memory_config=config), *rows, options=dim)
        parts = [x for x, source in zip(rows, inputs, strict=True) if x is not source]
    if ragged:
        tiled = tilize_rows(c, made, config)
        made = c.replace(made, tiled)
    for part in parts:
        c.free(part)
    return made


def _transpose_rows(c: Composition, x: PlannedTensor) -> PlannedTensor:
    shape = list(x.spec.shape)
    shape[-1], shape[-2] = shape[-2], shape[-1]
    return c.run("permute", row_spec(shape, x.spec.dtype, x.spec.memory_config), x, options="rows")


def _concat_shards(c: Composition, inputs: Sequence[PlannedTensor], dim: int, final: TensorSpec) -> PlannedTensor:
    """Two tensors are joined on their cores across the direction that is divided, and blocks always; else in DRAM."""
    first = inputs[0].spec
    kind, shards = first.memory_config.memory_layout.name, first.memory_config.shard_spec
    stays = {"HEIGHT_SHARDED": dim == -1, "WIDTH_SHARDED": dim == -2, "BLOCK_SHARDED": dim in (-1, -2)}.get(kind, False)
    if stays and len(first.shape) > 1 and shards is not None and len(inputs) == 2:
        held = [x.spec.memory_config.shard_spec for x in inputs]
        grown = [sum(one.shape[axis] for one in held if one is not None) for axis in (0, 1)]
        shape = (shards.shape[0], grown[1]) if dim == -1 else (grown[0], shards.shape[1])
        joined_memory = MemoryConfig(
            first.memory_config.memory_layout, first.memory_config.buffer_type,
            type(shards)(shards.grid, shape, shards.orientation),
        )  # fmt: skip
        joined = c.run(
            "concat", TensorSpec(final.shape, first.dtype, first.layout, memory_config=joined_memory), *inputs
        )
        made = c.run("sharded_to_interleaved", final, joined)
        return c.replace(joined, made)
    plain = [c.run("sharded_to_interleaved", x.spec.with_memory_config(DRAM_MEMORY_CONFIG), x) for x in inputs]
    made = concat(c, plain, dim, final)
    for x in plain:
        c.free(x)
    return made


def repeat_interleave_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Copies are joined along a new dim, in rows; the last dim changes places with the one before it."""
    spec, c = call.specs[0], Composition()
    if not prod(spec.shape) or call["repeats"] == 1 or spec.memory_config.is_sharded():
        return None
    made = _interleave(c, PlannedTensor(spec), call["repeats"], call["dim"] % len(spec.shape), results[0].memory_config)
    return c, [c.view(made, results[0])]


def _interleave(c: Composition, x: PlannedTensor, repeats: int, dim: int, config: MemoryConfig) -> PlannedTensor:
    spec, rank = x.spec, len(x.spec.shape)
    shape = [n * repeats if i == dim else n for i, n in enumerate(spec.shape)]
    if rank == 1:
        column = reshape(c, x, TensorSpec((*spec.shape, 1), spec.dtype, spec.layout, memory_config=spec.memory_config))
        grown = _interleave(c, column, repeats, 0, config)
        made = reshape(c, grown, TensorSpec(tuple(shape), spec.dtype, spec.layout, memory_config=config))
        c.replace(grown, made)
        if column.allocation != made.allocation:
            c.free(column)
        return made
    if dim == rank - 1 and spec.layout is Layout.TILE:
        transposed = transpose(c, x, rank - 1, rank - 2, config)
        grown = _interleave(c, transposed, repeats, rank - 2, config)
        made = transpose(c, grown, rank - 1, rank - 2, config)
        c.free(grown)
        c.free(transposed)
        return made
    if spec.dtype not in BLOCK_FLOATS and spec.layout is Layout.TILE and dim < rank - 2 and rank <= 4:
        return c.run("repeat_interleave", tile_spec(shape, spec.dtype, config), x, options=(dim - rank, repeats))
    if dim == rank - 1:
        transposed = _transpose_rows(c, x)
        grown = _interleave(c, transposed, repeats, rank - 2, config)
        made = _transpose_rows(c, grown)
        c.free(grown)
        c.free(transposed)
        return made
    wide = typecast(c, x, DataType.BFLOAT16) if spec.dtype in BLOCK_FLOATS else x
    rows = untilize(c, wide)
    if wide is not x:
        c.free(wide)
    joined = c.run("concat", row_spec(shape, rows.spec.dtype, config), *[rows] * repeats, options=("new dim", dim))
    made = joined
    if spec.layout is Layout.TILE:
        made = tilize_rows(c, joined, config)
        if spec.dtype in BLOCK_FLOATS:
            narrow = typecast(c, made, spec.dtype)
            made = c.replace(made, narrow)
    if rows is not x:
        c.free(rows)
    return c.replace(joined, made)


def roll_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Two slices in another order, joined; one dim at a time."""
    spec, c = call.specs[0], Composition()
    dims = (call["dim"],) if isinstance(call["dim"], int) else call["dim"]
    shifts = (call["shifts"],) if isinstance(call["shifts"], int) else call["shifts"]
    if dims is None or spec.memory_config.is_sharded() or not spec.shape:
        return None
    now = PlannedTensor(spec)
    for dim, shift in zip(dims, shifts, strict=True):
        at = -int(shift) % spec.shape[dim]
        if at:
            now = c.replace(now, _roll_dim(c, now, dim % len(spec.shape), at, results[0]))
    return None if now.allocation is None else (c, [c.view(now, results[0])])


def _roll_dim(c: Composition, x: PlannedTensor, dim: int, at: int, final: TensorSpec) -> PlannedTensor:
    """The part from here on, then the part before it."""
    spec, rank, halves = x.spec, len(x.spec.shape), []
    for start, stop in ((at, spec.shape[dim]), (0, at)):
        shape = [stop - start if i == dim else n for i, n in enumerate(spec.shape)]
        part = TensorSpec(shape, spec.dtype, spec.layout, memory_config=spec.memory_config)
        bounds = tuple((start, stop, 1) if i == dim else (0, n, 1) for i, n in enumerate(spec.shape))
        ragged = spec.layout is Layout.TILE and (rank < 2 or (dim >= rank - 2 and start % 32 != 0))
        halves.append(slice_rows(c, x, bounds, part) if ragged else c.run("slice", part, x, options=bounds))
    made = concat(c, halves, dim - rank, final)
    for half in reversed(halves):
        c.free(half)
    return made
