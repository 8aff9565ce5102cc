"""Moreh's softmax, softmin and log-softmax with their gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import PrintedEnum
from ttmesh.base.errors import require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.definition import Golden, OpFunction, op
from ttmesh.ops.goldens import moreh as goldens
from ttmesh.ops.lane_functions.fpu_rows import sum_along, take_softmax
from ttmesh.ops.lane_functions.lane_broadcast import to_negative_dim
from ttmesh.tensor.calls.argument_errors import types_misfit
from ttmesh.tensor.calls.operation import Call

Forward = Callable[[Lanes, int], Lanes]
Backward = Callable[[Lanes, Lanes, int], Lanes]


class MorehSoftmaxOpParallelizationStrategy(PrintedEnum):
    """How the work is split; it does not change the values."""

    NONE = 0
    SMALL_W = 1
    SMALL_H = 2
    LARGE_W = 3
    LARGE_H = 4
    LARGE_C = 5


MorehSoftmaxBackwardOpParallelizationStrategy = MorehSoftmaxOpParallelizationStrategy


class MorehSoftmaxOp(PrintedEnum):
    """The function to compute; it must agree with the operation's name."""

    SOFTMAX = 0
    SOFTMIN = 1
    LOGSOFTMAX = 2


MorehSoftmaxBackwardOp = MorehSoftmaxOp


def _check_dim(call: Call) -> None:
    dim, rank = call["dim"], len(call.specs[0].shape)
    if dim < 0:
        raise types_misfit(call.name, call.arguments, f"dim={dim} is negative; count dims from the front")
    wrong = f"dim {dim} should be less than output tensor rank {rank}"
    require(dim < rank, wrong, f"a dim in [0, {rank - 1}]", "Check the rank.")


def _log_softmax(x: Lanes, dim: int) -> Lanes:
    if not fpu.is_emulated(x):
        return torch.log_softmax(x, dim)
    below = x - x.amax(dim, keepdim=True)
    return below - torch.log(fpu.keep(sum_along(fpu.keep(below.exp()), dim)))


def _softmax_grad(y: Lanes, dy: Lanes, dim: int) -> Lanes:
    return y * (dy - sum_along(fpu.multiply(y, dy), dim))


def _softmin_grad(y: Lanes, dy: Lanes, dim: int) -> Lanes:
    return -_softmax_grad(y, dy, dim)


def _logsoftmax_grad(y: Lanes, dy: Lanes, dim: int) -> Lanes:
    return dy - y.exp() * sum_along(dy, dim)


def _define_forward(name: str, function: Forward, golden: Golden) -> OpFunction:
    @op(name, golden=golden, check=_check_dim)
    def lane(input_tensor: Lanes, dim: int, lane_axes: int) -> Lanes:
        """Along a dim, in float32."""
        return function(input_tensor.float(), to_negative_dim(dim, input_tensor, lane_axes))

    return lane


def _define_backward(name: str, function: Backward, golden: Golden) -> OpFunction:
    @op(name, golden=golden, outputs=("input_grad_tensor",), check=_check_dim)
    def lane(output_tensor: Lanes, output_grad_tensor: Lanes, dim: int, lane_axes: int) -> Lanes:
        """The gradient of the input, from the result and its gradient."""
        negative_dim = to_negative_dim(dim, output_tensor, lane_axes)
        return function(output_tensor.float(), output_grad_tensor.float(), negative_dim)

    return lane


moreh_softmax = _define_forward("ttnn.moreh_softmax", take_softmax, goldens.softmax)
moreh_softmin = _define_forward("ttnn.moreh_softmin", lambda x, dim: take_softmax(-x, dim), goldens.softmin)
moreh_logsoftmax = _define_forward("ttnn.moreh_logsoftmax", _log_softmax, goldens.logsoftmax)
moreh_softmax_backward = _define_backward("ttnn.moreh_softmax_backward", _softmax_grad, goldens.softmax_backward)
moreh_softmin_backward = _define_backward("ttnn.moreh_softmin_backward", _softmin_grad, goldens.softmin_backward)
moreh_logsoftmax_backward = _define_backward(
    "ttnn.moreh_logsoftmax_backward", _logsoftmax_grad, goldens.logsoftmax_backward
)
