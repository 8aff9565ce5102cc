"""Convolution weights as TT-NN stores them on the device: a matrix of taps by output channels, and a row of biases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import ShapeError
from ttmesh.chip.formats.storage import to_lane
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.configs.conv_config import Conv2dConfig
from ttmesh.tensor.calls.launch_op import report
from ttmesh.tensor.calls.operation import Call, Operation
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.shard_config import round_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import from_device, to_device

TILE = 32
ROW_CHANNELS = 8  # TT-NN aligns a row of input channels to 16 bytes, 8 bfloat16 values


def matrix_shape(out_channels: int, in_channels: int, kernel: tuple[int, int]) -> tuple[int, int, int, int]:
    """The shape of prepared weights."""
    taps = kernel[0] * kernel[1] * round_up(in_channels, ROW_CHANNELS)
    return 1, 1, round_up(taps, TILE), round_up(out_channels, TILE)


def to_matrix(weight: Lanes, groups: int) -> Lanes:
    """[*mesh, out, in / groups, h, w] → [*mesh, 1, 1, taps, out], zeros between groups and after the channels."""
    out, per_group, height, width = weight.shape[-4:]
    if groups > 1:  # TT-NN's FPU has no groups: it multiplies by zeros
        dense = weight.new_zeros(*weight.shape[:-4], groups, out // groups, groups, per_group, height, width)
        index = torch.arange(groups, device=weight.device)
        dense.movedim(-4, 0).movedim(-5, 1)[index, index] = torch.unflatten(weight, -4, (groups, -1)).movedim(-5, 0)
        weight = dense.flatten(-4, -3).flatten(-5, -4)
    channels = weight.shape[-3]
    taps = weight.movedim(-4, -1).movedim(-4, -2)  # [h, w, in, out]
    taps = torch.nn.functional.pad(taps, (0, -out % TILE, 0, -channels % ROW_CHANNELS)).flatten(-4, -2)
    return torch.nn.functional.pad(taps, (0, 0, 0, -taps.shape[-2] % TILE))[..., None, None, :, :]


def from_matrix(matrix: Lanes, out_channels: int, in_channels: int, kernel: tuple[int, int], groups: int) -> Lanes:
    """The inverse of `to_matrix`."""
    padded = round_up(in_channels, ROW_CHANNELS)
    taps = matrix.squeeze(-4).squeeze(-3)[..., : kernel[0] * kernel[1] * padded, :out_channels]
    by_tap = torch.unflatten(taps, -2, (*kernel, padded))[..., :in_channels, :]
    weight = by_tap.movedim(-1, -4).movedim(-1, -3)
    if groups == 1:
        return weight
    grouped = torch.unflatten(torch.unflatten(weight, -3, (groups, -1)), -5, (groups, -1))
    diagonal_blocks = torch.diagonal(grouped, dim1=-6, dim2=-4)  # [out / groups, in / groups, h, w, groups]
    return diagonal_blocks.movedim(-1, -5).flatten(-5, -4)


def is_prepared(weight: Tensor) -> bool:
    """Whether a tensor is a weight matrix that TT-NN uses without preparing it."""
    shape = weight.shape
    return (
        weight.layout is Layout.TILE and len(shape) == 4 and shape[0] == shape[1] == 1 and weight.device() is not None
    )


def check_prepared(weight: Tensor, out_channels: int, in_channels: int, kernel: tuple[int, int]) -> None:
    """Raise for prepared weights of another convolution."""
    expected_shape = matrix_shape(out_channels, in_channels, kernel)
    if tuple(weight.shape) != expected_shape:
        raise ShapeError(
            f"prepared weights have shape {weight.shape}",
            expected=f"{list(expected_shape)} for {out_channels} x {in_channels} channels and kernel {list(kernel)}",
            fix="Prepare them with the options of this convolution.",
        )


def store_on_device(values: Lanes, source: Tensor, dtype: DataType, device: MeshDevice, padded_rows: int = 0) -> Tensor:
    """Host lanes as a tiled tensor in DRAM, with their source's placement on the mesh; `padded_rows` if those are more."""
    axes = len(source.mesh_shape)
    aligned = (padded_rows, TILE) if padded_rows > values.shape[-2] else ()
    spec = TensorSpec(values.shape[axes:], dtype, Layout.TILE, memory_config=DRAM_MEMORY_CONFIG, alignment=aligned)
    lanes = to_lane(values, dtype)
    return to_device(source.make_host_tensor(spec, lanes), device)


def read_host_lanes(tensor: Tensor) -> tuple[Tensor, Lanes]:
    """A tensor on the host, and its lanes in float32."""
    host_tensor = tensor if tensor.device() is None else from_device(tensor)
    return host_tensor, host_tensor.lanes.float()


def prepare_weights(
    weight: Tensor,
    device: MeshDevice,
    groups: int,
    dtype: DataType | None,
    *,
    transposed: bool = False,
    mirror: bool = True,
    padded_rows: int = 0,
) -> Tensor:
    """Weights [out, in / groups, h, w] (transposed: [in, out / groups, h, w]) as a matrix on the device."""
    options = {"groups": groups, "transposed": transposed, "mirror": mirror}
    return prepare_on_host(_WEIGHTS, weight, device, dtype, options, padded_rows)


def prepare_on_host(
    operation: Operation,
    tensor: Tensor,
    device: MeshDevice,
    dtype: DataType | None,
    options: dict[str, Any],
    padded_rows: int = 0,
) -> Tensor:
    """A tensor rearranged on the host, as TT-NN does; a tape records the equivalent device operation."""
    source, values = read_host_lanes(tensor)
    rearranged = operation.lane(values, lane_axes=len(source.mesh_shape), **options)
    result = store_on_device(rearranged, source, dtype or tensor.dtype, device, padded_rows)
    if tensor.device() is not None:
        report(operation, {"values": tensor, **options}, result)
    return result


def _rearranged_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    ((shape, _),) = inferred
    return [TensorSpec(shape, call.specs[0].dtype, Layout.TILE, memory_config=DRAM_MEMORY_CONFIG)]


def define_rearrangement(name: str, lane: Callable[..., Lanes]) -> Operation:
    """Define the device operation that is equivalent to a rearrangement on the host."""
    return device_operation(name, out=_rearranged_spec)(lane).operation


def _weights_lane(values: Lanes, groups: int, transposed: bool, mirror: bool, lane_axes: int) -> Lanes:
    if values.dim() - lane_axes == 3:  # conv1d: [out, in, taps]
        values = values.unsqueeze(-2)
    if transposed:
        values = swap_channels(values, groups)
        values = values.flip(-1, -2) if mirror else values
    return to_matrix(values, groups)


def _bias_lane(values: Lanes, lane_axes: int) -> Lanes:
    return torch.nn.functional.pad(values, (0, -values.shape[-1] % TILE))


_WEIGHTS = define_rearrangement("ttnn.prepare_conv_weights", _weights_lane)
_BIAS = define_rearrangement("ttnn.prepare_conv_bias", _bias_lane)


def swap_channels(weight: Lanes, groups: int) -> Lanes:
    """[in, out / groups, h, w] ↔ [out, in / groups, h, w]."""
    return torch.unflatten(weight, -4, (groups, -1)).transpose(-3, -4).flatten(-5, -4)


def prepare_bias(bias: Tensor, device: MeshDevice, dtype: DataType | None) -> Tensor:
    """A bias [1, 1, 1, out] as a row of full tiles on the device."""
    if len(bias.shape) != 4:
        raise ShapeError(
            f"Host conv bias should be 4D tensor; got {bias.shape}",
            expected="[1, 1, 1, channels]",
            fix="Reshape it to four dims.",
        )
    return prepare_on_host(_BIAS, bias, device, dtype, {})


def _weights_dtype(conv_config: Conv2dConfig | None) -> DataType | None:
    return None if conv_config is None else conv_config.weights_dtype


def _check_format(weights_format: str, expected: str) -> None:
    if weights_format != expected:
        raise ShapeError(
            f"PyTorch expects Conv Weights in {expected} format. If you have passed the correct weights, then make sure "
            f"that the weights_format string is set to '{expected}'; got {weights_format!r}",
            expected=expected,
            fix="Change weights_format.",
        )


@composite("ttnn.prepare_conv_weights")
def prepare_conv_weights(
    weight_tensor: Tensor, weights_format: str, groups: int, device: MeshDevice, conv_config: Conv2dConfig | None
) -> Tensor:
    """The weights as conv2d prepares and returns them."""
    _check_format(weights_format, "OIHW")
    return prepare_weights(weight_tensor, device, groups, _weights_dtype(conv_config))


@composite("ttnn.prepare_conv_bias")
def prepare_conv_bias(bias_tensor: Tensor, device: MeshDevice, conv_config: Conv2dConfig | None) -> Tensor:
    """The bias as conv2d prepares and returns it."""
    return prepare_bias(bias_tensor, device, _weights_dtype(conv_config))


@composite("ttnn.prepare_conv_transpose2d_weights")
def prepare_conv_transpose2d_weights(
    weight_tensor: Tensor,
    weights_format: str,
    groups: int,
    device: MeshDevice,
    conv_config: Conv2dConfig | None,
    mirror_kernel: bool,
) -> Tensor:
    """The weights as conv_transpose2d prepares and returns them."""
    _check_format(weights_format, "IOHW")
    dtype = _weights_dtype(conv_config)
    return prepare_weights(weight_tensor, device, groups, dtype, transposed=True, mirror=mirror_kernel)


@composite("ttnn.prepare_conv_transpose2d_bias")
def prepare_conv_transpose2d_bias(bias_tensor: Tensor, device: MeshDevice, conv_config: Conv2dConfig | None) -> Tensor:
    """The bias as conv_transpose2d prepares and returns it."""
    return prepare_bias(bias_tensor, device, _weights_dtype(conv_config))
