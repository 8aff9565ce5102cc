"""Reductions, ranking and scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Case

from ttmesh.base.dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, bfloat8_b, bfloat16, float32, int32, uint16

SHAPE = (2, 3, 33, 40)
BOTH = (TILE_LAYOUT, ROW_MAJOR_LAYOUT)
ROWS = (ROW_MAJOR_LAYOUT,)
FLOATS = (bfloat16, float32, bfloat8_b)


def values(*shape: int, low: float = -2.0, high: float = 2.0, args: tuple[Any, ...] = (), **options: Any) -> Callable:
    def make(g: torch.Generator) -> Any:
        return [torch.rand(shape or SHAPE, generator=g) * (high - low) + low, *args], options

    return make


def distinct(*shape: int, args: tuple[Any, ...] = (), **options: Any) -> Callable:
    """Values that are all different in bfloat16, so that there are no ties."""

    def make(g: torch.Generator) -> Any:
        length = shape[-1]
        rows = [torch.randperm(length, generator=g) for _ in range(int(torch.tensor(shape[:-1]).prod()))]
        return [torch.stack(rows).reshape(shape).float() - length / 2, *args], options

    return make


def integers(*shape: int, args: tuple[Any, ...] = (), **options: Any) -> Callable:
    def make(g: torch.Generator) -> Any:
        return [torch.randint(0, 50, shape, generator=g, dtype=torch.int32), *args], options

    return make


DIMS = {"last": -1, "first": 0, "rows": 2, "two": [1, 3], "all": None}

CASES = [
    *(
        Case(
            f"ttnn.{name}/{label}",
            values(dim=dim, **({} if keep is None else {"keepdim": keep})),
            FLOATS,
            BOTH,
            0.0 if dim is None else 0.99,
        )
        for name in ("sum", "mean", "max", "min", "std", "var")
        for label, dim, keep in [(k, v, None) for k, v in DIMS.items()] + [("kept", -2, True), ("all kept", None, True)]
    ),
    Case("ttnn.sum/scaled", values(dim=-1, scalar=0.25), FLOATS),
    Case("ttnn.max/scaled", values(dim=[0, 1], scalar=3.0), FLOATS),
    Case("ttnn.sum/integers", integers(2, 33, 40, dim=-1), (int32,)),
    Case("ttnn.max/integers", integers(2, 33, 40, dim=1), (int32,)),
    Case("ttnn.var/biased", values(dim=-1, correction=False), pcc=0.99),
    Case("ttnn.std/of one element", values(3, 1, 4, dim=1, correction=False), pcc=0.0),
    Case("ttnn.sum/vector", values(70, dim=0)),
    Case("ttnn.prod/one dim", values(2, 3, 4, 5, low=0.5, high=1.5, dim=2), FLOATS),
    Case("ttnn.prod/one dim kept", values(2, 3, 4, 5, low=0.5, high=1.5, dim=-1, keepdim=True)),
    Case("ttnn.prod/all", values(2, 3, 4, low=0.8, high=1.2), FLOATS),
    Case("ttnn.prod/all kept", values(2, 3, 4, low=0.8, high=1.2, keepdim=True)),
    Case("ttnn.argmax/last", distinct(2, 5, 64, dim=-1), layouts=BOTH),
    Case("ttnn.argmax/kept", distinct(2, 5, 64, dim=-1, keepdim=True), layouts=BOTH),
    Case("ttnn.argmax/rows", distinct(4, 32, dim=-2), layouts=BOTH),
    Case("ttnn.argmax/all", distinct(1, 128), layouts=ROWS),
    Case("ttnn.argmax/all kept", distinct(1, 128, keepdim=True), layouts=ROWS),
    Case("ttnn.topk/default", distinct(1, 1, 32, 64)),
    Case("ttnn.topk/smallest", distinct(1, 2, 32, 128, args=(5, -1, False)), FLOATS),
    Case("ttnn.topk/other dim", values(1, 64, 3, 7, k=4, dim=1), (float32,)),
    Case("ttnn.sort/up", distinct(2, 3, 64), layouts=BOTH),
    Case("ttnn.sort/down", distinct(2, 3, 64, dim=-1, descending=True), layouts=BOTH),
    Case("ttnn.sort/integers", integers(1, 1, 64), (uint16,), golden=lambda x: torch.sort(x, stable=True)),
    *(Case(f"ttnn.cumsum/dim {dim}", values(args=(dim,)), FLOATS) for dim in (0, 2, -1)),
    Case("ttnn.experimental.intimg", values(1, 40, 64, 32), (bfloat16, float32)),
    Case("ttnn.cumsum/backwards", values(dim=-2, reverse_order=True)),
    Case("ttnn.cumsum/integers", integers(3, 20, dim=1), (int32,)),
    *(Case(f"ttnn.cumprod/dim {dim}", values(2, 5, 7, low=0.7, high=1.3, args=(dim,)), FLOATS) for dim in (0, -1)),
    Case("ttnn.cumprod/backwards", values(2, 5, 7, low=0.7, high=1.3, dim=1, reverse_order=True)),
    Case("ttnn.ema", values(1, 2, 3, 40, args=(0.7,)), (bfloat16,)),
]
