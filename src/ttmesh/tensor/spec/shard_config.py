"""Shard shapes from a tensor shape, a core grid and a strategy: `create_sharded_memory_config`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ttmesh.base.cores import CoreCoord, CoreGrid, CoreRange, CoreRangeSet, DramGrid
from ttmesh.base.dtypes import BufferType, ShardOrientation, ShardStrategy, TensorMemoryLayout
from ttmesh.base.errors import ShapeError, one_of
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shape import Shape

TILE_HEIGHT = 32

LAYOUTS = {
    ShardStrategy.HEIGHT: TensorMemoryLayout.HEIGHT_SHARDED,
    ShardStrategy.WIDTH: TensorMemoryLayout.WIDTH_SHARDED,
    ShardStrategy.BLOCK: TensorMemoryLayout.BLOCK_SHARDED,
}

Grid = CoreGrid | CoreCoord | CoreRangeSet | Sequence[CoreGrid]


def create_sharded_memory_config(
    shape: Sequence[int],
    core_grid: Grid,
    strategy: ShardStrategy,
    orientation: ShardOrientation | None = None,
    use_height_and_width_as_shard_shape: bool = False,
) -> MemoryConfig:
    """A sharded L1 config (DRAM for a DRAM grid); the shape must divide evenly over the grid."""
    _check_shape(shape)
    if not isinstance(strategy, ShardStrategy):
        raise _shard_error("Invalid sharding strategy", strategy, one_of(ShardStrategy))
    grid, memory = _shard_grid(core_grid)
    by_rows = _orientation(orientation) is ShardOrientation.ROW_MAJOR
    if use_height_and_width_as_shard_shape:
        shard_shape = _given_shard_shape(shape, by_rows=by_rows)
    elif isinstance(core_grid, CoreRangeSet):
        raise _shard_error(
            "height and width must be shard shape with CoreRangeSet",
            core_grid,
            "use_height_and_width_as_shard_shape=True",
        )
    else:
        height, width = prod(shape[:-1]), shape[-1]
        rows, columns = _parts(LAYOUTS[strategy], grid, by_rows=by_rows)
        if height % rows or width % columns:
            raise _shard_error(
                "Invalid sharding core_grid",
                core_grid,
                f"{height} rows to divide by {rows} and {width} columns by {columns}",
            )
        shard_shape = height // rows, width // columns
    return _config(LAYOUTS[strategy], memory, grid, shard_shape, _orientation(orientation))


def create_sharded_memory_config_(
    shape: Sequence[int],
    core_grid: Grid,
    strategy: ShardStrategy | TensorMemoryLayout,
    orientation: ShardOrientation,
    use_height_and_width_as_shard_shape: bool = False,
    tile_layout: bool = False,
) -> MemoryConfig:
    """The same for shapes that do not divide: the last shards are padded (to tiles on request)."""
    _check_shape(shape)
    if not isinstance(strategy, (ShardStrategy, TensorMemoryLayout)):
        raise _shard_error("Invalid type of sharding strategy", strategy, one_of(ShardStrategy))
    if not isinstance(orientation, ShardOrientation):
        raise _shard_error("Invalid type of shard orientation", orientation, one_of(ShardOrientation))
    layout = LAYOUTS[strategy] if isinstance(strategy, ShardStrategy) else strategy
    if layout not in LAYOUTS.values():
        raise _shard_error("Invalid sharding scheme", layout, one_of(LAYOUTS.values()))
    grid, memory = _shard_grid(core_grid)
    by_rows = orientation is ShardOrientation.ROW_MAJOR
    if use_height_and_width_as_shard_shape:
        shard_shape = _given_shard_shape(shape, by_rows=by_rows)
    else:
        box = grid.bounding_box().grid_size()
        if layout is TensorMemoryLayout.BLOCK_SHARDED and box.x * box.y != grid.num_cores():
            raise _shard_error("Invalid CoreRangeSet for block sharding strategy", grid, "one full rectangle")
        height, width = prod(shape[:-1]), shape[-1]
        rows, columns = _parts(layout, grid, by_rows=by_rows)
        if tile_layout and layout is TensorMemoryLayout.BLOCK_SHARDED:
            height = round_up(height, rows * TILE_HEIGHT)
        shard_shape = div_up(height, rows), div_up(width, columns)
    if tile_layout and shard_shape[0] % TILE_HEIGHT and shard_shape[1] % TILE_HEIGHT:
        raise _shard_error("Incorrect tensor shape", list(shape), f"a shard side that is a multiple of {TILE_HEIGHT}")
    return _config(layout, memory, grid, shard_shape, orientation)


def div_up(value: int, divisor: int) -> int:
    """Quotient rounded up."""
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    """The next multiple; zero means no rounding."""
    return div_up(value, multiple) * multiple if multiple else value


def _parts(layout: TensorMemoryLayout, grid: CoreRangeSet, *, by_rows: bool) -> tuple[int, int]:
    """Into how many shards height and width are split."""
    if layout is TensorMemoryLayout.HEIGHT_SHARDED:
        return grid.num_cores(), 1
    if layout is TensorMemoryLayout.WIDTH_SHARDED:
        return 1, grid.num_cores()
    box = grid.bounding_box().grid_size()
    return (box.y, box.x) if by_rows else (box.x, box.y)


def _given_shard_shape(shape: Sequence[int], *, by_rows: bool) -> tuple[int, int]:
    return (shape[-2], shape[-1]) if by_rows else (shape[-1], shape[-2])


def _shard_grid(core_grid: Grid) -> tuple[CoreRangeSet, BufferType]:
    """The cores that a grid argument names, and whether their memory is L1 or DRAM."""
    if isinstance(core_grid, CoreRangeSet):
        return core_grid, BufferType.L1
    if isinstance(
        core_grid, (CoreGrid, CoreCoord)
    ):  # TT-NN refuses a CoreCoord; what dram_grid_size() gives works here
        cores = CoreRangeSet(CoreRange(CoreCoord(0, 0), CoreCoord(core_grid.x - 1, core_grid.y - 1)))
        return cores, BufferType.DRAM if isinstance(core_grid, DramGrid) else BufferType.L1
    kinds = "a CoreGrid, a CoreCoord, a CoreRangeSet or two CoreGrids"
    if not isinstance(core_grid, (list, tuple)):
        raise _shard_error("Invalid core_grid type", core_grid, kinds)
    if len(core_grid) != 2:
        raise _shard_error("Invalid core_grid", core_grid, kinds)
    if not all(isinstance(grid, CoreGrid) for grid in core_grid):
        raise _shard_error("Invalid core_grid type", core_grid, kinds)
    full, rest = core_grid  # this many full rows, then one row that is shorter
    boxes = [
        CoreRange(CoreCoord(0, 0), CoreCoord(full.x - 1, full.y - 1)),
        CoreRange(CoreCoord(0, full.y), CoreCoord(rest.x - 1, full.y)),
    ]
    return CoreRangeSet(boxes), BufferType.L1


def _orientation(orientation: ShardOrientation | None) -> ShardOrientation:
    if orientation is not None and not isinstance(orientation, ShardOrientation):
        raise _shard_error("Invalid shard orientation", orientation, one_of(ShardOrientation))
    return ShardOrientation.ROW_MAJOR if orientation is None else orientation


def _check_shape(shape: object) -> None:
    if not isinstance(shape, (list, tuple, Shape)) or len(shape) < 2:
        raise _shard_error("Invalid input shape", shape, "a shape of at least two dims")


def _config(
    layout: TensorMemoryLayout,
    memory: BufferType,
    grid: CoreRangeSet,
    shard_shape: tuple[int, int],
    orientation: ShardOrientation,
) -> MemoryConfig:
    return MemoryConfig(layout, memory, ShardSpec(grid, shard_shape, orientation))


def _shard_error(text: str, value: object, expected: str) -> ShapeError:
    return ShapeError(f"{text}: {value!r}", expected=expected, fix="Change the shape, the grid or the strategy.")
