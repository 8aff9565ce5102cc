"""Stages of moving values: transpose, permute, reshape, slices from the front, typecast, padding, tilize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import ShapeError, require
from ttmesh.ops.stages.reshape_map import as_three_dims, map_spec
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.page_extents import element_bytes
from ttmesh.tensor.spec.row_shards import spec_in_rows
from ttmesh.tensor.spec.tensor_spec import TensorSpec

DIMS = ("dim1", "dim2")
SWAPS: Mapping[tuple[int, ...], tuple[int, int]] = {(0, 1, 3, 2): (2, 3), (0, 2, 1, 3): (1, 2), (1, 0, 2, 3): (0, 1)}


def tile_spec(shape: Sequence[int], dtype: DataType, config: MemoryConfig) -> TensorSpec:
    """A tensor in tiles; raises TT-NN's refusal where its shards do not fit."""
    return TensorSpec(tuple(shape), dtype, Layout.TILE, memory_config=config)


def interleave(config: MemoryConfig) -> MemoryConfig:
    """The same kind of memory without shards."""
    return MemoryConfig(TensorMemoryLayout.INTERLEAVED, config.buffer_type)


def with_four_dims(shape: Sequence[int]) -> tuple[int, ...]:
    """Ones in front until there are four dims."""
    return (*[1] * (4 - len(shape)), *shape)


def has_padding(spec: TensorSpec) -> bool:
    """Whether the last two dims do not fill their tiles."""
    return tuple(spec.shape[-2:]) != tuple(spec.padded_shape[-2:])


def typecast(c: Composition, x: PlannedTensor, dtype: DataType) -> PlannedTensor:
    """Another format, the same memory config."""
    spec = x.spec
    made = TensorSpec(spec.shape, dtype, spec.layout, memory_config=spec.memory_config)
    return c.run("typecast", made, x)


def require_row_pages(config: MemoryConfig, spec: TensorSpec) -> None:
    """interleaved_to_sharded writes rows in pages of L1's alignment."""
    shards = config.shard_spec
    if shards is None or spec.layout is not Layout.ROW_MAJOR:
        return
    wrong = "Shard page size must currently have L1 aligned page size"
    aligned = shards.shape[1] * element_bytes(spec.dtype) % 16 == 0
    require(aligned, wrong, "rows of a multiple of 16 bytes", "Use ttnn.to_memory_config.")


def require_shard_rows(spec: TensorSpec) -> None:
    """sharded_to_interleaved reads rows in pages of L1's alignment."""
    shards = spec.memory_config.shard_spec
    if shards is None or spec.layout is not Layout.ROW_MAJOR:
        return
    wrong, fix = "Shard page size must be aligned to 16B for L1 Tensor", "Use ttnn.to_memory_config."
    require(shards.shape[1] * element_bytes(spec.dtype) % 16 == 0, wrong, "rows of a multiple of 16 bytes", fix)


def move_to(c: Composition, x: PlannedTensor, config: MemoryConfig) -> PlannedTensor:
    """The tensor in other memory; itself where it is there already."""
    held = x.spec.memory_config
    if held == config:
        return x
    programs = {
        (False, False): "copy", (False, True): "interleaved_to_sharded",
        (True, False): "sharded_to_interleaved", (True, True): "reshard",
    }  # fmt: skip
    return c.run(programs[held.is_sharded(), config.is_sharded()], x.spec.with_memory_config(config), x)


def to_rows(c: Composition, x: PlannedTensor, config: MemoryConfig) -> PlannedTensor:
    """The tensor in rows in this memory, as to_layout brings it there; rows stay where they are."""
    if x.spec.layout is Layout.ROW_MAJOR:
        return x
    return c.run("untilize", spec_in_rows(x.spec, config), x)


def to_tiles(c: Composition, x: PlannedTensor) -> PlannedTensor:
    """Rows in tiles in the same memory, as to_layout brings them there."""
    spec = x.spec
    wrong = "Can only tilize bfloat16/float32 or int32/uint32/uint16 or fp8_e4m3 tensors"
    made = TensorSpec(spec.shape, spec.dtype, Layout.TILE, memory_config=spec.memory_config)
    require(spec.dtype is not DataType.UINT8, wrong, "bfloat16 or float32", "Convert it with ttnn.typecast.")
    return c.run("tilize", made, x)


def fill_padding(c: Composition, x: PlannedTensor, value: float, asked: MemoryConfig | None = None) -> PlannedTensor:
    """A number in the padding of tiles: in place, but block floats go through bfloat16."""
    if x.spec.layout is not Layout.TILE or not has_padding(x.spec):
        return x
    wide = typecast(c, x, DataType.BFLOAT16) if x.spec.dtype in BLOCK_FLOATS else x
    flat = as_three_dims(wide.spec.shape) if len(wide.spec.shape) > 3 else tuple(wide.spec.shape)
    wrong = f"Unsupported datatype DataType::{wide.spec.dtype.name}"
    require(wide.spec.dtype is not DataType.UINT8, wrong, "bfloat16 or float32", "Convert it with ttnn.typecast.")
    if wide.spec.memory_config.is_sharded() and wide.spec.memory_config.is_l1() and len(flat) > 2:
        wrong = f"FillPadL1ShardedProgramFactory: N_slices > 1 not yet supported (got {flat[0]})"
        require(flat[0] == 1, wrong, "one matrix in shards", "Move it with ttnn.to_memory_config to DRAM first.")
    c.launch(("fill_pad", flat, wide.spec.dtype, wide.spec.memory_config, value, asked or x.spec.memory_config))
    if wide is x:
        return x
    narrow = typecast(c, wide, x.spec.dtype)
    return c.replace(wide, narrow)


def transpose(
    c: Composition, x: PlannedTensor, dim1: int, dim2: int, config: MemoryConfig, pad_value: float = 0.0
) -> PlannedTensor:
    """Two dims swapped, of tiles; the argument keeps its memory."""
    rank = len(x.spec.shape)
    if rank > 4:
        order = list(range(rank))
        order[dim1], order[dim2] = order[dim2], order[dim1]
        return permute(c, x, order, config, pad_value)
    shape = with_four_dims(x.spec.shape)
    first, second = sorted((dim1 % rank + 4 - rank, dim2 % rank + 4 - rank))
    padded = with_four_dims(x.spec.padded_shape)
    narrow = x.spec.dtype is DataType.BFLOAT8_B and (first, second) not in ((2, 3), (0, 1))
    source = typecast(c, x, DataType.BFLOAT16) if narrow else x
    swapped = list(shape)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    if first == second or padded[first] == padded[second] == 1:
        moved = source
    elif (first, second) in ((2, 3), (1, 2), (0, 1)):
        four = c.view(source, source.spec.with_shape(shape))
        made = tile_spec(swapped, source.spec.dtype, config)
        moved = c.run("transpose", made, four, options=((first, second), pad_value))
    else:
        order = [0, 1, 2, 3]
        order[first], order[second] = second, first
        moved = permute(c, c.view(source, source.spec.with_shape(shape)), order, config, pad_value)
    moved = c.view(moved, moved.spec.with_shape(swapped[4 - rank :]))
    if not narrow:
        return moved
    back = typecast(c, moved, x.spec.dtype)
    c.replace(moved, back)
    c.free(source)
    return back


def permute(
    c: Composition, x: PlannedTensor, dims: Sequence[int], config: MemoryConfig, pad_value: float = 0.0
) -> PlannedTensor:
    """The dims in another order, of tiles; the argument keeps its memory."""
    shape, rank = tuple(x.spec.shape), len(x.spec.shape)
    order = [dim % rank for dim in dims]
    moved = [i for i, dim in enumerate(order) if i != dim]
    if rank <= 1 or all(i < rank - 2 and shape[i] == shape[order[i]] == 1 for i in moved):
        return x
    four = [*range(4 - rank), *(dim + 4 - rank for dim in order)] if rank < 4 else order
    extents = with_four_dims(shape)
    after = [extents[dim] for dim in four]
    plain = four in ([0, 1, 3, 2], [1, 0, 2, 3], [1, 0, 3, 2])
    narrow = x.spec.dtype is DataType.BFLOAT8_B and not plain and rank <= 4 and not config.is_sharded()
    source = typecast(c, x, DataType.BFLOAT16) if narrow else x
    wide = c.view(source, source.spec.with_shape(extents))
    swapped = SWAPS.get(tuple(four))
    made = tile_spec(after, source.spec.dtype, config)
    if swapped is not None:
        value = pad_value if swapped == (1, 2) else 0.0
        result = c.run("transpose", made, wide, options=(swapped, value))
    else:
        result = c.run("permute", made, wide, options=(tuple(four), pad_value))
    if narrow:
        back = typecast(c, result, x.spec.dtype)
        result = c.replace(result, back)
        c.free(source)
    return c.view(result, result.spec.with_shape(after[4 - rank :] if rank < 4 else after))


def is_reshape_view(before: TensorSpec, shape: Sequence[int], config: MemoryConfig) -> bool:
    """TT-NN's rule for a reshape that moves nothing: rows keep their length and no padding moves."""
    rows, wanted = (dims[-2] if len(dims) > 1 else 1 for dims in (before.shape, shape))
    held = before.memory_config
    return (
        (before.shape[-1] if before.shape else 1) == (shape[-1] if shape else 1)
        and held.is_sharded() == config.is_sharded()
        and held.is_l1() == config.is_l1()
        and (before.layout is Layout.ROW_MAJOR or rows == wanted or (rows % 32 == 0 and wanted % 32 == 0))
    )


def _check_shard_width(before: TensorSpec, after: TensorSpec) -> None:
    """A view without dims is refused where shards are wider than the one tile that is left."""
    shards, width = before.memory_config.shard_spec, before.padded_shape[-1] if before.shape else 0
    if shards is None or len(after.shape) or shards.shape[1] == width:
        return
    raise ShapeError(
        "Changing the last dimension of a sharded tensor is not supported unless the shard width matches the input last "
        f"dimension. Input shape: {before.padded_shape!r}, New shape: {after.shape!r}, Shard width: {shards.shape[1]}",
        expected="interleaved memory, or shards of one tile's width",
        fix="Move it with ttnn.to_memory_config first.",
    )


def reshape(c: Composition, x: PlannedTensor, spec: TensorSpec, *, fills: bool = False) -> PlannedTensor:
    """The tensor as this spec, which has its format: itself, a view, or a copy; the argument keeps its memory."""
    config = spec.memory_config
    if tuple(x.spec.shape) == tuple(spec.shape):
        return x
    if not prod(spec.shape) or is_reshape_view(x.spec, spec.shape, config):
        _check_shard_width(x.spec, spec)
        return c.view(x, spec)
    if x.spec.layout is Layout.ROW_MAJOR:
        return _reshape_rows(c, x, spec)
    return _reshape_tiles(c, x, spec, fills=fills)


def _reshape_rows(c: Composition, x: PlannedTensor, spec: TensorSpec) -> PlannedTensor:
    """Rows are reshaped interleaved: shards leave their cores first and come back after."""
    source = x
    if x.spec.memory_config.is_sharded():
        require_shard_rows(x.spec)
        source = c.run("sharded_to_interleaved", x.spec.with_memory_config(interleave(x.spec.memory_config)), x)
    plain = spec.with_memory_config(interleave(spec.memory_config)) if spec.memory_config.is_sharded() else spec
    flat = (prod(plain.shape[:-1]), plain.shape[-1] if plain.shape else 1)
    lines = c.view(source, source.spec.with_shape((prod(source.spec.shape[:-1]), source.spec.shape[-1])))
    made = c.view(c.run("reshape_view", plain.with_shape(flat), lines), plain)
    if spec.memory_config.is_sharded():
        require_row_pages(spec.memory_config, made.spec)
        sharded = c.run("interleaved_to_sharded", spec, made)
        made = c.replace(made, sharded)
    if source is not x:
        c.free(source)
    return made


def _reshape_tiles(c: Composition, x: PlannedTensor, spec: TensorSpec, *, fills: bool) -> PlannedTensor:
    """Tiles are copied along a map that stays beside the program; block floats are copied as bfloat16."""
    blocks, held = spec.dtype in BLOCK_FLOATS, x.spec.memory_config
    before, after = as_three_dims(x.spec.shape), as_three_dims(spec.shape)
    source, config = x, spec.memory_config
    leaves = held.is_sharded() and blocks
    if leaves:
        source = c.run("sharded_to_interleaved", x.spec.with_memory_config(interleave(held)), x)
    source = c.view(source, TensorSpec(before, spec.dtype, Layout.TILE, memory_config=source.spec.memory_config))
    if blocks:
        wide = typecast(c, source, DataType.BFLOAT16)
        if source.allocation != x.allocation:
            c.free(source)
        source = wide
    working = interleave(config) if blocks and config.is_sharded() else config
    made_spec = TensorSpec(after, source.spec.dtype, Layout.TILE, memory_config=working)
    lines = c.view(source, TensorSpec(before, source.spec.dtype, Layout.TILE))
    made = c.run("reshape_view", made_spec, lines, options=source.spec.memory_config)
    c.keep(map_spec(before, after))
    if (blocks or fills) and has_padding(made.spec):
        made = c.replace(made, fill_padding(c, made, 0.0))
    if blocks:
        narrow = typecast(c, made, spec.dtype)
        made = c.replace(made, narrow)
        if config.is_sharded():
            sharded = c.run("interleaved_to_sharded", spec, made)
            made = c.replace(made, sharded)
    if source.allocation != x.allocation:
        c.free(source)
    return c.view(made, spec)


def slice_front(c: Composition, x: PlannedTensor, shape: Sequence[int]) -> PlannedTensor:
    """The first elements along every dim, cut at tiles; itself where that is everything."""
    if tuple(x.spec.shape) == tuple(shape):
        return x
    config = x.spec.memory_config
    made = TensorSpec(tuple(shape), x.spec.dtype, x.spec.layout, memory_config=config)
    return c.run("slice", made, x, options=tuple((0, extent, 1) for extent in shape))


def tilize(c: Composition, x: PlannedTensor, config: MemoryConfig, pad_value: float = 0.0) -> PlannedTensor:
    """In tiles, padding filled; a tensor in tiles is itself."""
    if x.spec.layout is Layout.TILE:
        return x
    return c.run("tilize", tile_spec(x.spec.shape, x.spec.dtype, config), x, options=pad_value)


def permute_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """The stages of permute and transpose, of interleaved tiles."""
    spec, c, final = call.specs[0], Composition(), results[0]
    if (
        call["dims"] is None
        and spec.dtype is DataType.BFLOAT8_B
        and len({call[d] % len(spec.shape) for d in DIMS}) == 1
    ):
        wide = typecast(c, PlannedTensor(spec), DataType.BFLOAT16)
        return c, [c.view(c.replace(wide, typecast(c, wide, spec.dtype)), final)]
    if spec.layout is not Layout.TILE or spec.memory_config.is_sharded() or final.memory_config.is_sharded():
        return None
    rank = len(spec.shape)
    if call["dims"] is None:
        made = transpose(c, PlannedTensor(spec), call["dim1"] % rank, call["dim2"] % rank, final.memory_config)
    else:
        made = permute(c, PlannedTensor(spec), call["dims"], final.memory_config)
    return None if made.allocation is None else (c, [c.view(made, final)])


def reshape_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """The stages of a reshape that moves values."""
    c = Composition()
    if not prod(results[0].shape) or not call.specs[0].shape:
        return None
    made = reshape(c, PlannedTensor(call.specs[0]), results[0])
    return None if made.allocation is None else (c, [made])


def typecast_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]]:
    """The program that composites cast with too."""
    c = Composition()
    return c, [c.run("typecast", results[0], PlannedTensor(call.specs[0]))]


def tilize_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]]:
    """The same for tiles."""
    c = Composition()
    return c, [c.run("tilize", results[0], PlannedTensor(call.specs[0]))]


def untilize_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]]:
    """The same for rows."""
    c = Composition()
    return c, [c.run("untilize", results[0], PlannedTensor(call.specs[0]))]
