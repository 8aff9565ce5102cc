"""Stages of ttnn.slice: which memory a slice takes, through which programs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ttmesh.base.dtypes import Layout, TensorMemoryLayout
from ttmesh.base.errors import ShapeError, require
from ttmesh.ops.stages.movement_stages import move_to, to_rows, to_tiles
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.spec.memory_config import L1_MEMORY_CONFIG, MemoryConfig, ShardSpec
from ttmesh.tensor.spec.page_extents import element_bytes
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Bounds = Sequence[slice]
TILE, ALIGNMENT = 32, 16


def slices_rows(spec: TensorSpec, bounds: Bounds) -> bool:
    """Whether TT-NN slices rows: tensors in rows, strided slices, one dim, or a start that is not a tile's start."""
    if spec.layout is not Layout.TILE or len(bounds) < 2 or any(bound.step != 1 for bound in bounds):
        return True
    height, width = spec.tile.tile_shape
    return bool(bounds[-1].start % width or bounds[-2].start % height)


def slice_tensor(c: Composition, x: PlannedTensor, bounds: Bounds, config: MemoryConfig | None) -> PlannedTensor:
    """A part of a tensor, which is not all of it; raises TT-NN's refusal where shards of it do not fit."""
    spec, asked, shape = x.spec, config or x.spec.memory_config, sliced_shape(bounds)
    in_rows = slices_rows(spec, bounds)
    fitted = _scale_shards(spec, shape, asked, in_rows) if config is None else asked
    leaves = _leaves_shards(spec, bounds, fitted)
    if leaves or _returns_to_shards(spec, fitted):
        source = move_to(c, x, L1_MEMORY_CONFIG) if leaves else x
        plain = slice_tensor(c, source, bounds, L1_MEMORY_CONFIG)
        made = c.replace(plain, move_to(c, plain, fitted))
        if source is not x:
            c.free(source)
        return made
    source = to_rows(c, x, asked) if in_rows else x
    tile = source.spec.tile if source.spec.layout is Layout.TILE else None
    plain_spec = TensorSpec(shape, source.spec.dtype, source.spec.layout, tile=tile)
    whole = shape if in_rows else plain_spec.padded_shape
    made_spec = TensorSpec(whole, source.spec.dtype, source.spec.layout, tile=tile, memory_config=fitted)
    made = c.run("slice", made_spec, source, options=tuple((b.start, b.stop, b.step) for b in bounds))
    if in_rows:
        _check_pages(made_spec, bounds)
    made = c.view(made, made.spec.with_shape(shape))
    if in_rows and spec.layout is Layout.TILE:
        made = c.replace(made, to_tiles(c, made))
        c.free(source)
    return made


def _check_pages(made: TensorSpec, bounds: Bounds) -> None:
    """Rows that are divided over cores are written in pages of L1's alignment, and fill their shards."""
    shards = made.memory_config.shard_spec
    if shards is None or made.memory_config.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED:
        return
    size = shards.shape[1] * element_bytes(made.dtype)
    wrong = (
        f"ttnn::slice: output per-shard page size {size} B disagrees with the accessor's aligned page size "
        f"{_round_up(size, ALIGNMENT)} B ({size} B is not a multiple of the {ALIGNMENT} B buffer alignment)"
    )
    strided = any(bound.step != 1 for bound in bounds)
    require(
        strided or size % ALIGNMENT == 0, wrong, "an aligned shard", "Move it with ttnn.to_memory_config to DRAM first."
    )
    if made.padded_shape[-1] != made.shape[-1]:
        raise ShapeError(
            "Changing the last dimension of a sharded tensor is not supported unless the shard width matches the input "
            f"last dimension. Input shape: {made.padded_shape!r}, New shape: {made.shape!r}, Shard width: {shards.shape[1]}",
            expected="a slice that fills its shards",
            fix="Move it with ttnn.to_memory_config to DRAM first.",
        )


def sliced_shape(bounds: Bounds) -> tuple[int, ...]:
    """The extents of a slice."""
    return tuple(div_up(bound.stop - bound.start, bound.step) for bound in bounds)


def _is_ragged(spec: TensorSpec, config: MemoryConfig) -> bool:
    """Shards of rows that are not a multiple of L1's alignment."""
    shards = config.shard_spec
    return shards is not None and shards.shape[1] * element_bytes(spec.dtype) % ALIGNMENT != 0


def _leaves_shards(spec: TensorSpec, bounds: Bounds, asked: MemoryConfig) -> bool:
    """Rows in shards that the program cannot read where they are."""
    held = spec.memory_config
    if spec.layout is not Layout.ROW_MAJOR or held.shard_spec is None:
        return False
    if held.memory_layout is not TensorMemoryLayout.HEIGHT_SHARDED:
        return bool(spec.shape[-1] % TILE) or bounds[-1].start != 0 or _is_ragged(spec, held)
    stays = asked.memory_layout is held.memory_layout and all(bound.step == 1 for bound in bounds)
    return any(n % TILE for n in spec.shape[-2:]) and len(spec.shape) > 1 and not stays


def _returns_to_shards(spec: TensorSpec, asked: MemoryConfig) -> bool:
    """Rows that the program cannot write where they are asked for."""
    divided = asked.memory_layout in (TensorMemoryLayout.WIDTH_SHARDED, TensorMemoryLayout.BLOCK_SHARDED)
    return spec.layout is Layout.ROW_MAJOR and divided and (bool(spec.shape[-1] % TILE) or _is_ragged(spec, asked))


def _scale_shards(spec: TensorSpec, shape: Sequence[int], held: MemoryConfig, in_rows: bool) -> MemoryConfig:
    """Shards of the slice on the cores of the tensor; in tiles they are whole tiles."""
    shards, kind = held.shard_spec, held.memory_layout
    if shards is None or len(shape) < 2 or held.created_with_nd_shard_spec:
        return held
    height, width = (1, 1) if in_rows else spec.tile.tile_shape
    rows, columns = prod((*shape[:-2], _round_up(shape[-2], height))), _round_up(shape[-1], width)
    box = shards.grid.bounding_box().grid_size()
    down, across = {
        TensorMemoryLayout.HEIGHT_SHARDED: (shards.num_cores(), 1),
        TensorMemoryLayout.WIDTH_SHARDED: (1, shards.num_cores()),
    }.get(kind, (box.y, box.x))
    extent = _round_up(div_up(rows, down), height), _round_up(div_up(columns, across), width)
    return MemoryConfig(kind, held.buffer_type, ShardSpec(shards.grid, extent, shards.orientation))


def _round_up(extent: int, unit: int) -> int:
    return div_up(extent, unit) * unit
