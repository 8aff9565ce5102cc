"""Gradients of element-wise operations beside torch's autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Case

from ttmesh.base.dtypes import bfloat16, float32
from ttmesh.ops.elementwise.binary_backward import BINARY
from ttmesh.ops.elementwise.unary_backward import GRADIENTS

SHAPE = (1, 2, 33, 40)

DOMAIN = {
    "acos": (-0.9, 0.9), "acosh": (1.5, 9.0), "asin": (-0.9, 0.9), "atanh": (-0.9, 0.9), "digamma": (1.0, 9.0),
    "erfinv": (-0.9, 0.9), "lgamma": (2.5, 9.0), "log": (0.1, 9.0), "log10": (0.1, 9.0), "log1p": (0.1, 9.0),
    "log2": (0.1, 9.0), "logit": (0.1, 0.9), "logiteps": (0.1, 0.9), "multigammaln": (2.5, 9.0),
    "polygamma": (1.0, 9.0), "pow": (0.5, 2.0), "rdiv": (0.5, 2.0), "reciprocal": (0.5, 2.0), "rsqrt": (0.5, 9.0),
    "sqrt": (0.5, 9.0), "tan": (-1.3, 1.3),
}  # fmt: skip
OPTIONS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "celu": ([], {"alpha": 0.7}), "clamp": ([-0.5, 0.7], {}), "clip": ([-0.5, 0.7], {}), "elu": ([], {"alpha": 0.7}),
    "hardshrink": ([], {"lambd": 0.3}), "hardtanh": ([], {"min": -0.4, "max": 0.8}),
    "leaky_relu": ([], {"negative_slope": 0.2}), "logiteps": ([], {"eps": 0.2}), "polygamma": ([2], {}),
    "pow": ([3.0], {}), "rdiv": ([2.0], {}), "rpow": ([2.0], {}), "softplus": ([], {"beta": 2.0}),
    "softshrink": ([], {"lambd": 0.3}), "threshold": ([0.3, 7.0], {}),
}  # fmt: skip


def unary(name: str, **more: Any) -> Callable[[torch.Generator], Any]:
    low, high = DOMAIN.get(name, (-3.0, 3.0))
    args, options = OPTIONS.get(name, ([], {}))

    def make(g: torch.Generator) -> Any:
        x = torch.rand(SHAPE, generator=g) * (high - low) + low
        return [torch.randn(SHAPE, generator=g), x, *args], {**options, **more}

    return make


def binary(*rest: Any, shape: tuple[int, ...] = SHAPE, **options: Any) -> Callable[[torch.Generator], Any]:
    def make(g: torch.Generator) -> Any:
        a, b = torch.rand(SHAPE, generator=g) * 2 + 0.5, torch.rand(shape, generator=g) * 2 + 0.5
        return [torch.randn(SHAPE, generator=g), a, *(rest or [b])], options

    return make


def three(*rest: Any) -> Callable[[torch.Generator], Any]:
    def make(g: torch.Generator) -> Any:
        tensors = [torch.rand(SHAPE, generator=g) + 0.5 for _ in range(3)]
        return [torch.randn(SHAPE, generator=g), *tensors, *rest], {}

    return make


# Gradients that jump: a float rounded to bfloat16 lies on the same side for both, so formats do not matter.
CASES = [Case(f"ttnn.{name}_bw", unary(name)) for name in GRADIENTS]
CASES += [Case("ttnn.experimental.gelu_bw", unary("gelu", approximate="tanh"))]
CASES += [Case("ttnn.gelu_bw/tanh", unary("gelu", approximate="tanh"))]
CASES += [
    Case(f"ttnn.{name}_bw", binary(), (float32,) if name in ("fmod", "remainder") else (bfloat16, float32))
    for name in BINARY
    if name != "div_no_nan"
]
CASES += [Case("ttnn.mul_bw/row", binary(shape=(1, 1, 1, 40)))]  # the others are refused
CASES += [Case(f"ttnn.{name}_bw/number", binary(2.0)) for name in ("add", "sub", "mul", "div", "fmod", "remainder")]
CASES += [
    Case("ttnn.div_no_nan_bw", binary(2.0)),
    Case("ttnn.div_bw/floor", binary(rounding_mode="floor")),
    Case("ttnn.bias_gelu_bw/tanh", binary(approximate="tanh")),
    Case("ttnn.addalpha_bw/alpha", binary(), golden=None),
    Case("ttnn.addcmul_bw", three(0.5)),
    Case("ttnn.addcdiv_bw", three(0.5)),
    Case("ttnn.lerp_bw", three()),
    Case("ttnn.where_bw", three()),
]
