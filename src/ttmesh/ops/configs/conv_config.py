"""Options of convolutions and pools; most choose blocks and cores and change no value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttmesh.base.cores import CoreRangeSet
from ttmesh.base.dtypes import DataType, Layout, PrintedEnum, ShardOrientation, TensorMemoryLayout
from ttmesh.ops.configs.activations import Activation


class PaddingMode(PrintedEnum):
    """The values of the padding."""

    Zeros = 0
    Replicate = 1


class Op2DSliceType(PrintedEnum):
    """The dim along which a tensor in DRAM is sliced so that a slice fits into L1."""

    L1_FULL = 0
    DRAM_HEIGHT = 1
    DRAM_WIDTH = 2


Op2DL1Full = Conv2dL1Full = Op2DSliceType.L1_FULL
Op2DDRAMSliceHeight = Conv2dDRAMSliceHeight = Op2DSliceType.DRAM_HEIGHT
Op2DDRAMSliceWidth = Conv2dDRAMSliceWidth = Op2DSliceType.DRAM_WIDTH


@dataclass(kw_only=True)
class SlidingWindowParallelConfig:
    """How the input of a convolution or pool is sharded: the cores, the scheme and the order."""

    grid: CoreRangeSet
    shard_scheme: TensorMemoryLayout
    shard_orientation: ShardOrientation


@dataclass
class Op2DSliceConfig:
    """The dim to slice and the number of slices; 0 lets the operation choose."""

    slice_type: Op2DSliceType
    num_slices: int = 0

    SliceTypeEnum = Op2DSliceType


Conv2dSliceConfig = Op2DSliceConfig
Conv2dL1FullSliceConfig = Op2DL1FullSliceConfig = Op2DSliceConfig(Op2DSliceType.L1_FULL)


@dataclass
class Conv2dConfig:
    """TT-NN's options of conv2d and conv_transpose2d, with its defaults."""

    weights_dtype: DataType | None = None
    activation: Activation | None = None
    deallocate_activation: bool = False
    reallocate_halo_output: bool = True
    config_tensors_in_dram: bool = False
    act_block_h_override: int = 0
    act_block_w_div: int = 1
    reshard_if_not_optimal: bool = False
    override_sharding_config: bool = False
    shard_layout: TensorMemoryLayout | None = None
    core_grid: CoreRangeSet | None = None
    transpose_shards: bool = False
    output_layout: Layout = Layout.TILE
    enable_act_double_buffer: bool = False
    enable_weights_double_buffer: bool = False
    full_inner_dim: bool = False
    enable_kernel_stride_folding: bool | None = None
    enable_activation_reuse: bool = False
    force_split_reader: bool | None = None
    override_output_sharding_config: bool = False
    padding_mode: PaddingMode = PaddingMode.Zeros


Conv1dConfig = Conv2dConfig


@dataclass
class Conv3dConfig:
    """TT-NN's blocking of conv3d."""

    weights_dtype: DataType = DataType.BFLOAT16
    output_layout: Layout = Layout.ROW_MAJOR
    T_out_block: int = 1
    W_out_block: int = 1
    H_out_block: int = 1
    C_out_block: int = 0
    C_in_block: int = 0
    dilation: tuple[int, int, int] = (1, 1, 1)
    alignment: int = 32
    compute_with_storage_grid_size: object = (1, 1)


def pair(value: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) from one number or two."""
    if isinstance(value, int):
        return value, value
    return int(value[0]), int(value[-1])


def borders(padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) from one, two or four numbers."""
    if isinstance(padding, int):
        return (padding,) * 4
    if len(padding) == 4:
        top, bottom, left, right = (int(extent) for extent in padding)
        return top, bottom, left, right
    height, width = pair(padding)
    return height, height, width, width


def get_conv_output_dim(input: int, window: int, stride: int = 1, pad: int = 0, dilation: int = 1) -> int:
    """How many outputs a window gives along one dim."""
    return (input + 2 * pad - dilation * (window - 1) - 1) // stride + 1


def output_size(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
) -> tuple[int, int]:
    """Height and width of a convolution's result."""
    top, bottom, left, right = padding
    height, width = size[0] + top + bottom, size[1] + left + right
    return (
        (height - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1,
        (width - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1,
    )


def transposed_size(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    output_padding: tuple[int, int],
) -> tuple[int, int]:
    """Height and width of a transposed convolution's result."""
    top, bottom, left, right = padding
    return (
        (size[0] - 1) * stride[0] - top - bottom + dilation[0] * (kernel[0] - 1) + output_padding[0] + 1,
        (size[1] - 1) * stride[1] - left - right + dilation[1] * (kernel[1] - 1) + output_padding[1] + 1,
    )
