"""Moreh's negative log likelihood and its gradients."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import MeshError
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.device_programs import like_written, no_programs
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import training as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.ops.moreh.moreh_sums import sum_dims
from ttmesh.ops.stages.moreh_stages import nll_loss_stages
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def _clamp_targets(target: Lanes, classes: int, ignore_index: int) -> tuple[Lanes, Lanes]:
    """Targets clamped to valid classes, and a mask of those that are not ignored."""
    widened = target.long()
    valid = (widened != ignore_index) & (widened >= 0) & (widened < classes)
    return widened.clamp(0, classes - 1), valid


def _gather_weights(target: Lanes, weight: Lanes | None, classes: int, ignore_index: int, lane_axes: int) -> Lanes:
    """The weight of every target's class; 0 for ignored targets."""
    index, valid = _clamp_targets(target, classes, ignore_index)
    if weight is None:
        return valid.float()
    row = weight.flatten(lane_axes)
    index, row = align_mesh_dims([index, row], lane_axes)
    weights = row.float().gather(-1, index.flatten(lane_axes)).reshape(index.shape)
    return weights * valid


def _compute_losses(x: Lanes, target: Lanes, weight: Lanes | None, ignore_index: int, lane_axes: int) -> Lanes:
    """-weight · x at the target's class, for every target."""
    classes = x.shape[lane_axes + 1]
    index, _ = _clamp_targets(target, classes, ignore_index)
    x, index = align_mesh_dims([x, index], lane_axes)
    log_probabilities = x.float().gather(lane_axes + 1, index.unsqueeze(lane_axes + 1)).squeeze(lane_axes + 1)
    return -log_probabilities * _gather_weights(target, weight, classes, ignore_index, lane_axes)


@device_operation("ttnn.moreh_nll_loss", runtime=("ignore_index",), stages=nll_loss_stages)
def _compute_loss(
    input: Lanes,
    target: Lanes,
    weight: Lanes | None,
    reduction: str,
    ignore_index: int,
    shape: tuple[int, ...],
    lane_axes: int,
) -> Lanes:
    losses = _compute_losses(input, target, weight, ignore_index, lane_axes)
    if reduction == "none":
        return losses.reshape(*losses.shape[:lane_axes], *shape)
    summed = sum_dims(fpu.keep_in_tensor(losses), range(lane_axes - losses.dim(), 0))  # as moreh_sum
    total = fpu.keep_in_tensor(summed).reshape(losses.shape[:lane_axes])
    if reduction == "mean":
        total = total / _gather_weights(target, weight, input.shape[lane_axes + 1], ignore_index, lane_axes).flatten(
            lane_axes
        ).sum(-1)
    return total.reshape(*total.shape, *shape)


@device_operation("ttnn.moreh_nll_loss divisor", out=like_written, programs=no_programs, writes="divisor")
def _write_divisor(
    divisor: Lanes, target: Lanes, weight: Lanes | None, classes: int, ignore_index: int, lane_axes: int
) -> Lanes:
    total = _gather_weights(target, weight, classes, ignore_index, lane_axes).flatten(lane_axes).sum(-1)
    return total.reshape(*total.shape, *[1] * (divisor.dim() - lane_axes))


@composite("ttnn.moreh_nll_loss", golden=goldens.nll_loss)
def moreh_nll_loss(
    input_tensor: Tensor,
    target_tensor: Tensor,
    reduction: str,
    weight_tensor: Tensor | None,
    divisor_tensor: Tensor | None,
    output_tensor: Tensor | None,
    ignore_index: int,
    memory_config: MemoryConfig | None,
    compute_kernel_config: Any,
) -> Tensor:
    """The loss of log probabilities [batch, classes, ..] against class numbers [batch, ..]."""
    if reduction == "mean":
        if divisor_tensor is None:
            raise MeshError(
                "Divisor tensor must not be empty", expected="divisor_tensor=", fix="Pass a tensor for the divisor."
            )
        _write_divisor(
            divisor=divisor_tensor,
            target=target_tensor,
            weight=weight_tensor,
            classes=input_tensor.shape[1],
            ignore_index=ignore_index,
            compute_kernel_config=compute_kernel_config,
        )
    targets = tuple(target_tensor.shape)
    shape = (1, 1) if reduction != "none" else targets if len(targets) > 1 else (1, *targets)
    if output_tensor is not None and output_tensor.shape.volume() == prod(shape) and len(output_tensor.shape) <= 2:
        shape = tuple(output_tensor.shape)
    result: Tensor = _compute_loss(
        input=input_tensor,
        target=target_tensor,
        weight=weight_tensor,
        reduction=reduction,
        ignore_index=ignore_index,
        shape=shape,
        memory_config=memory_config,
        output_tensor=output_tensor,
        compute_kernel_config=compute_kernel_config,
    )
    return result


def _scatter_to_classes(target: Lanes, values: Lanes, classes: int, lane_axes: int) -> Lanes:
    """values [batch, ..] at every target's class, zeros elsewhere: [batch, classes, ..]."""
    index, values = align_mesh_dims([target, values], lane_axes)
    shape = list(index.shape)
    shape.insert(lane_axes + 1, classes)
    zeros = torch.zeros(shape, dtype=torch.float32, device=values.device)
    return zeros.scatter(lane_axes + 1, index.unsqueeze(lane_axes + 1), values.float().unsqueeze(lane_axes + 1))


def _grad_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory_config = DRAM_MEMORY_CONFIG
    return [
        make_output_spec(
            call, inferred[0][0], source=1, dtype=DataType.BFLOAT16, layout=Layout.TILE, memory_config=memory_config
        )
    ]


def _unreduced_backward(
    target: Lanes, output_grad: Lanes, weight: Lanes | None, classes: int, ignore_index: int, lane_axes: int
) -> Lanes:
    index, _ = _clamp_targets(target, classes, ignore_index)
    factor = _gather_weights(target, weight, classes, ignore_index, lane_axes)
    return _scatter_to_classes(index, -output_grad.float() * factor, classes, lane_axes)


def _backward(
    target_tensor: Lanes,
    output_grad_tensor: Lanes,
    weight_tensor: Lanes | None,
    divisor_tensor: Lanes | None,
    classes: int,
    reduced: bool,
    ignore_index: int,
    lane_axes: int,
) -> Lanes:
    grad = output_grad_tensor.float()
    if reduced:
        grad = grad.flatten(lane_axes)[..., 0]
        if divisor_tensor is not None:
            grad = grad / divisor_tensor.float().flatten(lane_axes)[..., 0]
        grad = grad.reshape(*grad.shape, *[1] * (target_tensor.dim() - lane_axes))
        grad = grad.expand(*grad.shape[:lane_axes], *target_tensor.shape[lane_axes:])
    return _unreduced_backward(target_tensor, grad, weight_tensor, classes, ignore_index, lane_axes)


_OF_A_SUM = device_operation("ttnn.moreh_nll_loss_backward", out=_grad_spec)(_backward)
_OF_EVERY_TARGET = device_operation("ttnn.moreh_nll_loss_unreduced_backward", out=_grad_spec)(_backward)


def _run_backward(
    target: Tensor,
    grad: Tensor,
    weight: Tensor | None,
    divisor: Tensor | None,
    output: Tensor | None,
    ignore_index: int,
    memory_config: MemoryConfig | None,
    *,
    reduced: bool,
) -> Tensor:
    operation = _OF_A_SUM if reduced else _OF_EVERY_TARGET
    if output is None:
        raise MeshError(
            f"{operation.operation.name.removeprefix('ttnn.')} not support creating output tensors.",
            expected="input_grad_tensor=",
            fix="Allocate a tensor for the gradient and pass it.",
        )
    result: Tensor = operation(
        target_tensor=target,
        output_grad_tensor=grad,
        weight_tensor=weight,
        divisor_tensor=divisor,
        classes=output.shape[1],
        reduced=reduced,
        ignore_index=ignore_index,
        memory_config=memory_config,
        output_tensor=output,
    )
    return result


@composite("ttnn.moreh_nll_loss_backward", golden=goldens.nll_loss_backward)
def moreh_nll_loss_backward(
    target_tensor: Tensor,
    output_grad_tensor: Tensor,
    reduction_mean: bool,
    weight_tensor: Tensor | None,
    input_grad_tensor: Tensor | None,
    divisor_tensor: Tensor | None,
    ignore_index: int,
    memory_config: MemoryConfig | None,
) -> Tensor:
    """The gradient of the log probabilities, of a summed or mean loss."""
    return _run_backward(
        target_tensor, output_grad_tensor, weight_tensor,
        divisor_tensor if reduction_mean else None, input_grad_tensor, ignore_index, memory_config, reduced=True,
    )  # fmt: skip


@composite("ttnn.moreh_nll_loss_unreduced_backward", golden=goldens.nll_loss_unreduced_backward)
def moreh_nll_loss_unreduced_backward(
    target_tensor: Tensor,
    output_grad_tensor: Tensor,
    weight_tensor: Tensor | None,
    input_grad_tensor: Tensor | None,
    ignore_index: int,
    memory_config: MemoryConfig | None,
) -> Tensor:
    """The gradient of the log probabilities, of the loss of every target."""
    return _run_backward(
        target_tensor, output_grad_tensor, weight_tensor, None,
        input_grad_tensor, ignore_index, memory_config, reduced=False,
    )  # fmt: skip
