"""The tape: operations seen in a forward pass, walked backwards as commands of their own.

    with tape() as record:
        loss = model(x)
    gradients = record.backward(loss, parameters)

A backward step is a command like any other: an explicit rule (`nn/autograd/gradient_rules.py`), or torch's vjp of the
lane function run inside the command. So a training step can be traced, counted and scheduled, and its memory is seen.
`backward` seeds 1/num_devices on every chip; the gradient of a parameter that is replicated along a mesh axis is then a
part of a sum over that axis, and `synchronize_gradients` is that sum, explicit.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from ttmesh.base.dtypes import FLOATS
from ttmesh.base.errors import MeshError, NotEmulatedError
from ttmesh.nn.autograd.local_ops import constant
from ttmesh.ops.catalogue.definition import OpFunction
from ttmesh.ops.catalogue.hooks import register_post_operation_hook
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.elementwise.binary import binary
from ttmesh.ops.lane_functions.lane_broadcast import mesh_dims
from ttmesh.ops.movement.reshape import reshape
from ttmesh.tensor.calls.lane_calls import parts_of
from ttmesh.tensor.calls.launch_op import Call, Operation, launch, tensors_in, watchers
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

GRAD = "grads_of_results"
OWN = "ttmesh."  # how the operations of local_ops are called

Back = Callable[[Sequence[Tensor | None], Sequence[bool]], Sequence[Tensor | None]]


@dataclass(frozen=True)
class Node:
    """One operation of the forward pass, with how to step back, by `operation` or `back`."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    arguments: dict[str, Any] = field(default_factory=dict)
    operation: Operation | None = None
    back: Back | None = None


class Tape:
    """What happened, in order. A tensor is known by its buffer, so that views are the tensors they show."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._made: set[int] = set()  # buffers that nodes give out; the nodes keep them alive
        self._hook: AbstractContextManager[None] | None = None

    def __enter__(self) -> Tape:
        _active.append(self)
        watchers.append(self._note_launch)
        self._hook = register_post_operation_hook(self._note_collective)
        self._hook.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        assert self._hook is not None, "entered before"
        self._hook.__exit__(*problem)
        self._hook = None
        watchers.remove(self._note_launch)
        _active.remove(self)

    def backward(
        self,
        loss: Tensor,
        parameters: Iterable[Tensor],
        seed: float | Tensor | None = None,
        ready: Callable[[int, Tensor], None] | None = None,
    ) -> list[Tensor | None]:
        """The gradients of the parameters, None for those the loss does not depend on.

        `seed` is the gradient of `loss` itself: a number for all chips, or a tensor of its shape. `ready` is told the place
        and the gradient of a parameter as soon as nothing that is left can add to it.
        """
        wanted = list(parameters)
        leaves = {id(tensor.buffer): place for place, tensor in enumerate(wanted)}
        nodes = self.nodes if ready is not None else []
        uses = Counter(id(tensor.buffer) for node in nodes for tensor in node.inputs)
        reaches = self._reaching({id(tensor.buffer) for tensor in wanted})
        mesh = loss.device()
        if mesh is None:
            raise MeshError(
                "the loss is on the host", expected="a loss on a mesh", fix="Call backward before reading it."
            )
        if id(loss.buffer) not in self._made:
            raise MeshError(
                "the tape does not know how the loss was made",
                expected="a loss computed inside this `with tape() as record:`; one backward per tape",
                fix="Move the forward pass into the block, and record a new tape for each step.",
            )
        if isinstance(seed, Tensor):
            start = _as(seed, loss)
        else:
            start = constant(like=loss, value=1.0 / mesh.get_num_devices() if seed is None else seed)
        assert start is not None, "only None gives None"
        gradients: dict[int, Tensor] = {id(loss.buffer): start}
        self._made.clear()
        while self.nodes:
            node = self.nodes.pop()  # what only the tape held is freed as the walk goes on
            grads = [_as(gradients.pop(id(output.buffer), None), output) for output in node.outputs]
            needed = [id(tensor.buffer) in reaches for tensor in node.inputs]
            if any(needed) and not all(grad is None for grad in grads):
                for tensor, grad, need in zip(node.inputs, _stepped(node, grads, needed), needed, strict=True):
                    if grad is not None and need:
                        place = id(tensor.buffer)
                        known = _as(gradients.get(place), tensor)
                        gradients[place] = grad if known is None else binary["add"](known, grad)
            if ready is not None:
                for place in _finished(node, uses):
                    found = _as(gradients.get(place), wanted[leaves[place]]) if place in leaves else None
                    if found is not None:
                        ready(leaves[place], found)
        return [_as(gradients.get(id(tensor.buffer)), tensor) for tensor in wanted]

    def _reaching(self, leaves: set[int]) -> set[int]:
        """Buffers whose gradient leads to a leaf."""
        reaches = set(leaves)
        for node in self.nodes:
            if any(id(tensor.buffer) in reaches for tensor in node.inputs):
                reaches.update(id(output.buffer) for output in node.outputs)
        return reaches

    def _note_launch(self, operation: Operation, arguments: dict[str, Any], result: Any) -> None:
        if operation.name.startswith(OWN):
            return  # these enter themselves with `note`
        taken = {name: value for name, value in arguments.items() if name in operation.lane_arguments}
        outputs = tensors_in({"results": [result] if isinstance(result, Tensor) else list(result)})
        self._append(Node(operation.name, tensors_in(taken), outputs, arguments, operation))

    def _note_collective(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if not isinstance(function, OpFunction) or function.operation is not None:
            return
        results = tensors_in({"results": [result] if isinstance(result, (Tensor, type(None))) else list(result)})
        arguments = function.bind(args, dict(kwargs))
        inputs = tensors_in(arguments)
        known = self._made | {id(t.buffer) for t in inputs if t.device() is not None}
        made = tuple(t for t in results if t.device() is not None and id(t.buffer) not in known)
        if made and inputs:  # else made of launches, which were noted, or a view
            self._append(Node(function.python_fully_qualified_name, inputs, made, arguments))

    def _append(self, node: Node) -> None:
        self.nodes.append(node)
        self._made.update(id(output.buffer) for output in node.outputs)


_active: list[Tape] = []


def note(
    name: str, inputs: Sequence[Tensor], output: Tensor, back: Callable[[Tensor], Sequence[Tensor | None]]
) -> None:
    """Enter an operation of one's own on the tapes that record: `back(grad)` gives the inputs' gradients."""

    def stepped(grads: Sequence[Tensor | None], needed: Sequence[bool]) -> Sequence[Tensor | None]:
        assert grads[0] is not None, "only nodes with a gradient are stepped"
        return back(grads[0])

    for active in _active:
        active._append(Node(name, tuple(inputs), (output,), back=stepped))


def tape() -> Tape:
    """Record the operations of a `with` block."""
    return Tape()


def _as(grad: Tensor | None, like: Tensor) -> Tensor | None:
    """A gradient in the shape of the view it is wanted for."""
    if grad is None or tuple(grad.shape) == tuple(like.shape):
        return grad
    seen: Tensor = reshape(grad, tuple(like.shape))
    return seen


def _finished(node: Node, uses: Counter[int]) -> list[int]:
    """The buffers that no node before this one takes; `uses` counts down."""
    done = []
    for tensor in node.inputs:
        uses[id(tensor.buffer)] -= 1
        if not uses[id(tensor.buffer)]:
            done.append(id(tensor.buffer))
    return done


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
    operation = node.operation
    changed = {id(t.buffer) for t in node.inputs} & {id(t.buffer) for t in node.outputs}
    if operation is None or operation.writes is not None or changed:
        raise NotEmulatedError(
            f"no gradient of {node.name}",
            expected="operations on one chip that leave their inputs as they are, or with a rule of their own",
            fix="Compose it of other operations, or enter a rule with ttmesh.nn.tape.rule.",
        )
    places = tuple(i for i, t in enumerate(node.inputs) if needed[i] and t.dtype in FLOATS)
    there = tuple(grad is not None for grad in grads)
    if not places:
        return [None] * len(node.inputs)
    taken = {name: value for name, value in node.arguments.items() if name in operation.lane_arguments}
    made = launch(_vjp(operation, places, there), {**taken, GRAD: [grad for grad in grads if grad is not None]})
    found = iter(made)
    return [next(found) if i in places else None for i in range(len(node.inputs))]


@functools.cache
def _vjp(operation: Operation, places: tuple[int, ...], there: tuple[bool, ...]) -> Operation:
    """Torch's vector-Jacobian product of a lane function, as an operation with a result per place."""

    def lane(lane_axes: int, **arguments: Any) -> tuple[torch.Tensor, ...]:
        seeds = arguments.pop(GRAD)
        lanes = [value for value in _flattened(arguments) if isinstance(value, torch.Tensor)]
        dims = mesh_dims([*lanes, *seeds], lane_axes)
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
            results = parts_of(operation.lane(**inputs))
            results = [result for result, yes in zip(results, there, strict=True) if yes]
            wide = [seed.to(result.dtype).expand(result.shape) for seed, result in zip(seeds, results, strict=True)]
            found = torch.autograd.grad(results, leaves, wide, allow_unused=True)
        return tuple(torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True))

    def out(call: Call, inferred: Inferred) -> list[TensorSpec]:
        return [call.specs[place] for place in places]

    # The places are part of the name: plans are found by names and arguments.
    name = f"{operation.name}.vjp{list(places)}{list(there)}"
    names = frozenset({*operation.lane_arguments, GRAD, "lane_axes"})
    return Operation(name, lane, out, runtime=operation.runtime, lane_arguments=names)


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
