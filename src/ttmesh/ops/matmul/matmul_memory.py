"""L1 memory of a matmul: circular buffers per core, and the shards of a sharded output.

Sizes as in the program factories of tt-metal e4f9f0b. Without a program config TT-NN chooses blocks that fit
(matmul_blocks.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ttmesh.base.core_work import num_cores_to_corerangeset
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import DataType, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.chip.formats.tiles import Tile, tile_bytes
from ttmesh.ops.configs.compute_config import WormholeComputeKernelConfig
from ttmesh.ops.configs.matmul_program_configs import (
    Blocked,
    DramSharded,
    MatmulMultiCoreProgramConfig,
    MatmulMultiCoreReuseMultiCast1DProgramConfig,
    MatmulMultiCoreReuseMultiCastBatchedDRAMShardedProgramConfig,
    MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig,
    MatmulMultiCoreReuseMultiCastProgramConfig,
    MatmulMultiCoreReuseProgramConfig,
    Multicast,
    ProgramConfig,
    corner,
)
from ttmesh.ops.matmul.matmul_blocks import MatmulBlocks, MatmulCase, choose_blocks
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec


@dataclass(frozen=True)
class Extents:
    """Sizes of a matmul in tiles: batch, M, K and N, and the tile shapes."""

    batch: int
    m: int
    k: int
    n: int
    tile_height: int
    tile_width: int


def extents(a: TensorSpec, b: TensorSpec, transpose_a: bool, transpose_b: bool) -> Extents:
    """Compute the sizes of a matmul in tiles."""
    rows, inner = a.padded_shape[-2:] if not transpose_a else reversed(a.padded_shape[-2:])
    width = b.padded_shape[-2] if transpose_b else b.padded_shape[-1]
    (height_a, width_a), (height_b, width_b) = a.tile.tile_shape, b.tile.tile_shape
    tile_height, tile_depth = (width_a, height_a) if transpose_a else (height_a, width_a)
    tile_width = height_b if transpose_b else width_b
    return Extents(
        prod(a.padded_shape[:-2]),
        rows // tile_height,
        inner // tile_depth,
        width // tile_width,
        tile_height,
        tile_width,
    )


def check_blocks(config: ProgramConfig | None, e: Extents) -> None:
    """Raise TT-NN's errors for block sizes that do not divide."""
    own = MatmulMultiCoreProgramConfig, MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig  # no blocks, own checks
    if config is None or isinstance(config, own):
        return
    wrong = f"Kt ({e.k}) must be divisible by in0_block_w ({config.in0_block_w})"
    require(
        config.in0_block_w > 0 and e.k % config.in0_block_w == 0,
        wrong,
        f"a divisor of {e.k}",
        "Choose a number that divides it.",
    )
    if isinstance(config, DramSharded):
        return
    height, width = _block(config)
    require(
        height > 0 and width > 0,
        "out_block_w and out_block_h must be non-zero",
        "blocks of a tile or more",
        "Use blocks of at least one tile.",
    )
    for total, block, name in ((config.per_core_M, height, "h"), (config.per_core_N, width, "w")):
        side = "per_core_M" if name == "h" else "per_core_N"
        require(
            total % block == 0,
            f"{side} ({total}) must be divisible by out_block_{name} ({block})",
            f"a divisor of {total}",
            f"Choose an out_block_{name} that divides {side}.",
        )
    for block, subblock, name in ((height, config.out_subblock_h, "h"), (width, config.out_subblock_w, "w")):
        wrong = f"out_block_{name} ({block}) must be divisible by out_subblock_{name} ({subblock})"
        fix = f"Choose an out_subblock_{name} that divides out_block_{name}."
        require(subblock > 0 and block % subblock == 0, wrong, f"a divisor of {block}", fix)


def _block(config: Blocked) -> tuple[int, int]:
    """Rows and columns, in tiles, of the block that a core computes at a time."""
    if isinstance(config, Multicast):
        height, width = config.out_block_h, config.out_block_w
        return config.per_core_M if height is None else height, config.per_core_N if width is None else width
    return config.per_core_M, config.per_core_N


def circular_buffer_bytes(
    config: ProgramConfig | None,
    case: MatmulCase,
    bias: TensorSpec | None,
    kernel: WormholeComputeKernelConfig | None,
    *,
    banks: int,
) -> int:
    """Bytes per core of the circular buffers that are not laid over a tensor's own shards."""
    a, b, out_dtype, out_sharded = case.a, case.b, case.out_dtype, case.out.is_sharded()
    tile_a, tile_b = tile_bytes(a.dtype, a.tile), tile_bytes(b.dtype, b.tile)
    tile = Tile((a.tile.tile_shape[1 if case.transpose_a else 0], b.tile.tile_shape[0 if case.transpose_b else 1]))
    tile_out = tile_bytes(out_dtype, tile)
    blocks = _given_blocks(config, case) if config is not None else choose_blocks(case)
    if blocks is None:
        return 2 * (tile_a + tile_b + tile_out)
    e = extents(a, b, case.transpose_a, case.transpose_b)
    in_dram_shards = isinstance(config, DramSharded)
    height, width, steps = blocks.height, blocks.width, e.k // blocks.depth
    fp32_dest = kernel is not None and kernel.fp32_dest_acc_en
    if in_dram_shards:
        height, width = blocks.height, div_up(e.n, banks)
    depth = 2 if steps * e.batch > 1 else 1
    depth_b = 3 if isinstance(config, MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig) and depth > 1 else depth
    in0 = height * blocks.depth * depth * tile_a
    if blocks.by_rows and _in_l1_shards(a):
        shard = a.memory_config.shard_spec
        wide = e.k if shard is None else shard.shape[1] // a.tile.tile_shape[1]
        in0 = 0 if wide == blocks.depth and height == blocks.core_height else blocks.core_height * wide * tile_a
    in1 = 0 if _in_l1_shards(b) else width * blocks.depth * depth_b * tile_b
    if in_dram_shards:
        width = _pad_to_subblocks(width, 4 if fp32_dest else 8) if height == 1 else width
    partial_dtype = DataType.FLOAT32 if fp32_dest else out_dtype
    if not fp32_dest and steps > 1 and (kernel is None or kernel.packer_l1_acc):
        partial_dtype = DataType.BFLOAT16 if out_dtype is not DataType.FLOAT32 or kernel is not None else out_dtype
    block_tiles, own_result = height * width, not out_sharded or in_dram_shards
    own_buffer = partial_dtype is not out_dtype or (
        out_sharded and not in_dram_shards and (blocks.core_height, blocks.core_width) != (height, width)
    )  # not over the output's buffer
    partial = block_tiles * tile_bytes(partial_dtype, tile) if own_buffer else 0
    result = block_tiles * tile_out if own_result else 0  # a sharded output is its own circular buffer
    bias_bytes = 0 if bias is None or _in_l1_shards(bias) else width * tile_bytes(bias.dtype, bias.tile)
    transposed_bytes = in0 if case.transpose_a else 0
    return in0 + in1 + partial + result + bias_bytes + transposed_bytes


def _given_blocks(config: ProgramConfig, case: MatmulCase) -> MatmulBlocks | None:
    if isinstance(config, MatmulMultiCoreProgramConfig):
        return None
    height, width = _block(config)
    by_rows = isinstance(config, MatmulMultiCoreReuseProgramConfig) or (
        isinstance(config, MatmulMultiCoreReuseMultiCast1DProgramConfig) and not config.mcast_in0
    )
    return MatmulBlocks(config.in0_block_w, height, width, config.per_core_M, config.per_core_N, by_rows)


def _pad_to_subblocks(width: int, largest: int) -> int:
    """Columns of a block as subblocks of equal width cover them: as few subblocks as possible."""
    own = max(n for n in range(1, largest + 1) if width % n == 0)
    count, wide = width // own, own
    for size in range(own + 1, largest + 1):
        if -(-width // size) < count:
            count, wide = -(-width // size), size
    return count * wide


def _in_l1_shards(spec: TensorSpec) -> bool:
    """Whether the operand is sharded in L1, so that a core's shard serves as its circular buffer."""
    return spec.memory_config.is_sharded() and spec.memory_config.is_l1()


def output_shards(
    config: ProgramConfig | None, requested: MemoryConfig, e: Extents, a: MemoryConfig, device_grid: CoreCoord
) -> MemoryConfig:
    """The memory of a sharded output as TT-NN computes it from the program config; else the requested one."""
    if not requested.is_sharded() or config is None or isinstance(config, MatmulMultiCoreProgramConfig):
        return requested
    if isinstance(config, MatmulMultiCoreReuseMultiCastBatchedDRAMShardedProgramConfig):
        return requested
    one_dimensional = isinstance(config, MatmulMultiCoreReuseMultiCast1DProgramConfig)
    if isinstance(config, MatmulMultiCoreReuseMultiCast1DProgramConfig) and config.gather_in0:
        return requested
    if one_dimensional and (line_layout := _line_layout(requested)) is not None:
        return MemoryConfig(line_layout, requested.buffer_type, requested.shard_spec)
    rows = e.m * (e.batch if getattr(config, "fuse_batch", True) else 1)
    blocks_down, blocks_across = div_up(rows, config.per_core_M), div_up(e.n, config.per_core_N)
    shard = config.per_core_M * e.tile_height, config.per_core_N * e.tile_width
    orientation = ShardOrientation.ROW_MAJOR
    if isinstance(config, MatmulMultiCoreReuseMultiCastProgramConfig):
        start = _start(config.allowed_worker_cores)
        grid_columns, grid_rows = (
            (blocks_down, blocks_across) if config.transpose_mcast else (blocks_across, blocks_down)
        )
        if config.transpose_mcast:
            orientation = ShardOrientation.COL_MAJOR
        last = CoreCoord(start.x + grid_columns - 1, start.y + grid_rows - 1)
        cores = CoreRangeSet(CoreRange(start, last))
    elif isinstance(config, MatmulMultiCoreReuseProgramConfig):
        orientation = ShardOrientation.COL_MAJOR if a.shard_spec is None else a.shard_spec.orientation
        by_rows = orientation is ShardOrientation.ROW_MAJOR
        grid = corner(config.compute_with_storage_grid_size)
        requested_shards = requested.shard_spec
        cores = (
            requested_shards.grid
            if requested_shards is not None
            else num_cores_to_corerangeset(blocks_down * blocks_across, grid, by_rows)
        )
    elif isinstance(config, MatmulMultiCoreReuseMultiCast1DProgramConfig):
        cores = num_cores_to_corerangeset(
            blocks_down * blocks_across, corner(config.compute_with_storage_grid_size), True
        )
    else:
        cores = num_cores_to_corerangeset(blocks_down * blocks_across, device_grid, True)
    return MemoryConfig(requested.memory_layout, requested.buffer_type, ShardSpec(cores, shard, orientation))


def _start(cores: CoreRangeSet | None) -> CoreCoord:
    return CoreCoord(0, 0) if cores is None else cores.bounding_box().start


def _line_layout(requested: MemoryConfig) -> TensorMemoryLayout | None:
    """Block sharding over one column or one row of cores is height or width sharding."""
    if requested.memory_layout is not TensorMemoryLayout.BLOCK_SHARDED or requested.shard_spec is None:
        return None
    size = requested.shard_spec.grid.bounding_box().grid_size()
    if size.x == 1:
        return TensorMemoryLayout.HEIGHT_SHARDED
    return TensorMemoryLayout.WIDTH_SHARDED if size.y == 1 else None
