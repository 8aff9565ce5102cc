"""Where a convolution runs: in L1 or in slices from DRAM, on which cores, and in which memory its result is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import BufferType, Layout
from ttmesh.base.errors import MeshError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.ops.configs.compute_config import WormholeComputeKernelConfig
from ttmesh.ops.configs.conv_config import Conv2dConfig, Op2DSliceConfig, Op2DSliceType
from ttmesh.ops.conv.conv_buffers import circular_buffers, halo_buffers
from ttmesh.ops.conv.conv_sharding import (
    ParallelConfig,
    Window,
    choose_layout,
    count_halo_bytes,
    count_input_bytes,
    count_weight_rows,
    follow_shards,
    make_halo_spec,
    make_parallel_config,
    size_result,
)
from ttmesh.ops.conv.conv_slices import Images, choose_slices
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


@dataclass(frozen=True)
class ConvMemory:
    """The memory and layout of a result, circular buffers per core, and the rows that the convolution reads."""

    memory: MemoryConfig
    layout: Layout
    buffer_bytes: int
    read_spec: TensorSpec | None
    weight_rows: int = 0  # of the prepared weights, where their padding follows the cores


def choose_memory(
    x: Tensor,
    mesh: MeshDevice,
    on_host: bool,
    window: Window,
    images: Images,
    config: Conv2dConfig,
    compute: WormholeComputeKernelConfig,
    memory: MemoryConfig | None,
    slices: Op2DSliceConfig | None,
) -> ConvMemory:
    """TT-NN's choice: in L1 if the input is there or L1_FULL is asked for, else in the fewest slices that fit."""
    grid, layout = mesh.compute_with_storage_grid_size(), config.output_layout
    given = MemoryConfig() if on_host else x.memory_config()
    from_dram = not given.is_l1() if slices is None else slices.slice_type is not Op2DSliceType.L1_FULL
    if window.is_matmul:
        layout = Layout.TILE
        if not given.is_sharded() and config.shard_layout is None:
            # a linear of the interleaved input: TT-NN takes blocks that fit
            return ConvMemory(memory or DRAM_MEMORY_CONFIG, layout, 0, None)
    if from_dram and not window.is_matmul:
        if not images.transposed and not on_host and (not given.is_dram() or given.is_sharded()):
            raise MeshError(
                "Conv DRAM expects the input tensor to be in DRAM.",
                expected=f"an interleaved tensor in DRAM, not {given}",
                fix="Leave out slice_config, ask for L1_FULL, or move the input to DRAM.",
            )
        sliced, cores, count = _choose_slice(mesh, window, images, config, compute, slices, grid)
        if count > 1:
            buffers = circular_buffers(sliced, cores, replace(config, output_layout=Layout.TILE), compute)
            buffers = max(buffers, halo_buffers(sliced, cores, Layout.ROW_MAJOR))
            rows = count_weight_rows(sliced, cores)
            return ConvMemory(DRAM_MEMORY_CONFIG, layout, buffers, make_halo_spec(sliced, cores, grid), rows)
        if not images.transposed or slices is None or slices.num_slices:  # as tiles in DRAM, whatever is asked for
            config, layout, memory = replace(config, output_layout=Layout.TILE), Layout.TILE, DRAM_MEMORY_CONFIG
    if given.is_sharded() and given.shard_spec is not None and not config.reshard_if_not_optimal and given.is_l1():
        cores = follow_shards(given, window, grid)
    else:
        cores = _choose_cores(window, config, compute, grid)
    buffers = max(circular_buffers(window, cores, config, compute), halo_buffers(window, cores, x.layout))
    rows = 0 if window.is_matmul or window.depthwise else count_weight_rows(window, cores)
    return ConvMemory(_resolve(memory, cores, window), layout, buffers, make_halo_spec(window, cores, grid), rows)


def _resolve(memory: MemoryConfig | None, cores: ParallelConfig, window: Window) -> MemoryConfig:
    if memory is None or (memory.is_sharded() and memory.shard_spec is None):
        return cores.memory(window.rows, window.out_channels)
    return memory


def _choose_cores(
    window: Window, config: Conv2dConfig, compute: WormholeComputeKernelConfig, grid: CoreCoord
) -> ParallelConfig:
    """The cores of an input that is not sharded yet."""
    layout, block_height, transposed = config.shard_layout, config.act_block_h_override, config.transpose_shards
    if layout is not None:
        chosen = config.core_grid if config.override_sharding_config else None
        return make_parallel_config(
            layout, window, grid, transpose_shards=transposed, block_height=block_height, core_grid=chosen
        )

    def needs(cores: ParallelConfig) -> int:
        return _size_window(window, cores, config, compute)

    return choose_layout(window, grid, transpose_shards=transposed, block_height=block_height, needs=needs)


def _size_window(
    window: Window, cores: ParallelConfig, config: Conv2dConfig, compute: WormholeComputeKernelConfig
) -> int:
    """Bytes per core of circular buffers, the result and the rows that are read."""
    buffers = circular_buffers(window, cores, config, compute)
    return buffers + size_result(window, cores) + count_halo_bytes(window, cores)


def _choose_slice(
    mesh: MeshDevice,
    window: Window,
    images: Images,
    config: Conv2dConfig,
    compute: WormholeComputeKernelConfig,
    slices: Op2DSliceConfig | None,
    grid: CoreCoord,
) -> tuple[Window, ParallelConfig, int]:
    """The largest slice, its cores, and the number of slices."""

    def shard(each: Window) -> ParallelConfig:
        counted = replace(each, channel_step=window.channel_step)
        layout = config.shard_layout or _choose_cores(counted, config, compute, grid).layout
        return make_parallel_config(layout, each, grid, transpose_shards=config.transpose_shards)

    def needs(each: Window) -> int:
        cores = shard(each)
        counted, halo = replace(each, channel_step=window.channel_step), count_halo_bytes(each, cores)
        total = circular_buffers(counted, cores, config, compute) + size_result(each, cores) + halo
        return max(total, halo + count_input_bytes(each, cores))

    free = mesh.heap.view(BufferType.L1).total_bytes_free_per_bank
    sliced, count = choose_slices(window, images, slices, config.output_layout, needs, free)
    if config.override_sharding_config and config.core_grid is not None and config.shard_layout is not None:
        return sliced, _choose_cores(sliced, config, compute, grid), count
    return sliced, shard(sliced), count
