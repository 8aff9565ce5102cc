"""How many tiles of K a matmul processes at a time; follows TT-NN's choice of a program if the call names none.

The sizes were compared with the circular buffers that TT-NN 0.81.1 lays out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from ttmesh.base.cores import CoreCoord, CoreGrid
from ttmesh.base.dtypes import BufferType, DataType, TensorMemoryLayout
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
        """Whether blocks of so many tiles fit into L1, by TT-NN's estimate."""
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


def tiles_per_block(case: MatmulCase, program_config: ProgramConfig | None) -> int | None:
    """Tiles of K per block; None where one program takes all of K tile by tile."""
    if program_config is not None:
        return None if isinstance(program_config, MatmulMultiCoreProgramConfig) else program_config.in0_block_w
    if case.a.memory_config.shard_spec is not None:
        return _block_of_sharded(case)
    if case.core_grid is not None:
        return _block_of_core_grid(case, case.core_grid)
    return _block_of_interleaved(case, case.device_grid)


def _block_of_sharded(case: MatmulCase) -> int:
    memory = case.a.memory_config
    assert memory.shard_spec is not None, "the caller checks that A is sharded"
    width = max(1, memory.shard_spec.shape[1] // TILE)
    if case.batch_b > 1:
        return width
    if memory.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED:
        return case.k
    grid = memory.shard_spec.grid.bounding_box().grid_size()
    if memory.memory_layout is TensorMemoryLayout.BLOCK_SHARDED and grid.x > 1 and grid.y > 1:
        return gcd(width, case.k) if case.k // width in (grid.x, grid.y) else 1
    return gcd(width, case.k)


def _block_of_core_grid(case: MatmulCase, grid: CoreGrid) -> int | None:
    if case.batch_b > 1:
        return 1 if case.fits(case.m, case.n, 1) else _block_of_interleaved(case, CoreCoord(grid.x, grid.y))
    height, width = case.batch_a * case.m, case.n
    if _is_narrow(height, width, all_dram=False) or 1 in (case.k, case.m, case.n):
        return _divisor(case.k, div_up(case.k, grid.x * grid.y))
    return _divisor(case.k, 4)


def _block_of_interleaved(case: MatmulCase, grid: CoreCoord) -> int | None:
    memories = (case.a.memory_config, case.b.memory_config, case.out)
    interleaved = all(memory.memory_layout is TensorMemoryLayout.INTERLEAVED for memory in memories)
    all_dram = all(memory.buffer_type is BufferType.DRAM for memory in memories)
    two = 2 if case.k % 2 == 0 else 1
    if interleaved and (_is_narrow(case.m, case.n, all_dram=all_dram) or (case.batch_a == 1 and case.batch_b > 1)):
        return two
    if interleaved and all_dram:
        preferred = case.k // grid.x if case.k % grid.x == 0 else 1
        return _largest_that_fits(case, div_up(case.m, grid.y), div_up(case.n, grid.x), preferred)
    factor = LARGEST_FACTOR
    while factor > 1 and not case.fits(factor, factor, 2):
        factor //= 2
    blocks_down, blocks_across = div_up(case.m, factor), div_up(case.n, factor)
    several_blocks = blocks_down > 1 or blocks_across > 1
    fits_grid = blocks_down <= grid.y and blocks_across <= grid.x
    if case.out.is_sharded() or (several_blocks and fits_grid):
        return two
    return None


def _is_narrow(height: int, width: int, *, all_dram: bool) -> bool:
    if max(height, width) // min(height, width) > NARROW:
        return True
    return all_dram and min(height, width) <= 1


def _divisor(number: int, most: int) -> int:
    """The largest divisor up to `most`."""
    return next(size for size in range(min(most, number), 0, -1) if number % size == 0)


def _largest_that_fits(case: MatmulCase, m: int, n: int, k: int) -> int:
    """The largest block of K that fits beside the largest possible block of the result."""
    if case.fits(m, n, k):
        return k
    squarest_blocks: dict[int, tuple[int, int]] = {}
    for rows in _factors(m):
        for columns in _factors(n):
            best = squarest_blocks.get(rows * columns)
            if best is None or _ratio(*best) >= _ratio(rows, columns):
                squarest_blocks[rows * columns] = rows, columns
    for size in sorted(squarest_blocks, reverse=True):
        for depth in range(k, 0, -1):
            if k % depth == 0 and case.fits(*squarest_blocks[size], depth):
                return depth
    return 1


def _factors(number: int) -> list[int]:
    return [number, 1, *(size for size in range(number // 2, 1, -1) if number % size == 0)]


def _ratio(a: int, b: int) -> float:
    return max(a, b) / min(a, b)
