"""The program config that TT-NN chooses for a matmul without one, and its refusals on the way there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd, prod

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import BufferType, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ops.configs.matmul_program_configs import (
    MatmulMultiCoreProgramConfig,
    MatmulMultiCoreReuseMultiCast1DProgramConfig,
    MatmulMultiCoreReuseMultiCastProgramConfig,
    MatmulMultiCoreReuseProgramConfig,
)
from ttmesh.ops.matmul.matmul_blocks import LARGEST_FACTOR, NARROW, TILE, MatmulCase, fit_blocks, largest_divisor
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shard_config import div_up

INTERLEAVED = TensorMemoryLayout.INTERLEAVED
WIDTH_SHARDED = TensorMemoryLayout.WIDTH_SHARDED
HEIGHT_SHARDED = TensorMemoryLayout.HEIGHT_SHARDED
BLOCK_SHARDED = TensorMemoryLayout.BLOCK_SHARDED
SUBBLOCKS = (
    (4, 2), (2, 4), (8, 1), (1, 8), (7, 1), (1, 7), (3, 2), (2, 3), (6, 1), (1, 6), (5, 1), (1, 5), (2, 2), (4, 1),
    (1, 4), (3, 1), (1, 3), (2, 1), (1, 2), (1, 1),
)  # fmt: skip
FLOAT32_SUBBLOCK = 4  # tiles of a subblock that is added up in float32
UNALIGNED = (
    "The last two dimensions of the first tensor and the last dimension of the second tensor must be a multiple of "
    "tile size"
)
FIX = "Give a program_config=, or convert the operands with ttnn.to_memory_config."
Chosen = (
    MatmulMultiCoreProgramConfig
    | MatmulMultiCoreReuseProgramConfig
    | MatmulMultiCoreReuseMultiCastProgramConfig
    | MatmulMultiCoreReuseMultiCast1DProgramConfig
)


@dataclass(frozen=True)
class Sides:
    """Extents of the operands as stored: rows and columns of one matrix, and how many matrices."""

    m: int
    k: int
    n: int
    batch_a: int
    batch_b: int


def sides_of(case: MatmulCase) -> Sides:
    """The extents of a matmul."""
    a, b = case.a.padded_shape, case.b.padded_shape
    m, k = (a[-1], a[-2]) if case.transpose_a else (a[-2], a[-1])
    return Sides(m, k, b[-2] if case.transpose_b else b[-1], prod(a[:-2]), prod(b[:-2]))


def choose_config(case: MatmulCase, *, activation: bool = False) -> Chosen:
    """TT-NN's program config of a call that names none; raises where TT-NN finds none."""
    s, memory = sides_of(case), case.a.memory_config
    if memory.shard_spec is not None:
        config = _choose_for_sharded(case, s, memory, memory.shard_spec)
    elif case.core_grid is not None:
        wrong = "Cannot use activation with batched input b"
        require(not (activation and s.batch_b > 1), wrong, "one matrix of weights", "Apply the activation afterwards.")
        config = _choose_on_core_grid(case, s)
    else:
        config = _choose_plainly(case, s, case.device_grid)
    if not isinstance(config, MatmulMultiCoreProgramConfig):
        for name in ("in0_block_w", "out_subblock_h", "out_subblock_w", "per_core_M", "per_core_N"):
            require(getattr(config, name) > 0, f"{name} must be greater than 0!", "at least a tile", FIX)
    return config


def _require_alike(case: MatmulCase) -> bool:
    """Refuse a sharded result of other shards than A's; whether the result is sharded."""
    memory, out = case.a.memory_config, case.out
    if not out.is_sharded():
        return False
    for name, own, other in (
        ("buffer types", memory.buffer_type, out.buffer_type),
        ("memory layouts", memory.memory_layout, out.memory_layout),
    ):
        kind = type(own).__name__
        wrong = f"Input A and output {name} must match, got input: {kind}::{own.name} vs output: {kind}::{other.name}"
        require(own is other, wrong, f"{own.name}, as A has", FIX)
    return True


def _choose_for_sharded(case: MatmulCase, s: Sides, memory: MemoryConfig, shards: ShardSpec) -> Chosen:
    layout = memory.memory_layout
    grid = shards.grid.bounding_box().grid_size()
    down, across = (extent // TILE for extent in shards.shape)
    if is_batched(case.b.shape):
        return _choose_for_batches(case, s, memory, shards)
    other = case.b.memory_config.memory_layout
    wrong = f"Input tensor B must have INTERLEAVED memory layout, got: TensorMemoryLayout::{other.name}"
    require(other is INTERLEAVED, wrong, "interleaved weights", FIX)
    rows, k, n = s.batch_a * s.m // TILE, s.k // TILE, s.n // TILE
    if layout in (WIDTH_SHARDED, HEIGHT_SHARDED):
        orientation = shards.orientation
        wrong = f"Input tensor A must have ROW_MAJOR shard orientation, got: ShardOrientation::{orientation.name}"
        require(orientation is ShardOrientation.ROW_MAJOR, wrong, "ROW_MAJOR", FIX)
        sharded = _require_alike(case)
        if layout is WIDTH_SHARDED:
            per_core_m, per_core_n, depth = rows, div_up(n, shards.num_cores()), gcd(across, k)
        else:
            per_core_m, per_core_n, depth = down, n, k
        height, width = _fit(case, per_core_m, per_core_n, depth)
        if sharded and width != per_core_n:
            height = 1
        high, wide = _subblock(case, height, width, whole_width=sharded)
        return MatmulMultiCoreReuseMultiCast1DProgramConfig(
            compute_with_storage_grid_size=grid, in0_block_w=depth, out_subblock_h=high, out_subblock_w=wide,
            out_block_h=height, out_block_w=width, per_core_M=per_core_m, per_core_N=per_core_n, fuse_batch=True,
            mcast_in0=layout is WIDTH_SHARDED, allowed_worker_cores=None,
        )  # fmt: skip
    if grid.x == 1 or grid.y == 1:
        return _choose_on_core_grid(case, s)
    transposed = shards.orientation is ShardOrientation.COL_MAJOR
    sharded = _require_alike(case)
    cores_x, cores_y = (grid.y, grid.x) if transposed else (grid.x, grid.y)
    for axis, cores, tiles, shard in (("y", cores_y, rows, down), ("x", cores_x, k, across)):
        wrong = (
            f"Num cores along {axis} ({cores}) must match provided grid size ({tiles // shard}) or divided up size "
            f"({div_up(tiles, shard)})"
        )
        require(cores in (tiles // shard, div_up(tiles, shard)), wrong, "a shard on every core", FIX)
    depth = gcd(across, k) if cores_x == k // across else 1
    return _multicast(
        case, grid, div_up(rows, cores_y), div_up(n, cores_x), depth, transposed=transposed, whole_width=sharded
    )


def _choose_for_batches(case: MatmulCase, s: Sides, memory: MemoryConfig, shards: ShardSpec) -> Chosen:
    layout, other = memory.memory_layout, case.b.memory_config
    wrong = f"Input A memory layout must not be WIDTH_SHARDED, got: TensorMemoryLayout::{layout.name}"
    require(layout is not WIDTH_SHARDED, wrong, "other shards of A", FIX)
    sharded = _require_alike(case)
    per_core_m, per_core_n, depth = shards.shape[0] // TILE, s.n // TILE, shards.shape[1] // TILE
    high, wide = _subblock(case, per_core_m, per_core_n, whole_width=sharded)
    if other.shard_spec is not None:
        types = f"A: BufferType::{memory.buffer_type.name} vs B: BufferType::{other.buffer_type.name}"
        wrong = f"Input A and B buffer types must match, got {types}"
        require(memory.buffer_type is other.buffer_type, wrong, "the same buffer type", FIX)
        layouts = f"A: TensorMemoryLayout::{layout.name} vs B: TensorMemoryLayout::{other.memory_layout.name}"
        wrong = f"Input A and B memory layouts must match, got {layouts}"
        require(layout is other.memory_layout, wrong, "the same kind of shards", FIX)
        wrong = "Input A and B shard grids must match"
        require(shards.grid == other.shard_spec.grid, wrong, "shards on the same cores", FIX)
        own, its = shards.orientation, other.shard_spec.orientation
        wrong = f"Orientation mismatch a ShardOrientation::{own.name} vs b ShardOrientation::{its.name}."
        require(own is its, wrong, "one orientation", FIX)
    return MatmulMultiCoreReuseProgramConfig(
        compute_with_storage_grid_size=shards.grid.bounding_box().grid_size(), in0_block_w=depth, out_subblock_h=high,
        out_subblock_w=wide, per_core_M=per_core_m, per_core_N=per_core_n,
    )  # fmt: skip


def _choose_on_core_grid(case: MatmulCase, s: Sides) -> Chosen:
    """For core_grid=, and for A in blocks on a line of cores."""
    shape_a, shape_b = case.a.shape, case.b.shape
    k_a, k_b = shape_a[-2 if case.transpose_a else -1], shape_b[-1 if case.transpose_b else -2]
    require(k_a == k_b, "The k dimension does not match between tensors", f"{k_a} rows of B", "Reshape one of them.")
    require(not any(extent % TILE for extent in (s.batch_a * s.m, s.k, s.n)), UNALIGNED, "whole tiles", FIX)
    asked, grid = case.core_grid, case.device_grid
    if asked is not None and asked.x <= grid.x and asked.y <= grid.y:
        grid = CoreCoord(asked.x, asked.y)
    m, n, k, rows = s.m // TILE, s.n // TILE, s.k // TILE, s.batch_a * s.m // TILE
    memory, other = case.a.memory_config, case.b.memory_config
    if s.batch_b > 1:
        if memory.shard_spec is not None:
            per_core_m, depth = memory.shard_spec.shape[0] // TILE, memory.shard_spec.shape[1] // TILE
            per_core_n = shape_b[-2 if case.transpose_b else -1] // TILE
        elif other.shard_spec is not None:
            layout = other.memory_layout
            wrong = (
                "MatmulMultiCoreReuseProgramConfig: Input B cannot be width sharded, got layout: "
                f"TensorMemoryLayout::{layout.name}"
            )
            require(layout is not WIDTH_SHARDED, wrong, "other shards of B", FIX)
            per_core_m, per_core_n, depth = m, other.shard_spec.shape[1] // TILE, 1
        elif case.fits(m, n, 1):
            per_core_m, per_core_n, depth = m, n, 1
        else:
            return _choose_plainly(case, s, grid)
        wide, high = _first_subblock(case, per_core_m, per_core_n)
        return MatmulMultiCoreReuseProgramConfig(
            compute_with_storage_grid_size=grid, in0_block_w=depth, out_subblock_h=high, out_subblock_w=wide,
            per_core_M=per_core_m, per_core_N=per_core_n,
        )  # fmt: skip
    in_blocks = memory.memory_layout is BLOCK_SHARDED
    line = is_narrow(s.batch_a * s.m, s.n, all_dram=False) or min(s.k, s.m, s.n) <= TILE
    if not in_blocks and (line or memory.shard_spec is not None):
        cores, tall = grid.x * grid.y, rows > n
        depth = largest_divisor(k, div_up(k, cores))
        per_core_m, per_core_n = (div_up(rows, cores), n) if tall else (rows, div_up(n, cores))
        height, width = _fit(case, per_core_m, per_core_n, depth)
        wide, high = _first_subblock(case, height, width)
        return MatmulMultiCoreReuseMultiCast1DProgramConfig(
            compute_with_storage_grid_size=grid, in0_block_w=depth, out_subblock_h=high, out_subblock_w=wide,
            out_block_h=height, out_block_w=width, per_core_M=per_core_m, per_core_N=per_core_n, fuse_batch=True,
            mcast_in0=not tall,
        )  # fmt: skip
    shards = memory.shard_spec
    if shards is None:
        per_core_m, per_core_n, depth = div_up(rows, grid.y), div_up(n, grid.x), largest_divisor(k, 4)
    else:
        per_core_m, depth = shards.shape[0] // TILE, gcd(shards.shape[1] // TILE, k)
        per_core_n = n * shards.shape[1] // (k * TILE)
    per_core_n = max(per_core_n, 1)
    height, width = _fit(case, per_core_m, per_core_n, depth)
    wide, high = _first_subblock(case, height, width)
    return MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=grid, in0_block_w=depth, out_subblock_h=high if wide == per_core_n else 1,
        out_subblock_w=wide, out_block_h=height, out_block_w=width, per_core_M=per_core_m, per_core_N=per_core_n,
        transpose_mcast=shards is not None and shards.orientation is ShardOrientation.COL_MAJOR,
    )  # fmt: skip


def _choose_plainly(case: MatmulCase, s: Sides, grid: CoreCoord) -> Chosen:
    """For A that is interleaved, without core_grid=."""
    memories = (case.a.memory_config, case.b.memory_config, case.out)
    interleaved = all(memory.memory_layout is INTERLEAVED for memory in memories)
    all_dram = all(memory.buffer_type is BufferType.DRAM for memory in memories)
    m, k, n, cores = s.m // TILE, s.k // TILE, s.n // TILE, grid.x * grid.y
    narrow = interleaved and is_narrow(s.m, s.n, all_dram=all_dram)
    factor = LARGEST_FACTOR
    while factor > 1 and not case.fits(factor, factor, 2):
        factor //= 2
    blocks_y, blocks_x = max(div_up(m, factor), 1), max(div_up(n, factor), 1)
    depth = 1 if (case.out.is_sharded() or blocks_y > 1 or blocks_x > 1) and k % 2 else 2
    in_dram = interleaved and all_dram
    if not in_dram and (blocks_x * blocks_y > cores or k % depth):
        return MatmulMultiCoreProgramConfig()
    fits_grid = (blocks_y, blocks_x) != (1, 1) and blocks_y <= grid.y and blocks_x <= grid.x
    column, row = _line_of(case.out, s.batch_b)
    one_a = interleaved and s.batch_a == 1 and s.batch_b > 1
    layout = case.out.memory_layout if case.out.is_sharded() and not fits_grid else None
    by_columns = (narrow and s.n > s.m and not one_a) or layout is WIDTH_SHARDED or (layout is not None and row)
    by_rows = (narrow and s.n <= s.m) or one_a or layout is HEIGHT_SHARDED or (layout is not None and column)
    if by_columns or (fits_grid and blocks_y == 1 and not in_dram and not one_a):
        return _line(case, s, grid, mcast_in0=True, shards=case.out.shard_spec if row else None)
    if by_rows or (fits_grid and blocks_x == 1 and not in_dram):
        return _line(case, s, grid, mcast_in0=False, shards=case.out.shard_spec if column else None)
    if fits_grid or in_dram or layout is BLOCK_SHARDED:
        if not in_dram:
            return _blocks(case, s, grid, min(factor, m), min(factor, n), depth)
        depth = k // grid.x if k % grid.x == 0 else 1
        per_core_m, per_core_n = div_up(m, grid.y), div_up(n, grid.x)
        if 0 in (m, n, k):  # rows of less than a tile: refused by the caller
            high, wide, height, width = 1, 1, 1, 1
        else:
            blocks = fit_blocks(case, per_core_m, per_core_n, depth, adjusts_depth=True)
            height, width, depth = blocks.height, blocks.width, blocks.depth
            high, wide = _subblock(case, height, width)
        return MatmulMultiCoreReuseMultiCastProgramConfig(
            compute_with_storage_grid_size=grid, in0_block_w=depth, out_subblock_h=high, out_subblock_w=wide,
            out_block_h=height, out_block_w=width, per_core_M=per_core_m, per_core_N=per_core_n, transpose_mcast=False,
            fuse_batch=False,
        )  # fmt: skip
    return MatmulMultiCoreProgramConfig()


def _blocks(case: MatmulCase, s: Sides, grid: CoreCoord, per_core_m: int, per_core_n: int, depth: int) -> Chosen:
    """Blocks over rows and columns of cores, for operands or results outside DRAM."""
    if case.out.is_sharded():
        wrong = (
            f"Block-sharded output is incompatible with batch > 1 (B={s.batch_a}). The output CB is backed by the shard "
            f"buffer which only holds per_core_M * per_core_N = {per_core_m * per_core_n} tiles"
        )
        require(s.batch_b == 1, wrong, "one matrix of weights", FIX)
    high, wide = _subblock(case, per_core_m, per_core_n, whole_width=case.out.is_sharded())
    return MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=grid, in0_block_w=depth, out_subblock_h=high, out_subblock_w=wide,
        out_block_h=per_core_m, out_block_w=per_core_n, per_core_M=per_core_m, per_core_N=per_core_n,
        transpose_mcast=False, fuse_batch=case.out.is_sharded(),
    )  # fmt: skip


def _line_of(out: MemoryConfig, batches: int) -> tuple[bool, bool]:
    """Whether the result is in blocks on one column, or on one row, of cores."""
    if out.memory_layout is not BLOCK_SHARDED or out.shard_spec is None:
        return False, False
    size = out.shard_spec.grid.bounding_box().grid_size()
    column, row = size.x == 1 < size.y, size.y == 1 < size.x
    wrong = (
        "BLOCK_SHARDED output on a 1D grid (single row or column of cores) is not supported when both input tensors are "
        "batched. Either use HEIGHT_SHARDED/WIDTH_SHARDED explicitly, use a 2D core grid for BLOCK_SHARDED, or ensure the "
        "second input tensor (B) has batch size 1. See GitHub issue #32306 for details."
    )
    fits = batches == 1 or not (column or row)
    require(fits, wrong, "a grid of two dims", "Use HEIGHT_SHARDED or WIDTH_SHARDED.")
    return column, row


def _line(case: MatmulCase, s: Sides, grid: CoreCoord, *, mcast_in0: bool, shards: ShardSpec | None) -> Chosen:
    """One row or column of blocks."""
    cores, fuse = grid.x * grid.y, shards is not None and s.batch_b == 1
    rows = s.batch_a * s.m if fuse else s.m
    if shards is not None:
        per_core_m, per_core_n = shards.shape[0] // TILE, shards.shape[1] // TILE
        grid = shards.grid.bounding_box().grid_size()
    elif mcast_in0:
        per_core_m, per_core_n = rows // TILE, div_up(div_up(s.n, cores), TILE)
    else:
        per_core_m, per_core_n = div_up(div_up(rows, cores), TILE), s.n // TILE
    depth = 2 if s.k // TILE % 2 == 0 else 1
    height, width = (1, 1) if 0 in (per_core_m, per_core_n) else _fit(case, per_core_m, per_core_n, depth)
    high, wide = _subblock(case, height, width)
    return MatmulMultiCoreReuseMultiCast1DProgramConfig(
        compute_with_storage_grid_size=grid, in0_block_w=depth, out_subblock_h=high, out_subblock_w=wide,
        out_block_h=height, out_block_w=width, per_core_M=per_core_m, per_core_N=per_core_n, fuse_batch=fuse,
        mcast_in0=mcast_in0,
    )  # fmt: skip


def _multicast(
    case: MatmulCase,
    grid: CoreCoord,
    per_core_m: int,
    per_core_n: int,
    depth: int,
    *,
    transposed: bool,
    whole_width: bool,
) -> Chosen:
    height, width = _fit(case, per_core_m, per_core_n, depth)
    high, wide = _subblock(case, height, width, whole_width=whole_width)
    return MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=grid, in0_block_w=depth, out_subblock_h=high, out_subblock_w=wide,
        out_block_h=height, out_block_w=width, per_core_M=per_core_m, per_core_N=per_core_n, transpose_mcast=transposed,
    )  # fmt: skip


def _fit(case: MatmulCase, m: int, n: int, depth: int) -> tuple[int, int]:
    blocks = fit_blocks(case, max(m, 1), max(n, 1), max(depth, 1))
    return blocks.height, blocks.width


def _subblock(case: MatmulCase, m: int, n: int, *, whole_width: bool = False) -> tuple[int, int]:
    """Rows and columns of a subblock; with `whole_width` one row as wide as the block, where that fits."""
    for high, wide in _subblocks_that_fit(case):
        if whole_width and (wide != n or high != 1):
            continue
        if m % high == 0 and n % wide == 0:
            return high, wide
    return 1, 1


def _first_subblock(case: MatmulCase, m: int, n: int) -> tuple[int, int]:
    """Columns and rows of a subblock, in TT-NN's order for core_grid=."""
    found = next(((w, h) for w, h in _subblocks_that_fit(case) if m % h == 0 and n % w == 0), None)
    assert found is not None, "a subblock of one tile divides every block"
    return found


def _subblocks_that_fit(case: MatmulCase) -> Iterable[tuple[int, int]]:
    return (pair for pair in SUBBLOCKS if not case.fp32_dest or prod(pair) <= FLOAT32_SUBBLOCK)


def is_batched(shape: Iterable[int]) -> bool:
    """Whether there is more than one matrix."""
    return any(extent > 1 for extent in tuple(shape)[:-2])


def is_narrow(height: int, width: int, *, all_dram: bool) -> bool:
    """Whether cores in one line are preferred for this number of rows and columns."""
    if max(height, width) // min(height, width) > NARROW:
        return True
    return all_dram and min(height, width) <= TILE
