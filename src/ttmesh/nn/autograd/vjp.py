"""Torch's vector-Jacobian product (vjp) of an operation's lane function, launched as an operation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ttmesh.base.errors import NotEmulatedError
from ttmesh.nn.autograd.rule_registry import SOMETIMES_CONSTANT
from ttmesh.ops.catalogue.definition import device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.lane_functions.lane_broadcast import common_mesh_dims
from ttmesh.tensor.calls.gate import DeviceOperation
from ttmesh.tensor.calls.lane_calls import list_results
from ttmesh.tensor.calls.operation import Call, Operation
from ttmesh.tensor.spec.tensor_spec import TensorSpec

GRAD = "grads_of_results"
GIVEN = "gradients_to_write_into"  # never passed: keeps the default output names free for arguments of lane functions


@functools.cache
def vjp(operation: Operation, positions: tuple[int, ...], has_grad: tuple[bool, ...]) -> DeviceOperation:
    """The operation that computes the gradients of the inputs at `positions` from those of the results in `has_grad`."""

    def lane(lane_axes: int, **arguments: Any) -> tuple[torch.Tensor, ...]:
        seeds = arguments.pop(GRAD)
        if "specs" in arguments:
            arguments["specs"] = arguments["specs"][: -len(seeds)]
        lanes = [value for value in _list_values(arguments) if isinstance(value, torch.Tensor)]
        dims = common_mesh_dims([*lanes, *seeds], lane_axes)
        leaves: list[torch.Tensor] = []

        def prepare(value: torch.Tensor, index: int) -> torch.Tensor:
            if index not in positions:
                return value
            leaf = value.detach().expand(*dims, *value.shape[lane_axes:]).requires_grad_()
            leaves.append(leaf)
            return leaf

        with torch.enable_grad():
            inputs = _replace(arguments, prepare)
            if "lane_axes" in operation.lane_arguments:
                inputs["lane_axes"] = lane_axes
            if operation.in_place and operation.writes is not None:
                inputs[operation.writes] = inputs[operation.writes].clone()
            results = list_results(operation.lane(**inputs))
            asked = iter(seeds)
            pairs = [
                (result, next(asked).to(result.dtype).expand(result.shape))
                for result, given in zip(results, has_grad, strict=True)
                if given
            ]
            known = [pair for pair in pairs if pair[0].requires_grad]
            if not known and operation.name not in SOMETIMES_CONSTANT:
                raise make_missing_error(operation.name, "its result is not differentiable")
            found = _differentiate(operation.name, known, leaves) if known else [None] * len(leaves)
        return tuple(torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True))

    def out(call: Call, inferred: Inferred) -> list[TensorSpec]:
        return [call.specs[position] for position in positions]

    # The positions are part of the name because plans are found by name and arguments.
    name = f"{operation.name}.vjp{list(positions)}{list(has_grad)}"
    names = {*operation.lane_arguments, GRAD, "lane_axes"}
    return device_operation(name, out=out, runtime=tuple(operation.runtime), outputs=(GIVEN,), takes=names)(lane)


def _differentiate(
    name: str, known: Sequence[tuple[torch.Tensor, torch.Tensor]], leaves: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    results, seeds = zip(*known, strict=True)
    try:
        return torch.autograd.grad(results, leaves, seeds, allow_unused=True)
    except RuntimeError as problem:
        if "not implemented" not in str(problem):
            raise
        raise make_missing_error(name, f"torch has none ({problem})") from problem


def make_missing_error(name: str, why: str) -> NotEmulatedError:
    """The error for an operation without a gradient."""
    return NotEmulatedError(
        f"no gradient of {name}: {why}",
        expected="operations that docs/training.md lists as differentiable, not in place",
        fix="Build it from other operations, keep it off the path from the parameters to the loss, or register a rule with "
        "ttmesh.nn.tape.rule.",
    )


def _list_values(arguments: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for value in arguments.values():
        found += value if isinstance(value, (list, tuple)) else [value]
    return found


def _replace(arguments: dict[str, Any], change: Any) -> dict[str, Any]:
    """The arguments with every tensor, also those in lists, replaced by change(tensor, index)."""
    count = 0
    done: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            done[name] = change(value, count)
            count += 1
        elif isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            items = []
            for item in value:
                items.append(change(item, count) if isinstance(item, torch.Tensor) else item)
                count += isinstance(item, torch.Tensor)
            done[name] = items
        else:
            done[name] = value
    return done
