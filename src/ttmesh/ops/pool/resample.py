"""Resampling of images [batch, height, width, channels]: upsample, grid_sample, rotate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import BLOCK_FLOATS, ELEMENT_BYTES, DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import MeshError, ShapeError, require
from ttmesh.ops.catalogue.checks import require_dtype, require_layout
from ttmesh.ops.catalogue.definition import composite, op
from ttmesh.ops.catalogue.spec_rules import Inferred, inherit_memory_config, make_output_spec
from ttmesh.ops.goldens import pool_resample as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_and_flatten, fold_into_batch, unfold_from_batch
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def _factors(scale: float | Sequence[float]) -> tuple[float, float]:
    if isinstance(scale, (int, float)):
        return float(scale), float(scale)
    return float(scale[0]), float(scale[1])


def _image_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """A row-major spec; block floats become bfloat16, and shards keep their cores."""
    x, shape = call.specs[0], inferred[0][0]
    dtype = DataType.BFLOAT16 if x.dtype in BLOCK_FLOATS else x.dtype
    config = x.memory_config
    shard = config.shard_spec
    if shard is None or call["memory_config"] is not None:
        return [make_output_spec(call, shape, dtype=dtype, layout=Layout.ROW_MAJOR)]
    rows, cores = math.prod(shape[:-1]), shard.grid.num_cores()
    if config.memory_layout.name == "HEIGHT_SHARDED":
        shard_shape = [div_up(rows, cores), shard.shape[1]]
    else:
        shard_shape = [div_up(rows * shard.shape[0], max(math.prod(x.shape[:-1]), 1)), shard.shape[1]]
    memory_config = MemoryConfig(
        config.memory_layout, config.buffer_type, ShardSpec(shard.grid, shard_shape, shard.orientation)
    )
    return [TensorSpec(shape, dtype, Layout.ROW_MAJOR, memory_config=memory_config)]


def _enlarged_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """`_image_spec`; where nearest pixels of shards go into shards, those of the input decide how many a shard has."""
    x, asked = call.specs[0], call["memory_config"]
    shard, layout = x.memory_config.shard_spec, x.memory_config.memory_layout
    if shard is None or asked is None:
        return _image_spec(call, inferred)
    height, width = _factors(call["scale_factor"])
    whole = height.is_integer() and width.is_integer() and layout is not TensorMemoryLayout.WIDTH_SHARDED
    if whole and asked.shard_spec is None:
        wrong = f"bad optional access: ttnn.upsample of shards got the memory_config {asked}, which has no shard spec"
        raise ShapeError(wrong, expected="a memory_config with shards", fix="Pass the input's memory_config, or none.")
    shape = inferred[0][0]
    dtype = DataType.BFLOAT16 if x.dtype in BLOCK_FLOATS else x.dtype
    if not asked.is_sharded():
        wrong = (
            "Input and output page sizes must match for nearest upsample, got "
            f"input_page_size={shard.shape[1] * ELEMENT_BYTES[dtype]} output_page_size={shape[-1] * ELEMENT_BYTES[dtype]}"
        )
        require(shard.shape[1] == shape[-1], wrong, "shards as wide as the image", "Unshard the input.")
    if call["mode"] == "bilinear" or not asked.is_sharded():
        return _image_spec(call, inferred)
    if whole:
        grid, orientation = asked.shard_spec.grid, asked.shard_spec.orientation
        rows = int(shard.shape[0] * height * width)
    else:
        asked, grid, orientation = x.memory_config, shard.grid, shard.orientation
        rows = div_up(math.prod(shape[:-1]), _count_shards_down(shard, layout))
    shards = ShardSpec(grid, [rows, shard.shape[1]], orientation)
    memory_config = MemoryConfig(asked.memory_layout, asked.buffer_type, shards)
    return [TensorSpec(shape, dtype, Layout.ROW_MAJOR, memory_config=memory_config)]


def _count_shards_down(shard: ShardSpec, layout: TensorMemoryLayout) -> int:
    """How many shards there are along the height."""
    if layout is TensorMemoryLayout.WIDTH_SHARDED:
        return 1
    if layout is TensorMemoryLayout.HEIGHT_SHARDED:
        return shard.grid.num_cores()
    size = shard.grid.bounding_box().grid_size()
    return int(size.y if shard.orientation is ShardOrientation.ROW_MAJOR else size.x)


def _check_upsample(call: Call) -> None:
    if call["mode"] not in ("nearest", "bilinear"):
        raise MeshError(
            f"Unsupported mode: only supported modes are nearest and bilinear, got {call['mode']}",
            expected="'nearest' or 'bilinear'",
            fix="Pass one of these names.",
        )
    if call["mode"] == "bilinear" and any(factor != int(factor) for factor in _factors(call["scale_factor"])):
        raise MeshError(
            f"bilinear upsample takes integer scale factors, got {call['scale_factor']}",
            expected="integers",
            fix="Use mode='nearest'.",
        )
    channels = call.specs[0].shape[-1]
    wrong = "input channels should be divisible by 32"
    fits = call["mode"] == "nearest" or channels % 32 == 0
    require(fits, wrong, "a multiple of 32 channels", "Pad the channels with ttnn.pad.")
    spec, wrong = call.specs[0], "Tiled input must be tile-aligned (no padding difference)"
    aligned = spec.layout is Layout.ROW_MAJOR or tuple(spec.padded_shape) == tuple(spec.shape)
    require(aligned, wrong, "whole tiles", "Convert it with ttnn.to_layout to ROW_MAJOR.")


def _upsample(x: Lanes, scale: float | Sequence[float], mode: str) -> Lanes:
    """Enlarge [n, height, width, channels]."""
    scale_h, scale_w = _factors(scale)
    height, width = x.shape[-3:-1]
    size = math.floor(height * scale_h), math.floor(width * scale_w)
    if mode == "nearest":
        rows = (torch.arange(size[0], device=x.device) / scale_h).floor().long().clamp(max=height - 1)
        columns = (torch.arange(size[1], device=x.device) / scale_w).floor().long().clamp(max=width - 1)
        return x.index_select(-3, rows).index_select(-2, columns)
    images = x.float().movedim(-1, 1)
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False).movedim(1, -1)


@op(
    "ttnn.upsample",
    golden=goldens.upsample,
    out=_enlarged_spec,
    check=_check_upsample,
)
def upsample(input_tensor: Lanes, scale_factor: float | Sequence[float], mode: str, lane_axes: int) -> Lanes:
    """Images enlarged by repeating or interpolating pixels."""
    return unfold_from_batch(
        _upsample(fold_into_batch(input_tensor, lane_axes), scale_factor, mode), input_tensor.shape[:lane_axes]
    )


# -- grid_sample -------------------------------------------------------------------------------------------------------


def _sample(x: Lanes, grid: Lanes, mode: str, padding_mode: str, align_corners: bool, channels_last: bool) -> Lanes:
    """x [n, h, w, c] at grid [n, ho, wo, 2k]: [n, ho, wo · k, c], or [n, ho, wo, k · c]."""
    points = grid.shape[-1] // 2
    grid_points = torch.unflatten(grid.float(), -1, (points, 2)).flatten(-3, -2)
    out = F.grid_sample(
        x.float().movedim(-1, 1), grid_points, mode=mode, padding_mode=padding_mode, align_corners=align_corners
    ).movedim(1, -1)
    return torch.unflatten(out, -2, (-1, points)).flatten(-2) if channels_last else out


def _sample_precomputed(x: Lanes, grid: Lanes, channels_last: bool) -> Lanes:
    """x at grid [n, ho, wo, 6k]: row and column of the upper left pixel, then the weights of the four."""
    points = grid.shape[-1] // 6
    grid_points = torch.unflatten(grid.float(), -1, (points, 6)).flatten(-3, -2)
    top, left, weights = grid_points[..., 0].round().long(), grid_points[..., 1].round().long(), grid_points[..., 2:]
    height, width = x.shape[1:3]
    batch = torch.arange(x.shape[0], device=x.device)[:, None, None]
    out = torch.zeros(*top.shape, x.shape[-1], device=x.device, dtype=torch.float32)
    for i, (row_step, column_step) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        row, column = top + row_step, left + column_step
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        pixel = x.float()[batch, row.clamp(0, height - 1), column.clamp(0, width - 1)]
        out = out + pixel * (weights[..., i] * inside)[..., None]
    return torch.unflatten(out, -2, (-1, points)).flatten(-2) if channels_last else out


def _check_sample(call: Call) -> None:
    x, grid, precomputed = call.specs[0], call.specs[1], call["use_precomputed_grid"]
    for spec, name in ((x, "Input"), (grid, "Grid")):
        axes = "(N, H, W, C)" if spec is x else "(N, H_out, W_out, coords)"
        wrong = f"{name} tensor must be 4D {axes}, but got shape {spec.shape} with {len(spec.shape)} dimensions"
        require(len(spec.shape) == 4, wrong, "four dims", "Give it these dims with ttnn.reshape.")
    wrong = (
        f"Batch size mismatch: input tensor shape {x.shape} has batch size {x.shape[0]}, but grid tensor shape {grid.shape} "
        f"has batch size {grid.shape[0]}"
    )
    require(x.shape[0] == grid.shape[0], wrong, "equal batches", "Pass a grid per image.")
    floats = (DataType.BFLOAT16, DataType.FLOAT32)
    require_dtype(x, floats, "Input tensor must be BFLOAT16 or FLOAT32")
    if precomputed:
        require_dtype(grid, DataType.BFLOAT16, "Precomputed grid tensor must be BFLOAT16")
    require_dtype(grid, floats, "Grid tensor must be BFLOAT16 or FLOAT32")
    require_layout(x, Layout.ROW_MAJOR, "Input tensor must be ROW_MAJOR layout")
    require_layout(grid, Layout.ROW_MAJOR, "Grid tensor must be ROW_MAJOR layout")
    wrong = (
        f"Input tensor last dimension must be divisible by TILE_WIDTH (32), but got {x.padded_shape[-1]} in padded shape "
        f"{x.padded_shape!r}"
    )
    require(x.padded_shape[-1] % 32 == 0, wrong, "a multiple of 32 channels", "Pad the channels with ttnn.pad.")
    zeros = call["padding_mode"] == "zeros"
    require(zeros, "Only zeros padding mode is currently supported", "padding_mode='zeros'", "Pad the image.")
    wrong = (
        "use_precomputed_grid = false is not supported with mode = 'nearest'. Please use precomputed grid with nearest "
        "mode."
    )
    require(precomputed or call["mode"] != "nearest", wrong, "mode='bilinear'", "Prepare the grid, or use bilinear.")
    per_point = 6 if call["use_precomputed_grid"] else 2
    if call.specs[1].shape[-1] % per_point:
        raise ShapeError(
            f"the grid's last dim is {call.specs[1].shape[-1]}",
            expected=f"a multiple of {per_point}",
            fix=f"Give every point {per_point} numbers.",
        )


def _sample_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """The result in the grid's memory, unless the call names another."""
    specs, grid = _image_spec(call, inferred), call.specs[1].memory_config
    chosen = call["memory_config"] is not None or grid.is_sharded() or specs[0].memory_config.is_sharded()
    return specs if chosen else [spec.with_memory_config(grid) for spec in specs]


@op("ttnn.grid_sample", golden=goldens.grid_sample, out=_sample_spec, check=_check_sample)
def grid_sample(
    input_tensor: Lanes,
    grid: Lanes,
    mode: str,
    padding_mode: str,
    align_corners: bool,
    use_precomputed_grid: bool,
    batch_output_channels: bool,
    lane_axes: int,
) -> Lanes:
    """Images sampled at the points of a grid."""
    (x, points), dims = align_and_flatten([input_tensor, grid], lane_axes)
    x, points = x.flatten(0, 1), points.flatten(0, 1)
    if use_precomputed_grid:
        out = _sample_precomputed(x, points, batch_output_channels)
    else:
        out = _sample(x, points, mode, padding_mode, align_corners, batch_output_channels)
    return unfold_from_batch(out, dims)


@composite("ttnn.prepare_grid_sample_grid")
def prepare_grid_sample_grid(
    grid: Tensor,
    input_shape: Sequence[int],
    mode: str,
    padding_mode: str,
    align_corners: bool,
    output_dtype: DataType | None,
) -> Tensor:
    """A host grid with the corner and the four weights of every point precomputed."""
    if mode != "bilinear" or padding_mode != "zeros":
        raise MeshError(
            f"a grid cannot be prepared for mode={mode!r}, padding_mode={padding_mode!r}",
            expected="'bilinear' and 'zeros'",
            fix="Pass the grid to grid_sample without preparing it.",
        )
    height, width = int(input_shape[1]), int(input_shape[2])
    lanes = torch.unflatten(grid.lanes.float(), -1, (-1, 2))
    x, y = lanes[..., 0], lanes[..., 1]
    column = (x + 1) * (width - 1) / 2 if align_corners else ((x + 1) * width - 1) / 2
    row = (y + 1) * (height - 1) / 2 if align_corners else ((y + 1) * height - 1) / 2
    top, left = row.floor(), column.floor()
    row_fraction, column_fraction = row - top, column - left
    weights = (
        (1 - row_fraction) * (1 - column_fraction),
        (1 - row_fraction) * column_fraction,
        row_fraction * (1 - column_fraction),
        row_fraction * column_fraction,
    )
    values = torch.stack([top, left, *weights], dim=-1).flatten(-2)
    spec = TensorSpec(
        values.shape[len(grid.mesh_shape) :],
        output_dtype or DataType.BFLOAT16,
        Layout.ROW_MAJOR,
        memory_config=inherit_memory_config(grid.spec, ()),
    )
    lanes = values.to(torch.float32 if spec.dtype is DataType.FLOAT32 else torch.bfloat16)
    return grid.make_host_tensor(spec, lanes)


# -- rotate ------------------------------------------------------------------------------------------------------------


def _rotate(x: Lanes, angle: float, center: Sequence[float] | None, fill: float, mode: str) -> Lanes:
    """[n, h, w, c] rotated counter-clockwise by an angle in degrees; points outside the image get `fill`."""
    height, width = x.shape[1:3]
    cx, cy = ((width - 1) / 2, (height - 1) / 2) if center is None else (float(center[0]), float(center[1]))
    radians = math.radians(angle)
    dy = torch.arange(height, device=x.device, dtype=torch.float32)[:, None] - cy
    dx = torch.arange(width, device=x.device, dtype=torch.float32)[None, :] - cx
    column = dx * math.cos(radians) - dy * math.sin(radians) + cx
    row = dx * math.sin(radians) + dy * math.cos(radians) + cy
    if mode == "nearest":
        return _read_pixels(x, row.round().long(), column.round().long(), fill)
    top, left = row.floor(), column.floor()
    row_fraction, column_fraction = (row - top)[..., None], (column - left)[..., None]
    corners = [_read_pixels(x, (top + i).long(), (left + j).long(), fill) for i, j in ((0, 0), (0, 1), (1, 0), (1, 1))]
    upper = corners[0] * (1 - column_fraction) + corners[1] * column_fraction
    lower = corners[2] * (1 - column_fraction) + corners[3] * column_fraction
    return upper * (1 - row_fraction) + lower * row_fraction


def _read_pixels(x: Lanes, row: Lanes, column: Lanes, fill: float) -> Lanes:
    inside = (row >= 0) & (row < x.shape[1]) & (column >= 0) & (column < x.shape[2])
    pixels = x.float()[:, row.clamp(0, x.shape[1] - 1), column.clamp(0, x.shape[2] - 1)]
    return torch.where(inside[..., None], pixels, torch.full_like(pixels, fill))


def _check_rotate(call: Call) -> None:
    spec = call.specs[0]
    wrong = f"Input tensor must be 4D (N, H, W, C), got rank {len(spec.shape)}"
    require(len(spec.shape) == 4, wrong, "four dims", "Give it these dims with ttnn.reshape.")
    require_layout(spec, Layout.ROW_MAJOR, "Input tensor must be in ROW_MAJOR layout")
    wrong = f"Input tensor dtype must be bfloat16 or float32, got DataType::{spec.dtype.name}"
    require_dtype(spec, (DataType.BFLOAT16, DataType.FLOAT32), wrong)
    if call["expand"]:
        raise MeshError("expand=True is not supported", expected="expand=False", fix="Pad the image first.")
    if call["interpolation_mode"] not in ("nearest", "bilinear"):
        raise MeshError(
            f"interpolation_mode {call['interpolation_mode']!r} is unknown",
            expected="'nearest' or 'bilinear'",
            fix="Pass one of these names.",
        )


@op("ttnn.rotate", golden=goldens.rotate, out=_image_spec, check=_check_rotate)
def rotate(
    input_tensor: Lanes,
    angle: float,
    center: Sequence[float] | None,
    fill: float,
    interpolation_mode: str,
    lane_axes: int,
) -> Lanes:
    """Images rotated counter-clockwise by an angle in degrees."""
    x = fold_into_batch(input_tensor, lane_axes)
    return unfold_from_batch(_rotate(x, angle, center, fill, interpolation_mode), input_tensor.shape[:lane_axes])
