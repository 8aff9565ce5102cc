"""ttnn.bcast: a tensor combined with the row, column or corner of another."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch

from ttmesh.base.dtypes import Layout, PrintedEnum
from ttmesh.ops.catalogue.checks import require_layout
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.goldens import movement as goldens
from ttmesh.ops.lane_functions.lane_broadcast import equalize_ranks
from ttmesh.tensor.calls.launch_op import Call


class BcastOpMath(PrintedEnum):
    """The operation that bcast applies to its operands."""

    ADD = 0
    SUB = 1
    MUL = 2


class BcastOpDim(PrintedEnum):
    """The dims along which bcast repeats its second operand."""

    H = 0
    W = 1
    HW = 2


def _select_broadcast(b: torch.Tensor, dim: BcastOpDim) -> torch.Tensor:
    """The row, column or corner of B that is broadcast."""
    if dim is not BcastOpDim.W:
        b = b.narrow(-2, 0, 1)
    return b if dim is BcastOpDim.H else b.narrow(-1, 0, 1)


Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_FUNCTIONS: dict[BcastOpMath, Function] = {
    BcastOpMath.ADD: operator.add,
    BcastOpMath.SUB: operator.sub,
    BcastOpMath.MUL: operator.mul,
}


def _check_bcast(call: Call) -> None:
    for name, spec in zip("AB", call.specs, strict=True):
        wrong = f"Input tensor {name} layout must be TILE but got {spec.layout}"
        require_layout(spec, Layout.TILE, wrong)


@op("ttnn.bcast", golden=goldens.bcast, check=_check_bcast)
def bcast(
    input_a: torch.Tensor, input_b: torch.Tensor, math_op: BcastOpMath, dim: BcastOpDim, lane_axes: int
) -> torch.Tensor:
    """A plus, minus or times B, whose row, column or corner is repeated."""
    a, b = equalize_ranks([input_a, input_b], lane_axes)
    return _FUNCTIONS[math_op](a, _select_broadcast(b, dim))
