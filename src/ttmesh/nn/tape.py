"""The tape: records the operations of a forward pass and computes gradients from the last one to the first.

    with tape() as record:
        loss = model(x)
    gradients = record.backward(loss, parameters)

A backward step is a command like any other: a gradient rule (`nn/autograd`), or torch's vjp of the lane function.
So a training step can be traced, counted and scheduled, and its memory is tracked. `backward` starts with the gradient
1/num_devices on every chip; the gradient of a parameter that is replicated along a mesh axis is then one term of a sum
over that axis, which `synchronize_gradients` computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import FLOATS
from ttmesh.base.errors import MeshError
from ttmesh.nn.autograd.backward_step import key_of, make_backward_step
from ttmesh.nn.autograd.local_ops import constant
from ttmesh.nn.autograd.rule_registry import Key, Node
from ttmesh.nn.autograd.rule_registry import rule as rule
from ttmesh.ops.catalogue.definition import OpFunction
from ttmesh.ops.elementwise.binary import binary
from ttmesh.ops.movement.reshape import reshape
from ttmesh.ops.movement.tilize_typecast import typecast
from ttmesh.tensor.calls.gate import Gate
from ttmesh.tensor.calls.launch_op import tensors_in
from ttmesh.tensor.calls.operation import Operation
from ttmesh.tensor.observer import Watcher, observer
from ttmesh.tensor.tensor import Tensor

OWN = "ttmesh."  # prefix of the operations of local_ops


class Tape(Watcher):
    """Recorded operations in order. Tensors are identified by buffer, so that a view counts as its source."""

    needs_programs = True

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._made: set[int] = set()  # ids of the nodes' output buffers, which the nodes keep alive

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

        `seed` is the gradient of `loss` itself: a number for all chips, or a tensor of its shape. `ready` is called
        with the position and the gradient of a parameter as soon as that gradient is complete.
        """
        # Gradients are computed in ideal numerics, whatever the forward pass was computed in.
        with numerics_mode.numerics(numerics_mode.IDEAL):
            return self._run_backward(loss, list(parameters), seed, ready)

    def _run_backward(
        self,
        loss: Tensor,
        wanted: list[Tensor],
        seed: float | Tensor | None,
        ready: Callable[[int, Tensor], None] | None,
    ) -> list[Tensor | None]:
        keys = self._first_keys(wanted)
        leaves = {key: position for position, key in enumerate(keys)}
        uses = Counter(key for node in self.nodes for key in node.taken) if ready is not None else Counter()
        reaches = self._find_reaching(set(keys))
        start = self._start(loss, seed)
        gradients: dict[Key, Tensor] = {key_of(loss): start}
        self._made.clear()
        while self.nodes:
            node = self.nodes.pop()  # tensors that only the tape keeps alive are freed on the way
            grads = [
                _take_gradient(gradients.pop(key, None), key, out)
                for key, out in zip(node.made, node.outputs, strict=True)
            ]
            needed = [key in reaches and t.dtype in FLOATS for key, t in zip(node.taken, node.inputs, strict=True)]
            if any(needed) and not all(grad is None for grad in grads):
                found = make_backward_step(node, grads, needed)
                for tensor, key, grad, need in zip(node.inputs, node.taken, found, needed, strict=True):
                    if grad is not None and need:
                        gradients[key] = _add_gradient(gradients.get(key), grad, tensor)
            if ready is not None:
                for key in _find_finished(node, uses):
                    complete = _convert_gradient(gradients.get(key), wanted[leaves[key]]) if key in leaves else None
                    if complete is not None:
                        ready(leaves[key], complete)
        return [_convert_gradient(gradients.get(key), tensor) for key, tensor in zip(keys, wanted, strict=True)]

    def _start(self, loss: Tensor, seed: float | Tensor | None) -> Tensor:
        """The gradient that the backward pass starts with."""
        mesh = loss.device()
        if mesh is None:
            raise MeshError(
                "the loss is on the host",
                expected="a loss on a mesh",
                fix="Call backward with the device tensor, before it is read to the host.",
            )
        if id(loss.buffer.root) not in self._made:
            raise MeshError(
                "the tape does not know how the loss was made",
                expected="a loss computed inside this `with tape() as record:`; one backward per tape",
                fix="Move the forward pass into the block, and record a new tape for each step.",
            )
        if isinstance(seed, Tensor):
            given = _convert_gradient(seed, loss)
            assert given is not None, "only None gives None"
            return given
        start: Tensor = constant(like=loss, value=1.0 / mesh.get_num_devices() if seed is None else seed)
        return start

    def _first_keys(self, leaves: Sequence[Tensor]) -> list[Key]:
        """The key of each leaf when the tape first recorded it."""
        first: dict[int, Key] = {}
        for node in self.nodes:
            for key in node.taken:
                first.setdefault(key[0], key)
        return [first.get(id(tensor.buffer.root), key_of(tensor)) for tensor in leaves]

    def _find_reaching(self, leaves: set[Key]) -> set[Key]:
        """Keys of the tensors that depend on a leaf."""
        reaches = set(leaves)
        for node in self.nodes:
            if not reaches.isdisjoint(node.taken):
                reaches.update(node.made)
        return reaches

    def after_launch(self, operation: Operation, arguments: dict[str, Any], result: Any) -> None:
        """Record a device operation."""
        if operation.name.startswith(OWN):
            return  # recorded with `note` by the functions that launch them
        taken = {name: value for name, value in arguments.items() if name in operation.lane_arguments}
        outputs = _list_tensors(result)
        self._append(operation.name, tensors_in(taken), outputs, arguments=arguments, operation=operation)

    def after_collective(
        self, name: str, decide: Callable[..., Any], tensors: Sequence[Tensor], options: dict[str, Any], result: Any
    ) -> None:
        """Record a collective."""
        self._append(name, tuple(tensors), _list_tensors(result), arguments=options, decide=decide)

    def after_operation(self, operation: Gate, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Record a function that is neither, so that `backward` reports it instead of missing its gradient."""
        if not isinstance(operation, OpFunction) or operation.operation is not None:
            return
        results = [t for t in _list_tensors(result) if t.device() is not None]
        inputs = tuple(t for t in tensors_in(operation.bind(args, dict(kwargs))) if t.device() is not None)
        name = operation.python_fully_qualified_name
        known = set() if name in UNSEEN else self._made | {id(t.buffer.root) for t in inputs}
        made = tuple(t for t in results if id(t.buffer.root) not in known)
        if made and inputs:  # otherwise its launches were recorded, or it made a view
            self._append(name, inputs, made)

    def _append(self, name: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], **how: Any) -> None:
        made = tuple(map(key_of, outputs))
        before = {
            buffer: (buffer, writes - 1) for buffer, writes in made
        }  # keys of overwritten inputs before the write
        taken = tuple(before.get(id(tensor.buffer.root)) or key_of(tensor) for tensor in inputs)
        self.nodes.append(Node(name, inputs, outputs, taken, made, **how))
        self._made.update(id(output.buffer.root) for output in outputs)


_active: list[Tape] = []
UNSEEN = {"ttnn.generic_op"}  # writes into its arguments without a launch or a collective


def note(
    name: str, inputs: Sequence[Tensor], output: Tensor, back: Callable[[Tensor], Sequence[Tensor | None]]
) -> None:
    """Record a custom operation on all active tapes: `back(grad)` returns the gradients of `inputs`.

    List every tensor that `back` reads in `inputs`: `backward` raises if one of them has changed.
    """

    def run_back(grads: Sequence[Tensor | None], needed: Sequence[bool]) -> Sequence[Tensor | None]:
        assert grads[0] is not None, "only nodes with a gradient are run"
        return back(grads[0])

    for active in _active:
        active._append(name, tuple(inputs), (output,), back=run_back)


def tape() -> Tape:
    """Record the operations of a `with` block."""
    return Tape()


def _list_tensors(result: Any) -> tuple[Tensor, ...]:
    return tensors_in({"results": [result] if isinstance(result, (Tensor, type(None))) else list(result)})


def _convert_gradient(grad: Tensor | None, like: Tensor) -> Tensor | None:
    """A gradient in the shape and dtype of the tensor or view it belongs to."""
    if grad is None:
        return None
    if tuple(grad.shape) != tuple(like.shape):
        grad = reshape(grad, tuple(like.shape))
    if grad.dtype is not like.dtype:
        grad = typecast(grad, like.dtype)
    return grad


def _take_gradient(grad: Tensor | None, key: Key, output: Tensor) -> Tensor | None:
    """The gradient of a result; where the result was written in place, it must have been written on all chips."""
    if grad is not None and key[1]:
        _check_chips("a tensor was written", grad, output)
    return _convert_gradient(grad, output)


def _add_gradient(known: Tensor | None, grad: Tensor, like: Tensor) -> Tensor:
    """The sum of a gradient and what was computed before for the same tensor."""
    known, grad_ = _convert_gradient(known, like), _convert_gradient(grad, like)
    assert grad_ is not None, "only None gives None"
    if known is None:
        return grad_
    _check_chips("a tensor was used", known, grad_)
    total: Tensor = binary["add"](known, grad_)
    return total


def _check_chips(what: str, known: Tensor, grad: Tensor) -> None:
    """Raise if two gradients of one tensor are on different chips: their sum would lose some chips' gradients."""
    if known.kind.presence != grad.kind.presence:
        raise MeshError(
            f"{what} on some of its chips only: gradients of {len(known.coords())} and {len(grad.coords())} chips",
            expected="tensors that are used and written on all their chips, or on the same ones everywhere",
            fix="Compute on all chips inside the tape and mask the values that should not count.",
        )


def _find_finished(node: Node, uses: Counter[Key]) -> list[Key]:
    """Keys that no earlier node reads; decrements `uses`."""
    done = []
    for key in node.taken:
        uses[key] -= 1
        if not uses[key]:
            done.append(key)
    return done
