"""Losses with gradients: one number per chip, the mean over that chip's rows."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import float32
from ttmesh.base.errors import ShapeError
from ttmesh.nn.gradients import cross_entropy_grad, weighted_rows
from ttmesh.nn.local_ops import local
from ttmesh.nn.tape import note
from ttmesh.ops.specs import Inferred
from ttmesh.tensor.launch import Call
from ttmesh.tensor.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def _loss_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [TensorSpec((1, 1), float32, call.specs[0].layout, memory_config=DRAM_MEMORY_CONFIG)]


def _cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None, lane_axes: int
) -> torch.Tensor:
    """Mean of -log softmax at the target, each row times its weight, on each chip."""
    scores = torch.log_softmax(logits.float(), -1)
    index = targets.long().reshape(*targets.shape[:lane_axes], *logits.shape[lane_axes:-1], 1)
    picked = scores.gather(-1, index.expand(*scores.shape[:-1], 1))
    rows = weighted_rows(picked.flatten(lane_axes), weights, lane_axes)
    return -rows.mean(-1).reshape(*rows.shape[:lane_axes], 1, 1)


_cross_entropy_op = local("cross_entropy", _cross_entropy, _loss_spec)


def cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean cross entropy of each chip's rows, on the tape when one records.

    `weights` has a number per row, or per group of neighbouring rows (the tokens of a sample); see `nn/batches.py`.
    """
    if tuple(targets.shape) != tuple(logits.shape[:-1]) and targets.shape[-1] != 1:
        raise ShapeError(
            f"targets {targets.shape!r} do not fit logits {logits.shape!r}",
            expected="one class per row",
            fix="Drop the classes' dim of the targets.",
        )
    if weights is not None and targets.shape.volume() % weights.shape.volume():
        raise ShapeError(
            f"weights {weights.shape!r} do not fit targets {targets.shape!r}",
            expected="one weight per row, or per group of neighbouring rows",
            fix="Cut the weights over the chips like the targets.",
        )
    given = {"logits": logits, "targets": targets, "weights": weights}
    loss: Tensor = _cross_entropy_op(**given)
    note("cross_entropy", [logits], loss, lambda grad: [cross_entropy_grad(**given, grad=grad)])
    return loss
