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
from ttmesh.ops.lane_functions.lane_broadcast import pad_to_tiles
from ttmesh.ops.stages.movement_stages import tile_spec
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec


def _check_reduce(call: Call) -> None:
    require_layout(call.specs[0], Layout.TILE, "FastReduceNC input only supports TILE layout.")
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


def _reduce_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """A program per dim, the last dim first."""
    c, now = Composition(), PlannedTensor(call.specs[0])
    shape = list(now.spec.padded_shape)
    for dim in sorted(call["dims"], reverse=True):
        shape[dim] = 1
        made = tile_spec(shape, results[0].dtype, results[0].memory_config)
        now = c.replace(now, c.run("fast_reduce_nc", made, now, options=dim))
    return c, [c.view(now, results[0])]


@op(
    "ttnn.experimental.fast_reduce_nc",
    golden=reduction.fast_reduce_nc,
    check=_check_reduce,
    out=_reduce_spec,
    outputs=("output",),
    stages=_reduce_stages,
)
def fast_reduce_nc(input: torch.Tensor, dims: Sequence[int], lane_axes: int) -> torch.Tensor:
    """The sum over outer dims, which stay with length 1; the padding of tiles becomes part of the result."""
    outer = normalize_dims(tuple(dims), input.dim() - lane_axes)
    whole = pad_to_tiles(input)
    return fpu.add_up(whole, outer) if fpu.is_emulated(input) else whole.sum(outer, keepdim=True)


def _check_split(call: Call) -> None:
    spec, dim, width = call.specs[0], call["dim"], call["split_output_width"]
    wrong = "Split reduction supports rank-4 input reduced along dim 0 or 1"
    require(len(spec.shape) == 4 and dim in (0, 1), wrong, "four dims", "Use ttnn.experimental.fast_reduce_nc.")
    require_layout(spec, Layout.TILE, "Split reduction requires standard TILE layout")
    columns = int(spec.shape[-1])
    fits = columns == spec.padded_shape[-1] and 0 < width < columns and width % 32 == 0
    wrong = "Split reduction requires two nonempty tile-aligned channel regions"
    require(fits, wrong, f"a multiple of 32 below {columns}", "Change split_output_width.")


def _split_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory = DRAM_MEMORY_CONFIG if call["memory_config"] is None else None
    return [make_output_spec(call, shape, memory_config=memory) for shape, _ in inferred]


@op(
    "ttnn.experimental.fast_reduce_nc_split", golden=reduction.fast_reduce_nc_split, check=_check_split, out=_split_spec
)
def fast_reduce_nc_split(input: torch.Tensor, dim: int, split_output_width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum over an outer dim, which stays with length 1, in two tensors: the first columns and the others."""
    outer = (dim - 4,)
    total = fpu.add_up(input, outer) if fpu.is_emulated(input) else input.sum(outer, keepdim=True)
    return total[..., :split_output_width], total[..., split_output_width:]
