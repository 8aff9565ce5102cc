"""Shard layouts, core grids and L1 of sliding-window operations, chosen as TT-NN chooses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ttmesh.base.core_work import num_cores_to_corerangeset
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType, ShardOrientation, TensorMemoryLayout
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shard_config import div_up, round_up

TILE = 32
HEIGHT, WIDTH, BLOCK = (
    TensorMemoryLayout.HEIGHT_SHARDED,
    TensorMemoryLayout.WIDTH_SHARDED,
    TensorMemoryLayout.BLOCK_SHARDED,
)


@dataclass(frozen=True)
class Window:
    """The extents of one sliding-window call on one chip."""

    rows: int  # outputs: batch · height · width
    input_rows: int
    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    weights_dtype: DataType
    dtype: DataType
    out_dtype: DataType = DataType.BFLOAT16
    has_bias: bool = False
    is_matmul: bool = False  # a 1 x 1 kernel with stride 1 and no padding: TT-NN runs a matmul
    out_width: int = 0  # of one image; used by convolutions that reuse activations between rows
    depthwise: bool = False  # one row of taps, one group per channel: TT-NN has a special program for it


@dataclass(frozen=True)
class ParallelConfig:
    """A shard layout with its grid: rows over `cores_rows` cores, channels over `cores_channels`."""

    layout: TensorMemoryLayout
    grid: CoreRangeSet
    cores_rows: int
    cores_channels: int
    orientation: ShardOrientation = ShardOrientation.ROW_MAJOR

    def memory(self, rows: int, channels: int, *, row_step: int = TILE) -> MemoryConfig:
        """The sharded L1 memory config of a matrix [rows, channels]."""
        height = round_up(rows, self.cores_rows * row_step) // self.cores_rows
        width = round_up(channels, self.cores_channels * TILE) // self.cores_channels
        return MemoryConfig(self.layout, BufferType.L1, ShardSpec(self.grid, (height, width), self.orientation))


def choose_core_count(number: int, start: int, multiple: int = 1) -> int:
    """The largest number of cores up to `start` for which the padding is smaller than one core's share of rows."""
    divisor = start
    while (
        divisor > 1 and round_up(number, divisor * multiple) - number >= round_up(number, divisor * multiple) // divisor
    ):
        divisor -= 1
    return divisor


def make_parallel_config(
    layout: TensorMemoryLayout,
    window: Window,
    grid: CoreCoord,
    *,
    transpose_shards: bool = False,
    block_height: int = 0,
    tile_rows: bool = True,
) -> ParallelConfig:
    """The cores over which a layout shards the outputs."""
    rows = div_up(window.rows, TILE if tile_rows else 1)
    multiple = max(block_height // TILE, 1)
    all_cores = grid.x * grid.y
    if layout is HEIGHT:
        cores = choose_core_count(rows, all_cores, multiple)
        return ParallelConfig(layout, num_cores_to_corerangeset(cores, grid, row_wise=True), cores, 1)
    channels = div_up(window.out_channels, TILE)
    if layout is WIDTH:
        cores = choose_core_count(channels, all_cores)
        return ParallelConfig(layout, num_cores_to_corerangeset(cores, grid, row_wise=True), 1, cores)
    grid_rows, grid_columns = (grid.x, grid.y) if transpose_shards else (grid.y, grid.x)
    cores_rows, cores_channels = choose_core_count(rows, grid_rows, multiple), choose_core_count(channels, grid_columns)
    x, y = (cores_rows, cores_channels) if transpose_shards else (cores_channels, cores_rows)
    orientation = ShardOrientation.COL_MAJOR if transpose_shards else ShardOrientation.ROW_MAJOR
    rectangle = CoreRangeSet([CoreRange(CoreCoord(0, 0), CoreCoord(x - 1, y - 1))])
    return ParallelConfig(BLOCK, rectangle, cores_rows, cores_channels, orientation)


def read_parallel_config(config: MemoryConfig) -> ParallelConfig:
    """The cores and layout of a tensor that is already sharded."""
    assert config.shard_spec is not None, "sliding windows take two-dimensional shards"
    shard, box = config.shard_spec, config.shard_spec.grid.bounding_box().grid_size()
    cores = shard.grid.num_cores()
    if config.memory_layout is HEIGHT:
        rows, channels = cores, 1
    elif config.memory_layout is WIDTH:
        rows, channels = 1, cores
    elif shard.orientation is ShardOrientation.ROW_MAJOR:
        rows, channels = box.y, box.x
    else:
        rows, channels = box.x, box.y
    return ParallelConfig(config.memory_layout, shard.grid, rows, channels, shard.orientation)


def estimate_halo_bytes(window: Window, config: ParallelConfig) -> int:
    """Bytes per core of the input rows with those of neighbouring cores around them, in row-major bfloat16.

    An estimate: it leaves out the rows of neighbours, which TT-NN finds by iterating over all windows.
    """
    if window.kernel == (1, 1):
        return 0  # a 1 x 1 kernel needs no neighbours
    rows = div_up(window.input_rows, config.cores_rows)
    return rows * round_up(div_up(window.in_channels, config.cores_channels), 8) * 2


def choose_layout(
    window: Window,
    grid: CoreCoord,
    *,
    transpose_shards: bool,
    block_height: int,
    buffers: Callable[[ParallelConfig], int],
) -> ParallelConfig:
    """The layout that needs the least L1, as TT-NN's auto-sharding decides.

    Args:
        buffers: bytes of circular buffers per core under a layout.
    """

    def cost(config: ParallelConfig) -> int:
        shards = config.memory(window.rows, window.out_channels).shard_spec
        assert shards is not None, "memory() returns a sharded config"
        return buffers(config) + shards.shape[0] * shards.shape[1] * 2

    options = {
        layout: make_parallel_config(layout, window, grid, transpose_shards=transpose_shards, block_height=block_height)
        for layout in (HEIGHT, BLOCK, WIDTH)
    }
    best = options[HEIGHT]
    if cost(options[BLOCK]) < cost(best) and options[BLOCK].grid.num_cores() >= grid.x:
        best = options[BLOCK]
    if cost(options[WIDTH]) < cost(best) and window.kernel != (1, 1):
        best = options[WIDTH]
    return best
