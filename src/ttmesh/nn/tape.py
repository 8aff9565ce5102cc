"""The tape: operations seen in a forward pass, walked backwards as commands of their own.

    with tape() as record:
        loss = model(x)
    gradients = record.backward(loss, parameters)

A backward step is a command like any other: an explicit rule (`nn/gradients.py`), or torch's vjp of the lane function run
inside the command. So a training step can be traced, counted and scheduled, and its memory is seen. `backward` seeds
1/num_devices on every chip; the gradient of a parameter that is replicated along a mesh axis is then a part of a sum over
that axis, and `synchronize_gradients` is that sum, explicit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from ttmesh.base.dtypes import FLOATS
from ttmesh.base.errors import MeshError, NotEmulatedError
from ttmesh.nn.local_ops import constant
from ttmesh.ops.binary import binary
from ttmesh.ops.entry import OpFunction
from ttmesh.ops.instrumentation import register_post_operation_hook
from ttmesh.ops.lanes import mesh_dims
from ttmesh.ops.specs import Inferred
from ttmesh.tensor.launch import Call, Operation, launch, tensors_in
from ttmesh.tensor.spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

GRAD = "grad_of_result"


Back = Callable[[Sequence[Tensor | None], Sequence[bool]], Sequence[Tensor | None]]


@dataclass(frozen=True)
class Node:
    """One operation of the forward pass; `function` and `arguments` are there for operations of TT-NN."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    function: OpFunction | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    back: Back | None = None


class Tape:
    """What happened, in order."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._hook: AbstractContextManager[None] | None = None

    def __enter__(self) -> Tape:
        _active.append(self)
        self._hook = register_post_operation_hook(self._note)
        self._hook.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        assert self._hook is not None, "entered before"
        self._hook.__exit__(*problem)
        self._hook = None
        _active.remove(self)

    def backward(self, loss: Tensor, parameters: Iterable[Tensor], seed: float | None = None) -> list[Tensor | None]:
        """The gradients of the parameters, None for those the loss does not depend on."""
        wanted = list(parameters)
        reaches = self._reaching({id(tensor) for tensor in wanted})
        mesh = loss.device()
        if mesh is None:
            raise MeshError(
                "the loss is on the host", expected="a loss on a mesh", fix="Call backward before reading it."
            )
        value = 1.0 / mesh.get_num_devices() if seed is None else seed
        gradients: dict[int, Tensor] = {id(loss): constant(like=loss, value=value)}
        for node in reversed(self.nodes):
            grads = [gradients.pop(id(output), None) for output in node.outputs]
            if all(grad is None for grad in grads):
                continue
            needed = [id(tensor) in reaches for tensor in node.inputs]
            if not any(needed):
                continue
            for tensor, grad in zip(node.inputs, _stepped(node, grads, needed), strict=True):
                if grad is not None:
                    known = gradients.get(id(tensor))
                    gradients[id(tensor)] = grad if known is None else binary["add"](known, grad)
        self.nodes.clear()
        return [gradients.get(id(tensor)) for tensor in wanted]

    def _reaching(self, leaves: set[int]) -> set[int]:
        """Tensors whose gradient leads to a leaf."""
        reaches = set(leaves)
        for node in self.nodes:
            if any(id(tensor) in reaches for tensor in node.inputs):
                reaches.update(id(output) for output in node.outputs)
        return reaches

    def _note(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if not isinstance(function, OpFunction) or (
            function.operation is None and function.python_fully_qualified_name not in RULES
        ):
            return  # a composite: the operations it is made of are noted themselves
        arguments = function.bind(args, dict(kwargs))
        outputs = (result,) if isinstance(result, Tensor) else tuple(result)
        name = function.python_fully_qualified_name
        self.nodes.append(Node(name, tensors_in(arguments), outputs, function, arguments))


_active: list[Tape] = []


def note(
    name: str, inputs: Sequence[Tensor], output: Tensor, back: Callable[[Tensor], Sequence[Tensor | None]]
) -> None:
    """Enter an operation of one's own on the tapes that record: `back(grad)` gives the inputs' gradients."""

    def stepped(grads: Sequence[Tensor | None], needed: Sequence[bool]) -> Sequence[Tensor | None]:
        assert grads[0] is not None, "only nodes with a gradient are stepped"
        return back(grads[0])

    for active in _active:
        active.nodes.append(Node(name, tuple(inputs), (output,), back=stepped))


def tape() -> Tape:
    """Record the operations of a `with` block."""
    return Tape()


Rule = Callable[[Node, Tensor, Sequence[bool]], "list[Tensor | None]"]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a function (node, grad, needed) -> gradients of the inputs as the rule of these operations."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys((f"ttnn.{name}" for name in names), function))
        return function

    return enter


def _stepped(node: Node, grads: Sequence[Tensor | None], needed: list[bool]) -> Sequence[Tensor | None]:
    if node.back is not None:
        return node.back(grads, needed)
    explicit = RULES.get(node.name)
    if explicit is not None:
        (grad,) = grads
        assert grad is not None, "only nodes with a gradient are stepped"
        return explicit(node, grad, needed)
    if len(grads) != 1 or grads[0] is None:
        raise NotEmulatedError(
            f"no gradient of {node.name}, which has {len(grads)} results",
            expected="operations with one result, or with a rule of their own",
            fix="Compose it of other operations, or enter a rule with ttmesh.nn.tape.rule.",
        )
    return _vjp(node, grads[0], needed)


def _vjp(node: Node, grad: Tensor, needed: list[bool]) -> list[Tensor | None]:
    """Torch's vector-Jacobian product of the lane function, as one command."""
    assert node.function is not None, "operations of one's own bring their gradient"
    operation = node.function.operation
    assert operation is not None, "composites are not noted"
    differentiable = [need and tensor.dtype in FLOATS for tensor, need in zip(node.inputs, needed, strict=True)]
    places = [i for i, yes in enumerate(differentiable) if yes]
    if not places:
        return [None] * len(node.inputs)
    backward = _vjp_operation(operation, tuple(places))
    results = launch(backward, {**node.arguments, GRAD: grad})
    found = iter((results,) if isinstance(results, Tensor) else results)
    return [next(found) if yes else None for yes in differentiable]


def _vjp_operation(operation: Operation, places: tuple[int, ...]) -> Operation:
    names = [name for name in operation.lane_arguments if name != "lane_axes"]

    def lane(lane_axes: int, **arguments: Any) -> tuple[torch.Tensor, ...]:
        grad = arguments.pop(GRAD)
        lanes = [value for value in _flattened(arguments) if isinstance(value, torch.Tensor)]
        dims = mesh_dims([*lanes, grad], lane_axes)
        leaves: list[torch.Tensor] = []

        def prepared(value: torch.Tensor, index: int) -> torch.Tensor:
            if index not in places:
                return value
            leaf = value.detach().expand(*dims, *value.shape[lane_axes:]).requires_grad_()
            leaves.append(leaf)
            return leaf

        with torch.enable_grad():
            inputs = _replaced(arguments, prepared)
            if "lane_axes" in operation.lane_arguments:
                inputs["lane_axes"] = lane_axes
            result = operation.lane(**inputs)
            seed = grad.to(result.dtype).expand(result.shape)
            found = torch.autograd.grad(result, leaves, seed, allow_unused=True)
        return tuple(torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True))

    def out(call: Call, inferred: Inferred) -> list[TensorSpec]:
        return [call.specs[place] for place in places]

    return Operation(
        f"{operation.name}.vjp",
        lane,
        out,
        runtime=operation.runtime,
        outputs=operation.outputs,
        lane_arguments=frozenset({*names, GRAD, "lane_axes"}),
    )


def _flattened(arguments: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for value in arguments.values():
        found += value if isinstance(value, (list, tuple)) else [value]
    return found


def _replaced(arguments: dict[str, Any], change: Any) -> dict[str, Any]:
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
