"""Pools, resampling, group norm and quantisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Arguments, Case, On

from ttmesh.base.dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, bfloat16, float32, int32

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


def integers(*rest: Any, **options: Any) -> Callable[[torch.Generator], Arguments]:
    return lambda g: ([On(torch.randint(-90, 90, (2, 33, 40), generator=g).int(), int32), *rest], options)


POOL = (1, 1, 2 * 9 * 8, 32)
CASES = [
    Case("ttnn.max_pool2d", args(POOL, 2, 9, 8, 32, [3, 3], [2, 2], [1, 1], [1, 1]), HALF, BOTH),
    Case("ttnn.max_pool2d/ceil", args(POOL, 2, 9, 8, 32, [2, 2], [2, 2], [0, 0], [1, 1], True), HALF),
    Case("ttnn.max_pool2d/indices", args(POOL, 2, 9, 8, 32, [2, 2], [2, 2], [0, 0], [1, 1], return_indices=True), HALF),
    Case("ttnn.avg_pool2d", args(POOL, 2, 9, 8, 32, [3, 3], [2, 2], [1, 1]), HALF, BOTH),
    Case("ttnn.avg_pool2d/exclusive", args(POOL, 2, 9, 8, 32, [3, 3], [1, 1], [1, 1], False, False), HALF),
    Case("ttnn.adaptive_avg_pool2d", args(POOL, 2, 9, 8, 32, [3, 4]), HALF),
    Case("ttnn.adaptive_max_pool2d", args(POOL, 2, 9, 8, 32, [3, 4]), HALF),
    Case("ttnn.global_avg_pool2d", args((2, 9, 8, 32)), layouts=BOTH),
    Case("ttnn.upsample", args((2, 5, 4, 32), 2), layouts=ROWS),
    Case("ttnn.upsample/bilinear", args((2, 5, 4, 32), [2, 3], mode="bilinear"), layouts=ROWS),
    Case("ttnn.grid_sample", sampled, layouts=ROWS),
    Case("ttnn.rotate", args((2, 9, 8, 32), 30.0, fill=0.5), layouts=ROWS),
    Case("ttnn.rotate/bilinear", args((2, 9, 8, 32), 45.0, interpolation_mode="bilinear"), layouts=ROWS),
    Case("ttnn.group_norm", grouped),
    Case("ttnn.quantize", args((2, 33, 40), 0.02, 3), (float32,)),
    Case("ttnn.quantize/channels", by_channel, (float32,)),
    Case("ttnn.dequantize", integers(0.02, 3), (int32,)),
    Case("ttnn.requantize", integers(0.25, 3, 0.5, -2), (int32,)),
]  # fmt: skip
