"""Pools, resampling, group norm and quantisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Arguments, Case, On

from ttmesh.base.dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, bfloat16, float32, int8, int32, uint8
from ttmesh.ops.configs.activations import UnaryOpType, UnaryWithParam
from ttmesh.ops.configs.conv_config import Conv2dConfig, PaddingMode

BOTH = (ROW_MAJOR_LAYOUT, TILE_LAYOUT)
ROWS = (ROW_MAJOR_LAYOUT,)
HALF = (bfloat16,)


def normal(g: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=g)


def args(shape: tuple[int, ...], *rest: Any, **options: Any) -> Callable[[torch.Generator], Arguments]:
    return lambda g: ([normal(g, *shape), *rest], options)


def grouped(g: torch.Generator) -> Arguments:
    rows = {name: On(normal(g, 1, 1, 2, 32), bfloat16, ROW_MAJOR_LAYOUT) for name in ("weight", "bias")}
    return [normal(g, 2, 1, 64, 64)], {"num_groups": 4, "epsilon": 1e-5, "inplace": False, **rows}


def sampled(g: torch.Generator) -> Arguments:
    return [normal(g, 2, 9, 7, 32), On(torch.rand(2, 5, 4, 2, generator=g) * 2 - 1, float32)], {}


def by_channel(g: torch.Generator) -> Arguments:
    return [normal(g, 2, 33, 40), On(torch.rand(40, generator=g) + 0.1, float32), 0], {"axis": -1}


def channel_integers(g: torch.Generator) -> Arguments:
    scale = On(torch.rand(33, generator=g) + 0.1, float32)
    return [On(torch.randint(-90, 90, (2, 33, 40), generator=g).int(), int32), scale, 4], {"axis": 1}


def integers(*rest: Any, **options: Any) -> Callable[[torch.Generator], Arguments]:
    return lambda g: ([On(torch.randint(-90, 90, (2, 33, 40), generator=g).int(), int32), *rest], options)


def conv(
    *weight: int, bias: bool = False, size: tuple[int, int, int] = (2, 9, 8), channels: int = 16, **options: Any
) -> Callable[[torch.Generator], Arguments]:
    batch, height, width = size
    extent = {"input_height": height, "input_width": width} if len(weight) == 4 else {"input_length": width}
    shape = (batch, height, width, channels) if len(weight) == 4 else (batch, width, channels)

    def make(g: torch.Generator) -> Arguments:
        more: dict[str, Any] = {"bias_tensor": normal(g, 1, 1, 1, options["out_channels"])} if bias else {}
        tensors = {"input_tensor": normal(g, *shape), "weight_tensor": normal(g, *weight), **more}
        taps = weight[2:] if len(weight) == 4 else weight[2]
        return [], {
            **tensors, "device": "mesh", "in_channels": channels, "batch_size": batch, **extent, "kernel_size": taps,
            **options,
        }  # fmt: skip

    return make


def volume(out: int, per_group: int, **options: Any) -> Callable[[torch.Generator], Arguments]:
    channels = per_group * options.get("groups", 1)

    def make(g: torch.Generator) -> Arguments:
        tensors = {
            "input_tensor": normal(g, 2, 4, 6, 5, channels),
            "weight_tensor": normal(g, out, per_group, 3, 3, 2),
            "bias_tensor": On(normal(g, 1, out), layout=TILE_LAYOUT),
        }
        return [], {**tensors, "dtype": bfloat16, "output_channels": out, "kernel_size": (3, 3, 2), **options}

    return make


def precomputed(g: torch.Generator) -> Arguments:
    corner = torch.stack(
        [torch.randint(-1, 9, (2, 5, 8), generator=g), torch.randint(-1, 7, (2, 5, 8), generator=g)], -1
    )
    grid = torch.cat([corner.float(), torch.rand(2, 5, 8, 4, generator=g)], -1).reshape(2, 5, 4, 12)
    options = {"use_precomputed_grid": True, "batch_output_channels": True}
    return [normal(g, 2, 9, 7, 32), On(grid, bfloat16)], options


grouped_conv = conv(24, 8, 3, 2, out_channels=24, stride=(2, 1), padding=(1, 0, 2, 1), groups=2)
transposed = conv(
    16, 24, 3, 3, out_channels=24, stride=(2, 2), padding=(1, 1), output_padding=(1, 1), bias=True
)  # fmt: skip
replicated = {"padding": (1, 0, 2, 1), "conv_config": Conv2dConfig(padding_mode=PaddingMode.Replicate)}
grouped_volume = volume(16, 8, groups=4, stride=(2, 1, 2), padding_mode="replicate", padding=(1, 1, 0))
POOL = (1, 1, 2 * 9 * 8, 32)
CASES = [
    Case("ttnn.max_pool2d", args(POOL, 2, 9, 8, 32, [3, 3], [2, 2], [1, 1], [1, 1]), HALF, BOTH),
    Case("ttnn.max_pool2d/ceil", args(POOL, 2, 9, 8, 32, [2, 2], [2, 2], [0, 0], [1, 1], True), HALF),
    Case("ttnn.max_pool2d/indices", args(POOL, 2, 9, 8, 32, [2, 2], [2, 2], [0, 0], [1, 1], return_indices=True), HALF),
    Case("ttnn.avg_pool2d", args(POOL, 2, 9, 8, 32, [3, 3], [2, 2], [1, 1]), HALF, BOTH),
    Case("ttnn.avg_pool2d/exclusive", args(POOL, 2, 9, 8, 32, [3, 3], [1, 1], [1, 1], False, False), HALF),
    Case("ttnn.max_pool2d/uneven ceil", args(POOL, 2, 9, 8, 32, [2, 2], [3, 3], [0, 1, 1, 0], [1, 1], True), HALF),
    Case("ttnn.max_pool2d/uneven indices",
         args(POOL, 2, 9, 8, 32, [3, 2], [2, 2], [0, 1, 1, 0], [1, 1], return_indices=True), HALF),
    Case("ttnn.max_pool2d/dilation", args(POOL, 2, 9, 8, 32, [3, 2], [2, 1], [1, 1], [2, 3], True), HALF),
    Case("ttnn.avg_pool2d/ceil", args(POOL, 2, 9, 8, 32, [3, 3], [2, 2], [1, 1], True), HALF),
    Case("ttnn.avg_pool2d/uneven ceil", args(POOL, 2, 9, 8, 32, [3, 3], [2, 2], [0, 1, 1, 0], True), HALF),
    Case("ttnn.avg_pool2d/uneven exclusive", args(POOL, 2, 9, 8, 32, [3, 3], [2, 2], [1, 0, 0, 1], True, False), HALF),
    Case("ttnn.avg_pool2d/divisor", args(POOL, 2, 9, 8, 32, [3, 3], [2, 2], [0, 1, 1, 0], True, True, 5), HALF),
    Case("ttnn.adaptive_avg_pool2d", args(POOL, 2, 9, 8, 32, [3, 4]), HALF),
    Case("ttnn.adaptive_max_pool2d", args(POOL, 2, 9, 8, 32, [3, 4]), HALF),
    Case("ttnn.global_avg_pool2d", args((2, 9, 8, 32)), layouts=BOTH),
    Case("ttnn.upsample", args((2, 5, 4, 32), 2), layouts=ROWS),
    Case("ttnn.upsample/bilinear", args((2, 5, 4, 32), [2, 3], mode="bilinear"), (bfloat16,), ROWS),
    Case("ttnn.grid_sample", sampled, layouts=ROWS),
    Case("ttnn.grid_sample/aligned", lambda g: (sampled(g)[0], {"align_corners": True}), layouts=ROWS),
    Case("ttnn.grid_sample/precomputed", precomputed, layouts=ROWS),
    Case("ttnn.upsample/parts", args((2, 5, 4, 32), [1.5, 2.5]), layouts=ROWS),
    Case("ttnn.conv2d", conv(24, 16, 3, 3, out_channels=24, padding=(1, 1), bias=True), HALF, ROWS),
    Case("ttnn.conv2d/activation",
         conv(24, 16, 3, 3, out_channels=24, conv_config=Conv2dConfig(activation=UnaryWithParam(UnaryOpType.RELU))),
         HALF, ROWS),
    Case("ttnn.conv2d/groups", grouped_conv, HALF, ROWS),
    Case("ttnn.conv2d/dilation", conv(8, 16, 3, 3, out_channels=8, dilation=(2, 2)), layouts=ROWS),
    Case("ttnn.conv1d", conv(24, 16, 3, out_channels=24, stride=2, padding=(1, 2), bias=True), HALF, ROWS),
    Case("ttnn.conv2d/replicate", conv(24, 16, 3, 3, out_channels=24, **replicated), HALF, ROWS),
    Case("ttnn.conv_transpose2d", transposed, HALF, ROWS),
    Case("ttnn.conv_transpose2d/replicate",
         conv(16, 24, 3, 3, out_channels=24, stride=(2, 1), output_padding=(1, 0), **replicated), HALF, ROWS),
    Case("ttnn.conv_transpose2d/as given", conv(16, 24, 3, 2, out_channels=24, mirror_kernel=False), HALF, ROWS),
    Case("ttnn.experimental.conv3d", volume(24, 32, padding=(0, 1, 1)), layouts=ROWS),
    Case("ttnn.experimental.conv3d/groups", grouped_volume, HALF, ROWS),
    Case("ttnn.rotate", args((2, 9, 8, 32), 30.0, fill=0.5), layouts=ROWS),
    Case("ttnn.rotate/bilinear", args((2, 9, 8, 32), 45.0, interpolation_mode="bilinear"), layouts=ROWS),
    Case("ttnn.group_norm", grouped),
    Case("ttnn.quantize", args((2, 33, 40), 0.02, 3), (float32,)),
    Case("ttnn.quantize/channels", by_channel, (float32,)),
    Case("ttnn.dequantize/channels", channel_integers, (int32,)),
    Case("ttnn.dequantize", integers(0.02, 3), (int32,)),
    Case("ttnn.quantize/bytes", args((2, 33, 40), 0.02, 128, dtype=uint8), (float32,)),
    Case("ttnn.requantize", integers(0.25, 3, 0.5, -2), (int32,)),
    Case("ttnn.requantize/signed bytes", integers(0.25, 3, 0.05, 9, dtype=int8), (int32,)),
    Case("ttnn.requantize/bytes", integers(0.25, 3, 0.05, 9, dtype=uint8), (int32,)),
]  # fmt: skip
