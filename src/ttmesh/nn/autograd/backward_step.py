"""The backward pass of one tape node: by its gradient rule, or by torch's vjp of its lane function."""

from __future__ import annotations

from collections.abc import Sequence

import ttmesh.nn.autograd.collective_rules
import ttmesh.nn.autograd.gradient_rules  # noqa: F401  (both fill the table of rules)
from ttmesh.base.errors import MeshError
from ttmesh.nn.autograd.rule_registry import BY_GRADIENT, CONSTANT, LINEAR, RULES, Key, Node
from ttmesh.nn.autograd.vjp import GRAD, make_missing_error, vjp
from ttmesh.tensor.tensor import Tensor


def key_of(tensor: Tensor) -> Key:
    """A key that changes whenever the tensor's buffer is written."""
    return id(tensor.buffer), tensor.buffer.writes


def make_backward_step(node: Node, grads: Sequence[Tensor | None], needed: list[bool]) -> Sequence[Tensor | None]:
    """The gradients of a node's inputs."""
    gradients: list[Tensor | None] = [None] * len(node.inputs)
    if node.name in CONSTANT:
        return gradients
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
        raise make_missing_error(node.name, "it has no rule")
    if node.written_inputs and node.name not in LINEAR:
        raise make_missing_error(node.name, "it overwrites its input")
    positions = tuple(i for i, need in enumerate(needed) if need)
    has_grad = tuple(grad is not None for grad in grads)
    tensors = {name: value for name, value in node.arguments.items() if name in operation.lane_arguments}
    computed = vjp(operation, positions, has_grad)(**tensors, **{GRAD: [grad for grad in grads if grad is not None]})
    for position, gradient in zip(positions, computed, strict=True):
        gradients[position] = gradient
    return gradients


def _check_unchanged(node: Node) -> None:
    """Raise if an input that the backward pass reads was freed or overwritten."""
    overwritten = node.written_inputs if node.name in LINEAR else set()
    for position, (tensor, key) in enumerate(zip(node.inputs, node.taken, strict=True)):
        if not tensor.is_allocated():
            why = "was freed"
        elif position in overwritten or key_of(tensor) == key:
            continue
        elif position in node.written_inputs:
            raise make_missing_error(node.name, "it overwrites its input")
        else:
            why = "was overwritten"
        raise MeshError(
            f"an input {list(tensor.shape)} of {node.name} {why} before backward, which needs its values",
            expected="inputs that stay as they were until backward has run",
            fix="Write results into new tensors inside the tape, and free or update tensors after backward.",
        )
