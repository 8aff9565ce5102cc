"""Unary operations over values where they are defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Case

from ttmesh.base.dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, bfloat8_b, bfloat16, float32, int32, uint16, uint32
from ttmesh.ops.configs.activations import GeluVariant, UnaryOpType, UnaryWithParam
from ttmesh.ops.lane_functions.unary_functions import PLAIN

SHAPE = (2, 33, 40)
FLOATS = (bfloat16, float32, bfloat8_b)
BOTH = (TILE_LAYOUT, ROW_MAJOR_LAYOUT)

# Where a function is defined, and smooth enough that the rounding of its input does not matter.
DOMAIN = {
    "acos": (-0.9, 0.9), "acosh": (1.5, 9.0), "asin": (-0.9, 0.9), "atanh": (-0.9, 0.9), "digamma": (1.0, 9.0),
    "erfinv": (-0.9, 0.9), "lgamma": (2.5, 9.0), "log": (0.1, 9.0), "log10": (0.1, 9.0), "log1p": (0.1, 9.0),
    "log2": (0.1, 9.0), "multigammaln": (2.5, 9.0), "reciprocal": (0.2, 5.0), "rsqrt": (0.2, 9.0), "sqrt": (0.2, 9.0),
    "tan": (-1.3, 1.3),
}  # fmt: skip
INTEGER = ("abs", "neg", "relu", "square", "eqz", "nez", "gtz", "ltz", "gez", "lez", "identity", "logical_not")


def uniform(low: float, high: float, *rest: Any, **keywords: Any) -> Callable[[torch.Generator], Any]:
    return lambda g: ([torch.rand(SHAPE, generator=g) * (high - low) + low, *rest], keywords)


def integers(low: int, high: int, *rest: Any, shape: tuple[int, ...] = SHAPE) -> Callable[[torch.Generator], Any]:
    return lambda g: ([torch.randint(low, high, shape, generator=g, dtype=torch.int32), *rest], {})


def special(g: torch.Generator) -> Any:
    x = torch.randn(SHAPE, generator=g)
    x[0, 0, :4] = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0])
    return [x], {}


def flipped(x: torch.Tensor) -> torch.Tensor:
    return ~x & (0xFFFFFFFF if x.dtype == torch.int64 else 0xFFFF)


CHAIN = [UnaryWithParam(UnaryOpType.RELU), UnaryWithParam(UnaryOpType.EXP, 1.0), UnaryOpType.NEG]

CASES = [
    Case(f"ttnn.{name}", uniform(*DOMAIN.get(name, (-3.0, 3.0))), FLOATS[:2] if "gamma" in name else FLOATS, BOTH)
    for name in PLAIN
    if not name.startswith("is") and name != "bitwise_not"
]
CASES += [Case(f"ttnn.{name}", special, (bfloat16, float32)) for name in PLAIN if name.startswith("is")]
CASES += [Case(f"ttnn.{name}/integers", integers(-9, 9), (int32,), BOTH) for name in INTEGER]
CASES += [
    Case("ttnn.bitwise_not", integers(-9, 9), (int32,)),
    Case("ttnn.bitwise_not/unsigned", integers(0, 9), (uint32, uint16), golden=flipped),
    Case("ttnn.celu", uniform(-3, 3, alpha=0.7), FLOATS),
    Case("ttnn.elu", uniform(-3, 3, alpha=0.7), FLOATS),
    Case("ttnn.fill", uniform(-3, 3, 1.5), FLOATS, BOTH),
    Case("ttnn.gelu", uniform(-3, 3), FLOATS),
    Case("ttnn.gelu/tanh", uniform(-3, 3, variant=GeluVariant.Tanh), FLOATS),
    Case("ttnn.hardshrink", uniform(-3, 3, lambd=0.3)),
    Case("ttnn.hardtanh", uniform(-3, 3, min_val=-0.5, max_val=1.5), FLOATS),
    Case("ttnn.heaviside", lambda g: ([torch.randint(-2, 2, SHAPE, generator=g).float(), 0.5], {})),
    Case("ttnn.leaky_relu", uniform(-3, 3, 0.1), FLOATS),
    Case("ttnn.logit", uniform(0.05, 0.95, eps=0.1)),
    Case("ttnn.polygamma", uniform(1, 9, 2)),
    Case("ttnn.rdiv", uniform(0.3, 3, 2.0)),
    Case("ttnn.rdiv/floor", uniform(0.3, 3, 2.0, rounding_mode="floor"), (float32,)),
    Case("ttnn.relu_max", uniform(-3, 3, 1.5), FLOATS),
    Case("ttnn.relu_min", uniform(-3, 3, 1.5), FLOATS),
    Case("ttnn.round", uniform(-3, 3, decimals=1)),
    Case("ttnn.rpow", uniform(-3, 3, 2.0)),
    Case("ttnn.selu", uniform(-3, 3)),
    Case("ttnn.softplus", uniform(-3, 3, beta=2.0)),
    Case("ttnn.softshrink", uniform(-3, 3, lambd=0.3)),
    Case("ttnn.threshold", uniform(-3, 3, 0.5, 7.0)),
    Case("ttnn.xielu", uniform(-3, 3)),
    Case("ttnn.unary_chain", uniform(-3, 3, CHAIN)),
    Case("ttnn.logical_not_", lambda g: ([torch.randint(0, 2, SHAPE, generator=g).float()], {})),
    Case("ttnn.composite_example", uniform(-3, 3)),
    Case("ttnn.composite_example_multiple_return", uniform(-3, 3, True, False), golden=lambda x, *_: [x]),
    Case("ttnn.softcap", uniform(-9, 9, 4.0), (bfloat16, bfloat8_b), system="p150x8"),
    Case("ttnn.bitcast/float32", uniform(-3, 3, uint32), (float32,)),
    Case(
        "ttnn.bitcast", uniform(-3, 3, uint16), (bfloat16,),
        golden=lambda x, dtype: x.bfloat16().view(torch.int16).int() % 2**16,
    ),
]  # fmt: skip
