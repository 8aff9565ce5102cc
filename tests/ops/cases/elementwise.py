"""Ternary operations, gates, clamps and composed arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Case, On

from ttmesh.base.dtypes import bfloat8_b, bfloat16, float32, int32

SHAPE = (2, 33, 40)
GATED = (1, 2, 32, 128)
FLOATS = (bfloat16, float32, bfloat8_b)


def make(*operands: Any, **options: Any) -> Callable[[torch.Generator], Any]:
    """Shapes become values in [0.5, 2.5)."""

    def made(g: torch.Generator) -> Any:
        return [torch.rand(p, generator=g) * 2 + 0.5 if isinstance(p, tuple) else p for p in operands], options

    return made


def signed(*operands: Any, **options: Any) -> Callable[[torch.Generator], Any]:
    def made(g: torch.Generator) -> Any:
        return [torch.randn(p, generator=g) if isinstance(p, tuple) else p for p in operands], options

    return made


def chosen(yes: Any, no: Any) -> Callable[[torch.Generator], Any]:
    def made(g: torch.Generator) -> Any:
        values = [torch.randn(v, generator=g) if isinstance(v, tuple) else v for v in (yes, no)]
        return [torch.randint(0, 2, SHAPE, generator=g).float(), *values], {}

    return made


def small(g: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 3, SHAPE, generator=g, dtype=torch.int32)


def integers_between(*bounds: Any) -> Callable[[torch.Generator], Any]:
    return lambda g: ([torch.randint(-9, 9, SHAPE, generator=g, dtype=torch.int32), *bounds], {})


CASES = [
    Case("ttnn.where", chosen(SHAPE, SHAPE), FLOATS),
    Case("ttnn.where/number", chosen(1.5, SHAPE)),
    Case("ttnn.where/numbers", chosen(1.5, -2.0)),
    Case("ttnn.where/row", chosen((40,), SHAPE)),
    Case("ttnn.addcmul", make(SHAPE, SHAPE, SHAPE, value=0.5), FLOATS),
    Case("ttnn.addcmul/row", make(SHAPE, (1, 40), (33, 1), value=0.5)),
    Case("ttnn.addcmul/integers", lambda g: ([small(g), small(g), small(g)], {}), (int32,)),
    Case("ttnn.addcdiv", make(SHAPE, SHAPE, SHAPE, value=0.5), FLOATS),
    Case("ttnn.lerp", make(SHAPE, SHAPE, 0.3), FLOATS),
    Case("ttnn.lerp/tensor", make(SHAPE, SHAPE, SHAPE)),
    Case("ttnn.mac", make(SHAPE, SHAPE, SHAPE), FLOATS),
    Case("ttnn.mac/numbers", make(SHAPE, 2.0, 3.0)),
    *[Case(f"ttnn.{name}", signed(GATED)) for name in ("glu", "reglu", "geglu", "swiglu")],
    Case("ttnn.situ_glu", signed(SHAPE, SHAPE, 2.0, 3.0), (bfloat16,), system="p150x8"),
    Case("ttnn.clamped_silu_glu", signed(SHAPE, SHAPE, 1.0)),
    Case("ttnn.snake_beta", make(SHAPE, (40,), (40,))),
    Case("ttnn.prelu", signed((2, 3, 33, 40), (3,))),
    Case("ttnn.prelu/number", signed(SHAPE, 0.3)),
    Case("ttnn.clamp", signed(SHAPE, -0.5, 0.7), FLOATS),
    Case("ttnn.clamp/one side", signed(SHAPE, min=-0.5), FLOATS),
    Case("ttnn.clamp/integers", integers_between(-3, 4), (int32,)),
    Case("ttnn.clamp/floats of integers", integers_between(-3.5, 4.5), (int32,)),
    Case("ttnn.clamp/tensors", lambda g: ([torch.randn(SHAPE, generator=g), -torch.ones(SHAPE), torch.ones(SHAPE)], {})),
    Case("ttnn.clip", signed(SHAPE, -0.5, 0.7)),
    Case("ttnn.normalize_hw", signed((1, 2, 32, 64))),
    Case("ttnn.normalize_global", signed((1, 2, 32, 64))),
    Case("ttnn.var_hw", signed((1, 2, 32, 64))),
    Case("ttnn.std_hw", signed((1, 2, 32, 64))),
    Case("ttnn.tril", signed(SHAPE, diagonal=1), FLOATS),
    Case("ttnn.triu", signed(SHAPE, diagonal=-2), FLOATS),
    Case("ttnn.addalpha", make(SHAPE, SHAPE, 0.5), FLOATS),
    Case("ttnn.subalpha", make(SHAPE, (1, 40), 0.5)),
    Case("ttnn.div_no_nan", lambda g: ([torch.rand(SHAPE, generator=g), small(g).float()], {})),
    Case("ttnn.div_no_nan/zero", make(SHAPE, 0.0)),
    Case("ttnn.floor_div", make(SHAPE, SHAPE), (float32,)),
    Case("ttnn.floor_div/number", make(SHAPE, 0.75), (float32,)),
    Case("ttnn.nextafter", make(SHAPE, SHAPE)),
    Case("ttnn.polyval", make(SHAPE, [2.0, -1.0, 0.5])),
    Case("ttnn.outer", make((1, 1, 1, 40), (1, 1, 1, 33))),
    Case("ttnn.outer/vectors", make((40,), (33,))),
    Case("ttnn.where/formats", lambda g: ([On(torch.randint(0, 2, SHAPE, generator=g, dtype=torch.int32), int32),
                                           torch.randn(SHAPE, generator=g), 0.0], {})),
]  # fmt: skip
