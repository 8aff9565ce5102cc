"""fill_rm and fill_ones_rm: tensors whose upper left corner has one value and the rest another."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import require_dtype
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.goldens import movement as goldens
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec


def _check_fill(call: Call) -> None:
    n, c, h, w = (call[name] for name in "NCHW")
    corner_height, corner_width = call["hOnes"], call["wOnes"]
    wrong = "Only TILE layout is supported for BFLOAT8_B dtype!"  # of the result, which is made first
    rows = call.specs[0].dtype not in BLOCK_FLOATS
    require(rows, wrong, "bfloat16", "Convert it with ttnn.typecast.")
    wrong = f"All dimensions must be positive: N={n}, C={c}, H={h}, W={w}"
    require(min(n, c, h, w) > 0, wrong, "positive dims", "Ask for at least one element in every dim.")
    wrong = (
        f"Fill dimensions must be <= tensor dimensions: hFill={corner_height} <= H={h}, wFill={corner_width} <= W={w}"
    )
    require(
        corner_height <= h and corner_width <= w,
        wrong,
        f"a corner of at most {h} x {w}",
        "Make the corner smaller, or the tensor larger.",
    )
    wrong = f"Input tensor dtype must be BFLOAT16 but got DataType::{call.specs[0].dtype.name}"
    require_dtype(call.specs[0], DataType.BFLOAT16, wrong)
    configs = call.specs[0].memory_config, call["memory_config"]
    interleaved = all(config is None or config.shard_spec is None for config in configs)
    wrong = "FillRM does not currently support sharding"
    require(interleaved, wrong, "interleaved memory", "Move it with ttnn.to_memory_config.")


def _fill_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory = call["memory_config"] or call.specs[0].memory_config
    return [TensorSpec(inferred[0][0], call.specs[0].dtype, Layout.ROW_MAJOR, memory_config=memory)]


def _fill_corner(
    shape: Sequence[int], corner_height: int, corner_width: int, inside: float, outside: float, template: torch.Tensor
) -> torch.Tensor:
    values = torch.full(tuple(shape), outside, device=template.device, dtype=torch.float32)
    values[..., :corner_height, :corner_width] = inside
    return values


@op("ttnn.fill_rm", golden=goldens.fill_corner, check=_check_fill, out=_fill_spec)
def fill_rm(
    N: int,
    C: int,
    H: int,
    W: int,
    hOnes: int,
    wOnes: int,
    any: torch.Tensor,
    val_hi: float,
    val_lo: float,
    lane_axes: int,
) -> torch.Tensor:
    """A tensor with one number in the upper left corner of its last dims and another elsewhere."""
    return _fill_corner((*[1] * lane_axes, N, C, H, W), hOnes, wOnes, val_hi, val_lo, any)


@op("ttnn.fill_ones_rm", golden=goldens.fill_corner, check=_check_fill, out=_fill_spec)
def fill_ones_rm(
    N: int, C: int, H: int, W: int, hOnes: int, wOnes: int, any: torch.Tensor, lane_axes: int
) -> torch.Tensor:
    """A tensor with ones in the upper left corner of its last dims and zeros elsewhere."""
    return _fill_corner((*[1] * lane_axes, N, C, H, W), hOnes, wOnes, 1.0, 0.0, any)
