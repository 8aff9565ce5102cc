"""Tensors that leave their tiles: the spec of the rows, as TT-NN chooses it and refuses it."""

from __future__ import annotations

from math import prod

from ttmesh.base.dtypes import BufferType, DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec

HEIGHT, WIDTH, BLOCK = (
    TensorMemoryLayout.HEIGHT_SHARDED, TensorMemoryLayout.WIDTH_SHARDED, TensorMemoryLayout.BLOCK_SHARDED,
)  # fmt: skip


def spec_in_rows(spec: TensorSpec, config: MemoryConfig) -> TensorSpec:
    """The rows of a tensor in tiles, in this memory; bfloat8_b becomes bfloat16, and shards lose their padding."""
    wrong = "Only TILE layout is supported for BFLOAT8_B dtype! (TT-NN says so of bfloat4_b, too.)"
    require(
        spec.dtype is not DataType.BFLOAT4_B,
        wrong,
        "a format that rows can have",
        "Convert it with ttnn.typecast first.",
    )
    dtype = DataType.BFLOAT16 if spec.dtype is DataType.BFLOAT8_B else spec.dtype
    held, asked = spec.memory_config.shard_spec, config
    padded = bool(spec.shape) and tuple(spec.shape) != tuple(spec.padded_shape)
    if padded and held is not None:
        _check_shards(spec, held, config)
        if config.is_sharded() and config.memory_layout is spec.memory_config.memory_layout:
            shards = ShardSpec(held.grid, _shard_shape(spec, held), held.orientation)
            asked = MemoryConfig(config.memory_layout, config.buffer_type, shards)
    return TensorSpec(spec.shape, dtype, Layout.ROW_MAJOR, memory_config=asked)


def _shard_shape(spec: TensorSpec, held: ShardSpec) -> tuple[int, int]:
    """What a shard holds without the padding of the tensor."""
    kind, (height, width) = spec.memory_config.memory_layout, held.shape
    rows, columns = prod(spec.shape[:-1]), spec.shape[-1]
    if kind is WIDTH:
        return rows, width
    if kind is HEIGHT:
        matrices = height * width // prod(spec.padded_shape[-2:])
        if matrices > 1:
            return matrices * spec.shape[-2], columns
        return _whole_tiles(div_up(rows, held.num_cores())), columns
    box = held.grid.bounding_box().grid_size()
    down, across = (box.y, box.x) if held.orientation is ShardOrientation.ROW_MAJOR else (box.x, box.y)
    return _whole_tiles(div_up(rows, down)), _whole_tiles(div_up(columns, across))


def _whole_tiles(extent: int) -> int:
    return div_up(extent, 32) * 32


def _check_shards(spec: TensorSpec, held: ShardSpec, config: MemoryConfig) -> None:
    """What the program that leaves padding out refuses of shards."""
    before, after = spec.memory_config.memory_layout, config.memory_layout
    batched = prod(spec.padded_shape[:-2]) > 1
    other = f"TensorMemoryLayout::{after.name}"
    move = "Move it with ttnn.to_memory_config to DRAM first."
    if before is HEIGHT:
        wrong = f"Output memory config layout must be HEIGHT_SHARDED when output is sharded but got {other}"
        require(not config.is_sharded() or after is HEIGHT, wrong, "shards by height", move)
        return
    if not config.is_sharded():
        require(not batched, "Can only write unbatched output interleaved", "one matrix", move)
        missing = spec.padded_shape[-1] - spec.shape[-1]
        wrong = f"Input tensor width difference ({missing}) must be less than shard width ({held.shape[1]})"
        require(before is BLOCK or missing < held.shape[1], wrong, "a full last shard", move)
        return
    if before is BLOCK:
        wrong = (
            f"Output memory config layout ({other}) must be BLOCK_SHARDED (or WIDTH_SHARDED with a matching column shard "
            "width) when input is BLOCK_SHARDED and output is sharded"
        )
        require(after in (BLOCK, WIDTH), wrong, "shards by blocks", move)
        wrong = f"Can only write unbatched output for BLOCK_SHARDED -> {after.name}"
        require(not batched, wrong, "one matrix", move)
        return
    wrong = (
        f"Output memory config layout ({other}) must match input tensor memory layout (TensorMemoryLayout::{before.name}) "
        "(or be BLOCK_SHARDED with a matching column shard width)"
    )
    require(after in (WIDTH, BLOCK), wrong, "shards by width", move)
    wrong = f"{before.name} -> {after.name} output must be in L1; got buffer_type=BufferType::{config.buffer_type.name}"
    require(config.buffer_type is BufferType.L1, wrong, "L1", move)
