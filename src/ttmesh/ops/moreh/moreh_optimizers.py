"""Moreh's optimiser steps."""

from __future__ import annotations

import torch
from torch import Tensor as Lanes

from ttmesh.ops.catalogue.definition import Golden, OpFunction, op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import training as goldens
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

ADAM_OUTPUTS = ("param_out", "exp_avg_out", "exp_avg_sq_out", "max_exp_avg_sq_out")
SGD_OUTPUTS = ("param_out", "momentum_buffer_out")
ADAM_NUMBERS = ("lr", "beta1", "beta2", "eps", "weight_decay", "step")


def _adam(
    param: Lanes,
    grad: Lanes,
    exp_avg: Lanes,
    exp_avg_sq: Lanes,
    largest: Lanes | None,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
    amsgrad: bool,
    decoupled: bool,
) -> list[Lanes | None]:
    """One step; weight decay is added to the gradient (Adam) or applied to the parameter (AdamW)."""
    param, grad, first, second = (tensor.float() for tensor in (param, grad, exp_avg, exp_avg_sq))
    if decoupled:
        param = param * (1 - lr * weight_decay)
    else:
        grad = grad + weight_decay * param
    first = beta1 * first + (1 - beta1) * grad
    second = beta2 * second + (1 - beta2) * grad * grad
    new_largest = None
    if amsgrad and largest is not None:
        new_largest = torch.maximum(largest.float(), second)
    denominator = ((second if new_largest is None else new_largest) / (1 - beta2**step)).sqrt() + eps
    return [param - lr / (1 - beta1**step) * first / denominator, first, second, new_largest]


def _define_adam(name: str, *, decoupled: bool, golden: Golden) -> OpFunction:
    @op(name, golden=golden, outputs=ADAM_OUTPUTS, runtime=ADAM_NUMBERS)
    def lane(
        param_in: Lanes,
        grad: Lanes,
        exp_avg_in: Lanes,
        exp_avg_sq_in: Lanes,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        step: int,
        amsgrad: bool,
        max_exp_avg_sq_in: Lanes | None,
    ) -> list[Lanes | None]:
        """A step of the optimiser: parameter, both averages, and the largest second one with amsgrad."""
        return _adam(
            param_in, grad, exp_avg_in, exp_avg_sq_in, max_exp_avg_sq_in, lr=lr, beta1=beta1, beta2=beta2, eps=eps,
            weight_decay=weight_decay, step=step, amsgrad=amsgrad, decoupled=decoupled,
        )  # fmt: skip

    return lane


moreh_adam = _define_adam("ttnn.moreh_adam", decoupled=False, golden=goldens.adam)
moreh_adamw = _define_adam("ttnn.moreh_adamw", decoupled=True, golden=goldens.adamw)


def _sgd_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [
        make_output_spec(call, shape, memory_config=call[f"{name}_memory_config"], result=i)
        for i, (name, (shape, _)) in enumerate(zip(SGD_OUTPUTS, inferred, strict=False))
    ]


@op(
    "ttnn.moreh_sgd",
    golden=goldens.sgd,
    out=_sgd_spec,
    outputs=SGD_OUTPUTS,
    runtime=("lr", "dampening", "weight_decay"),
)
def moreh_sgd(
    param_in: Lanes,
    grad: Lanes,
    momentum_buffer_in: Lanes | None,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    momentum_initialized: bool,
) -> list[Lanes | None]:
    """One SGD step: the parameter, and the momentum buffer when momentum is used."""
    grad = grad.float() + weight_decay * param_in.float()
    buffer = None
    if momentum:
        buffer = grad
        if momentum_initialized and momentum_buffer_in is not None:
            buffer = momentum * momentum_buffer_in.float() + (1 - dampening) * grad
        grad = grad + momentum * buffer if nesterov else buffer
    return [param_in.float() - lr * grad, buffer]
