"""Which formats a layout can hold, and whether shards fit their grid, with TT-NN's error texts."""

from __future__ import annotations

from collections.abc import Sequence

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import MeshError, ShapeError, one_of
from ttmesh.chip.formats.tiles import Tile
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shard_config import div_up


def check_dtype(dtype: DataType, layout: Layout, tile: Tile | None) -> None:
    """Refuse formats that a layout cannot hold, and values that are not layouts."""
    if not isinstance(layout, Layout):
        raise TypeError(
            f"layout={layout!r} is a {type(layout).__name__}; pass ttnn.TILE_LAYOUT or ttnn.ROW_MAJOR_LAYOUT"
        )
    if not isinstance(dtype, DataType):
        raise TypeError(f"dtype={dtype!r} is a {type(dtype).__name__}; pass ttnn.bfloat16, say")
    if dtype is DataType.INVALID:
        raise MeshError(
            "Only UINT32, INT32, FLOAT32, UINT16, UINT8, INT8, BFLOAT16, BFLOAT8_B, BFLOAT4_B, or FP8_E4M3 dtypes are "
            "supported on device!",
            expected=one_of(d for d in DataType if d is not DataType.INVALID),
            fix="Pass one of these dtypes.",
        )
    if dtype in BLOCK_FLOATS and layout is not Layout.TILE:
        raise MeshError(
            "Layout must be Layout::TILE for bfloat8_b or bfloat4_b! "
            f"Only TILE layout is supported for BFLOAT8_B dtype! Got {dtype.name}.",
            expected="layout=ttnn.TILE_LAYOUT",
            fix="Leave the layout out or ask for TILE.",
        )
    if dtype is DataType.FP8_E4M3 and layout is not Layout.ROW_MAJOR:
        raise MeshError(
            "Only ROW_MAJOR layout is supported for FP8_E4M3 dtype!",
            expected="layout=ttnn.ROW_MAJOR_LAYOUT",
            fix="Ask for ROW_MAJOR.",
        )
    if layout is Layout.ROW_MAJOR and tile is not None and tile != Tile((32, 32)):
        raise MeshError(
            "Configuring a ROW MAJOR page config with a custom tile configuration is not supported.",
            expected="no tile with ROW_MAJOR",
            fix="Ask for TILE layout or drop the tile.",
        )


class ShardMisfitError(ShapeError):
    """Shards that do not fit the tensor or its grid of cores."""


def find_misfit(config: MemoryConfig, spec: ShardSpec, physical: tuple[int, int]) -> ShardMisfitError | None:
    """TT-NN's error for a height, width or block sharding of this extent, or None."""
    (height, width), (shard_height, shard_width) = physical, spec.shape
    rows, columns = div_up(height, max(shard_height, 1)), div_up(width, max(shard_width, 1))
    cores = spec.num_cores()
    if config.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED:
        if width != shard_width:
            return ShardMisfitError(
                f"Shard width {shard_width} must match physical width {width} for height sharded",
                expected=f"shards of {shard_height}x{width}",
                fix=f"Make the shard {width} wide, or shard by width or by blocks.",
            )
        return _too_many("height", rows, "cores", cores, height)
    if config.memory_layout is TensorMemoryLayout.WIDTH_SHARDED:
        if height != shard_height:
            return ShardMisfitError(
                f"Shard height {shard_height} must match physical height {height} for width sharded",
                expected=f"shards of {height}x{shard_width}",
                fix=f"Make the shard {height} high, or shard by height or by blocks.",
            )
        return _too_many("width", columns, "cores", cores, width)
    if config.memory_layout is TensorMemoryLayout.BLOCK_SHARDED:
        if spec.grid.size() != 1:
            return ShardMisfitError(
                "Shard grid must be one full rectangular grid for block sharded!",
                expected=f"one rectangle of cores, not {spec.grid.size()}",
                fix="Pass a single CoreRange.",
            )
        box = spec.grid.bounding_box().grid_size()
        if spec.orientation is ShardOrientation.ROW_MAJOR:
            tail, across, down = " for row major orientation!", ("rows", box.y), ("columns", box.x)
        else:
            tail, across, down = " for column major orientation!", ("columns", box.x), ("rows", box.y)
        return _too_many("height", rows, *across, height, tail) or _too_many("width", columns, *down, width, tail)
    return None


def _too_many(
    side: str, shards: int, line: str, available: int, extent: int, tail: str = ""
) -> ShardMisfitError | None:
    if shards <= available:
        return None
    return ShardMisfitError(
        f"Number of shards along {side} {shards} must not exceed number of {line} {available}{tail}",
        expected=f"at most {available} shards along {side}, so a shard {side} of {div_up(extent, available)} or more",
        fix=f"Enlarge the shard, or give it {shards} {line}.",
    )


def braces(shape: Sequence[int]) -> str:
    """As TT-NN's C++ prints a list: {32, 64}."""
    return f"{{{', '.join(map(str, shape))}}}"


def check_shard_tiles(config: MemoryConfig, layout: Layout, tile: Tile | None) -> None:
    """Raise for shards that do not consist of whole tiles."""
    shard = config.shard_spec.shape if config.shard_spec is not None else None
    if shard is None:
        shard = None if config.nd_shard_spec is None else list(config.nd_shard_spec.shard_shape)
    height, width = (32, 32) if tile is None else tuple(tile.tile_shape)
    if shard is None or layout is not Layout.TILE:
        return
    if shard[-1] % width or (len(shard) > 1 and shard[-2] % height):
        raise ShapeError(
            f"Physical shard shape {braces(shard)} must be tile {{{height}, {width}}} sized!",
            expected="multiples of the tile",
            fix="Round the shard shape up to tiles.",
        )
