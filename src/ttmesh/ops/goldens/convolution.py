"""torch's convolutions on channels-last rows [n, h, w, c]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ttmesh.ops.goldens.elementwise import activate

Numbers = int | Sequence[int]


def _to_pair(value: Numbers) -> tuple[int, int]:
    """Height and width, of one number or two."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _to_borders(padding: Numbers) -> tuple[int, int, int, int]:
    """Top, bottom, left and right, of one number, two or four."""
    if isinstance(padding, int) or len(padding) != 4:
        pad_h, pad_w = _to_pair(padding)
        return pad_h, pad_h, pad_w, pad_w
    top, bottom, left, right = padding
    return int(top), int(bottom), int(left), int(right)


def _to_rows(images: Tensor, config: Any) -> Tensor:
    """[n, c, ...] as [1, 1, rows, c], after the config's activation."""
    rows = images.movedim(1, -1).reshape(1, 1, -1, images.shape[1])
    activation = getattr(config, "activation", None)
    return rows if activation is None else activate(rows, [activation])


def _padding_mode(config: Any) -> str:
    """torch's name of the config's padding mode."""
    mode = getattr(config, "padding_mode", None)
    return "replicate" if getattr(mode, "name", None) == "Replicate" else "constant"


def conv2d(
    *,
    input_tensor: Tensor,
    weight_tensor: Tensor,
    batch_size: int,
    input_height: int,
    input_width: int,
    stride: Numbers = (1, 1),
    padding: Numbers = (0, 0),
    dilation: Numbers = (1, 1),
    groups: int = 1,
    bias_tensor: Tensor | None = None,
    conv_config: Any = None,
    **_: Any,
) -> Tensor:
    images = input_tensor.reshape(batch_size, input_height, input_width, -1).permute(0, 3, 1, 2)
    top, bottom, left, right = _to_borders(padding)
    bias = None if bias_tensor is None else bias_tensor.flatten()
    padded = F.pad(images, (left, right, top, bottom), mode=_padding_mode(conv_config))
    return _to_rows(F.conv2d(padded, weight_tensor, bias, _to_pair(stride), 0, _to_pair(dilation), groups), conv_config)


def conv1d(
    *,
    input_tensor: Tensor,
    weight_tensor: Tensor,
    batch_size: int,
    input_length: int,
    stride: int = 1,
    padding: Numbers = 0,
    dilation: int = 1,
    groups: int = 1,
    bias_tensor: Tensor | None = None,
    conv_config: Any = None,
    **_: Any,
) -> Tensor:
    rows = input_tensor.reshape(batch_size, input_length, -1).permute(0, 2, 1)
    ends = (padding, padding) if isinstance(padding, int) else (int(padding[0]), int(padding[-1]))
    bias = None if bias_tensor is None else bias_tensor.flatten()
    padded = F.pad(rows, ends, mode=_padding_mode(conv_config))
    return _to_rows(F.conv1d(padded, weight_tensor, bias, stride, 0, dilation, groups), conv_config)


def conv_transpose2d(
    *,
    input_tensor: Tensor,
    weight_tensor: Tensor,
    batch_size: int,
    input_height: int,
    input_width: int,
    stride: Numbers = (1, 1),
    padding: Numbers = (0, 0),
    output_padding: Numbers = (0, 0),
    dilation: Numbers = (1, 1),
    groups: int = 1,
    bias_tensor: Tensor | None = None,
    conv_config: Any = None,
    mirror_kernel: bool = True,
    **_: Any,
) -> Tensor:
    images = input_tensor.reshape(batch_size, input_height, input_width, -1).permute(0, 3, 1, 2)
    top, bottom, left, right = _to_borders(padding)
    weight = weight_tensor if mirror_kernel else weight_tensor.flip(-1, -2)
    bias = None if bias_tensor is None else bias_tensor.flatten()
    steps, spacing, (extra_h, extra_w) = _to_pair(stride), _to_pair(dilation), _to_pair(output_padding)
    if _padding_mode(conv_config) == "replicate":  # as a convolution of the image with zeros between its pixels
        spread = images.new_zeros(
            (*images.shape[:2], *((n - 1) * s + 1 for n, s in zip(images.shape[2:], steps, strict=True)))
        )
        spread[..., :: steps[0], :: steps[1]] = images
        reach_h, reach_w = (d * (k - 1) for d, k in zip(spacing, weight.shape[2:], strict=True))
        border = (reach_w - left, reach_w - right + extra_w, reach_h - top, reach_h - bottom + extra_h)
        filters = torch.unflatten(weight, 0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(-1, -2)
        padded = F.pad(spread, border, mode="replicate")
        return _to_rows(F.conv2d(padded, filters, bias, 1, 0, spacing, groups), conv_config)
    out = F.conv_transpose2d(images, weight, bias, steps, 0, (extra_h, extra_w), groups, spacing)
    return _to_rows(out[..., top : out.shape[-2] - bottom, left : out.shape[-1] - right], conv_config)


def conv3d(
    *,
    input_tensor: Tensor,
    weight_tensor: Tensor,
    bias_tensor: Tensor | None = None,
    stride: Sequence[int] = (1, 1, 1),
    padding: Sequence[int] = (0, 0, 0),
    dilation: Sequence[int] = (1, 1, 1),
    padding_mode: str = "zeros",
    groups: int = 1,
    **_: Any,
) -> Tensor:
    depth, pad_h, pad_w = padding
    mode = "constant" if padding_mode == "zeros" else padding_mode
    x = F.pad(input_tensor.permute(0, 4, 1, 2, 3), (pad_w, pad_w, pad_h, pad_h, depth, depth), mode=mode)
    bias = None if bias_tensor is None else bias_tensor.flatten()
    out = F.conv3d(x, weight_tensor, bias, tuple(stride), 0, tuple(dilation), groups)
    return out.permute(0, 2, 3, 4, 1)
