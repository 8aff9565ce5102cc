"""Losses with gradients: one number per chip, the mean over that chip's rows."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import float32
from ttmesh.base.errors import ShapeError
from ttmesh.nn.gradients import cross_entropy_grad
from ttmesh.nn.local_ops import local
from ttmesh.nn.tape import note
from ttmesh.ops.specs import Inferred
from ttmesh.tensor.launch import Call
from ttmesh.tensor.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def _loss_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [TensorSpec((1, 1), float32, call.specs[0].layout, memory_config=DRAM_MEMORY_CONFIG)]


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """Mean of -log softmax at the target, on each chip."""
    scores = torch.log_softmax(logits.float(), -1)
    index = targets.long().reshape(*targets.shape[:lane_axes], *logits.shape[lane_axes:-1], 1)
    picked = scores.gather(-1, index.expand(*scores.shape[:-1], 1))
    return -picked.flatten(lane_axes).mean(-1).reshape(*scores.shape[:lane_axes], 1, 1)


_cross_entropy_op = local("cross_entropy", _cross_entropy, _loss_spec)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy of each chip's rows, on the tape when one records."""
    if tuple(targets.shape) != tuple(logits.shape[:-1]) and targets.shape[-1] != 1:
        raise ShapeError(
            f"targets {targets.shape!r} do not fit logits {logits.shape!r}",
            expected="one class per row",
            fix="Drop the classes' dim of the targets.",
        )
    loss: Tensor = _cross_entropy_op(logits=logits, targets=targets)
    note("cross_entropy", [logits], loss, lambda grad: [cross_entropy_grad(logits=logits, targets=targets, grad=grad)])
    return loss
