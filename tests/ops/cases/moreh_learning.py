"""Moreh's softmaxes, norms, losses and optimisers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Arguments, Case, On

from ttmesh.base.dtypes import bfloat16, int32

SHAPE = (2, 3, 33, 40)


def normal(g: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=g)


def args(
    *shapes: tuple[int, ...], rest: tuple[Any, ...] = (), **options: Any
) -> Callable[[torch.Generator], Arguments]:
    return lambda g: ([*(normal(g, *shape) for shape in shapes), *rest], options)


def probabilities(g: torch.Generator) -> Arguments:
    return [torch.softmax(normal(g, *SHAPE), -1), normal(g, *SHAPE), 3], {}


def logs(g: torch.Generator) -> Arguments:
    return [torch.log_softmax(normal(g, *SHAPE), 1), normal(g, *SHAPE), 1], {}


def layer(g: torch.Generator) -> Arguments:
    return [normal(g, *SHAPE), 2], {"gamma": normal(g, 33, 40), "beta": normal(g, 33, 40)}


def layer_backward(g: torch.Generator) -> Arguments:
    tensors = [normal(g, *SHAPE), normal(g, *SHAPE), normal(g, 2, 3, 33), normal(g, 2, 3, 33).abs() + 0.5]
    return [*tensors, 1], {"gamma": normal(g, 1, 40), "input_grad": torch.zeros(SHAPE)}


def group(g: torch.Generator) -> Arguments:
    options = {name: normal(g, 1, 1, 1, 6) for name in ("gamma", "beta")}
    # Groups that differ: statistics that are all but equal have no correlation to speak of once they are rounded.
    values = (
        normal(g, 2, 6, 9, 8) * torch.tensor([1, 1, 2, 2, 4, 4])[:, None, None] + torch.arange(2)[:, None, None, None]
    )
    return [values, 3], {**options, "are_required_outputs": (True, True, True)}


def group_backward(g: torch.Generator) -> Arguments:
    tensors = [normal(g, 2, 6, 9, 8), normal(g, 2, 6, 9, 8), normal(g, 1, 1, 2, 3), normal(g, 1, 1, 2, 3).abs() + 0.5]
    return [*tensors, 3], {"gamma": normal(g, 1, 1, 1, 6), "are_required_outputs": (True, True, True)}


def targets(g: torch.Generator) -> On:
    return On(torch.randint(0, 10, (5, 7), generator=g).int(), int32)


def loss(reduction: str) -> Callable[[torch.Generator], Arguments]:
    def make(g: torch.Generator) -> Arguments:
        options = {"weight_tensor": torch.rand(10, generator=g) + 0.5, "ignore_index": 3}
        if reduction == "mean":
            options["divisor_tensor"] = torch.zeros(1)
        return [torch.log_softmax(normal(g, 5, 10, 7), 1), targets(g), reduction], options

    return make


def loss_backward(g: torch.Generator) -> Arguments:
    options = {"input_grad_tensor": torch.zeros(5, 10, 7), "divisor_tensor": torch.full((1,), 8.0)}
    return [targets(g), normal(g, 1), True], options


def losses_backward(g: torch.Generator) -> Arguments:
    return [targets(g), normal(g, 5, 7)], {"input_grad_tensor": torch.zeros(5, 10, 7)}


def adam(g: torch.Generator) -> Arguments:
    averages = [normal(g, 40, 50), normal(g, 40, 50).abs()]
    options = {"lr": 0.1, "weight_decay": 0.2, "step": 4, "amsgrad": True, "max_exp_avg_sq_in": normal(g, 40, 50).abs()}
    return [normal(g, 40, 50), normal(g, 40, 50), *averages], options


CASES = [
    Case("ttnn.moreh_softmax", args(SHAPE, rest=(1,))),
    Case("ttnn.moreh_softmin", args(SHAPE, rest=(3,))),
    Case("ttnn.moreh_logsoftmax", args(SHAPE, rest=(2,))),
    Case("ttnn.moreh_softmax_backward", probabilities),
    Case("ttnn.moreh_softmin_backward", probabilities),
    Case("ttnn.moreh_logsoftmax_backward", logs),
    Case("ttnn.moreh_layer_norm", layer),
    Case("ttnn.moreh_layer_norm_backward", layer_backward, (bfloat16,)),
    Case("ttnn.moreh_group_norm", group, pcc=0.999),
    Case("ttnn.moreh_group_norm_backward", group_backward),
    Case("ttnn.moreh_nll_loss", loss("sum"), (bfloat16,)),
    Case("ttnn.moreh_nll_loss/mean", loss("mean"), (bfloat16,)),
    Case("ttnn.moreh_nll_loss/none", loss("none"), (bfloat16,)),
    Case("ttnn.moreh_nll_loss_backward", loss_backward, (bfloat16,)),
    Case("ttnn.moreh_nll_loss_unreduced_backward", losses_backward, (bfloat16,)),
    Case("ttnn.moreh_adam", adam, (bfloat16,)),
    Case("ttnn.moreh_adamw", adam, (bfloat16,)),
    Case(
        "ttnn.moreh_sgd",
        args((40, 50), (40, 50), (40, 50), lr=0.1, momentum=0.9, nesterov=True, momentum_initialized=True),
    ),
]
