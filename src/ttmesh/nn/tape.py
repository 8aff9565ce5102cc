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

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ttmesh.base.dtypes import FLOATS
from ttmesh.base.errors import MeshError
from ttmesh.nn.autograd.backward_step import key_of, step
from ttmesh.nn.autograd.local_ops import constant
from ttmesh.nn.autograd.node_rules import Key, Node
from ttmesh.nn.autograd.node_rules import rule as rule
from ttmesh.ops.catalogue.definition import OpFunction
from ttmesh.ops.elementwise.binary import binary
from ttmesh.ops.movement.reshape import reshape
from ttmesh.ops.movement.tilize_typecast import typecast
from ttmesh.tensor.calls.gate import Gate
from ttmesh.tensor.calls.launch_op import Operation, tensors_in
from ttmesh.tensor.observer import Watcher, observer
from ttmesh.tensor.tensor import Tensor

OWN = "ttmesh."  # how the operations of local_ops are called


class Tape(Watcher):
    """What happened, in order. A tensor is known by its buffer, so that views are the tensors they show."""

    needs_programs = True

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._made: set[int] = set()  # buffers that nodes give out; the nodes keep them alive

    def __enter__(self) -> Tape:
        _active.append(self)
        observer.add(self)
        return self

    def __exit__(self, *problem: Any) -> None:
        observer.remove(self)
        _active.remove(self)

    def backward(
        self,
        loss: Tensor,
        parameters: Iterable[Tensor],
        seed: float | Tensor | None = None,
        ready: Callable[[int, Tensor], None] | None = None,
    ) -> list[Tensor | None]:
        """The gradients of the parameters, each in its parameter's format; None for those the loss does not depend on.

        `seed` is the gradient of `loss` itself: a number for all chips, or a tensor of its shape. `ready` is told the place
        and the gradient of a parameter as soon as nothing that is left can add to it.
        """
        wanted = list(parameters)
        keys = self._first_keys(wanted)
        leaves = {key: place for place, key in enumerate(keys)}
        uses = Counter(key for node in self.nodes for key in node.taken) if ready is not None else Counter()
        reaches = self._reaching(set(keys))
        start = self._start(loss, seed)
        gradients: dict[Key, Tensor] = {key_of(loss): start}
        self._made.clear()
        while self.nodes:
            node = self.nodes.pop()  # what only the tape held is freed as the walk goes on
            grads = [
                _taken(gradients.pop(key, None), key, out) for key, out in zip(node.made, node.outputs, strict=True)
            ]
            needed = [key in reaches and t.dtype in FLOATS for key, t in zip(node.taken, node.inputs, strict=True)]
            if any(needed) and not all(grad is None for grad in grads):
                found = step(node, grads, needed)
                for tensor, key, grad, need in zip(node.inputs, node.taken, found, needed, strict=True):
                    if grad is not None and need:
                        gradients[key] = _sum(gradients.get(key), grad, tensor)
            if ready is not None:
                for key in _finished(node, uses):
                    complete = _as(gradients.get(key), wanted[leaves[key]]) if key in leaves else None
                    if complete is not None:
                        ready(leaves[key], complete)
        return [_as(gradients.get(key), tensor) for key, tensor in zip(keys, wanted, strict=True)]

    def _start(self, loss: Tensor, seed: float | Tensor | None) -> Tensor:
        """The gradient of the loss."""
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
            given = _as(seed, loss)
            assert given is not None, "only None gives None"
            return given
        start: Tensor = constant(like=loss, value=1.0 / mesh.get_num_devices() if seed is None else seed)
        return start

    def _first_keys(self, leaves: Sequence[Tensor]) -> list[Key]:
        """What each leaf held when the tape first saw it."""
        first: dict[int, Key] = {}
        for node in self.nodes:
            for key in node.taken:
                first.setdefault(key[0], key)
        return [first.get(id(tensor.buffer), key_of(tensor)) for tensor in leaves]

    def _reaching(self, leaves: set[Key]) -> set[Key]:
        """What has a gradient that leads to a leaf."""
        reaches = set(leaves)
        for node in self.nodes:
            if not reaches.isdisjoint(node.taken):
                reaches.update(node.made)
        return reaches

    def after_launch(self, operation: Operation, arguments: dict[str, Any], result: Any) -> None:
        """Note a device operation."""
        if operation.name.startswith(OWN):
            return  # these enter themselves with `note`
        taken = {name: value for name, value in arguments.items() if name in operation.lane_arguments}
        outputs = _tensors(result)
        self._append(operation.name, tensors_in(taken), outputs, arguments=arguments, operation=operation)

    def after_collective(
        self, name: str, decide: Callable[..., Any], tensors: Sequence[Tensor], options: dict[str, Any], result: Any
    ) -> None:
        """Note a collective."""
        self._append(name, tuple(tensors), _tensors(result), arguments=options, decide=decide)

    def after_operation(self, operation: Gate, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Note a function that made or wrote a tensor by neither, so that a gradient cannot pass it unseen."""
        if not isinstance(operation, OpFunction) or operation.operation is not None:
            return
        results = [t for t in _tensors(result) if t.device() is not None]
        inputs = tuple(t for t in tensors_in(operation.bind(args, dict(kwargs))) if t.device() is not None)
        name = operation.python_fully_qualified_name
        known = set() if name in UNSEEN else self._made | {id(t.buffer) for t in inputs}
        made = tuple(t for t in results if id(t.buffer) not in known)
        if made and inputs:  # else made of launches, which were noted, or a view
            self._append(name, inputs, made)

    def _append(self, name: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], **how: Any) -> None:
        made = tuple(map(key_of, outputs))
        before = {buffer: (buffer, writes - 1) for buffer, writes in made}  # of what was written into
        taken = tuple(before.get(id(tensor.buffer)) or key_of(tensor) for tensor in inputs)
        self.nodes.append(Node(name, inputs, outputs, taken, made, **how))
        self._made.update(id(output.buffer) for output in outputs)


_active: list[Tape] = []
UNSEEN = {"ttnn.generic_op"}  # what writes into its arguments by neither a launch nor a collective


def note(
    name: str, inputs: Sequence[Tensor], output: Tensor, back: Callable[[Tensor], Sequence[Tensor | None]]
) -> None:
    """Enter an operation of one's own on the tapes that record: `back(grad)` gives the inputs' gradients.

    Name every tensor that `back` reads: one that changes before backward is refused.
    """

    def step(grads: Sequence[Tensor | None], needed: Sequence[bool]) -> Sequence[Tensor | None]:
        assert grads[0] is not None, "only nodes with a gradient are stepped"
        return back(grads[0])

    for active in _active:
        active._append(name, tuple(inputs), (output,), back=step)


def tape() -> Tape:
    """Record the operations of a `with` block."""
    return Tape()


def _tensors(result: Any) -> tuple[Tensor, ...]:
    return tensors_in({"results": [result] if isinstance(result, (Tensor, type(None))) else list(result)})


def _as(grad: Tensor | None, like: Tensor) -> Tensor | None:
    """A gradient in the shape and format of the view it is wanted for."""
    if grad is None:
        return None
    if tuple(grad.shape) != tuple(like.shape):
        grad = reshape(grad, tuple(like.shape))
    if grad.dtype is not like.dtype:
        grad = typecast(grad, like.dtype)
    return grad


def _taken(grad: Tensor | None, key: Key, output: Tensor) -> Tensor | None:
    """The gradient of a result; of one that was written into memory of before, all chips must have been written."""
    if grad is not None and key[1]:
        _check_chips("a tensor was written", grad, output)
    return _as(grad, output)


def _sum(known: Tensor | None, grad: Tensor, like: Tensor) -> Tensor:
    """A gradient added to what is known of the same tensor."""
    known, grad_ = _as(known, like), _as(grad, like)
    assert grad_ is not None, "only None gives None"
    if known is None:
        return grad_
    _check_chips("a tensor was used", known, grad_)
    total: Tensor = binary["add"](known, grad_)
    return total


def _check_chips(what: str, whole: Tensor, part: Tensor) -> None:
    """Refuse gradients of different chips for one tensor: adding them would lose those of some chips."""
    if whole.kind.presence != part.kind.presence:
        raise MeshError(
            f"{what} on some of its chips only: gradients of {len(whole.coords())} and {len(part.coords())} chips",
            expected="tensors that are used and written on all their chips, or on the same ones everywhere",
            fix="Compute on all chips inside the tape and mask what does not count.",
        )


def _finished(node: Node, uses: Counter[Key]) -> list[Key]:
    """What no node before this one takes; `uses` counts down."""
    done = []
    for key in node.taken:
        uses[key] -= 1
        if not uses[key]:
            done.append(key)
    return done
