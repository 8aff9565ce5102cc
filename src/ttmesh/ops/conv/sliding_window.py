"""What all 1D and 2D convolutions share: prepare weights, choose the output's memory, convolve all lanes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.chip.numerics import fpu
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.ops.catalogue.definition import device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.configs.activations import Activation, apply
from ttmesh.ops.configs.compute_config import WormholeComputeKernelConfig
from ttmesh.ops.configs.conv_config import (
    Conv2dConfig,
    Op2DSliceConfig,
    PaddingMode,
    output_size,
    transposed_size,
)
from ttmesh.ops.conv import conv_weights
from ttmesh.ops.conv.conv_memory import choose_memory
from ttmesh.ops.conv.conv_programs import conv_programs, conv_stages, copy_tiles, is_matmul
from ttmesh.ops.conv.conv_sharding import NOC_BURSTS, TILE, WIDTH, Window, channel_step_of
from ttmesh.ops.conv.conv_slices import Images
from ttmesh.ops.conv.freed_inputs import read_freed_input
from ttmesh.ops.lane_functions.fpu_windows import convolve_on_fpu
from ttmesh.ops.lane_functions.lane_broadcast import common_mesh_dims
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import deallocate, to_device

Four = tuple[int, int, int, int]
Two = tuple[int, int]


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory_config: MemoryConfig = call["out_memory"]
    row_alignment = (
        (TILE, 1) if memory_config.is_sharded() else ()
    )  # TT-NN rounds the rows of shards up to tiles in every layout
    return [
        TensorSpec(
            inferred[0][0], call["out_dtype"], call["out_layout"], memory_config=memory_config, alignment=row_alignment
        )
    ]


def _check(call: Call) -> None:
    x = call["input"].spec
    batch, height, width, channels = call["size"]
    if x.shape.volume() != batch * height * width * x.shape[-1] or x.shape[-1] < channels:
        raise ShapeError(
            f"conv got an input of shape {x.shape}",
            expected=f"[{batch}, {height}, {width}, {channels}] or [1, 1, {batch * height * width}, {channels}]",
            fix="Check batch_size, input_height, input_width and in_channels.",
        )
    if call["out_dtype"] in BLOCK_FLOATS and call["out_layout"] is not Layout.TILE:
        raise MeshError(
            "Only TILE layout is supported for BFLOAT8_B dtype!; conv was asked for row-major block floats",
            expected="TILE output layout",
            fix="Set conv_config.output_layout or another dtype.",
        )


@device_operation(
    "ttnn.conv2d", out=_spec, check=_check, scratch=lambda call: int(call["scratch_bytes"]),
    programs=conv_programs, stages=conv_stages,
)  # fmt: skip
def _convolve(
    input: Lanes,
    weight: Lanes,
    bias: Lanes | None,
    size: Four,
    out_channels: int,
    kernel: Two,
    stride: Two,
    padding: Four,
    dilation: Two,
    groups: int,
    transposed: bool,
    output_padding: Two,
    padding_mode: PaddingMode,
    activation: Activation | None,
    lane_axes: int,
) -> Lanes:
    """Slide the kernel over [batch, height, width, channels] of every lane."""
    batch, height, width, channels = size
    dims = common_mesh_dims([x for x in (input, weight) if x is not None], lane_axes)
    x = input[..., :channels].reshape(*input.shape[:lane_axes], batch, height, width, channels)
    filters = conv_weights.from_matrix(weight, out_channels, channels, kernel, groups)
    shared = all(extent == 1 for extent in filters.shape[:lane_axes])
    lanes = 1 if shared else torch.Size(dims).numel()
    if shared:
        images = x.flatten(0, lane_axes).movedim(-1, 1)
        filters = filters.reshape(filters.shape[lane_axes:])
        dims = x.shape[:lane_axes]
    else:  # every device has its own weights: devices become groups of one convolution
        expanded = x.expand(*dims, *x.shape[lane_axes:]).flatten(0, lane_axes - 1)
        images = expanded.movedim(-1, 2).transpose(0, 1).flatten(1, 2)
        filters = filters.expand(*dims, *filters.shape[lane_axes:]).flatten(0, lane_axes)
    out = _slide(images, filters, stride, padding, dilation, groups * lanes, transposed, output_padding, padding_mode)
    if shared:
        rows = torch.unflatten(out.movedim(1, -1), 0, (*dims, batch)).flatten(lane_axes, -2)
    else:
        rows = torch.unflatten(out, 1, (lanes, -1)).movedim(1, 0).movedim(2, -1).flatten(1, -2)
        rows = rows.reshape(*dims, *rows.shape[1:])
    if bias is not None:
        rows = fpu.add(fpu.keep(rows), bias.flatten(lane_axes)[..., None, :out_channels].float())
    if activation is not None:
        rows = apply(rows, [activation])
    return rows[..., None, None, :, :] if rows.dim() == lane_axes + 2 else rows


def _slide(
    images: Lanes,
    filters: Lanes,
    stride: Two,
    padding: Four,
    dilation: Two,
    groups: int,
    transposed: bool,
    output_padding: Two,
    padding_mode: PaddingMode,
) -> Lanes:
    """The convolution in float32, in which products of bfloat16 values are exact."""
    top, bottom, left, right = padding
    images, filters = images.float(), filters.float()
    if transposed and (padding_mode is PaddingMode.Replicate or fpu.is_emulated(images, filters)):
        reach = [d * (k - 1) for d, k in zip(dilation, filters.shape[2:], strict=True)]
        spread = _spread_pixels(images, stride, reach, padding, output_padding, padding_mode)
        return _slide_filters(spread, filters, (1, 1), (0, 0), dilation, groups)
    if transposed:
        flipped = conv_weights.swap_channels(filters, groups).flip(-1, -2)
        out = F.conv_transpose2d(
            images, flipped, stride=stride, dilation=dilation, groups=groups, output_padding=output_padding
        )
        return out[..., top : out.shape[-2] - bottom, left : out.shape[-1] - right]
    if padding_mode is PaddingMode.Replicate:
        images, padding = F.pad(images, (left, right, top, bottom), mode="replicate"), (0, 0, 0, 0)
    elif top != bottom or left != right:
        images, padding = F.pad(images, (left, right, top, bottom)), (0, 0, 0, 0)
    return _slide_filters(images, filters, stride, (padding[0], padding[2]), dilation, groups)


def _slide_filters(images: Lanes, filters: Lanes, stride: Two, margin: Two, dilation: Two, groups: int) -> Lanes:
    def ideal(x: Lanes, w: Lanes) -> Lanes:
        return F.conv2d(x, w, None, stride, margin, dilation, groups)

    if fpu.is_emulated(images, filters):
        return convolve_on_fpu(images, filters, stride, margin, dilation, groups, ideal)
    return ideal(images, filters)


def _spread_pixels(
    images: Lanes, stride: Two, reach: Sequence[int], padding: Four, output_padding: Two, padding_mode: PaddingMode
) -> Lanes:
    """Zeros between pixels and a border, so that a convolution with stride 1 is a transposed one, as on the chip.

    The border holds zeros, or what the nearest row and column of the spread image hold: pixels and the zeros between.
    """
    high, wide = ((n - 1) * s + 1 for n, s in zip(images.shape[2:], stride, strict=True))
    spread = images.new_zeros((*images.shape[:2], high, wide))
    spread[..., :: stride[0], :: stride[1]] = images
    top, bottom, left, right = padding
    border = (
        reach[1] - left, reach[1] - right + output_padding[1], reach[0] - top, reach[0] - bottom + output_padding[0]
    )  # fmt: skip
    return F.pad(spread, border, mode="replicate" if padding_mode is PaddingMode.Replicate else "constant")


def convolve(
    *,
    input_tensor: Tensor,
    weight_tensor: Tensor,
    bias_tensor: Tensor | None,
    device: MeshDevice,
    size: Four,
    out_channels: int,
    kernel: Two,
    stride: Two,
    padding: Four,
    dilation: Two,
    groups: int,
    dtype: DataType | None,
    conv_config: Conv2dConfig | None,
    memory_config: MemoryConfig | None,
    slice_config: Op2DSliceConfig | None,
    compute_config: WormholeComputeKernelConfig | None = None,
    transposed: bool = False,
    output_padding: Two = (0, 0),
    mirror_kernel: bool = True,
) -> tuple[Tensor, Two, tuple[Tensor, Tensor | None]]:
    """The result, its height and width, and the weights and bias on the device."""
    config = conv_config or Conv2dConfig()
    batch, height, width, channels = size
    groups = groups or 1  # TT-NN's own tutorial asks for none
    weight, bias = weight_tensor, bias_tensor
    plain = is_matmul(kernel, stride, dilation, padding) and config.shard_layout is not WIDTH
    copied = None if plain or input_tensor.device() is None else copy_tiles(input_tensor, size)
    prepared = conv_weights.is_prepared(weight)
    if prepared:
        conv_weights.check_prepared(weight, out_channels, channels, kernel)
    else:
        _check_weight(weight, out_channels, channels, kernel, groups, transposed=transposed)
    on_host = input_tensor.device() is None
    x = to_device(input_tensor, device) if on_host else input_tensor
    if transposed:
        out = transposed_size((height, width), kernel, stride, padding, dilation, output_padding)
    else:
        out = output_size((height, width), kernel, stride, padding, dilation)
    if min(out) < 1:
        raise ShapeError(
            f"conv would give {out[0]} x {out[1]} outputs",
            expected="at least 1 x 1",
            fix="Check kernel, padding, stride.",
        )
    if transposed:
        padded = (out[0] + dilation[0] * (kernel[0] - 1), out[1] + dilation[1] * (kernel[1] - 1))
    else:
        padded = (height + padding[0] + padding[1], width + padding[2] + padding[3])
    window = Window(
        batch * out[0] * out[1], batch * height * width, channels, out_channels, kernel,
        weight.dtype if prepared else config.weights_dtype or weight.dtype, x.dtype,
        dtype or x.dtype, bias is not None,
        is_matmul=plain,
        depthwise=groups == channels == out_channels and kernel[0] == height == 1 and bias is None and not transposed,
        channel_step=TILE if plain or x.layout is Layout.TILE else channel_step_of(x.memory_config()),
        noc_burst=NOC_BURSTS[device.arch()],
        out_size=out,
        padded_size=padded,
        stride=(1, 1) if transposed else stride,
        dilation=dilation,
    )  # fmt: skip
    images = Images(batch, (height, width), out, padding, stride, transposed)
    compute = compute_config or WormholeComputeKernelConfig()
    place = choose_memory(x, device, on_host, window, images, config, compute, memory_config, slice_config)
    if not prepared:
        weight = conv_weights.prepare_weights(
            weight, device, groups, config.weights_dtype,
            transposed=transposed, mirror=mirror_kernel, padded_rows=place.weight_rows,
        )  # fmt: skip
    if bias is not None and bias.device() is None:
        bias = conv_weights.prepare_bias(bias, device, config.weights_dtype)
    frees_input = config.deallocate_activation and not on_host and x.memory_config().is_l1()
    rows, moves = place.read_spec, config.reallocate_halo_output
    frees_first = frees_input and x.memory_config().is_sharded() and rows is not None
    with read_freed_input(x, rows, moves=moves) if frees_first and rows else nullcontext(x) as read:
        result: Tensor = _convolve(
            input=read,
            weight=weight,
            bias=bias,
            size=size,
            out_channels=out_channels,
            kernel=kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            transposed=transposed,
            output_padding=output_padding,
            padding_mode=config.padding_mode,
            activation=config.activation,
            out_dtype=dtype or x.dtype,
            out_layout=place.layout,
            out_memory=place.memory,
            scratch_bytes=place.buffer_bytes,
            read_spec=None if frees_first and not moves else rows,
            compute_config=compute_config,
        )
    if copied is not None:
        deallocate(copied)
    if frees_input and not frees_first:
        deallocate(x)
    return result, out, (weight, bias)


def _check_weight(
    weight: Tensor, out_channels: int, in_channels: int, kernel: Two, groups: int, *, transposed: bool
) -> None:
    channels = (out_channels, in_channels // groups) if not transposed else (in_channels, out_channels // groups)
    taps = kernel if len(weight.shape) == 4 else kernel[1:]
    if tuple(weight.shape) != (*channels, *taps) or in_channels % groups or out_channels % groups:
        raise ShapeError(
            f"conv got weights of shape {weight.shape} for {groups} groups",
            expected=f"{[*channels, *taps]}",
            fix="Check in_channels, out_channels, kernel_size and groups.",
        )
