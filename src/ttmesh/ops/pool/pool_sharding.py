"""Over which cores a pool spreads, and in which shards its result is left, chosen as TT-NN chooses them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ttmesh.base.core_work import num_cores_to_corerangeset
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import ELEMENT_BYTES, BufferType, DataType, TensorMemoryLayout
from ttmesh.ops.conv.conv_sharding import (
    BLOCK,
    HEIGHT,
    TILE,
    WIDTH,
    ParallelConfig,
    choose_core_count,
    read_parallel_config,
)
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shard_config import div_up, round_up

FACE = 16
STICK = 8  # elements of a row that L1 is aligned to
BUFFERED = 2  # pages of a circular buffer that is filled and emptied at once


@dataclass(frozen=True)
class PoolWork:
    """What decides how a pool is spread: its result, its window and its formats."""

    rows: int
    channels: int
    window: tuple[int, int]
    dtype: DataType
    tiled_input: bool
    tiled_output: bool
    averages: bool
    scalar_per_core: bool  # all windows of a core are divided by one number
    index_bytes: int = 0  # of an element of the indices, where they are returned


def choose_cores(call: Call, work: PoolWork, *, sliced: bool = False) -> ParallelConfig:
    """The input's cores, or for an interleaved input those that need the least L1."""
    given, grid = call.specs[0].memory_config, call.mesh.compute_with_storage_grid_size()
    if given.shard_spec is not None:
        return read_parallel_config(given)
    whole = call["stride"] is None and not sliced
    scheme = call["applied_shard_scheme"] or (WIDTH if whole else None)  # adaptive pools in L1
    if scheme is not None:
        return _spread(scheme, work, grid, TILE if work.tiled_input else STICK)
    height, width, block = (_spread(layout, work, grid, TILE) for layout in (HEIGHT, WIDTH, BLOCK))
    by_height, by_width, by_block = (_l1_bytes(cores, work) for cores in (height, width, block))
    return block if min(by_height, by_width) > by_block else width if by_height > by_width else height


def input_memory(cores: ParallelConfig, work: PoolWork, rows: int) -> MemoryConfig:
    """The shards that an interleaved input is put in."""
    height = round_up(rows, cores.cores_rows * (TILE if work.tiled_input else 1)) // cores.cores_rows
    width = (
        round_up(work.channels, cores.cores_channels * (TILE if work.tiled_input else STICK)) // cores.cores_channels
    )
    return MemoryConfig(cores.layout, BufferType.L1, ShardSpec(cores.grid, (height, width), cores.orientation))


def shard_output(cores: ParallelConfig, work: PoolWork) -> MemoryConfig:
    """The shards that the result is left in."""
    height = round_up(work.rows, cores.cores_rows * (TILE if work.tiled_output else 1)) // cores.cores_rows
    share = div_up(work.channels, cores.cores_channels)
    widened = work.tiled_output or (share > FACE and 0 < share % TILE < FACE)
    width = round_up(work.channels, cores.cores_channels * (TILE if widened else FACE)) // cores.cores_channels
    return MemoryConfig(cores.layout, BufferType.L1, ShardSpec(cores.grid, (height, width), cores.orientation))


def _spread(layout: TensorMemoryLayout, work: PoolWork, grid: CoreCoord, alignment: int) -> ParallelConfig:
    """Cores for a layout; channels are never padded, so their number divides the columns of tiles or faces."""
    rows = div_up(work.rows, TILE if work.tiled_output else 1)
    columns = div_up(work.channels, TILE if work.tiled_input or work.tiled_output else FACE)
    if layout is HEIGHT:
        count = choose_core_count(rows, grid.x * grid.y)
        return ParallelConfig(layout, num_cores_to_corerangeset(count, grid, row_wise=True), count, 1)
    if layout is WIDTH:
        count = _largest_divisor(grid.x * grid.y, columns)
        return ParallelConfig(layout, num_cores_to_corerangeset(count, grid, row_wise=True), 1, count)
    down = choose_core_count(rows, grid.y)
    across = _largest_divisor(grid.x, columns, div_up(work.channels, alignment))
    rectangle = CoreRangeSet([CoreRange(CoreCoord(0, 0), CoreCoord(across - 1, down - 1))])
    return ParallelConfig(layout, rectangle, down, across)


def _largest_divisor(most: int, *numbers: int) -> int:
    return next(count for count in range(most, 0, -1) if all(number % count == 0 for number in numbers))


def _l1_bytes(cores: ParallelConfig, work: PoolWork) -> int:
    """Circular buffers and the result's shard per core, in TT-NN's estimate."""
    bytes_each = ELEMENT_BYTES.get(work.dtype, 2)  # block floats are widened to bfloat16
    tile_bytes, taps = bytes_each * TILE * TILE, prod(work.window)
    lines = taps if taps <= FACE else TILE
    share = work.channels // cores.cores_channels
    partial = share % TILE != 0 and share % TILE <= FACE
    large = taps > (TILE // 2 if partial else TILE)
    most_tiles = 1 if work.index_bytes else 4 if work.averages and large else 8
    tiles = div_up(work.channels, cores.cores_channels * TILE)
    wide = tiles > most_tiles or bool(work.index_bytes)
    elements = (most_tiles if wide else tiles) * TILE * (TILE if work.index_bytes else lines)
    scalars = BUFFERED * tile_bytes * (2 if work.averages and not work.scalar_per_core else 1)
    inputs = 2 * BUFFERED * bytes_each * round_up(elements, TILE * TILE)
    indices = (6 + 2 * large) * work.index_bytes * TILE * TILE + tile_bytes if work.index_bytes else 0
    columns = round_up(work.channels, cores.cores_channels * FACE) // cores.cores_channels
    height = round_up(div_up(work.rows, cores.cores_rows), TILE)
    before_tilizing = TILE * bytes_each * TILE * tiles if work.tiled_output else 0
    output = height * columns * bytes_each
    results = round_up(output, TILE) + (round_up(height * columns * work.index_bytes, TILE) if work.index_bytes else 0)
    return scalars + tile_bytes + inputs + indices + before_tilizing + results


def index_bytes(height: int, width: int) -> int:
    """Bytes of an index into an image."""
    return 2 if height * width <= 65535 else 4
