"""Convolutions over [batch, depth, height, width, channels], for models of video and volumes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import gcd, lcm, prod
from typing import Any

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import MeshError, one_of, require
from ttmesh.chip.numerics import fpu
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.configs.conv_config import Conv3dConfig
from ttmesh.ops.conv.conv_weights import TILE, define_rearrangement, prepare_on_host
from ttmesh.ops.goldens import convolution as goldens
from ttmesh.ops.lane_functions.fpu_windows import convolve_on_fpu
from ttmesh.ops.lane_functions.lane_broadcast import common_mesh_dims
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import allocate_tensor_on_device

Size3d = tuple[int, int, int]
L1_ALIGNMENT = 16


def choose_channel_block(kernel: Sequence[int], requested: int, channels: int | None = None) -> int:
    """How many channels of a tap are adjacent in the weights' rows: the requested number, or the fewest that fill tiles."""
    if requested:
        return requested
    smallest = lcm(L1_ALIGNMENT, TILE // gcd(prod(kernel), TILE))
    return smallest if channels is None else min(smallest, channels)


def _to_matrix(weight: Lanes, groups: int, block: int, alignment: int) -> Lanes:
    """[*mesh, out, in / groups, d, h, w] → [*mesh, blocks · d · h · w · block, out], zeros between groups."""
    out, per_group = weight.shape[-5:-3]
    if groups > 1:
        dense = weight.new_zeros(*weight.shape[:-4], groups * per_group, *weight.shape[-3:])
        for group in range(groups):
            rows = slice(group * out // groups, (group + 1) * out // groups)
            columns = slice(group * per_group, (group + 1) * per_group)
            dense[..., rows, columns, :, :, :] = weight[..., rows, :, :, :, :]
        weight = dense
    weight = F.pad(weight.movedim(-4, -1), (0, -weight.shape[-4] % alignment))  # [out, d, h, w, in]
    blocks = torch.unflatten(weight, -1, (-1, block))
    return blocks.movedim(-2, -5).flatten(-5).transpose(-1, -2)


def _weights_lane(values: Lanes, groups: int, block: int, alignment: int, lane_axes: int) -> Lanes:
    return _to_matrix(values, groups, block, alignment)


_WEIGHTS = define_rearrangement("ttnn.experimental.prepare_conv3d_weights", _weights_lane)


def _to_filters(matrix: Lanes, kernel: Size3d, block: int) -> Lanes:
    """The inverse of `_to_matrix`: [*mesh, out, in, d, h, w]."""
    blocks = torch.unflatten(matrix.transpose(-1, -2), -1, (-1, *kernel, block))  # [out, blocks, d, h, w, block]
    return blocks.movedim(-1, -4).flatten(-5, -4)


@composite("ttnn.experimental.prepare_conv3d_weights")
def prepare_conv3d_weights(
    weight_tensor: Tensor, groups: int, C_in_block: int, alignment: int, device: MeshDevice | None
) -> Tensor:
    """Weights [out, in / groups, d, h, w] as the matrix that conv3d multiplies by."""
    mesh = device if device is not None else weight_tensor.device()
    if mesh is None:
        raise MeshError("the weights have no device", expected="device=", fix="Pass the mesh that convolves.")
    shape = tuple(weight_tensor.shape)
    channels = -(-shape[-4] * groups // alignment) * alignment
    block = choose_channel_block(shape[-3:], C_in_block, channels)
    wrong = "C_in_aligned must be divisible by C_in_block"
    require(channels % block == 0, wrong, f"a divisor of {channels}", "Choose a C_in_block that divides the channels.")
    options = {"groups": groups, "block": block, "alignment": alignment}
    return prepare_on_host(_WEIGHTS, weight_tensor, mesh, None, options)


def _check(call: Call) -> None:
    x, weight, bias = call["input"].spec, call["weight"].spec, call["bias"]
    kernel, dilation, padding, groups = call["kernel"], call["dilation"], call["padding"], call["groups"]
    wrong = f"Activation tensor must have 5 dimensions. got {len(x.shape)}"
    require(len(x.shape) == 5, wrong, "[N, D, H, W, C]", "Reshape it to five dims.")
    wrong = "Activation tensor must be row-major."
    require(x.layout is Layout.ROW_MAJOR, wrong, "ROW_MAJOR layout", "Convert it with ttnn.to_layout.")
    floats = (DataType.BFLOAT16, DataType.FLOAT32)
    wrong = f"Activation tensor must be bfloat16 or float32. got {x.dtype}"
    require(x.dtype in floats, wrong, one_of(floats), "Convert it with ttnn.typecast.")
    wrong_dtype = f"Input and weight tensors must have the same dtype. got {x.dtype} vs {weight.dtype}"
    require(x.dtype is weight.dtype, wrong_dtype, "equal formats", "Convert with ttnn.typecast.")
    mode = call["padding_mode"]
    wrong = f"Padding mode must be zeros or replicate. got {mode}"
    require(mode in ("zeros", "replicate"), wrong, "'zeros' or 'replicate'", "Pass one of these names.")
    for side, count in (("Input", x.shape[4]), ("Output", call["out_channels"])):
        wrong = f"{side} channels must be divisible by groups. Got {side.lower()} channels {count} and groups {groups}"
        require(count % groups == 0, wrong, f"a multiple of {groups}", "Choose groups that divide the channels.")
    for name, extent, pad, taps, step in zip("THW", x.shape[1:4], padding, kernel, dilation, strict=True):
        letter = name.lower()
        wrong = (
            f"Effective kernel size exceeds padded {name} dimension ({name}_in={extent}, pad_{letter}={pad}, "
            f"k_{letter}={taps}, d_{letter}={step})"
        )
        require(
            extent + 2 * pad >= step * (taps - 1) + 1,
            wrong,
            "a smaller kernel",
            "Use a smaller kernel, or more padding.",
        )
    patch = prod(kernel) * x.shape[4]
    wrong = f"Weight patch size must match input patch size. got {weight.shape[0]} vs {patch}"
    require(weight.shape[0] == patch, wrong, f"{patch} rows", "Prepare the weights with prepare_conv3d_weights.")
    wrong = f"Input channels ({x.shape[4]}) must be divisible by C_in_block ({call['block']})"
    require(
        x.shape[4] % call["block"] == 0, wrong, f"a multiple of {call['block']}", "Choose a C_in_block that divides C."
    )
    if bias is not None:
        wrong = f"Bias must match output channels. got {bias.shape[-1]} vs {call['out_channels']}"
        require(bias.shape[-1] == call["out_channels"], wrong, "one value per channel", "Reshape the bias to one row.")
    if call["halo"] is not None:
        _check_halo(call, x)


def _check_halo(call: Call, x: TensorSpec) -> None:
    kernel, dilation, (_, pad_h, pad_w) = call["kernel"], call["dilation"], call["padding"]
    mode = call["padding_mode"]
    require(
        mode == "zeros", f'Halo mode requires padding_mode "zeros". got {mode}', "'zeros'", "Use padding_mode='zeros'."
    )
    wrong = (
        f"Halo mode requires a kernel with spatial reuse and no dilation. got kernel_size={tuple(kernel)}, "
        f"dilation={tuple(dilation)}"
    )
    require(
        max(kernel) > 1 and max(dilation) == 1,
        wrong,
        "a kernel larger than 1, and no dilation",
        "Leave halo_buffer out.",
    )
    outer, height, width = x.shape[0] * x.shape[1], x.shape[2], x.shape[3]
    needed = 2 * outer * (pad_h * width + pad_w * (height + 2 * pad_h))
    pages = prod(call["halo"].shape[:-1])
    wrong = (
        f"Halo buffer holds {pages} pages but the [Htop|Hbot|Wleft|Wright] sections need {needed} (N*T_in={outer}, "
        f"H_in={height}, W_in={width}, pad_h={pad_h}, pad_w={pad_w})"
    )
    require(pages >= needed, wrong, f"{needed} rows", "Prepare the weights with prepare_conv3d_weights.")


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    shape = inferred[0][0]
    memory_config: MemoryConfig = call["memory_config"] or DRAM_MEMORY_CONFIG
    spec = TensorSpec(shape, call["out_dtype"], Layout.ROW_MAJOR, memory_config=memory_config)
    return [spec.with_padded_shape((*shape[:-1], -(-shape[-1] // TILE) * TILE))]


def _programs(call: Call) -> tuple[Hashable, ...]:
    """The convolution; weights from the host are permuted twice and tilized first."""
    own = (call.name, *(key_of(value) for value in call.arguments.values()))
    return (*((step, call["prepared"]) for step in ("permute 1", "permute 2", "tilize") if call["prepared"]), own)


@device_operation("ttnn.experimental.conv3d", out=_spec, check=_check, programs=_programs)
def _convolve(
    input: Lanes,
    weight: Lanes,
    bias: Lanes | None,
    halo: Lanes | None,
    offset: Lanes | None,
    out_channels: int,
    kernel: Size3d,
    stride: Size3d,
    padding: Size3d,
    dilation: Size3d,
    padding_mode: str,
    block: int,
    logical: tuple[int, int],
    output_pad: tuple[int, int],
    lane_axes: int,
) -> Lanes:
    """Slide the kernel over [batch, depth, height, width, channels] of every lane."""
    operands = [t for t in (input, weight, halo, offset) if t is not None]
    dims = common_mesh_dims(operands, lane_axes)
    x = _mask_padding(input.float(), offset, logical, lane_axes)
    if halo is not None:
        x, padding = _attach_halo(x, halo.float(), padding, lane_axes), (padding[0], 0, 0)
    filters = _to_filters(weight.float(), kernel, block)[..., :out_channels, :, :, :, :]
    x = x.expand(*dims, *x.shape[lane_axes:]).movedim(-1, lane_axes + 1)  # [*mesh, n, c, d, h, w]
    depth, pad_h, pad_w = padding
    if padding_mode == "replicate" and any(padding):
        batch = x.shape[: lane_axes + 1]
        x = F.pad(x.flatten(0, lane_axes), (pad_w, pad_w, pad_h, pad_h, depth, depth), mode="replicate")
        x, padding = x.reshape(*batch, *x.shape[1:]), (0, 0, 0)
    lanes = prod(dims)
    if lanes == 1 or prod(filters.shape[:lane_axes]) == 1:
        kernels = filters.reshape(filters.shape[lane_axes:])
        out = _slide(x.flatten(0, lane_axes), kernels, stride, padding, dilation, 1)
        out = out.reshape(*x.shape[: lane_axes + 1], *out.shape[1:])
    else:  # every device has its own weights: devices become groups of one convolution
        kernels = filters.expand(*dims, *filters.shape[lane_axes:]).flatten(0, lane_axes)
        images = x.flatten(0, lane_axes - 1).transpose(0, 1).flatten(1, 2)
        out = _slide(images, kernels, stride, padding, dilation, lanes)
        out = torch.unflatten(out, 1, (lanes, -1)).transpose(0, 1)
        out = out.reshape(*dims, *out.shape[1:])
    out = out.movedim(lane_axes + 1, -1)
    if bias is not None:
        row = bias.float().reshape(*bias.shape[:lane_axes], 1, 1, 1, 1, -1)[..., :out_channels]
        out = fpu.add(fpu.keep(out), row)
    pad_h, pad_w = output_pad
    return F.pad(out, (0, 0, pad_w, pad_w, pad_h, pad_h)) if pad_h or pad_w else out


def _slide(images: Lanes, filters: Lanes, stride: Size3d, padding: Size3d, dilation: Size3d, groups: int) -> Lanes:
    def ideal(x: Lanes, w: Lanes) -> Lanes:
        return F.conv3d(x, w, None, stride, padding, dilation, groups)

    if fpu.is_emulated(images, filters):
        return convolve_on_fpu(images, filters, stride, padding, dilation, groups, ideal)
    return ideal(images, filters)


def _mask_padding(x: Lanes, offset: Lanes | None, logical: tuple[int, int], lane_axes: int) -> Lanes:
    """Set rows and columns past the logical end of the full image to zero; each device holds a shard of the image."""
    for axis, end in enumerate(logical):
        if not end:
            continue
        side = x.shape[axis - 3]
        start = 0 if offset is None else offset.flatten(lane_axes)[..., axis : axis + 1].long()
        inside = torch.arange(side, device=x.device) + start < end
        shape = [1, 1, 1, 1, 1]
        shape[axis + 2] = side
        x = x * inside.reshape(*inside.shape[:-1], *shape)
    return x


def _attach_halo(x: Lanes, halo: Lanes, padding: Size3d, lane_axes: int) -> Lanes:
    """Surround the image with its neighbours' rows and columns; the halo's sections are top, bottom, left, right."""
    rows = halo.flatten(lane_axes, -2)
    dims = common_mesh_dims([x, rows], lane_axes)
    x, rows = (t.expand(*dims, *t.shape[lane_axes:]) for t in (x, rows))
    batch, depth, height, width, channels = x.shape[lane_axes:]
    _, pad_h, pad_w = padding
    padded_height = height + 2 * pad_h
    sizes = [(pad_h, width), (pad_h, width), (padded_height, pad_w), (padded_height, pad_w)]
    sections, start = [], 0
    for section_height, section_width in sizes:
        count = batch * depth * section_height * section_width
        section = rows[..., start : start + count, :].reshape(
            *dims, batch, depth, section_height, section_width, channels
        )
        sections.append(section)
        start += count
    x = torch.cat([sections[0], x, sections[1]], dim=-3)
    return torch.cat([sections[2], x, sections[3]], dim=-2)


@composite("ttnn.experimental.conv3d", golden=goldens.conv3d)
def conv3d(
    input_tensor: Tensor,
    weight_tensor: Tensor,
    device: MeshDevice | None,
    bias_tensor: Tensor | None,
    config: Conv3dConfig | None,
    dtype: DataType,
    output_channels: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    padding_mode: str,
    groups: int,
    memory_config: MemoryConfig | None,
    halo_buffer: Tensor | None,
    logical_h_mask: int,
    logical_w_mask: int,
    pad_offset_tensor: Tensor | None,
    output_pad_h: int,
    output_pad_w: int,
    compute_kernel_config: Any,
) -> Tensor:
    """A convolution of [batch, depth, height, width, channels]."""
    options = config or Conv3dConfig()
    block = choose_channel_block(kernel_size, options.C_in_block, input_tensor.shape[-1])
    weight = weight_tensor
    if len(weight.shape) == 5:
        mesh = device if device is not None else input_tensor.device()
        rearranged = _hold_rearranged(weight, mesh)
        weight = prepare_conv3d_weights(
            weight_tensor=weight,
            groups=groups,
            C_in_block=block,
            alignment=options.alignment,
            device=mesh,
        )
        if rearranged is not None:
            rearranged.deallocate(force=True)
    result: Tensor = _convolve(
        input=input_tensor,
        weight=weight,
        bias=bias_tensor,
        halo=halo_buffer,
        offset=pad_offset_tensor,
        out_channels=output_channels,
        kernel=tuple(kernel_size),
        stride=tuple(stride),
        padding=tuple(padding),
        dilation=tuple(dilation),
        padding_mode=padding_mode,
        groups=groups,
        block=block,
        logical=(logical_h_mask, logical_w_mask),
        output_pad=(output_pad_h, output_pad_w),
        out_dtype=dtype,
        memory_config=memory_config,
        prepared=tuple(weight_tensor.shape) if len(weight_tensor.shape) == 5 else None,
        compute_kernel_config=compute_kernel_config,
    )
    return result


def _hold_rearranged(weight: Tensor, mesh: MeshDevice | None) -> Tensor | None:
    """Memory as TT-NN takes it for weights from the host: the rows, permuted, and permuted again, which stays a while."""
    if mesh is None or weight.device() is not None:
        return None
    out, channels, *kernel = weight.shape
    shapes = ((out, channels, *kernel), (*kernel, channels, out), (prod(kernel) * channels, out))
    held: Tensor | None = None
    for shape in shapes:
        made: Tensor = allocate_tensor_on_device(TensorSpec(shape, weight.dtype, Layout.ROW_MAJOR), mesh)
        if held is not None:
            held.deallocate(force=True)
        held = made
    return held
