"""Shard layouts, core grids and L1 of sliding-window operations, chosen as TT-NN chooses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ttmesh.base.core_work import num_cores_to_corerangeset
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import Arch, BufferType, DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.chip.formats.tiles import Tile, tile_bytes
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shard_config import div_up, round_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
L1_STEP = 8  # channels of the smallest piece that L1 can be read by: 16 B of bfloat16
NOC_BURSTS = {Arch.WORMHOLE_B0: 8192, Arch.BLACKHOLE: 16384}  # bytes that a core reads at once
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
    depthwise: bool = False  # one row of taps, one group per channel: TT-NN has a special program for it
    channel_step: int = (
        L1_STEP  # the input's channels are divided in multiples of this; 32 for tiles that are not sliced
    )
    noc_burst: int = NOC_BURSTS[Arch.WORMHOLE_B0]
    out_size: tuple[int, int] = (1, 1)  # of one image
    padded_size: tuple[int, int] = (1, 1)  # of one image with its padding
    stride: tuple[int, int] = (1, 1)  # 1 if transposed: zeros between pixels are in the padded size
    dilation: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class ParallelConfig:
    """A shard layout with the result's grid: rows over `cores_rows` cores, channels over `cores_channels`."""

    layout: TensorMemoryLayout
    grid: CoreRangeSet
    cores_rows: int
    cores_channels: int
    orientation: ShardOrientation = ShardOrientation.ROW_MAJOR
    input_cores: int = 1  # over which the input's channels are divided

    @property
    def cores(self) -> int:
        """The cores of the input or of the result, whichever are more."""
        return self.cores_rows * max(self.cores_channels, self.input_cores)

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


def _choose_divisor(start: int, *numbers: int) -> int:
    """The largest number of cores up to `start` that divides all of these."""
    return next(n for n in range(start, 0, -1) if not any(number % n for number in numbers))


def make_parallel_config(
    layout: TensorMemoryLayout,
    window: Window,
    grid: CoreCoord,
    *,
    transpose_shards: bool = False,
    block_height: int = 0,
    core_grid: CoreRangeSet | None = None,
) -> ParallelConfig:
    """The cores over which a layout shards the input and the outputs; `core_grid` sets those of the input."""
    if core_grid is not None:
        columns = layout is BLOCK and transpose_shards
        orientation = ShardOrientation.COL_MAJOR if columns else ShardOrientation.ROW_MAJOR
        given = MemoryConfig(layout, BufferType.L1, ShardSpec(core_grid, (TILE, TILE), orientation))
        return follow_shards(given, window, grid)
    rows, channels = div_up(window.rows, TILE), div_up(window.out_channels, TILE)
    multiple = max(block_height // TILE, 1)
    all_cores = grid.x * grid.y
    if layout is HEIGHT:
        cores = choose_core_count(rows, all_cores, multiple)
        return ParallelConfig(layout, num_cores_to_corerangeset(cores, grid, row_wise=True), cores, 1)
    if layout is WIDTH:
        blocks = div_up(window.in_channels, TILE)
        cores, input_cores = choose_core_count(channels, all_cores), choose_core_count(blocks, all_cores)
        if window.is_matmul:  # nothing is padded, and the result stays on the input's cores
            cores = input_cores = _choose_divisor(all_cores, blocks)
        result_grid = num_cores_to_corerangeset(cores, grid, row_wise=True)
        return ParallelConfig(layout, result_grid, 1, cores, input_cores=input_cores)
    orientation = ShardOrientation.COL_MAJOR if transpose_shards else ShardOrientation.ROW_MAJOR
    grid_rows, grid_columns = (grid.x, grid.y) if transpose_shards else (grid.y, grid.x)
    blocks = div_up(window.in_channels, window.channel_step)
    cores, input_cores = choose_core_count(channels, grid_columns), choose_core_count(blocks, grid_columns)
    if window.is_matmul:
        cores = input_cores = _choose_divisor(grid_columns, channels, blocks)
    cores_rows = choose_core_count(rows, grid_rows, multiple)
    return ParallelConfig(
        BLOCK, _make_rectangle(cores_rows, cores, orientation), cores_rows, cores, orientation, input_cores
    )


def _make_rectangle(rows: int, columns: int, orientation: ShardOrientation) -> CoreRangeSet:
    x, y = (columns, rows) if orientation is ShardOrientation.ROW_MAJOR else (rows, columns)
    return CoreRangeSet([CoreRange(CoreCoord(0, 0), CoreCoord(x - 1, y - 1))])


def follow_shards(config: MemoryConfig, window: Window, grid: CoreCoord) -> ParallelConfig:
    """The cores of a convolution whose input is already sharded: the result's channels are divided anew."""
    given = read_parallel_config(config)
    channels = div_up(window.out_channels, TILE)
    if given.layout is HEIGHT or window.is_matmul:
        return replace(given, input_cores=given.cores_channels)
    if given.layout is WIDTH:
        cores = choose_core_count(channels, grid.x * grid.y)
        result_grid = num_cores_to_corerangeset(cores, grid, row_wise=True)
    else:
        cores = choose_core_count(channels, grid.x if given.orientation is ShardOrientation.ROW_MAJOR else grid.y)
        result_grid = _make_rectangle(given.cores_rows, cores, given.orientation)
    return replace(given, grid=result_grid, cores_channels=cores, input_cores=given.cores_channels)


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


def channel_step_of(memory: MemoryConfig) -> int:
    """In multiples of how many channels an input of rows is divided: of what the shards it has are divided in."""
    if not memory.is_sharded() or memory.shard_spec is None:
        return L1_STEP
    width = memory.shard_spec.shape[1]
    return next((step for step in (TILE, TILE // 2, L1_STEP) if width % step == 0), TILE)


def count_halo_rows(window: Window, cores_rows: int) -> int:
    """Rows of the padded input between the first and the last that a core reads, on the core that reaches furthest."""
    per_core = div_up(div_up(window.rows, TILE), cores_rows) * TILE
    (out_height, out_width), (height, width) = window.out_size, window.padded_size

    def find_place(output: int) -> int:
        image, inside = divmod(output, out_height * out_width)
        row, column = divmod(inside, out_width)
        return (image * height + row * window.stride[0]) * width + column * window.stride[1]

    furthest = max(
        find_place(min(first + per_core, window.rows) - 1) - find_place(first)
        for first in range(0, window.rows, per_core)
    )
    down, right = (d * (k - 1) for d, k in zip(window.dilation, window.kernel, strict=True))
    return furthest + down * width + right + 1


def make_halo_spec(window: Window, config: ParallelConfig, grid: CoreCoord) -> TensorSpec | None:
    """What a convolution reads: the rows of every core and of its neighbours, in L1; None for matmuls."""
    if window.is_matmul:
        return None
    rows = count_halo_rows(window, config.cores_rows)
    step = TILE if config.layout is WIDTH else window.channel_step
    channels = round_up(window.in_channels, config.input_cores * step) // config.input_cores
    cores = config.grid
    if config.layout is BLOCK:
        cores = _make_rectangle(config.cores_rows, config.input_cores, config.orientation)
    elif config.layout is WIDTH:
        cores = num_cores_to_corerangeset(config.input_cores, grid, row_wise=True)
    memory = MemoryConfig(config.layout, BufferType.L1, ShardSpec(cores, (rows, channels), config.orientation))
    shape = (1, 1, rows * config.cores_rows, channels * config.input_cores)
    dtype = DataType.FLOAT32 if window.dtype is DataType.FLOAT32 else DataType.BFLOAT16
    return TensorSpec(shape, dtype, Layout.ROW_MAJOR, memory_config=memory)


def count_halo_bytes(window: Window, config: ParallelConfig) -> int:
    """Bytes per core of what a convolution reads."""
    if window.is_matmul:
        return 0
    step = TILE if config.layout is WIDTH else window.channel_step
    channels = round_up(window.in_channels, config.input_cores * step) // config.input_cores
    return count_halo_rows(window, config.cores_rows) * channels * (4 if window.dtype is DataType.FLOAT32 else 2)


def count_weight_rows(window: Window, config: ParallelConfig) -> int:
    """Rows of the weights as each core reads them: its own channels, a row of taps at a time in whole tiles."""
    step = TILE if config.layout is WIDTH else window.channel_step
    cores = 1 if config.layout is HEIGHT else config.input_cores
    channels = round_up(window.in_channels, cores * step) // cores
    high, wide = window.kernel
    if config.layout is WIDTH:
        return high * wide * channels * cores
    return cores * high * round_up(wide * channels, TILE)


def count_input_bytes(window: Window, config: ParallelConfig) -> int:
    """Bytes per core of the input's shards."""
    rows = round_up(window.input_rows, config.cores_rows * TILE) // config.cores_rows
    step = TILE if config.layout is WIDTH else window.channel_step
    channels = round_up(window.in_channels, config.input_cores * step) // config.input_cores
    size = rows * channels * (4 if window.dtype is DataType.FLOAT32 else 2)
    return size // 2 if window.dtype is DataType.BFLOAT8_B else size


def size_result(window: Window, config: ParallelConfig) -> int:
    """Bytes per core of the result's shards."""
    shards = config.memory(window.rows, window.out_channels).shard_spec
    assert shards is not None, "memory() returns a sharded config"
    tiles = div_up(shards.shape[0], TILE) * div_up(shards.shape[1], TILE)
    return tiles * tile_bytes(window.out_dtype, Tile((TILE, TILE)))


def choose_layout(
    window: Window,
    grid: CoreCoord,
    *,
    transpose_shards: bool,
    block_height: int,
    needs: Callable[[ParallelConfig], int],
) -> ParallelConfig:
    """The layout that needs the least L1, as TT-NN's auto-sharding decides; rows of depthwise taps only have height.

    Args:
        needs: bytes of L1 per core under a layout.
    """

    def make(layout: TensorMemoryLayout) -> ParallelConfig:
        return make_parallel_config(layout, window, grid, transpose_shards=transpose_shards, block_height=block_height)

    best = make(HEIGHT)
    if window.depthwise:
        return best
    block, width = make(BLOCK), make(WIDTH)
    if needs(block) < needs(best) and block.cores >= grid.x:
        best = block
    if needs(width) < needs(best) and not window.is_matmul:
        best = width
    return best
