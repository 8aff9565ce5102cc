"""TT-NN's fallbacks: an operation computed by its golden function on the host, with tensors going in and out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ttmesh.base.errors import ShapeError
from ttmesh.ops.catalogue.definition import get_golden_function
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import from_torch, to_torch


def get_fallback_function(operation: Any) -> Callable[..., Any]:
    """A function of the operation's arguments that computes in torch; results are like the first tensor, in DRAM."""
    golden = get_golden_function(operation)

    def fall_back(*arguments: Any, **options: Any) -> Any:
        given: list[Tensor] = []
        values = [_to_values(argument, given) for argument in arguments]
        named = {name: _to_values(option, given) for name, option in options.items()}
        return _to_tensors(golden(*values, **named), given[0] if given else None)

    return fall_back


def _to_values(value: Any, given: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        given.append(value)
        return to_torch(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_to_values(item, given) for item in value)
    return value


def _to_tensors(values: Any, like: Tensor | None) -> Any:
    if isinstance(values, torch.Tensor):
        if like is None:
            return from_torch(values)
        return from_torch(values, dtype=like.dtype, layout=like.layout, device=like.device())
    if isinstance(values, (list, tuple)):
        return type(values)(_to_tensors(item, like) for item in values)
    raise ShapeError(
        f"Unsupported output type: {type(values)}", expected="torch tensors", fix="Call the golden function itself."
    )
