"""The blocks that a matmul is divided into; follows TT-NN's choice of a program if the call names none.

The sizes were compared with the circular buffers that TT-NN 0.81.1 lays out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from ttmesh.base.cores import CoreCoord, CoreGrid
from ttmesh.base.dtypes import BufferType, DataType, ShardOrientation, TensorMemoryLayout
from ttmesh.chip.formats.tiles import Tile, tile_bytes
from ttmesh.ops.configs.matmul_program_configs import MatmulMultiCoreProgramConfig, ProgramConfig
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
NARROW = 8  # if one side is more than this many times the other, the cores form one row or column
LARGEST_FACTOR = 16


@dataclass(frozen=True)
class MatmulCase:
    """What the choice depends on: operands, result, free L1 and the options of the call."""

    a: TensorSpec
    b: TensorSpec
    transpose_a: bool
    transpose_b: bool
    out: MemoryConfig
    out_dtype: DataType
    fp32_dest: bool
    bias_dtype: DataType | None
    core_grid: CoreGrid | None
    device_grid: CoreCoord
    l1_bytes: int

    @property
    def m(self) -> int:
        """Rows of one matrix in tiles."""
        return self.a.padded_shape[-1 if self.transpose_a else -2] // TILE

    @property
    def k(self) -> int:
        """The inner extent in tiles."""
        return self.a.padded_shape[-2 if self.transpose_a else -1] // TILE

    @property
    def n(self) -> int:
        """Columns in tiles."""
        return self.b.padded_shape[-2 if self.transpose_b else -1] // TILE

    @property
    def batch_a(self) -> int:
        """Matrices in A."""
        return prod(self.a.padded_shape[:-2])

    @property
    def batch_b(self) -> int:
        """Matrices in B."""
        return prod(self.b.padded_shape[:-2])

    def fits(self, m: int, n: int, k: int) -> bool:
        """Whether blocks of this many tiles fit into L1, by TT-NN's estimate."""
        tile = Tile((TILE, TILE))
        in_a, in_b = tile_bytes(self.a.dtype, tile), tile_bytes(self.b.dtype, tile)
        bfloat16_bytes, float32_bytes = tile_bytes(DataType.BFLOAT16, tile), tile_bytes(DataType.FLOAT32, tile)
        partial_bytes = float32_bytes if self.fp32_dest else max(bfloat16_bytes, tile_bytes(self.out_dtype, tile))
        bias = tile_bytes(self.bias_dtype, tile) if self.bias_dtype is not None else 0
        shard = self.a.memory_config.shard_spec
        shard_bytes = m * (shard.shape[1] // TILE) * in_a if shard is not None else 0
        transposed_bytes = 0 if not self.transpose_a else shard_bytes or 2 * m * k * in_a
        needed = (
            2 * k * (m * in_a + n * in_b) + m * n * (in_a + partial_bytes) + n * bias + shard_bytes + transposed_bytes
        )
        return needed < self.l1_bytes


@dataclass(frozen=True)
class MatmulBlocks:
    """How a program divides the work: tiles of K at a time, the block of the result that they make, a core's whole part."""

    depth: int
    height: int
    width: int
    core_height: int
    core_width: int
    by_rows: bool = False  # every core has rows of A of its own


def tiles_per_block(case: MatmulCase, program_config: ProgramConfig | None) -> int | None:
    """Tiles of K per block; None where one program takes all of K tile by tile."""
    if program_config is not None:
        return None if isinstance(program_config, MatmulMultiCoreProgramConfig) else program_config.in0_block_w
    blocks = choose_blocks(case)
    return None if blocks is None else blocks.depth


def choose_blocks(case: MatmulCase) -> MatmulBlocks | None:
    """The blocks of a call without a program config; None where one program takes all of K tile by tile."""
    if not case.m or not case.n:
        return None
    if case.a.memory_config.shard_spec is not None:
        return _blocks_of_sharded(case)
    if case.core_grid is not None:
        return _blocks_of_core_grid(case, case.core_grid)
    return _blocks_of_interleaved(case, case.device_grid)


def _blocks_of_sharded(case: MatmulCase) -> MatmulBlocks:
    memory = case.a.memory_config
    assert memory.shard_spec is not None, "the caller checks that A is sharded"
    height, width = (max(1, extent // TILE) for extent in memory.shard_spec.shape)
    if case.batch_b > 1:
        return MatmulBlocks(width, height, case.n, height, case.n, by_rows=True)
    if memory.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED:
        return fit_blocks(case, height, case.n, case.k, by_rows=True)
    grid = memory.shard_spec.grid.bounding_box().grid_size()
    if memory.memory_layout is TensorMemoryLayout.BLOCK_SHARDED and grid.x > 1 and grid.y > 1:
        depth = gcd(width, case.k) if case.k // width in (grid.x, grid.y) else 1
        across, down = (
            (grid.y, grid.x) if memory.shard_spec.orientation is ShardOrientation.COL_MAJOR else (grid.x, grid.y)
        )
        return fit_blocks(case, div_up(case.batch_a * case.m, down), div_up(case.n, across), depth)
    cores = memory.shard_spec.num_cores()
    return fit_blocks(case, case.batch_a * case.m, div_up(case.n, cores), gcd(width, case.k))


def _blocks_of_core_grid(case: MatmulCase, grid: CoreGrid) -> MatmulBlocks | None:
    if case.batch_b > 1:
        if case.fits(case.m, case.n, 1):
            return MatmulBlocks(1, case.m, case.n, case.m, case.n, by_rows=True)
        return _blocks_of_interleaved(case, CoreCoord(grid.x, grid.y))
    height, width, cores = case.batch_a * case.m, case.n, grid.x * grid.y
    if _is_narrow(height, width, all_dram=False) or 1 in (case.k, case.m, case.n):
        depth, tall = largest_divisor(case.k, div_up(case.k, cores)), height > width
        down, across = (div_up(height, cores), width) if tall else (height, div_up(width, cores))
        return fit_blocks(case, down, across, depth, by_rows=tall)
    return fit_blocks(case, div_up(height, grid.y), div_up(width, grid.x), largest_divisor(case.k, 4))


def _blocks_of_interleaved(case: MatmulCase, grid: CoreCoord) -> MatmulBlocks | None:
    memories = (case.a.memory_config, case.b.memory_config, case.out)
    interleaved = all(memory.memory_layout is TensorMemoryLayout.INTERLEAVED for memory in memories)
    all_dram = all(memory.buffer_type is BufferType.DRAM for memory in memories)
    two, cores = 2 if case.k % 2 == 0 else 1, grid.x * grid.y
    one_a = case.batch_a == 1 and case.batch_b > 1
    if interleaved and (_is_narrow(case.m, case.n, all_dram=all_dram) or one_a):
        if case.n > case.m and not one_a:
            return fit_blocks(case, case.m, div_up(case.n, cores), two)
        return fit_blocks(case, div_up(case.m, cores), case.n, two, by_rows=True)
    if interleaved and all_dram:
        preferred = case.k // grid.x if case.k % grid.x == 0 else 1
        return fit_blocks(case, div_up(case.m, grid.y), div_up(case.n, grid.x), preferred, adjusts_depth=True)
    factor = LARGEST_FACTOR
    while factor > 1 and not case.fits(factor, factor, 2):
        factor //= 2
    blocks_down, blocks_across = div_up(case.m, factor), div_up(case.n, factor)
    several_blocks = blocks_down > 1 or blocks_across > 1
    fits_grid = blocks_down <= grid.y and blocks_across <= grid.x
    if not (case.out.is_sharded() or (several_blocks and fits_grid)):
        return None
    layout = case.out.memory_layout
    if (blocks_down == 1 and several_blocks) or layout is TensorMemoryLayout.WIDTH_SHARDED:
        return fit_blocks(case, case.m, div_up(case.n, cores), two)
    if (blocks_across == 1 and several_blocks) or layout is TensorMemoryLayout.HEIGHT_SHARDED:
        return fit_blocks(case, div_up(case.m, cores), case.n, two, by_rows=True)
    return MatmulBlocks(two, factor, factor, factor, factor)


def _is_narrow(height: int, width: int, *, all_dram: bool) -> bool:
    if max(height, width) // min(height, width) > NARROW:
        return True
    return all_dram and min(height, width) <= 1


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor up to `most`."""
    return next(size for size in range(min(most, number), 0, -1) if number % size == 0)


def fit_blocks(
    case: MatmulCase, m: int, n: int, depth: int, *, by_rows: bool = False, adjusts_depth: bool = False
) -> MatmulBlocks:
    """The largest block of the result that fits; K is divided further only where it is adjusted."""
    if case.fits(m, n, depth):
        return MatmulBlocks(depth, m, n, m, n, by_rows)
    squarest_blocks: dict[int, tuple[int, int]] = {}
    for rows in _factors(m):
        for columns in _factors(n):
            best = squarest_blocks.get(rows * columns)
            if best is None or _ratio(*best) >= _ratio(rows, columns):
                squarest_blocks[rows * columns] = rows, columns
    depths = [part for part in range(depth, 0, -1) if depth % part == 0] if adjusts_depth else [depth]
    for size in sorted(squarest_blocks, reverse=True):
        for part in depths:
            if case.fits(*squarest_blocks[size], part):
                return MatmulBlocks(part, *squarest_blocks[size], m, n, by_rows)
    return MatmulBlocks(1 if adjusts_depth else depth, 1, 1, m, n, by_rows)


def _factors(number: int) -> list[int]:
    return [number, 1, *(size for size in range(number // 2, 1, -1) if number % size == 0)]


def _ratio(a: int, b: int) -> float:
    return max(a, b) / min(a, b)
