"""Torch's vector-Jacobian product of an operation's lane function, as an operation of its own."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ttmesh.base.errors import NotEmulatedError
from ttmesh.nn.autograd.node_rules import SOMETIMES_CONSTANT
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.lane_functions.lane_broadcast import common_mesh_dims
from ttmesh.tensor.calls.gate import DeviceOperation
from ttmesh.tensor.calls.lane_calls import parts_of
from ttmesh.tensor.calls.launch_op import Call, Operation
from ttmesh.tensor.spec.tensor_spec import TensorSpec

GRAD = "grads_of_results"
GIVEN = "gradients_to_write_into"  # never given: a lane function may take an argument named as results are elsewhere


@functools.cache
def vjp(operation: Operation, places: tuple[int, ...], there: tuple[bool, ...]) -> DeviceOperation:
    """The gradients of the inputs at `places` from those of the results that are `there`, in each input's own spec."""

    def lane(lane_axes: int, **arguments: Any) -> tuple[torch.Tensor, ...]:
        seeds = arguments.pop(GRAD)
        if "specs" in arguments:
            arguments["specs"] = arguments["specs"][: -len(seeds)]
        lanes = [value for value in _flattened(arguments) if isinstance(value, torch.Tensor)]
        dims = common_mesh_dims([*lanes, *seeds], lane_axes)
        leaves: list[torch.Tensor] = []

        def prepare(value: torch.Tensor, index: int) -> torch.Tensor:
            if index not in places:
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
            results = parts_of(operation.lane(**inputs))
            asked = iter(seeds)
            pairs = [
                (result, next(asked).to(result.dtype).expand(result.shape))
                for result, yes in zip(results, there, strict=True)
                if yes
            ]
            known = [pair for pair in pairs if pair[0].requires_grad]
            if not known and operation.name not in SOMETIMES_CONSTANT:
                raise missing(operation.name, "what it computes is not differentiable")
            found = _differentiate(operation.name, known, leaves) if known else [None] * len(leaves)
        return tuple(torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True))

    def out(call: Call, inferred: Inferred) -> list[TensorSpec]:
        return [call.specs[place] for place in places]

    # The places are part of the name: plans are found by names and arguments.
    name = f"{operation.name}.vjp{list(places)}{list(there)}"
    names = frozenset({*operation.lane_arguments, GRAD, "lane_axes"})
    return DeviceOperation(
        Operation(name, lane, out, runtime=operation.runtime, outputs=(GIVEN,), lane_arguments=names)
    )


def _differentiate(
    name: str, known: Sequence[tuple[torch.Tensor, torch.Tensor]], leaves: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    results, seeds = zip(*known, strict=True)
    try:
        return torch.autograd.grad(results, leaves, seeds, allow_unused=True)
    except RuntimeError as problem:
        if "not implemented" not in str(problem):
            raise
        raise missing(name, f"torch has none ({problem})") from problem


def missing(name: str, why: str) -> NotEmulatedError:
    """The error that an operation has no gradient."""
    return NotEmulatedError(
        f"no gradient of {name}: {why}",
        expected="operations that docs/training.md lists as differentiable, out of place",
        fix="Compose it of other operations, keep it off the way from the parameters to the loss, or enter a rule with "
        "ttmesh.nn.tape.rule.",
    )


def _flattened(arguments: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for value in arguments.values():
        found += value if isinstance(value, (list, tuple)) else [value]
    return found


def _replace(arguments: dict[str, Any], change: Any) -> dict[str, Any]:
    """Tensors replaced in their order; lists keep their places."""
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
