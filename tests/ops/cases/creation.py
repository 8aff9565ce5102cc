"""Tensors out of nothing and losses: what has a torch equivalent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Case

from ttmesh.base.dtypes import bfloat16, float32
from ttmesh.ops.reduction.mse_l1_loss import LossReductionMode

SHAPE = (2, 33, 40)
MESH = {"device": "mesh"}


def like(*rest: Any) -> Callable[[torch.Generator], Any]:
    return lambda g: ([torch.randn(SHAPE, generator=g), *rest], {})


def pair(reduction: LossReductionMode) -> Callable[[torch.Generator], Any]:
    return lambda g: ([torch.randn(SHAPE, generator=g), torch.randn(SHAPE, generator=g)], {"reduction": reduction})


CASES = [
    Case("ttnn.full", lambda g: ([SHAPE, 1.5], MESH), (bfloat16,), placements=False),
    Case("ttnn.zeros", lambda g: ([SHAPE], MESH), (bfloat16,), placements=False),
    Case("ttnn.ones", lambda g: ([SHAPE], MESH), (bfloat16,), placements=False),
    Case("ttnn.arange", lambda g: ([3, 40, 2], MESH), (bfloat16,), placements=False),
    Case("ttnn.moreh_full", lambda g: ([SHAPE, 1.5, "mesh"], {}), (bfloat16,), placements=False),
    Case("ttnn.moreh_arange", lambda g: ([3, 40, 2, "mesh"], {}), (bfloat16,), placements=False),
    Case("ttnn.full_like", like(1.5)),
    Case("ttnn.zeros_like", like()),
    Case("ttnn.ones_like", like()),
    Case("ttnn.moreh_full_like", like(1.5)),
]
CASES += [
    Case(f"ttnn.{name}/{mode.name.lower()}", pair(mode), (bfloat16, float32))
    for name in ("mse_loss", "l1_loss")
    for mode in LossReductionMode
]
