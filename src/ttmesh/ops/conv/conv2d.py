"""Convolutions in one and two dims and their transpose, on channels-last tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import MeshError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.ops.catalogue.definition import composite
from ttmesh.ops.configs.compute_config import WormholeComputeKernelConfig
from ttmesh.ops.configs.conv_config import (
    Conv2dConfig,
    Op2DSliceConfig,
    Op2DSliceType,
    borders,
    pair,
)
from ttmesh.ops.conv.sliding_window import convolve
from ttmesh.ops.goldens import convolution as goldens
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor


def _select_outputs(
    result: Tensor,
    dims: object,
    weights_and_bias: tuple[Tensor, Tensor | None],
    return_output_dim: bool,
    return_weights: bool,
) -> Any:
    if return_output_dim and return_weights:
        return result, dims, weights_and_bias
    if return_output_dim:
        return result, dims
    return (result, weights_and_bias) if return_weights else result


@composite("ttnn.conv2d", golden=goldens.conv2d)
def conv2d(
    input_tensor: Tensor,
    weight_tensor: Tensor,
    device: MeshDevice,
    in_channels: int,
    out_channels: int,
    batch_size: int,
    input_height: int,
    input_width: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    dtype: DataType | None,
    bias_tensor: Tensor | None,
    conv_config: Conv2dConfig | None,
    compute_config: WormholeComputeKernelConfig | None,
    memory_config: MemoryConfig | None,
    slice_config: Op2DSliceConfig | None,
    return_output_dim: bool,
    return_weights_and_bias: bool,
) -> Any:
    """A convolution of [batch, height, width, channels]: [1, 1, batch · height · width, channels]."""
    result, output_size, weights_and_bias = convolve(
        input_tensor=input_tensor,
        weight_tensor=weight_tensor,
        bias_tensor=bias_tensor,
        device=device,
        size=(batch_size, input_height, input_width, in_channels),
        out_channels=out_channels,
        kernel=pair(kernel_size),
        stride=pair(stride),
        padding=borders(padding),
        dilation=pair(dilation),
        groups=groups,
        dtype=dtype,
        conv_config=conv_config,
        compute_config=compute_config,
        memory_config=memory_config,
        slice_config=slice_config,
    )
    return _select_outputs(result, output_size, weights_and_bias, return_output_dim, return_weights_and_bias)


@composite("ttnn.conv1d", golden=goldens.conv1d)
def conv1d(
    input_tensor: Tensor,
    weight_tensor: Tensor,
    device: MeshDevice,
    in_channels: int,
    out_channels: int,
    batch_size: int,
    input_length: int,
    kernel_size: int,
    stride: int,
    padding: int | Sequence[int],
    dilation: int,
    groups: int,
    dtype: DataType | None,
    bias_tensor: Tensor | None,
    conv_config: Conv2dConfig | None,
    compute_config: WormholeComputeKernelConfig | None,
    memory_config: MemoryConfig | None,
    slice_config: Op2DSliceConfig | None,
    return_output_dim: bool,
    return_weights_and_bias: bool,
) -> Any:
    """A convolution of [batch, length, channels]: [1, 1, batch · length, channels]."""
    if slice_config is not None and slice_config.slice_type is Op2DSliceType.DRAM_HEIGHT:
        raise MeshError(
            "conv1d has no height: DRAM_HEIGHT slices are not supported",
            expected="DRAM_WIDTH or L1_FULL",
            fix="Slice along the width.",
        )
    left, right = (padding, padding) if isinstance(padding, int) else (int(padding[0]), int(padding[-1]))
    result, output_size, weights_and_bias = convolve(
        input_tensor=input_tensor,
        weight_tensor=weight_tensor,
        bias_tensor=bias_tensor,
        device=device,
        size=(batch_size, 1, input_length, in_channels),
        out_channels=out_channels,
        kernel=(1, kernel_size),
        stride=(1, stride),
        padding=(0, 0, left, right),
        dilation=(1, dilation),
        groups=groups,
        dtype=dtype,
        conv_config=None if conv_config is None else replace(conv_config),
        compute_config=compute_config,
        memory_config=memory_config,
        slice_config=slice_config,
    )
    return _select_outputs(result, output_size[1], weights_and_bias, return_output_dim, return_weights_and_bias)


@composite("ttnn.conv_transpose2d", golden=goldens.conv_transpose2d)
def conv_transpose2d(
    input_tensor: Tensor,
    weight_tensor: Tensor,
    device: MeshDevice,
    in_channels: int,
    out_channels: int,
    batch_size: int,
    input_height: int,
    input_width: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    dtype: DataType | None,
    bias_tensor: Tensor | None,
    conv_config: Conv2dConfig | None,
    compute_config: WormholeComputeKernelConfig | None,
    memory_config: MemoryConfig | None,
    dram_slice_config: Op2DSliceConfig | None,
    mirror_kernel: bool,
    return_output_dim: bool,
    return_weights_and_bias: bool,
) -> Any:
    """A transposed convolution of [batch, height, width, channels]."""
    result, output_size, weights_and_bias = convolve(
        input_tensor=input_tensor,
        weight_tensor=weight_tensor,
        bias_tensor=bias_tensor,
        device=device,
        size=(batch_size, input_height, input_width, in_channels),
        out_channels=out_channels,
        kernel=pair(kernel_size),
        stride=pair(stride),
        padding=borders(padding),
        dilation=pair(dilation),
        groups=groups,
        dtype=dtype,
        conv_config=conv_config,
        compute_config=compute_config,
        memory_config=memory_config,
        slice_config=dram_slice_config,
        transposed=True,
        output_padding=pair(output_padding),
        mirror_kernel=mirror_kernel,
    )
    return _select_outputs(result, output_size, weights_and_bias, return_output_dim, return_weights_and_bias)
