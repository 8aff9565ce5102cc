"""Deformable attention: weighted sums of a few points of an image, interpolated between its pixels."""

from __future__ import annotations

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.checks import require_dtype
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import pool_resample as goldens
from ttmesh.ops.lane_functions.lane_broadcast import (
    align_mesh_dims,
    common_mesh_dims,
    fold_into_batch,
    unfold_from_batch,
)
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

WIDTH = 16  # values that one face of a tile holds side by side


def _check(call: Call) -> None:
    operands = list(zip(("value", "grid", "attn"), call.specs, strict=True))
    for name, spec in operands:
        require_dtype(spec, {DataType.BFLOAT16}, f"{name} must be BFLOAT16")
        row_major = spec.layout is Layout.ROW_MAJOR
        require(row_major, f"{name} must be ROW_MAJOR", "ROW_MAJOR_LAYOUT", "Convert it with ttnn.to_layout.")
        interleaved = spec.memory_config.interleaved
        require(interleaved, f"{name} memory_layout must be INTERLEAVED", "interleaved memory", "Use to_memory_config.")
    value, grid, attn = (spec.shape for spec in call.specs)
    for name, shape, rank, dims in (
        ("value", value, 4, "(N, h_in, w_in, D)"), ("grid", grid, 4, "(N, Q*P, 1, 2)"), ("attn", attn, 3, "(N, Q, P)"),
    ):  # fmt: skip
        require(
            len(shape) == rank, f"{name} rank must be {rank} {dims}, got {shape!r}", dims, "Reshape it to these dims."
        )
    require(grid[-1] == 2, "grid last dim must be 2 (x, y)", "two coordinates", "Reshape the grid to [..., 2].")
    wrong = "grid 3rd dim must be 1 (single sample per row)"
    require(grid[-2] == 1, wrong, "one sample", "Reshape the grid to one sample per row.")
    require(
        value[0] == grid[0] == attn[0],
        "N (batch*head) dim mismatch",
        "equal first dims",
        "Reshape the three tensors to the same first dim.",
    )
    wrong = f"value's last dim (D) must be a positive multiple of {WIDTH}, got {value[-1]}"
    require(value[-1] > 0 and value[-1] % WIDTH == 0, wrong, f"a multiple of {WIDTH}", "Pad the heads.")
    wrong = f"grid dim 1 (= Q*P = {grid[1]}) must equal attn Q*P (= {attn[1]} * {attn[2]} = {attn[1] * attn[2]})"
    require(grid[1] == attn[1] * attn[2], wrong, "a point per weight", "Pass one point of the grid per weight.")


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, inferred[0][0], dtype=DataType.BFLOAT16, layout=Layout.ROW_MAJOR)]


@op(
    "ttnn.experimental.multi_scale_deformable_attn", golden=goldens.multi_scale_deformable_attn, check=_check, out=_spec
)
def multi_scale_deformable_attn(value: Lanes, grid: Lanes, attn: Lanes, align_corners: bool, lane_axes: int) -> Lanes:
    """The image sampled at the grid's points and summed with the attention weights: [N, queries, depth]."""
    dims = common_mesh_dims([value, grid, attn], lane_axes)
    image, points, weights = (
        fold_into_batch(t, lane_axes).float() for t in align_mesh_dims([value, grid, attn], lane_axes)
    )
    sampled = F.grid_sample(image.permute(0, 3, 1, 2), points, mode="bilinear", align_corners=align_corners)
    samples = torch.unflatten(sampled.squeeze(-1), -1, tuple(weights.shape[1:]))  # [N, depth, queries, points]
    return unfold_from_batch(_weigh_points(samples, weights), dims)


def _weigh_points(points: Lanes, weights: Lanes) -> Lanes:
    """[N, depth, queries, points] summed with weights [N, queries, points]: [N, queries, depth]."""
    if not fpu.is_emulated(points, weights):
        return torch.einsum("ndqp,nqp->nqd", points, weights)
    rows = fpu.matmul(weights.unsqueeze(-2), fpu.keep(points.movedim(1, -1)))
    return rows.squeeze(-2)
