"""Stages of ttnn.concat: tiles that are not filled are joined in rows, thin rows as columns, shards on their cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ttmesh.base.dtypes import BufferType, DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import MeshError, require
from ttmesh.ops.stages.movement_stages import move_to, to_rows, to_tiles
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig, ShardSpec
from ttmesh.tensor.spec.page_extents import element_bytes
from ttmesh.tensor.spec.tensor_spec import TensorSpec

HEIGHT, WIDTH, BLOCK = (
    TensorMemoryLayout.HEIGHT_SHARDED, TensorMemoryLayout.WIDTH_SHARDED, TensorMemoryLayout.BLOCK_SHARDED,
)  # fmt: skip
Fit = Callable[[TensorSpec, Sequence[int]], MemoryConfig]  # the memory of transposed rows in shards
CONVERT = "Convert with ttnn.to_layout, ttnn.typecast and ttnn.to_memory_config."


def in_dram(spec: TensorSpec, shape: Sequence[int]) -> MemoryConfig:
    """The memory of transposed rows that are in no shards."""
    return spec.memory_config


def concat(
    c: Composition,
    inputs: Sequence[PlannedTensor],
    dim: int,
    config: MemoryConfig,
    groups: int = 1,
    fit: Fit = in_dram,
) -> PlannedTensor:
    """Tensors one after the other along a negative dim; the arguments keep their memory."""
    rank, tiles = len(inputs[0].spec.shape), inputs[0].spec.layout is Layout.TILE
    if not _joins_in_rows(inputs, dim):
        return _concat_thin(c, inputs, dim, config, groups, fit)
    rows = []
    for x in inputs:
        wrong = "ttnn.concat: expected all input tensors to be in tile layout"
        require(x.spec.layout is Layout.TILE, wrong, "TILE layout", CONVERT)
        rows.append(to_rows(c, x, x.spec.memory_config))
    made = _concat_thin(c, rows, dim, config, groups, fit, temporary=True)
    if tiles and rank:
        made = c.replace(made, to_tiles(c, made))
    for x in rows:
        c.free(x)
    return made


def _joins_in_rows(inputs: Sequence[PlannedTensor], dim: int) -> bool:
    """Whether a tensor does not fill its tiles along the dim; one program moves columns inside tiles."""
    first = inputs[0].spec
    plain = all(not x.spec.memory_config.is_sharded() and x.spec.layout is Layout.TILE for x in inputs)
    if plain and dim == -1 and len(first.shape) > 1 and first.dtype in (DataType.BFLOAT16, DataType.FLOAT32):
        return False
    return any(
        x.spec.layout is Layout.TILE
        and (len(x.spec.shape) == 1 or (dim >= -2 and x.spec.shape[dim] != x.spec.padded_shape[dim]))
        for x in inputs
    )


def _alignment(x: PlannedTensor) -> int:
    return 32 if x.spec.memory_config.buffer_type is BufferType.DRAM else 16


def _is_thin(x: PlannedTensor) -> bool:
    width = x.spec.padded_shape[-1] * element_bytes(x.spec.dtype)
    return x.spec.layout is Layout.ROW_MAJOR and width % _alignment(x) != 0


def _concat_thin(
    c: Composition,
    inputs: Sequence[PlannedTensor],
    dim: int,
    config: MemoryConfig,
    groups: int,
    fit: Fit,
    *,
    temporary: bool = False,
) -> PlannedTensor:
    """Rows whose pages are not aligned are joined as columns; temporary ones go back before."""
    if dim != -1 or not any(map(_is_thin, inputs)):
        return _concat_whole(c, inputs, dim, config, groups)
    shape = inputs[0].spec.shape
    flat = len(shape) == 1
    wide = [c.view(x, x.spec.with_shape((1, *x.spec.shape))) for x in inputs] if flat else list(inputs)
    columns = [_transpose(c, x, fit(x.spec, _swapped(x.spec.shape))) for x in wide]
    if temporary:
        for column, x in zip(columns, inputs, strict=True):
            c.replace(x, column)
    joined = _concat_whole(c, columns, -2, config, groups)
    made = _transpose(c, joined, config)
    if made.allocation != joined.allocation:
        c.free(joined)
    for column, x in zip(columns, inputs, strict=True):
        if column.allocation != x.allocation:
            c.free(column)
    return c.view(made, made.spec.with_shape(made.spec.shape[1:])) if flat else made


def _swapped(shape: Sequence[int]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


def _transpose(c: Composition, x: PlannedTensor, config: MemoryConfig) -> PlannedTensor:
    shape = _swapped(x.spec.shape)
    if shape[-1] == shape[-2] == 1 and config == x.spec.memory_config:
        return x
    made = TensorSpec(shape, x.spec.dtype, Layout.ROW_MAJOR, memory_config=config)
    return c.run("permute", made, x, options="rows")


def _concat_whole(
    c: Composition, inputs: Sequence[PlannedTensor], dim: int, config: MemoryConfig, groups: int
) -> PlannedTensor:
    """One program; shards stay on their cores where the dim allows it, and then go where they are asked for."""
    first = inputs[0].spec
    held, shards = first.memory_config, first.memory_config.shard_spec
    if shards is not None:
        if not all(x.spec.memory_config.is_sharded() for x in inputs):
            mixed, rows = any(x.spec.dtype is not first.dtype for x in inputs), first.layout is Layout.ROW_MAJOR
            if dim == -1 and (mixed or rows) and held.memory_layout is not WIDTH:
                raise MeshError("bad optional access", expected="tensors in shards", fix=CONVERT)
            if not rows or dim == -2:
                _check_operands(inputs)
        if config.is_sharded():
            return _join(c, inputs, dim, config, groups)
        if (dim == -1 and held.memory_layout in (HEIGHT, BLOCK)) or (
            dim == -2 and held.memory_layout in (WIDTH, BLOCK)
        ):
            joined = _join(c, inputs, dim, _grown_shards(inputs, dim, shards), groups)
            return c.replace(joined, move_to(c, joined, config))
        plain = [move_to(c, x, config) for x in inputs]
        made = _concat_whole(c, plain, dim, config, groups)
        for x, source in zip(plain, inputs, strict=True):
            if x.allocation != source.allocation:
                c.free(x)
        return made
    if first.layout is Layout.ROW_MAJOR and dim == -1:
        wrong = "Current concat implementation requires aligned last dim when concatting on last dim"
        require(not any(map(_is_thin, inputs)), wrong, "aligned rows", CONVERT)
    in_rows = first.layout is Layout.ROW_MAJOR or any(
        x.spec.layout is Layout.ROW_MAJOR and (len(x.spec.shape) < 2 or any(n % 32 for n in x.spec.padded_shape[-2:]))
        for x in inputs
    )
    same = [
        x if (x.spec.layout is Layout.ROW_MAJOR) is in_rows
        else to_rows(c, x, x.spec.memory_config) if in_rows else to_tiles(c, x)
        for x in inputs
    ]  # fmt: skip
    divided = config.is_sharded() and in_rows and config.memory_layout is not HEIGHT
    made = _join(c, same, dim, DRAM_MEMORY_CONFIG if divided else config, groups)
    if divided:
        made = c.replace(made, move_to(c, made, config))
    for x, source in zip(same, inputs, strict=True):
        if x is not source:
            c.free(x)
    return made


def _grown_shards(inputs: Sequence[PlannedTensor], dim: int, shards: ShardSpec) -> MemoryConfig:
    """Shards that hold those of all tensors, on the same cores."""
    axis, extent = (1 if dim == -1 else 0), list(shards.shape)
    held = [x.spec.memory_config.shard_spec for x in inputs]
    extent[axis] = sum(one.shape[axis] for one in held if one is not None)
    kind = inputs[0].spec.memory_config.memory_layout
    return MemoryConfig(kind, BufferType.L1, ShardSpec(shards.grid, extent, shards.orientation))


def _join(
    c: Composition, inputs: Sequence[PlannedTensor], dim: int, config: MemoryConfig, groups: int
) -> PlannedTensor:
    """The program that joins, and what it refuses."""
    first = inputs[0].spec
    shape = list(first.shape)
    shape[dim] = sum(x.spec.shape[dim] for x in inputs)
    made = TensorSpec(shape, first.dtype, first.layout, memory_config=config)
    held = first.memory_config
    _check_operands(inputs)
    for x in inputs:
        other = x.spec.memory_config
        if held.shard_spec is not None and other.shard_spec is not None:
            same = other.shard_spec.grid == held.shard_spec.grid
            require(same, "Sharded tensors must have the same grid.", "the same cores", CONVERT)
            wrong = "Sharded tensors must have the same memory layout."
            require(other.memory_layout is held.memory_layout, wrong, "one memory layout", CONVERT)
            wrong = "Sharded tensors must have the same shard orientation."
            require(other.shard_spec.orientation is held.shard_spec.orientation, wrong, "one orientation", CONVERT)
    if held.shard_spec is not None:
        _check_shards(first, config, dim, groups)
        _check_rows(inputs, dim)
    return c.run("concat", made, *inputs, options=dim if groups == 1 else (dim, groups))


def _check_operands(inputs: Sequence[PlannedTensor]) -> None:
    first = inputs[0].spec
    for x in inputs:
        require(x.spec.layout is first.layout, "All Tensors should have same layouts.", "one layout", CONVERT)
        require(x.spec.dtype is first.dtype, "All Tensors should have same dtypes.", "one format", CONVERT)
        same = x.spec.memory_config.is_sharded() is first.memory_config.is_sharded()
        require(same, "All tensors must be sharded or all must be interleaved", "one kind of memory", CONVERT)


def _check_rows(inputs: Sequence[PlannedTensor], dim: int) -> None:
    """Rows in shards are joined in pages of L1's alignment."""
    column = 0
    for i, x in enumerate(inputs):
        shards, size = x.spec.memory_config.shard_spec, element_bytes(x.spec.dtype)
        if shards is None or x.spec.layout is Layout.TILE:
            return
        height, width = shards.shape
        row = width * size
        if x.spec.memory_config.memory_layout is BLOCK:
            wrong = (
                f"Input {i} shard row size ({row} bytes = {width} elements x {size} bytes) is not L1-aligned (16 bytes). "
                "Block-sharded RM concat requires aligned row sizes for correct NOC transfers."
            )
            require(row % 16 == 0, wrong, "rows of a multiple of 16 bytes", CONVERT)
            wrong = (
                f"Width concat: input {i} starts at column {column} ({column * size} bytes), not L1-aligned (16 bytes)."
            )
            require(dim != -1 or column * size % 16 == 0, wrong, "columns of a multiple of 16 bytes", CONVERT)
        elif dim == -1:
            page = -(-row // 32) * 32
            wrong = (
                f"DFB 's2s_rm_input_{i}' (entry_size {page} * num_entries {height} = {page * height} bytes) is larger than "
                f"the per-bank allocation of its borrowed TensorParameter 'input_{i}' ({row * height} bytes)."
            )
            require(page == row, wrong, "rows of a multiple of 32 bytes", CONVERT)
        column += x.spec.shape[-1]


def _check_shards(first: TensorSpec, config: MemoryConfig, dim: int, groups: int) -> None:
    held = first.memory_config
    wrong = "Sharded output and inputs must have the same memory layout."
    require(config.memory_layout is held.memory_layout, wrong, "the inputs' memory layout", CONVERT)
    if config.shard_spec is not None and held.shard_spec is not None:
        wrong = "Sharded output and inputs must have the same grid."
        require(config.shard_spec.grid == held.shard_spec.grid, wrong, "the inputs' cores", CONVERT)
        wrong = "Sharded output and inputs must have the same shard orientation."
        same = config.shard_spec.orientation is held.shard_spec.orientation
        require(same, wrong, "the inputs' orientation", CONVERT)
    kind = held.memory_layout
    if dim == -1:
        wrong = "Only support width concat on height-sharded or block-sharded tensors."
        require(kind in (HEIGHT, BLOCK), wrong, "height or block shards", CONVERT)
    elif dim == -2:
        wrong = "Only support height concat on width-sharded or block-sharded tensors."
        require(kind in (WIDTH, BLOCK), wrong, "width or block shards", CONVERT)
    else:
        require(False, "Only width or height concat on sharded tensors", "one of the last two dims", CONVERT)
    wrong = (
        "Groups > 1 is only supported on height-sharded tensors "
        f"(groups={groups} and memory_layout=TensorMemoryLayout::{kind.name} was provided)"
    )
    require(groups == 1 or kind is HEIGHT, wrong, "height shards, or one group", CONVERT)
