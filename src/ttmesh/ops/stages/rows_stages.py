"""Stages of moves that TT-NN makes in rows or in whole tiles: slice, repeat, roll."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.stages.concat_stages import concat
from ttmesh.ops.stages.movement_stages import interleave, move_to, reshape, tile_spec, transpose
from ttmesh.ops.stages.slice_stages import slice_tensor
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
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


def _transpose_rows(c: Composition, x: PlannedTensor) -> PlannedTensor:
    shape = list(x.spec.shape)
    shape[-1], shape[-2] = shape[-2], shape[-1]
    return c.run("permute", row_spec(shape, x.spec.dtype, x.spec.memory_config), x, options="rows")


def repeat_interleave_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Copies are joined along a new dim, in rows; the last dim changes places with the one before it."""
    spec, c = call.specs[0], Composition()
    if not prod(spec.shape) or call["repeats"] == 1 or spec.memory_config.is_sharded():
        return None
    dim, config = call["dim"] % len(spec.shape), results[0].memory_config
    made = _interleave(c, PlannedTensor(spec), call["repeats"], dim, config, in_rows=bool(call["in_rows"]))
    return c, [c.view(made, results[0])]


def _interleave(
    c: Composition, x: PlannedTensor, repeats: int, dim: int, config: MemoryConfig, *, in_rows: bool
) -> PlannedTensor:
    spec, rank = x.spec, len(x.spec.shape)
    shape = [n * repeats if i == dim else n for i, n in enumerate(spec.shape)]
    if rank == 1:
        column = reshape(c, x, TensorSpec((*spec.shape, 1), spec.dtype, spec.layout, memory_config=spec.memory_config))
        grown = _interleave(c, column, repeats, 0, config, in_rows=in_rows)
        made = reshape(c, grown, TensorSpec(tuple(shape), spec.dtype, spec.layout, memory_config=config))
        c.replace(grown, made)
        if column.allocation != made.allocation:
            c.free(column)
        return made
    if dim == rank - 1:
        tiles = spec.layout is Layout.TILE
        transposed = transpose(c, x, rank - 1, rank - 2, config) if tiles else _transpose_rows(c, x)
        grown = _interleave(c, transposed, repeats, rank - 2, config, in_rows=in_rows)
        made = transpose(c, grown, rank - 1, rank - 2, config) if tiles else _transpose_rows(c, grown)
        c.free(grown)
        c.free(transposed)
        return made
    moves_tiles = spec.dtype in (DataType.BFLOAT16, DataType.FLOAT32) and not in_rows and dim < rank - 2 and rank <= 4
    if spec.layout is Layout.TILE and moves_tiles:
        return c.run("repeat_interleave", tile_spec(shape, spec.dtype, config), x, options=(dim - rank, repeats))
    return _interleave_rows(c, x, repeats, dim, config)


def _interleave_rows(c: Composition, x: PlannedTensor, repeats: int, dim: int, config: MemoryConfig) -> PlannedTensor:
    """Rows are joined with themselves; tiles pass through rows and DRAM."""
    spec = x.spec
    shape = [n * repeats if i == dim else n for i, n in enumerate(spec.shape)]
    wide = x
    if spec.dtype in BLOCK_FLOATS:
        wide = c.run("typecast", TensorSpec(spec.shape, DataType.BFLOAT16, spec.layout, memory_config=config), x)
    rows = untilize(c, wide)
    if wide is not x:
        c.free(wide)
    working = DRAM_MEMORY_CONFIG if spec.layout is Layout.TILE else config
    joined = c.run("concat", row_spec(shape, rows.spec.dtype, working), *[rows] * repeats, options=("new dim", dim))
    made = joined
    if spec.layout is Layout.TILE:
        made = tilize_rows(c, joined, working)
        if spec.dtype in BLOCK_FLOATS:
            narrow = TensorSpec(made.spec.shape, spec.dtype, Layout.TILE, memory_config=config)
            made = c.replace(made, c.run("typecast", narrow, made))
        else:
            made = c.replace(made, move_to(c, made, config))
    if rows is not x:
        c.free(rows)
    return c.replace(joined, made)


def roll_tensor(c: Composition, x: PlannedTensor, shifts: Sequence[int], dims: Sequence[int]) -> PlannedTensor:
    """Every dim in turn: shards by a separate program, the rest as two slices that are joined in the other order."""
    spec, rank = x.spec, len(x.spec.shape)
    steps = [(dim % rank, shift % spec.shape[dim]) for dim, shift in zip(dims, shifts, strict=True)]
    config, now = spec.memory_config, x
    inside = config.is_sharded() and spec.layout is Layout.TILE and any(d >= rank - 2 and n % 32 for d, n in steps)
    first = c.run("untilize", row_spec(spec.shape, spec.dtype, config), x) if inside else x
    now = first
    for dim, shift in steps:
        if not shift:
            continue
        if config.is_sharded():
            made = c.run("roll_sharded", now.spec, now, options=(dim, shift))
        else:
            made = _roll_dim(c, now, dim, spec.shape[dim] - shift)
        if now is not first:
            c.free(now)
        now = made
    if inside:
        now = c.replace(now, c.run("tilize", spec, now))
        c.free(first)
    return now


def roll_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """The programs of a roll; without a dim there is no rule."""
    composed = compose_roll(call)
    return None if composed is None else (composed[0], [composed[0].view(composed[1], results[0])])


def compose_roll(call: Call) -> tuple[Composition, PlannedTensor] | None:
    """TT-NN's composition of a roll along dims."""
    spec, c = call.specs[0], Composition()
    dims = (call["dim"],) if isinstance(call["dim"], int) else call["dim"]
    shifts = (call["shifts"],) if isinstance(call["shifts"], int) else call["shifts"]
    if dims is None or not prod(spec.shape) or not spec.shape or len(dims) != len(shifts):
        return None
    made = roll_tensor(c, PlannedTensor(spec), tuple(map(int, shifts)), dims)
    return None if made.allocation is None else (c, made)


def _roll_dim(c: Composition, x: PlannedTensor, dim: int, at: int) -> PlannedTensor:
    """The part from here on, then the part before it."""
    extents = x.spec.shape
    halves = [
        slice_tensor(c, x, [slice(start, stop, 1) if i == dim else slice(0, n, 1) for i, n in enumerate(extents)], None)
        for start, stop in ((at, extents[dim]), (0, at))
    ]
    made = concat(c, halves, dim - len(extents), x.spec.memory_config)
    for half in reversed(halves):
        c.free(half)
    return made
