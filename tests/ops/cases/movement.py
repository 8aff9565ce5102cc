"""Data movement: shapes, order, parts, joins, repeats, conversions, indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Case

from ttmesh.base.dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, bfloat8_b, bfloat16, float32, int32, uint16, uint32

SHAPE = (2, 3, 33, 40)
BOTH = (TILE_LAYOUT, ROW_MAJOR_LAYOUT)
ROWS = (ROW_MAJOR_LAYOUT,)
ALL = (bfloat16, float32, bfloat8_b)
KINDS = (bfloat16, float32, int32, uint32, uint16)


def values(*shape: int, args: tuple[Any, ...] = (), **options: Any) -> Callable:
    def make(g: torch.Generator) -> Any:
        return [torch.randn(shape or SHAPE, generator=g), *args], options

    return make


def integers(*shape: int, args: tuple[Any, ...] = (), **options: Any) -> Callable:
    def make(g: torch.Generator) -> Any:
        return [torch.randint(0, 200, shape or SHAPE, generator=g, dtype=torch.int32), *args], options

    return make


def listed(*shapes: tuple[int, ...], args: tuple[Any, ...] = (), **options: Any) -> Callable:
    def make(g: torch.Generator) -> Any:
        return [[torch.randn(shape, generator=g) for shape in shapes], *args], options

    return make


CASES = [
    # shapes
    Case("ttnn.reshape/rows stay", values(args=((6, 33, 40),)), ALL, BOTH),
    Case("ttnn.reshape/rows change", values(args=((2, 3, 40, 33),)), ALL, BOTH),
    Case("ttnn.reshape/inferred", values(args=((-1, 20),)), ALL, BOTH),
    Case("ttnn.reshape/whole tiles", values(2, 64, 32, args=((4, 32, 32),)), ALL, BOTH),
    Case("ttnn.reshape/flat", values(args=((-1,),)), layouts=BOTH),
    Case("ttnn.reshape/integers", integers(args=((6, 40, 33),)), (int32, uint32)),
    Case("ttnn.reshape_on_device", values(4, 32, 64, 32, args=(1, 4, 64, -1)), golden=lambda x, *d: x.reshape(d)),
    Case("ttnn.view/rows stay", values(args=((1, 6, 33, 40),)), ALL, BOTH),
    Case("ttnn.experimental.view/rows stay", values(args=((6, 1, 33, 40),)), layouts=BOTH),
    Case("ttnn.squeeze/one", values(1, 3, 1, 7, args=(0,)), layouts=BOTH),
    Case("ttnn.squeeze/rows", values(2, 3, 1, 7, args=(2,)), layouts=BOTH),
    Case("ttnn.squeeze/all", values(1, 3, 1, 7), layouts=BOTH),
    Case("ttnn.squeeze/some", values(1, 3, 1, 7, args=([0, 2],)), layouts=BOTH),
    *(Case(f"ttnn.unsqueeze/{dim}", values(3, 5, 7, args=(dim,)), layouts=BOTH) for dim in (0, 1, -1)),
    Case("ttnn.unsqueeze_to_4D", values(5, 7), layouts=BOTH),
    Case("ttnn.expand/rows", values(1, 3, 1, 7, args=((4, -1, 5, 7),)), layouts=BOTH),
    Case("ttnn.expand/new dims", values(3, 1, args=((2, 3, 6),)), layouts=BOTH),
    # order
    *(
        Case(f"ttnn.permute/{dims}", values(args=(dims,)), ALL, BOTH)
        for dims in ((0, 2, 1, 3), (3, 0, 1, 2), (0, -1, 1, 2))
    ),
    Case("ttnn.transpose/last two", values(args=(-2, -1)), ALL, BOTH),
    Case("ttnn.transpose/outer", values(args=(0, 2)), ALL, BOTH),
    Case("ttnn.transpose/integers", integers(args=(1, 3)), KINDS[2:]),
    Case("ttnn.roll/one dim", values(args=(3, -1)), layouts=BOTH),
    Case("ttnn.roll/two dims", values(args=([1, -2], [0, 2])), layouts=BOTH),
    Case("ttnn.roll/flat", values(args=(5,)), layouts=BOTH),
    # parts
    Case("ttnn.slice/box", values(args=([0, 1, 3, 5], [2, 3, 30, 40])), ALL, BOTH),
    Case("ttnn.slice/steps", values(args=([0, 0, 0, 1], [2, 3, 33, 40], [1, 2, 3, 4])), layouts=BOTH),
    Case("ttnn.slice/from the end", values(args=([0, 0, -8, 0], [2, 3, -1, 40])), layouts=BOTH),
    Case("ttnn.slice/named", values(slice_start=[1, 0, 0, 0], slice_end=[2, 3, 33, 40]), layouts=BOTH),
    Case("ttnn.narrow", values(4, 64, 64, args=(0, 1, 2)), layouts=BOTH),
    Case("ttnn.pad/behind", values(args=([(0, 0), (0, 1), (0, 3), (0, 4)], 1.5)), ALL, BOTH),
    Case("ttnn.pad/around", values(args=([(1, 1), (2, 3)], -1.0)), layouts=ROWS),
    Case("ttnn.pad/to a shape", values(args=((2, 3, 64, 64), (0, 0, 0, 0), 0.5)), layouts=ROWS,
         golden=lambda x, shape, start, value: torch.nn.functional.pad(x, (0, 24, 0, 31), value=value)),
    # joins
    *(Case(f"ttnn.concat/dim {dim}", listed(SHAPE, SHAPE, args=(dim,)), ALL, BOTH) for dim in (0, 2, -1)),
    Case("ttnn.concat/unequal", listed((2, 5, 7), (2, 9, 7), (2, 1, 7), dim=1), layouts=BOTH),
    Case("ttnn.concat/groups", listed((1, 1, 4, 64), (1, 1, 4, 32), dim=3, groups=2), layouts=ROWS),
    *(Case(f"ttnn.stack/dim {dim}", listed((3, 5), (3, 5), args=(dim,)), layouts=BOTH) for dim in (0, 1, -1)),
    Case("ttnn.split/size", values(args=(2, 1)), layouts=BOTH),
    Case("ttnn.split/sizes", values(args=([10, 30], -1)), layouts=BOTH),
    Case("ttnn.chunk/even", values(args=(4, -1)), layouts=BOTH),
    Case("ttnn.chunk/uneven", values(args=(4, 2)), layouts=BOTH),
    Case("ttnn.repeat/outer", values(args=((2, 1, 1, 1),)), layouts=BOTH),
    Case("ttnn.repeat/inner", values(3, 5, args=((1, 2, 3),)), layouts=BOTH),
    Case("ttnn.repeat_interleave/rows", values(args=(3, 2)), layouts=BOTH),
    Case("ttnn.repeat_interleave/outer", values(args=(2, 0)), layouts=BOTH),
]  # fmt: skip
