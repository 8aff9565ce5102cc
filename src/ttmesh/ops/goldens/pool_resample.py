"""Pooling and resampling of images [n, h, w, c]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Numbers = int | Sequence[int]


def _to_images(input_tensor: Tensor, batch_size: int, input_h: int, input_w: int, channels: int) -> Tensor:
    """[1, 1, n·h·w, c] as [n, c, h, w]."""
    return input_tensor.reshape(batch_size, input_h, input_w, channels).permute(0, 3, 1, 2)


def _to_rows(images: Tensor) -> Tensor:
    """[n, c, h, w] as [1, 1, n·h·w, c]."""
    return images.permute(0, 2, 3, 1).reshape(1, 1, -1, images.shape[1])


def _to_pair(value: Numbers) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _to_borders(padding: Numbers) -> tuple[tuple[int, int], tuple[int, int]]:
    """Before and after the rows, and before and after the columns."""
    if isinstance(padding, int) or len(padding) != 4:
        pad_h, pad_w = _to_pair(padding)
        return (pad_h, pad_h), (pad_w, pad_w)
    top, bottom, left, right = padding
    return (top, bottom), (left, right)


def _find_window_starts(length: int, window: int, stride: int, ends: tuple[int, int], ceil_mode: bool) -> range:
    """The starts of windows along a padded dim; ceil_mode adds a partial one, unless it begins in the padding."""
    span = length + sum(ends) - window
    count = span // stride + 1
    if ceil_mode and span % stride and count * stride < length + ends[0]:
        count += 1
    return range(0, count * stride, stride)


def _collect_windows(
    x: Tensor, pad_value: float, kernel: Numbers, stride: Numbers, padding: Numbers, dilation: Numbers, ceil_mode: bool
) -> Tensor:
    """[n, c, rows, columns, taps] of all windows; NaN outside the padding."""
    (height, width), (stride_h, stride_w) = x.shape[-2:], _to_pair(stride)
    ends, extents = (
        _to_borders(padding),
        [d * (k - 1) + 1 for d, k in zip(_to_pair(dilation), _to_pair(kernel), strict=True)],
    )
    rows = _find_window_starts(height, extents[0], stride_h, ends[0], ceil_mode)
    columns = _find_window_starts(width, extents[1], stride_w, ends[1], ceil_mode)
    padded = F.pad(x.double(), (*ends[1], *ends[0]), value=pad_value)
    padded = F.pad(padded, (0, extents[1], 0, extents[0]), value=math.nan)
    taps = [
        padded[..., torch.tensor(rows)[:, None] + i, torch.tensor(columns) + j]
        for i in range(0, extents[0], _to_pair(dilation)[0])
        for j in range(0, extents[1], _to_pair(dilation)[1])
    ]
    return torch.stack(taps, -1)


def max_pool2d(
    input_tensor: Tensor,
    batch_size: int,
    input_h: int,
    input_w: int,
    channels: int,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    ceil_mode: bool = False,
    *,
    return_indices: bool = False,
    **_: Any,
) -> Any:
    """The largest value of every window, and its index in the image."""
    x = _to_images(input_tensor, batch_size, input_h, input_w, channels)
    size = (kernel_size, stride, padding, dilation, ceil_mode)
    windows = torch.nan_to_num(_collect_windows(x, -math.inf, *size), -math.inf, math.inf, -math.inf)
    largest, tap = windows.max(-1)
    values = _to_rows(largest).to(input_tensor.dtype)
    if not return_indices:
        return values
    pixel_indices = torch.arange(input_h * input_w).reshape(1, 1, input_h, input_w).expand(x.shape)
    indices = _collect_windows(pixel_indices, -1.0, *size).gather(-1, tap[..., None])[..., 0]
    return [values, _to_rows(indices).long()]


def avg_pool2d(
    input_tensor: Tensor,
    batch_size: int,
    input_h: int,
    input_w: int,
    channels: int,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    **_: Any,
) -> Tensor:
    """The mean of every window; elements outside the padding do not count."""
    x = _to_images(input_tensor, batch_size, input_h, input_w, channels)
    size = (kernel_size, stride, padding, 1, ceil_mode)
    total = torch.nansum(_collect_windows(x, 0.0, *size), -1)
    count = torch.nansum(_collect_windows(torch.ones_like(x), float(count_include_pad), *size), -1)
    return _to_rows(total / (count if divisor_override is None else divisor_override)).to(input_tensor.dtype)


def _adaptive_edges(length: int, count: int) -> list[slice]:
    """Windows of nearly equal length that cover a dim."""
    return [slice(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]


def _adaptive_windows(x: Tensor, output_size: Numbers) -> list[list[Tensor]]:
    rows, columns = (_adaptive_edges(length, n) for length, n in zip(x.shape[-2:], _to_pair(output_size), strict=True))
    return [[x[..., row, column].flatten(-2) for column in columns] for row in rows]


def adaptive_avg_pool2d(
    input_tensor: Tensor, batch_size: int, input_h: int, input_w: int, channels: int, output_size: Numbers, **_: Any
) -> Tensor:
    windows = _adaptive_windows(_to_images(input_tensor, batch_size, input_h, input_w, channels), output_size)
    return _to_rows(torch.stack([torch.stack([window.mean(-1) for window in row], -1) for row in windows], -2))


def adaptive_max_pool2d(
    input_tensor: Tensor, batch_size: int, input_h: int, input_w: int, channels: int, output_size: Numbers, **_: Any
) -> Tensor:
    windows = _adaptive_windows(_to_images(input_tensor, batch_size, input_h, input_w, channels), output_size)
    return _to_rows(torch.stack([torch.stack([window.amax(-1) for window in row], -1) for row in windows], -2))


def global_avg_pool2d(input_tensor: Tensor, **_: Any) -> Tensor:
    return input_tensor.mean((-3, -2), keepdim=True)


def multi_scale_deformable_attn(
    value: Tensor, grid: Tensor, attn: Tensor, *, align_corners: bool = False, **_: Any
) -> Tensor:
    batch, height, width, _depth = value.shape
    result = torch.zeros(batch, attn.shape[1], value.shape[-1])
    size = torch.tensor([width, height])
    points = (grid[:, :, 0] + 1) / 2 * (size - 1) if align_corners else ((grid[:, :, 0] + 1) * size - 1) / 2
    corner = points.floor()
    for dx in (0, 1):
        for dy in (0, 1):
            x, y = corner[..., 0].long() + dx, corner[..., 1].long() + dy
            interpolation = (1 - (points[..., 0] - x).abs()) * (1 - (points[..., 1] - y).abs())
            inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
            pixel = value[torch.arange(batch)[:, None], y.clamp(0, height - 1), x.clamp(0, width - 1)]
            weight = (interpolation * inside).reshape(attn.shape) * attn
            result += (torch.unflatten(pixel, 1, tuple(attn.shape[1:])) * weight[..., None]).sum(2)
    return result


def upsample(input_tensor: Tensor, scale_factor: float | Sequence[float], *, mode: str = "nearest", **_: Any) -> Tensor:
    if mode == "nearest":
        images = input_tensor.permute(0, 3, 1, 2)
        return F.interpolate(images, scale_factor=_two_factors(scale_factor), mode="nearest").permute(0, 2, 3, 1)
    height, width = (
        _interpolation_matrix(length, factor)
        for length, factor in zip(input_tensor.shape[1:3], _two_factors(scale_factor), strict=True)
    )
    return torch.einsum("ih,nhwc,jw->nijc", height, input_tensor.float(), width).to(input_tensor.dtype)


def _two_factors(scale: float | Sequence[float]) -> tuple[float, float]:
    return (float(scale), float(scale)) if isinstance(scale, (int, float)) else (float(scale[0]), float(scale[1]))


def _interpolation_matrix(length: int, factor: float) -> Tensor:
    """The weight of each old pixel in every new one, along one dim."""
    weights = torch.zeros(int(length * factor), length)
    for i, row in enumerate(weights):
        source = max((i + 0.5) / factor - 0.5, 0.0)  # pixel centres have half-integer coordinates
        lower = min(int(source), length - 1)
        row[lower] += 1 - (source - lower)
        row[min(lower + 1, length - 1)] += source - lower
    return weights


def grid_sample(
    input_tensor: Tensor,
    grid: Tensor,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    use_precomputed_grid: bool = False,
    batch_output_channels: bool = False,
    **_: Any,
) -> Tensor:
    batch, height, width = input_tensor.shape[:3]
    points = grid.float().reshape(batch, grid.shape[1], -1, 6 if use_precomputed_grid else 2)
    if use_precomputed_grid:
        row, column, weights = points[..., 0], points[..., 1], points[..., 2:]
    else:
        row, column = (_to_pixel(points[..., i], side, align_corners) for i, side in ((1, height), (0, width)))
        if padding_mode == "border":
            row, column = row.clamp(0, height - 1), column.clamp(0, width - 1)
        if mode == "nearest":
            row, column = row.round(), column.round()
        row_fraction, column_fraction = row - row.floor(), column - column.floor()
        weights = torch.stack(
            [
                (1 - row_fraction) * (1 - column_fraction),
                (1 - row_fraction) * column_fraction,
                row_fraction * (1 - column_fraction),
                row_fraction * column_fraction,
            ],
            -1,
        )
    padded = F.pad(input_tensor.float(), (0, 0, 1, 1, 1, 1))  # points outside read the zero padding
    image_index = torch.arange(batch)[:, None, None]
    corners = []
    for i in range(4):
        y = (row.floor() + i // 2 + 1).clamp(0, height + 1).long()
        x = (column.floor() + i % 2 + 1).clamp(0, width + 1).long()
        corners.append(padded[image_index, y, x] * weights[..., i : i + 1])
    out = torch.stack(corners).sum(0).to(input_tensor.dtype)
    return out.reshape(batch, out.shape[1], grid.shape[2], -1) if batch_output_channels else out


def _to_pixel(point: Tensor, side: int, align_corners: bool) -> Tensor:
    """Convert a coordinate of [-1, 1] to pixels."""
    return (point + 1) / 2 * (side - 1) if align_corners else (point + 1) / 2 * side - 0.5


def rotate(
    input_tensor: Tensor,
    angle: float,
    *,
    center: Sequence[float] | None = None,
    fill: float = 0.0,
    interpolation_mode: str = "nearest",
    **_: Any,
) -> Tensor:
    height, width = input_tensor.shape[1:3]
    cx, cy = ((width - 1) / 2, (height - 1) / 2) if center is None else center
    radians = math.radians(angle)
    rows, columns = torch.arange(height, dtype=torch.float32), torch.arange(width, dtype=torch.float32)
    y, x = torch.meshgrid(rows - cy, columns - cx, indexing="ij")
    source = torch.complex(x, y) * complex(math.cos(radians), math.sin(radians))
    column, row = source.real + cx, source.imag + cy
    if interpolation_mode == "nearest":
        column, row = column.round(), row.round()
    points = torch.stack([(2 * column.double() + 1) / width - 1, (2 * row.double() + 1) / height - 1], dim=-1)
    images = (
        input_tensor.permute(0, 3, 1, 2).double() - fill
    )  # so that grid_sample's zeros outside the image become the fill
    rotated = F.grid_sample(
        images, points.expand(len(images), -1, -1, -1), mode=interpolation_mode, align_corners=False
    )
    return (rotated + fill).permute(0, 2, 3, 1).to(input_tensor.dtype)


def fused_msda(
    value: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    spatial_shapes: list[list[int]],
    align_corners: bool = False,
    locations_in_grid_space: bool = False,
) -> Tensor:
    batch, queries, heads = attention_weights.shape[:3]
    levels = len(spatial_shapes)
    places = sampling_locations.float().reshape(batch, queries, heads, levels, -1, 2)
    if locations_in_grid_space:
        places = (places + 1) / 2
    weights = attention_weights.float().reshape(batch, queries, heads, levels, -1)
    pixels = value.float().reshape(batch, value.shape[1], heads, -1)
    result, first = torch.zeros(batch, queries, heads, pixels.shape[-1]), 0
    for level, (height, width) in enumerate(spatial_shapes):
        image = pixels[:, first : first + height * width].reshape(batch, height, width, heads, -1)
        first += height * width
        for point in range(places.shape[4]):
            found = _interpolate(image, places[:, :, :, level, point], align_corners)
            result += found * weights[:, :, :, level, point, None]
    return result.reshape(batch, queries, -1)


def fused_msda_from_offsets(
    value: Tensor,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_weights: Tensor,
    spatial_shapes: list[list[int]],
    reference_mode: str = "level",
    align_corners: bool = False,
) -> Tensor:
    batch, queries, heads = attention_weights.shape[:3]
    levels, less = len(spatial_shapes), int(align_corners)
    places = sampling_offsets.float().reshape(batch, queries, heads, levels, -1, 2).clone()
    references = reference_points.float()
    for level, (height, width) in enumerate(spatial_shapes):
        for point in range(places.shape[4]):
            chosen = level if reference_mode == "level" else point % references.shape[2]
            for axis, side in enumerate((width, height)):
                scale = 1 / (side - less) if side > less else 0
                moved = places[:, :, :, level, point, axis] * scale
                places[:, :, :, level, point, axis] = moved + references[:, :, None, chosen, axis]
    return fused_msda(value, places, attention_weights, spatial_shapes, align_corners)


def _interpolate(image: Tensor, places: Tensor, align_corners: bool) -> Tensor:
    """Tensor between the pixels of [batch, height, width, heads, depth], at [batch, queries, heads, (x, y)] in [0, 1]."""
    batch, height, width, heads, _ = image.shape
    x = places[..., 0] * (width - 1) if align_corners else places[..., 0] * width - 0.5
    y = places[..., 1] * (height - 1) if align_corners else places[..., 1] * height - 0.5
    at_batch = torch.arange(batch)[:, None, None]
    at_head = torch.arange(heads)[None, None, :]
    total = torch.zeros(*places.shape[:-1], image.shape[-1])
    for row, down in ((y.floor(), 0), (y.floor() + 1, 1)):
        for column, right in ((x.floor(), 0), (x.floor() + 1, 1)):
            share = (1 - (y - y.floor()) if not down else y - y.floor()) * (
                1 - (x - x.floor()) if not right else x - x.floor()
            )
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            pixel = image[at_batch, row.clamp(0, height - 1).long(), column.clamp(0, width - 1).long(), at_head]
            total += pixel * (share * inside)[..., None]
    return total
