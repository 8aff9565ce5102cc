"""The circular buffers of a convolution's program, by tt-metal's own rules (its get_cb_info, e4f9f0b)."""

from __future__ import annotations

from dataclasses import dataclass

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.chip.formats.tiles import Tile, tile_bytes
from ttmesh.ops.configs.compute_config import WormholeComputeKernelConfig
from ttmesh.ops.configs.conv_config import Conv2dConfig
from ttmesh.ops.conv.conv_sharding import BLOCK, HEIGHT, TILE, WIDTH, ParallelConfig, Window
from ttmesh.tensor.spec.shard_config import div_up, round_up

SCRATCHPAD = 64
INDEX_BYTES = 2  # one uint16 per output row


@dataclass(frozen=True)
class Blocks:
    """One core's work in tiles: its shard of the result, and the block of activations in its buffer."""

    rows: int
    columns: int
    act_rows: int
    act_columns: int


def choose_blocks(window: Window, cores: ParallelConfig, options: Conv2dConfig) -> Blocks:
    """TT-NN's choice of blocks: one row of taps by all rows of a core, or by act_block_h_override."""
    rows = div_up(window.rows, cores.cores_rows * TILE)
    columns = div_up(window.out_channels, cores.cores_channels * TILE)
    max_act_rows = max(options.act_block_h_override // TILE, 1) if options.act_block_h_override else rows
    act_rows = max(n for n in range(1, min(max_act_rows, rows) + 1) if rows % n == 0)
    kernel_height, kernel_width = window.kernel
    if cores.layout is HEIGHT:
        channels = round_up(window.in_channels, window.channel_step)
        if window.depthwise:
            width = channels * (kernel_width if _can_coalesce(window, cores) else 1)
        else:
            width = channels * kernel_width * (kernel_height if options.enable_activation_reuse else 1)
    elif cores.layout is BLOCK:
        channels = round_up(window.in_channels, cores.input_cores * window.channel_step) // cores.input_cores
        width = channels * kernel_width * (kernel_height if options.full_inner_dim else 1)
    else:
        divisor = cores.input_cores * options.act_block_w_div
        width = round_up(window.in_channels, TILE * divisor) * kernel_height * kernel_width // divisor
    return Blocks(rows, columns, act_rows, div_up(width, TILE))


def _can_coalesce(window: Window, cores: ParallelConfig) -> bool:
    """Whether all taps of a row of a depthwise kernel are read as one stick: in whole tiles, in one read of the NoC."""
    if not window.depthwise or cores.layout is not HEIGHT or window.kernel[1] == 1 or window.dilation[1] != 1:
        return False
    channels = round_up(window.in_channels, window.channel_step)
    stick_bytes = channels * (4 if window.dtype is DataType.FLOAT32 else 2) * window.kernel[1]
    return channels % TILE == 0 and stick_bytes <= window.noc_burst


def circular_buffers(
    window: Window, cores: ParallelConfig, options: Conv2dConfig, compute: WormholeComputeKernelConfig
) -> int:
    """Bytes of circular buffers per core, without those backed by tensors: the result, the shards and the index tensors."""
    blocks = choose_blocks(window, cores, options)
    if window.is_matmul and cores.layout is not WIDTH:
        return _size_matmul_buffers(window, cores, compute, blocks)
    source = _tile_bytes(DataType.FLOAT32 if window.dtype is DataType.FLOAT32 else DataType.BFLOAT16)
    result, weights = _tile_bytes(window.out_dtype), _tile_bytes(window.weights_dtype)
    steps = blocks.rows // blocks.act_rows
    act = blocks.act_rows * blocks.act_columns
    one_core = cores.layout is BLOCK and cores.input_cores == 1  # nothing to send to others

    total = _count_weight_tiles(window, cores, options, blocks, steps) * weights
    total += _size_partials(window, cores, options, compute, blocks, steps)
    buffering = 2 if options.enable_act_double_buffer else 1
    buffered_tiles = act * buffering
    if _can_reuse_rows(window, cores, options, blocks):
        halves = (div_up(blocks.act_rows, 2), blocks.act_rows // 2)  # two readers
        total += buffering * sum(_count_kept_tiles(window, blocks, rows, source) for rows in halves) * source
    elif cores.layout is HEIGHT:
        total += buffered_tiles * source
    elif not one_core:
        total += buffered_tiles * result
    total += act * result  # the activations in tiles
    total += blocks.columns * weights if window.has_bias else 0
    if cores.layout is BLOCK:
        same_format = source == result and window.out_dtype is not DataType.BFLOAT8_B and not one_core
        total += 0 if same_format else buffered_tiles * source
    elif cores.layout is not HEIGHT:
        total += 2 * blocks.act_columns * source
    if options.config_tensors_in_dram:
        total += blocks.rows * TILE * INDEX_BYTES
    return total + SCRATCHPAD


def halo_buffers(window: Window, cores: ParallelConfig, layout: Layout) -> int:
    """Bytes per core for the rows of neighbours: two pixels of padding, and twice two rows of tiles to take apart."""
    if window.is_matmul:
        return 0
    step = TILE if cores.layout is WIDTH or layout is Layout.TILE else window.channel_step
    channels = round_up(window.in_channels, cores.input_cores * step) // cores.input_cores
    dtype = DataType.FLOAT32 if window.dtype is DataType.FLOAT32 else DataType.BFLOAT16
    padding = 2 * channels * (4 if dtype is DataType.FLOAT32 else 2)
    return padding + (4 * div_up(channels, TILE) * _tile_bytes(dtype) if layout is Layout.TILE else 0)


def _size_matmul_buffers(
    window: Window, cores: ParallelConfig, compute: WormholeComputeKernelConfig, blocks: Blocks
) -> int:
    """Bytes if TT-NN runs a matmul instead; activations sharded over all cores are read in place."""
    several_steps = cores.layout is BLOCK and cores.input_cores > 1
    depth = 2 if several_steps else 1  # double-buffered if there is more than one step
    total = blocks.columns * blocks.act_columns * depth * _tile_bytes(window.weights_dtype)
    if cores.layout is BLOCK:
        total += blocks.rows * blocks.act_columns * depth * _tile_bytes(window.dtype)
    partial_dtype = window.out_dtype
    if compute.fp32_dest_acc_en:
        partial_dtype = DataType.FLOAT32
    elif compute.packer_l1_acc and several_steps:
        partial_dtype = DataType.BFLOAT16
    if partial_dtype is not window.out_dtype:
        total += blocks.rows * blocks.columns * _tile_bytes(partial_dtype)
    return total + (blocks.columns * _tile_bytes(window.weights_dtype) if window.has_bias else 0)


def _can_reuse_rows(window: Window, cores: ParallelConfig, options: Conv2dConfig, blocks: Blocks) -> bool:
    """Whether rows of the image stay in the activations' buffers for the next rows of the result."""
    reuse = options.enable_activation_reuse and cores.layout is HEIGHT
    return reuse and not window.depthwise and blocks.act_rows > 1


def _count_kept_tiles(window: Window, blocks: Blocks, rows: int, source: int) -> int:
    """Tiles of one reader: those of an image row, and those that each further row adds."""
    row_tiles = div_up(window.out_size[1], TILE)
    kernel_height, kernel_width = window.kernel
    unused_rows = -window.out_size[1] % TILE  # unused rows of the last tile of an image row
    value_bytes = {DataType.FLOAT32: 4, DataType.BFLOAT8_B: 1}.get(window.dtype, 2)
    stick_bytes = round_up(window.in_channels, window.channel_step) * kernel_width * value_bytes
    return row_tiles * blocks.act_columns + div_up(
        div_up(rows, row_tiles) * stick_bytes * (1 + unused_rows * kernel_height), source
    )


def _tile_bytes(dtype: DataType) -> int:
    return tile_bytes(dtype, Tile((32, 32)))


def _count_weight_tiles(
    window: Window, cores: ParallelConfig, options: Conv2dConfig, blocks: Blocks, steps: int
) -> int:
    coalesced = _can_coalesce(window, cores)
    if window.depthwise:
        inner = blocks.act_rows * (window.kernel[1] if coalesced else 1)
    else:
        inner = blocks.act_columns
    tiles = blocks.columns * inner
    if cores.layout is HEIGHT and not options.enable_activation_reuse and steps > 1:
        taps = window.kernel[0] * window.kernel[1]
        return tiles * ((1 if coalesced else taps) if window.depthwise else window.kernel[0])
    return tiles * 2 if options.enable_weights_double_buffer and not options.enable_activation_reuse else tiles


def _size_partials(
    window: Window,
    cores: ParallelConfig,
    options: Conv2dConfig,
    compute: WormholeComputeKernelConfig,
    blocks: Blocks,
    steps: int,
) -> int:
    """Bytes of partial sums; 0 if the result's own buffer can hold them."""
    if window.depthwise:
        needs_scratch = cores.layout is HEIGHT and not _can_coalesce(window, cores) and steps > 1
        return blocks.act_rows * blocks.act_columns * _tile_bytes(window.out_dtype) if needs_scratch else 0
    if cores.layout is HEIGHT:
        passes = 1 if options.enable_activation_reuse else window.kernel[0]  # one pass holds every tap
    else:
        passes = max(window.kernel[0] * cores.input_cores, 1)
    accumulates_in_l1 = compute.packer_l1_acc and ((window.has_bias and passes > 1) or passes > 2)
    dtype = window.out_dtype
    if accumulates_in_l1:
        dtype = DataType.FLOAT32 if compute.fp32_dest_acc_en else DataType.BFLOAT16
    if options.output_layout is Layout.TILE and dtype is window.out_dtype:
        return 0
    return blocks.act_rows * blocks.columns * _tile_bytes(dtype)
