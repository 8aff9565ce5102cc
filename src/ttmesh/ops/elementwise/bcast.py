"""ttnn.bcast: a tensor combined with the row, column or corner of another."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch

from ttmesh.base.dtypes import DataType, Layout, PrintedEnum, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import require_dtype, require_layout
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.goldens import movement as goldens
from ttmesh.ops.lane_functions.lane_broadcast import equalize_ranks
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
FLOATS = (DataType.BFLOAT16, DataType.FLOAT32, DataType.BFLOAT8_B, DataType.BFLOAT4_B)


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
    a, b, dim = call.specs[0], call.specs[1], call["dim"]
    require_dtype(a, FLOATS, "Unsupported data format")
    _check_memory(call, a, dim)
    rows, columns, fix = b.padded_shape[-2], b.padded_shape[-1], "Pass one row, column or value."
    height, width = a.padded_shape[-2:]
    if dim is BcastOpDim.W:
        wrong = (
            f"For width broadcast: height_a ({height}) must equal height_b ({rows}) and width_b ({columns}) must equal "
            "TILE_WIDTH (32)"
        )
        require(height == rows and columns == TILE, wrong, f"{height}x1", fix)
    elif dim is BcastOpDim.H:
        wrong = (
            f"For height broadcast: width_a ({width}) must equal width_b ({columns}) and height_b ({rows}) must equal "
            "TILE_HEIGHT (32)"
        )
        require(width == columns and rows == TILE, wrong, f"1x{width}", fix)
    else:
        wrong = (
            f"For HW broadcast: width_b ({columns}) must equal TILE_WIDTH (32) and height_b ({rows}) must equal TILE_HEIGHT "
            "(32)"
        )
        require(columns == TILE and rows == TILE, wrong, "1x1", fix)


def _check_memory(call: Call, a: TensorSpec, dim: BcastOpDim) -> None:
    target = call.outputs[0].memory_config() if call.outputs and call.outputs[0] is not None else call["memory_config"]
    given, result = a.memory_config, a.memory_config if target is None else target
    fix = "Move it with ttnn.to_memory_config."
    if dim is BcastOpDim.W:
        wrong = "Bcast does not currently support input0 sharding, except if dim is W"
        require(given.interleaved and result.interleaved, wrong, "interleaved memory", fix)
    elif dim is BcastOpDim.H and given.interleaved:
        wrong = "Bcast does not currently support input0 sharding, except if dim is HW"
        require(result.interleaved, wrong, "interleaved memory", fix)
    elif dim is BcastOpDim.H:
        wrong = "Input and output mem layouts must be the same for bcast H op!"
        require(result.is_sharded(), wrong, "a sharded result", fix)
    else:
        allowed = (TensorMemoryLayout.INTERLEAVED, TensorMemoryLayout.HEIGHT_SHARDED)
        wrong = "HW bcast in0 supports Height Sharding or Interleaving"
        require(given.memory_layout in allowed, wrong, "interleaved memory, or shards of whole rows", fix)
        wrong = "Input and output mem layouts must be the same for bcast HW op!"
        require(given.memory_layout is result.memory_layout, wrong, "the input's memory layout", fix)


@op("ttnn.bcast", golden=goldens.bcast, check=_check_bcast)
def bcast(
    input_a: torch.Tensor, input_b: torch.Tensor, math_op: BcastOpMath, dim: BcastOpDim, lane_axes: int
) -> torch.Tensor:
    """A plus, minus or times B, whose row, column or corner is repeated."""
    a, b = equalize_ranks([input_a, input_b], lane_axes)
    return _FUNCTIONS[math_op](a, _select_broadcast(b, dim))
