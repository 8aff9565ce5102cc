"""Moreh's softmax, softmin and log-softmax with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor as Lanes
from torch import nn

from ttmesh.base.dtypes import PrintedEnum
from ttmesh.ops.catalogue.definition import OpFunction, op
from ttmesh.ops.lane_functions.lane_broadcast import from_front

Forward = Callable[[Lanes, int], Lanes]
Backward = Callable[[Lanes, Lanes, int], Lanes]
Slope = Callable[[Lanes], Lanes]  # a result [.., i] → how it changes with the input, [.., i, j]


class MorehSoftmaxOpParallelizationStrategy(PrintedEnum):
    """How the work is cut; no value depends on it."""

    NONE = 0
    SMALL_W = 1
    SMALL_H = 2
    LARGE_W = 3
    LARGE_H = 4
    LARGE_C = 5


MorehSoftmaxBackwardOpParallelizationStrategy = MorehSoftmaxOpParallelizationStrategy


class MorehSoftmaxOp(PrintedEnum):
    """Which function; the name of the operation says the same."""

    SOFTMAX = 0
    SOFTMIN = 1
    LOGSOFTMAX = 2


MorehSoftmaxBackwardOp = MorehSoftmaxOp


def _softmax_grad(y: Lanes, dy: Lanes, dim: int) -> Lanes:
    return y * (dy - (y * dy).sum(dim, keepdim=True))


def _softmin_grad(y: Lanes, dy: Lanes, dim: int) -> Lanes:
    return -_softmax_grad(y, dy, dim)


def _logsoftmax_grad(y: Lanes, dy: Lanes, dim: int) -> Lanes:
    return dy - y.exp() * dy.sum(dim, keepdim=True)


def _enter_forward(name: str, function: Forward, layer: type[nn.Module]) -> OpFunction:
    def golden(input_tensor: Lanes, dim: int, **_: Any) -> Lanes:
        result: Lanes = layer(dim)(input_tensor)
        return result

    @op(name, golden=golden)
    def lane(input_tensor: Lanes, dim: int, lane_axes: int) -> Lanes:
        """Along a dim, in float32."""
        return function(input_tensor.float(), from_front(dim, input_tensor, lane_axes))

    return lane


def _enter_backward(name: str, function: Backward, slope: Slope) -> OpFunction:
    def golden(output_tensor: Lanes, output_grad_tensor: Lanes, dim: int, **_: Any) -> Lanes:
        y, dy = (part.movedim(dim, -1) for part in (output_tensor, output_grad_tensor))
        return torch.einsum("...i,...ij->...j", dy, slope(y)).movedim(-1, dim)

    @op(name, golden=golden, outputs=("input_grad_tensor",))
    def lane(output_tensor: Lanes, output_grad_tensor: Lanes, dim: int, lane_axes: int) -> Lanes:
        """The gradient of the input, from the result and its gradient."""
        along = from_front(dim, output_tensor, lane_axes)
        return function(output_tensor.float(), output_grad_tensor.float(), along)

    return lane


def _softmax_slope(y: Lanes) -> Lanes:
    return torch.diag_embed(y) - y[..., :, None] * y[..., None, :]


moreh_softmax = _enter_forward("ttnn.moreh_softmax", lambda x, dim: torch.softmax(x, dim), nn.Softmax)
moreh_softmin = _enter_forward("ttnn.moreh_softmin", lambda x, dim: torch.softmax(-x, dim), nn.Softmin)
moreh_logsoftmax = _enter_forward("ttnn.moreh_logsoftmax", lambda x, dim: torch.log_softmax(x, dim), nn.LogSoftmax)
moreh_softmax_backward = _enter_backward("ttnn.moreh_softmax_backward", _softmax_grad, _softmax_slope)
moreh_softmin_backward = _enter_backward("ttnn.moreh_softmin_backward", _softmin_grad, lambda y: -_softmax_slope(y))
moreh_logsoftmax_backward = _enter_backward(
    "ttnn.moreh_logsoftmax_backward",
    _logsoftmax_grad,
    lambda y: torch.eye(y.shape[-1]) - y.exp()[..., None, :],
)
