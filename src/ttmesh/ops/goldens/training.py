"""Losses and optimiser steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ttmesh.ops.goldens.autodiff import compute_gradients


def nll_loss(
    input_tensor: Tensor,
    target_tensor: Tensor,
    reduction: str,
    *,
    weight_tensor: Tensor | None = None,
    ignore_index: int = -100,
    **_: Any,
) -> Tensor:
    weight = None if weight_tensor is None else weight_tensor.flatten()
    loss = F.nll_loss(input_tensor, target_tensor.long(), weight, ignore_index=ignore_index, reduction=reduction)
    return loss if reduction == "none" else loss.reshape(1, 1)


def nll_loss_backward(
    target_tensor: Tensor,
    output_grad_tensor: Tensor,
    reduction_mean: bool,
    *,
    weight_tensor: Tensor | None = None,
    input_grad_tensor: Tensor | None = None,
    divisor_tensor: Tensor | None = None,
    ignore_index: int = -100,
    **_: Any,
) -> Tensor:
    assert input_grad_tensor is not None, "the golden needs its shape"
    weight = None if weight_tensor is None else weight_tensor.flatten().float()
    options: dict[str, Any] = {"ignore_index": ignore_index, "reduction": "sum"}
    divisor = 1.0 if divisor_tensor is None or not reduction_mean else divisor_tensor.flatten()[0]
    grad = output_grad_tensor.float().flatten()[0] / divisor
    x = torch.zeros(input_grad_tensor.shape)
    return compute_gradients(lambda x: F.nll_loss(x, target_tensor.long(), weight, **options), grad, x)[0]


def nll_loss_unreduced_backward(
    target_tensor: Tensor,
    output_grad_tensor: Tensor,
    *,
    weight_tensor: Tensor | None = None,
    input_grad_tensor: Tensor | None = None,
    ignore_index: int = -100,
    **_: Any,
) -> Tensor:
    assert input_grad_tensor is not None, "the golden needs its shape"
    weight = None if weight_tensor is None else weight_tensor.flatten().float()
    options: dict[str, Any] = {"ignore_index": ignore_index, "reduction": "none"}
    x = torch.zeros(input_grad_tensor.shape)
    return compute_gradients(
        lambda x: F.nll_loss(x, target_tensor.long(), weight, **options), output_grad_tensor.float(), x
    )[0]


def _make_loss(measure: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Reductions by name, by TT-NN's enumeration, or by its numbers."""

    def golden(reference: Tensor, prediction: Tensor, *, reduction: Any = None) -> Tensor:
        number = getattr(reduction, "value", reduction) or 0
        return measure(prediction, reference, reduction=reduction if isinstance(reduction, str) else MODES[number])

    return golden


MODES = ("none", "mean", "sum")
mse_loss, l1_loss = _make_loss(F.mse_loss), _make_loss(F.l1_loss)


def _make_adam(default_decay: float, *, decoupled: bool) -> Callable[..., list[Tensor | None]]:
    """Adam, with the bias correction applied to the learning rate and epsilon; amsgrad keeps the largest second moment.

    torch's own optimisers are not used: their first step imports torch's compiler, which takes seconds.
    """

    def golden(
        param_in: Tensor,
        grad: Tensor,
        exp_avg_in: Tensor,
        exp_avg_sq_in: Tensor,
        lr: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = default_decay,
        step: int = 0,
        amsgrad: bool = False,
        *,
        max_exp_avg_sq_in: Tensor | None = None,
        **_: Any,
    ) -> list[Tensor | None]:
        weight, gradient = param_in.double(), grad.double()
        if not decoupled:
            gradient = torch.add(gradient, weight, alpha=weight_decay)
        first = torch.lerp(exp_avg_in.double(), gradient, 1 - beta1)
        second = torch.lerp(exp_avg_sq_in.double(), torch.square(gradient), 1 - beta2)
        largest = (
            None if not amsgrad or max_exp_avg_sq_in is None else torch.maximum(max_exp_avg_sq_in.double(), second)
        )
        correction = math.sqrt(1 - beta2**step)
        rate = lr * correction / (1 - beta1**step)
        denominator = torch.sqrt(second if largest is None else largest) + eps * correction
        decayed = weight - lr * weight_decay * weight if decoupled else weight
        results = (torch.addcdiv(decayed, first, denominator, value=-rate), first, second, largest)
        return [None if value is None else value.float() for value in results]

    return golden


adam, adamw = _make_adam(0.0, decoupled=False), _make_adam(1e-2, decoupled=True)


def sgd(
    param_in: Tensor,
    grad: Tensor,
    momentum_buffer_in: Tensor | None = None,
    param_out: Tensor | None = None,
    momentum_buffer_out: Tensor | None = None,
    lr: float = 1e-3,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    *,
    momentum_initialized: bool,
    **_: Any,
) -> list[Tensor | None]:
    """SGD; the first step with momentum uses the gradient without dampening."""
    gradient = torch.add(grad.double(), param_in.double(), alpha=weight_decay)
    buffer = None
    if momentum:
        buffer = gradient
        if momentum_initialized and momentum_buffer_in is not None:
            buffer = torch.add((1 - dampening) * gradient, momentum_buffer_in.double(), alpha=momentum)
        gradient = torch.add(gradient, buffer, alpha=momentum) if nesterov else buffer
    weight = torch.sub(param_in.double(), gradient, alpha=lr)
    return [weight.float(), None if buffer is None else buffer.float()]
