"""fast_reduce_nc: sums over the outer dims of tiles."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.checks import normalize_dims, require_layout
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import reduction
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec


def _check_reduce(call: Call) -> None:
    require_layout(call.specs[0], Layout.TILE, "fast_reduce_nc: input must be tilized")
    rank, dims = len(call.specs[0].shape), tuple(call["dims"])
    require(bool(dims), "fast_reduce_nc dims should not be empty", "dims to reduce", "Name one dim or more.")
    wrong = f"FastReduceNC input rank must be greater than 2, but has {rank}"
    require(rank > 2, wrong, "three dims or more", "Use ttnn.sum for other shapes.")
    for dim in dims:
        wrong = f"FastReduceNC reduces only outer dims: dim must be between 0 and {rank - 3}, but has {dim}"
        require(0 <= dim <= rank - 3, wrong, f"a dim in [0, {rank - 3}]", "Use ttnn.sum for other dims.")


def _reduce_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory = DRAM_MEMORY_CONFIG if call["memory_config"] is None else None
    return [make_output_spec(call, inferred[0][0], layout=Layout.TILE, memory_config=memory)]


@op(
    "ttnn.experimental.fast_reduce_nc",
    golden=reduction.fast_reduce_nc,
    check=_check_reduce,
    out=_reduce_spec,
    outputs=("output",),
    programs=lambda call: tuple(("fast_reduce_nc", call.tensors[0].kind, dim) for dim in call["dims"]),
)
def fast_reduce_nc(input: torch.Tensor, dims: Sequence[int], lane_axes: int) -> torch.Tensor:
    """The sum over outer dims, which stay with length 1."""
    outer = normalize_dims(tuple(dims), input.dim() - lane_axes)
    return fpu.add_up(input, outer) if fpu.is_emulated(input) else input.sum(outer, keepdim=True)
