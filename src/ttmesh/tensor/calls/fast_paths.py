"""Fast paths: a call like one seen before goes from its arguments to its plan by one lookup, without being bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ttmesh.chip.cells import Cell
from ttmesh.mesh.allocation.buffer_view import BufferView
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.queue.command_queue import Body
from ttmesh.mesh.queue.plan_table import CallPath, Key
from ttmesh.tensor.calls.argument_snapshots import is_mutable, snapshot
from ttmesh.tensor.calls.binding_types import StandIn
from ttmesh.tensor.calls.plan import OUTPUTS, Arguments, Plan, find_cell, mesh_of
from ttmesh.tensor.calls.plan_keys import SEQUENCES
from ttmesh.tensor.observer import Step, Watcher, observer
from ttmesh.tensor.spec.kind import Kind
from ttmesh.tensor.tensor import Tensor

if TYPE_CHECKING:
    from ttmesh.tensor.calls.gate import Gate
    from ttmesh.tensor.calls.launch_op import Prepared
    from ttmesh.tensor.calls.operation import Operation

Binder = Callable[[Sequence[Any], dict[str, Any]], Arguments]


class PlanPath:
    """A plan, and which of a call's tensors and arguments go where in it."""

    __slots__ = ("_body", "_defaults", "_mutable", "_order", "_outputs", "_values", "plan")

    def __init__(
        self,
        plan: Plan,
        order: list[int] | None,
        outputs: Sequence[int] = (),
        values: Sequence[int] = (),
        defaults: Sequence[Any] = (),
        body: Body | None = None,
        *,
        mutable: bool = False,
    ) -> None:
        self.plan = plan
        self._body = body or plan.body  # None where a call's values make it
        self._order = order  # of the call's tensors; None: unchanged
        self._outputs = outputs  # which arguments to write into
        self._values = values  # which arguments the body is made from, counted on into the defaults
        self._defaults = defaults
        self._mutable = mutable  # whether the caller can change one of those values; their types are in the key

    def run(self, mesh: MeshDevice, tensors: list[Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the plan on a call's arguments."""
        plan = self.plan
        cells: list[Cell] = []
        for tensor in tensors:
            if tensor._mesh is not mesh:
                mesh_of(plan.name, tensors, {})  # raises: it is on another mesh or on the host
            cells.append(tensor._buffer._cell or find_cell("" if cells else plan.name, tensor))  # type: ignore[union-attr]  # the latter raises
        if self._order is not None:
            cells = [cells[i] for i in self._order]
        body = self._body
        if body is not None and not self._outputs:
            return plan.run(mesh, cells, body)
        given = (*args, *kwargs.values(), *self._defaults) if kwargs or self._defaults else args
        if body is None:
            values = [given[i] for i in self._values]
            body = plan.make_body(*(map(snapshot, values) if self._mutable else values))
        return plan.run(mesh, cells, body, [given[i] for i in self._outputs] if self._outputs else ())


class ViewPath:
    """One of a call's tensors, or a view of one as another kind: a reshape that moves no byte."""

    __slots__ = ("_is_view", "_kind", "_source")

    def __init__(self, kind: Kind, source: int, is_view: bool) -> None:
        self._kind, self._source, self._is_view = kind, source, is_view

    def run(self, mesh: MeshDevice, tensors: list[Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        """The tensor or its view."""
        tensor = tensors[self._source]
        buffer = tensor._buffer
        if buffer is None or buffer._cell is None:
            tensor.buffer.cell  # noqa: B018  (raises: it is on the host or freed)
        held: Buffer = buffer  # type: ignore[assignment]
        return Tensor.on_device(self._kind, BufferView.of(held) if self._is_view else held, mesh)


def make_view_path(result: Tensor, tensors: Sequence[Tensor]) -> ViewPath:
    """The fast path of a call that gave one of its tensors, or a view of one."""
    source = next(i for i, tensor in enumerate(tensors) if tensor.buffer.root is result.buffer.root)
    return ViewPath(result.kind, source, tensors[source]._buffer is not result._buffer)


class BoundPath:
    """A call that is bound every time, because it launches several programs or checks values."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def run(self, mesh: MeshDevice, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function."""
        return self._gate.call(args, kwargs)


class _Recorder(Watcher):
    """Records the plans that run while it watches."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def after_run(self, step: Step) -> None:
        """Record the step."""
        self.steps.append(step)


def learn(
    gate: Gate, mesh: MeshDevice, key: Key, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a composite; if it launched one program or returned one view, that becomes its fast path.

    Only for calls that kinds and options decide alone.
    """
    given = (*args, *kwargs.values())
    recorder = _Recorder()
    observer.add(recorder)
    try:
        result = gate.call(args, kwargs)
    finally:
        observer.remove(recorder)
    path = _make_path_of_steps(gate, recorder.steps, result, tensors, given)
    if path is not None:
        mesh.plans[key] = path
    return result


def _make_path_of_steps(
    gate: Gate, steps: Sequence[Step], result: Any, tensors: list[Tensor], given: Sequence[Any]
) -> CallPath | None:
    """The path that gives the same result; None where tensors share memory, because cells do not distinguish them, and
    where the program does not use one of them: it may have been read earlier, as the bounds of a slice are."""
    if len(steps) > 1:
        return BoundPath(gate)
    if any(tensor._buffer is None for tensor in tensors):
        return None
    cells = [tensor.buffer.cell for tensor in tensors]
    if len(set(map(id, cells))) < len(cells):
        return None
    if not steps:
        if type(result) is not Tensor:
            return None
        if result._buffer is None or all(tensor.buffer.root is not result.buffer.root for tensor in tensors):
            return None
        return make_view_path(result, tensors)
    plan, body, reads, outputs, made = steps[0]
    written = [output for output in outputs if output is not None]
    places = [i for output in written for i, value in enumerate(given) if value is output]
    if made is not result or len(places) < len(written):
        return None
    if any(cell not in cells for cell in reads):
        return None
    if any(cell not in reads and all(tensor is not output for output in written)
           for cell, tensor in zip(cells, tensors, strict=True)):  # fmt: skip
        return None
    order = [cells.index(cell) for cell in reads]
    return PlanPath(plan, None if order == list(range(len(cells))) else order, places, body=body)


def make_plan_path(
    bind: Binder, operation: Operation, ready: Prepared, args: Sequence[Any], kwargs: Mapping[str, Any], free: set[int]
) -> PlanPath | None:
    """The fast path of a call that was bound and prepared, or None where it would not give the same result.

    Args:
        free: the places of arguments that are not in the key.
    """
    recheck = operation.recheck
    if recheck(ready.arguments) if callable(recheck) else recheck:
        return None
    given = [*args, *kwargs.values()]
    stand_ins = [StandIn(i, value) for i, value in enumerate(given)]
    names = dict(zip(kwargs, stand_ins[len(args) :], strict=True))
    bound = {k: v.place for k, v in bind(stand_ins[: len(args)], names).items() if type(v) is StandIn}
    if not free <= {place for name, place in bound.items() if name in operation.runtime}:
        return None
    outputs = _outputs(operation, ready, bound)
    if outputs is None:
        return None
    targets = OUTPUTS if operation.outputs is None else operation.outputs
    first: list[int] = []  # of each argument's tensors, counted over the call
    count = 0
    for value in given:
        first.append(count)
        count += _tensor_count(value)
    order = [
        first[place] + i
        for name, place in bound.items()
        if name not in targets
        for i in range(_tensor_count(given[place]))
    ]
    changing = ready.plan.changing
    defaults = [ready.arguments[name] for name in changing if name not in bound]
    ends = iter(range(len(given), len(given) + len(defaults)))
    values = [bound[name] if name in bound else next(ends) for name in changing]
    as_they_stand = order == list(range(count))
    mutable = any(is_mutable(ready.arguments[name]) for name in changing)
    return PlanPath(ready.plan, None if as_they_stand else order, outputs, values, defaults, mutable=mutable)


def _outputs(operation: Operation, ready: Prepared, bound: Mapping[str, int]) -> list[int] | None:
    """The arguments that results are written into; None if one of them holds several tensors."""
    if all(given is None for given in ready.outputs):
        return []
    if operation.writes is not None:
        return [bound[operation.writes]]
    named = [name for name in OUTPUTS if type(ready.arguments.get(name)) is Tensor]
    return [bound[named[0]]] if operation.outputs is None and len(named) == 1 else None


def _tensor_count(value: Any) -> int:
    if type(value) is Tensor:
        return 1
    return sum(_tensor_count(item) for item in value) if type(value) in SEQUENCES else 0
