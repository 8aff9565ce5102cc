"""Binary operations: broadcasting, numbers, formats, activations, in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Case, On

from ttmesh.base.dtypes import (
    ROW_MAJOR_LAYOUT,
    TILE_LAYOUT,
    bfloat8_b,
    bfloat16,
    float32,
    int32,
    uint8,
    uint16,
    uint32,
)
from ttmesh.ops.configs.activations import UnaryOpType, UnaryWithParam
from ttmesh.ops.elementwise.binary import BINARY

SHAPE = (2, 33, 40)
BOTH = (TILE_LAYOUT, ROW_MAJOR_LAYOUT)
FLOATS = (bfloat16, float32, bfloat8_b)
INTEGERS = (int32, uint32, uint16)
INTEGER_ONLY = (
    "gcd", "lcm", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift",
    "logical_left_shift", "logical_right_shift",
)  # fmt: skip
COMPARISONS = ("eq", "ne", "gt", "ge", "lt", "le", "logical_and", "logical_or", "logical_xor")


def floats(shape_b: tuple[int, ...] | None = SHAPE, number: Any = None, **options: Any) -> Callable[..., Any]:
    def make(g: torch.Generator) -> Any:
        a = torch.rand(SHAPE, generator=g) * 3 + 0.5
        b = number if shape_b is None else torch.rand(shape_b, generator=g) * 3 + 0.5
        return [a, b], options

    return make


def steps(shape_b: tuple[int, ...] | None = SHAPE, number: Any = None) -> Callable[..., Any]:
    """Small whole numbers, so that comparisons meet equal values."""

    def make(g: torch.Generator) -> Any:
        a = torch.randint(-2, 3, SHAPE, generator=g).float()
        return [a, number if shape_b is None else torch.randint(-2, 3, shape_b, generator=g).float()], {}

    return make


def integers(low: int = 0, high: int = 9, *, number: Any = None, **options: Any) -> Callable[..., Any]:
    def make(g: torch.Generator) -> Any:
        a, b = (torch.randint(low, high, SHAPE, generator=g, dtype=torch.int32) for _ in range(2))
        return [a, b if number is None else number], options

    return make


CASES: list[Case] = []
for name, kind in BINARY.items():
    if name in INTEGER_ONLY:
        dtypes = tuple(dtype for dtype in INTEGERS if dtype in kind.formats)
        CASES += [Case(f"ttnn.{name}", integers(0, 5), dtypes)]
        if name not in ("gcd", "lcm"):
            CASES += [Case(f"ttnn.{name}/number", integers(0, 5, number=2), dtypes)]
        continue
    inputs = steps if name in COMPARISONS else floats
    CASES += [
        Case(f"ttnn.{name}", inputs(), FLOATS, BOTH),
        Case(f"ttnn.{name}/row", inputs((1, 40))),
        Case(f"ttnn.{name}/outer", inputs((1, 2, 33, 1))),
    ]
    if name not in ("atan2", "hypot"):
        CASES += [Case(f"ttnn.{name}/number", inputs(None, 2.0), FLOATS)]
    if kind.in_place:
        CASES += [Case(f"ttnn.{name}_", inputs(), (bfloat16, float32)), Case(f"ttnn.{name}_/row", inputs((1, 40)))]
    if name in COMPARISONS or name in ("add", "subtract", "multiply", "rsub"):
        CASES += [Case(f"ttnn.{name}/integers", integers(3, 9) if name != "subtract" else integers(), (int32,))]

RELU, NEG, ADD_ONE = UnaryOpType.RELU, UnaryWithParam(UnaryOpType.NEG), (UnaryOpType.ADD_UNARY_SFPU, 1.0)
CASES += [
    Case("ttnn.isclose", lambda g: ([torch.ones(SHAPE), torch.ones(SHAPE) + torch.randint(0, 2, SHAPE, generator=g)], {})),
    Case("ttnn.div", floats(), FLOATS, BOTH),
    Case("ttnn.div/row", floats((40,))),
    Case("ttnn.div/number", floats(None, 3.0), FLOATS),
    Case("ttnn.div/integers", integers(1, 9), (int32,)),
    Case("ttnn.div/trunc", integers(-9, -1, rounding_mode="trunc"), (int32,)),
    Case("ttnn.div/floor", floats(rounding_mode="floor"), (float32,)),
    Case("ttnn.divide_", floats()),
    Case("ttnn.remainder/integers", integers(1, 9), (int32, uint32)),
    Case("ttnn.fmod/integers", integers(1, 9), (int32,)),
    Case("ttnn.maximum/integers", integers(0, 9), (int32, uint32)),
    Case("ttnn.add/wrap", lambda g: ([torch.full(SHAPE, 65535, dtype=torch.int32), 1], {}), (uint16,),
         golden=lambda a, b: (a + b) & 0xFFFF),
    Case("ttnn.subtract/wrap", lambda g: ([torch.zeros(SHAPE, dtype=torch.int32), 1], {}), (uint32,),
         golden=lambda a, b: (a - b) & 0xFFFFFFFF),
    Case("ttnn.gt/uint8", integers(0, 5), (uint8,)),
    Case("ttnn.add/wider", floats(dtype=float32), (bfloat16,)),
    Case("ttnn.add/mixed", lambda g: ([torch.rand(SHAPE, generator=g), On(torch.rand(SHAPE, generator=g), bfloat8_b)], {})),
    Case("ttnn.multiply/by integers",
         lambda g: ([torch.rand(SHAPE, generator=g), torch.randint(0, 9, SHAPE, generator=g, dtype=torch.int32)], {})),
    Case("ttnn.add/activations",
         floats(activations=[RELU, NEG], input_tensor_a_activations=[NEG], input_tensor_b_activations=[ADD_ONE])),
]  # fmt: skip
