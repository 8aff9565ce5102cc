"""Losses with gradients: one value per chip, the mean over that chip's rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ttmesh.base.dtypes import INTEGERS, float32
from ttmesh.base.errors import ShapeError
from ttmesh.nn.autograd.gradient_rules import cross_entropy_grad, weight_rows
from ttmesh.nn.autograd.local_ops import define_local_op, keep_specs
from ttmesh.nn.tape import note
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.device_tensors import get_device_tensors
from ttmesh.tensor.transfer.transfers import to_torch


def _loss_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [TensorSpec((1, 1), float32, call.specs[0].layout, memory_config=DRAM_MEMORY_CONFIG)]


def _cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None, lane_axes: int
) -> torch.Tensor:
    """Mean of -log softmax at the target, each row times its weight, on each chip."""
    scores = torch.log_softmax(logits.float(), -1)
    index = targets.long().reshape(*targets.shape[:lane_axes], *logits.shape[lane_axes:-1], 1)
    target_scores = scores.gather(-1, index.expand(*scores.shape[:-1], 1))
    rows = weight_rows(target_scores.flatten(lane_axes), weights, lane_axes)
    return -rows.mean(-1).reshape(*rows.shape[:lane_axes], 1, 1)


_cross_entropy_op = define_local_op("cross_entropy", _cross_entropy, _loss_spec)


def cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean cross entropy of each chip's rows; recorded by active tapes.

    `weights` has a number per row, or per group of neighbouring rows (the tokens of a sample); see `nn/batches.py`.
    """
    if targets.shape.volume() * logits.shape[-1] != logits.shape.volume() or targets.dtype not in INTEGERS:
        raise ShapeError(
            f"targets {targets.shape!r} of {targets.dtype} do not fit logits {logits.shape!r}",
            expected="one class per row, as integers, on each chip",
            fix="Drop the classes' dim of the targets, and shard them over the chips like the logits.",
        )
    _check_weights(targets.shape.volume(), weights, targets)
    given = {"logits": logits, "targets": targets, "weights": weights}
    loss: Tensor = _cross_entropy_op(**given)
    _note("cross_entropy", given, loss, lambda grad: cross_entropy_grad(**given, grad=grad))
    return loss


def _squared_error(
    predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None, lane_axes: int
) -> torch.Tensor:
    """Mean of the squared difference, each row times its weight, on each chip."""
    rows = (predictions.float() - targets.float()).square().flatten(lane_axes)
    rows = weight_rows(rows, weights, lane_axes)
    return rows.mean(-1).reshape(*rows.shape[:lane_axes], 1, 1)


def _squared_error_grad(
    predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None, grad: torch.Tensor, lane_axes: int
) -> torch.Tensor:
    """2 · (predictions - targets) · weight / count, times the gradient of the mean."""
    rows = (predictions.float() - targets.float()).flatten(lane_axes)
    rows = weight_rows(rows, weights, lane_axes) * (2 * grad.float().flatten(lane_axes) / rows.shape[-1])
    return rows.reshape(*rows.shape[:lane_axes], *predictions.shape[lane_axes:])


_squared_error_op = define_local_op("mean_squared_error", _squared_error, _loss_spec)
_squared_error_grad_op = define_local_op("mean_squared_error_grad", _squared_error_grad, keep_specs(0))


def mean_squared_error(predictions: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean squared difference on each chip; recorded by active tapes; weights as in `cross_entropy`."""
    if tuple(predictions.shape) != tuple(targets.shape):
        raise ShapeError(
            f"targets {targets.shape!r} do not fit predictions {predictions.shape!r}",
            expected="equal shapes",
            fix="Reshape one of them, and shard both over the chips in the same way.",
        )
    _check_weights(predictions.shape.volume(), weights, targets)
    given = {"predictions": predictions, "targets": targets, "weights": weights}
    loss: Tensor = _squared_error_op(**given)
    _note("mean_squared_error", given, loss, lambda grad: _squared_error_grad_op(**given, grad=grad))
    return loss


def _note(name: str, given: Mapping[str, Tensor | None], loss: Tensor, back: Callable[[Tensor], Tensor | None]) -> None:
    """Record a loss on the active tapes; of its inputs only the first has a gradient."""
    inputs = [tensor for tensor in given.values() if tensor is not None]
    note(name, inputs, loss, lambda grad: [back(grad), *[None] * (len(inputs) - 1)])


def loss_value(loss: Tensor) -> float:
    """The mean of a loss over the chips, read to the host: the loss of the full batch.

    Where several ranks share the mesh (or its parent mesh) all of them must call it, also those that hold none of its chips.
    """
    values = [to_torch(shard).float().mean() for shard in get_device_tensors(loss)]
    top = loss.device()
    while top is not None and top.parent is not None:
        top = top.parent
    if top is None or top.rank_block is None:
        return float(torch.stack(values).mean())
    local = torch.tensor([float(sum(values)), float(len(values))], dtype=torch.float64, device="cpu")
    total, count = top.rank_block.host.all_gather(local).sum(0).tolist()
    return float(total / count)


def _check_weights(rows: int, weights: Tensor | None, targets: Tensor) -> None:
    if weights is not None and rows % weights.shape.volume():
        raise ShapeError(
            f"weights {weights.shape!r} do not fit targets {targets.shape!r}",
            expected="one weight per row, or per group of neighbouring rows",
            fix="Shard the weights over the chips like the targets.",
        )
