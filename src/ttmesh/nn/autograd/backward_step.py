"""One step back through a node of a tape: by its rule, or by torch's vjp of its lane function."""

from __future__ import annotations

from collections.abc import Sequence

import ttmesh.nn.autograd.collective_rules
import ttmesh.nn.autograd.gradient_rules  # noqa: F401  (both fill the table of rules)
from ttmesh.base.errors import MeshError
from ttmesh.nn.autograd.node_rules import BY_GRADIENT, CONSTANT, LINEAR, RULES, Key, Node
from ttmesh.nn.autograd.vjp import GRAD, missing, vjp
from ttmesh.tensor.tensor import Tensor


def key_of(tensor: Tensor) -> Key:
    """What a tensor holds now."""
    return id(tensor.buffer), tensor.buffer.writes


def step(node: Node, grads: Sequence[Tensor | None], needed: list[bool]) -> Sequence[Tensor | None]:
    """The gradients of a node's inputs."""
    nothing: list[Tensor | None] = [None] * len(node.inputs)
    if node.name in CONSTANT:
        return nothing
    known = node.name if node.decide is None else node.decide
    explicit = RULES.get(known)
    if known not in BY_GRADIENT:
        _check_unchanged(node)
    if node.back is not None:
        return node.back(grads, needed)
    if explicit is not None:
        (grad,) = grads
        assert grad is not None, "only nodes with a gradient are stepped"
        found = explicit(node, grad, needed)
        if found is not None:
            return found
        _check_unchanged(node)
    operation = node.operation
    if operation is None:
        raise missing(node.name, "it has no rule")
    if node.written and node.name not in LINEAR:
        raise missing(node.name, "it writes over its input")
    places = tuple(i for i, need in enumerate(needed) if need)
    there = tuple(grad is not None for grad in grads)
    taken = {name: value for name, value in node.arguments.items() if name in operation.lane_arguments}
    made = vjp(operation, places, there)(**taken, **{GRAD: [grad for grad in grads if grad is not None]})
    for place, gradient in zip(places, made, strict=True):
        nothing[place] = gradient
    return nothing


def _check_unchanged(node: Node) -> None:
    """Refuse to step back through values that are gone."""
    over = node.written if node.name in LINEAR else set()
    for place, (tensor, key) in enumerate(zip(node.inputs, node.taken, strict=True)):
        if not tensor.is_allocated():
            why = "was freed"
        elif place in over or key_of(tensor) == key:
            continue
        elif place in node.written:
            raise missing(node.name, "it writes over its input")
        else:
            why = "was written over"
        raise MeshError(
            f"an input {list(tensor.shape)} of {node.name} {why} before backward, which needs its values",
            expected="inputs that stay as they were until backward has run",
            fix="Write results into tensors of their own inside the tape, and free or update tensors after backward.",
        )
