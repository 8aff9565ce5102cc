"""Routes: a call like one that was seen before goes from its arguments to its plan by one lookup, without being bound."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from typing import Any, get_args

from ttmesh.base.cores import CoreGrid
from ttmesh.base.dtypes import DataType, Layout
from ttmesh.chip.cells import Cell
from ttmesh.mesh.mesh_device import MeshDevice
from ttmesh.ops.activations import UnaryOpType, UnaryWithParam
from ttmesh.ops.compute_config import WormholeComputeKernelConfig
from ttmesh.ops.matmul_configs import MinimalMatmulConfig, ProgramConfig
from ttmesh.tensor.launch import OUTPUTS, Arguments, Operation, Prepared, mesh_of
from ttmesh.tensor.memory_config import MemoryConfig
from ttmesh.tensor.plans import Plan
from ttmesh.tensor.shape import Shape
from ttmesh.tensor.tensor import Tensor

# Arguments that stand in a key as they are, beside their type: 1, 1.0 and True are equal in Python but not here.
SIMPLE = frozenset({
    int, float, bool, str, type(None), DataType, Layout, MemoryConfig, WormholeComputeKernelConfig, CoreGrid,
    UnaryOpType, UnaryWithParam, MinimalMatmulConfig, *get_args(ProgramConfig),
})  # fmt: skip
SEQUENCES = frozenset({list, tuple, Shape})

Binder = Callable[[Sequence[Any], dict[str, Any]], Arguments]


class Route:
    """A plan, and which of a call's tensors and arguments go where in it."""

    __slots__ = ("_defaults", "_order", "_outputs", "_plain", "_values", "plan")

    def __init__(
        self,
        plan: Plan,
        order: list[int] | None,
        outputs: list[int],
        values: list[int],
        defaults: Sequence[Any],
    ) -> None:
        self.plan = plan
        self._order = order  # of the call's tensors; None: as they stand
        self._outputs = outputs  # which arguments to write into
        self._values = values  # which arguments the body is made from, counted on into the defaults
        self._defaults = defaults
        self._plain = not outputs and not values

    def follow(self, mesh: MeshDevice, tensors: list[Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the plan on a call's arguments."""
        plan = self.plan
        cells: list[Cell] = []
        for tensor in tensors:
            if tensor._mesh is not mesh:
                mesh_of(plan.name, tensors, {})  # raises: it is on another mesh or on the host
            cells.append(tensor._buffer._cell or tensor.buffer.cell)  # type: ignore[union-attr]  # the latter raises
        if self._order is not None:
            cells = [cells[i] for i in self._order]
        if self._plain:
            return plan.run(mesh, cells, plan.body)  # type: ignore[arg-type]  # a plain plan has a body
        given = (*args, *kwargs.values(), *self._defaults)
        body = plan.body or plan.make_body(*[given[i] for i in self._values])
        return plan.run(mesh, cells, body, [given[i] for i in self._outputs])


def add_to_key(value: Any, parts: list[Any], tensors: list[Tensor]) -> bool:
    """Append what of an argument decides the plan; False for arguments whose calls must be bound first."""
    kind = type(value)
    if kind is Tensor:
        parts.append(value.kind)
        tensors.append(value)
    elif kind in SIMPLE:
        parts.append(kind)
        parts.append(value)
    elif kind in SEQUENCES:
        parts.append(kind)
        parts.append(len(value))
        for item in value:
            if type(item) is int:
                parts.append(item)
            elif not add_to_key(item, parts, tensors):
                return False
    else:
        return False
    return True


def lasting_key(parts: Sequence[Any]) -> Hashable:
    """A key to be kept: shard specs can be written to, keys must not change."""
    return tuple(copy(part) if type(part) is MemoryConfig else part for part in parts)


class _StandIn:
    """An argument seen only by its place."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


def route_of(
    bind: Binder, operation: Operation, ready: Prepared, args: Sequence[Any], kwargs: Mapping[str, Any], free: set[int]
) -> Route | None:
    """The route of a call that was prepared the long way, or None where a route would not do the same.

    Args:
        free: the places of arguments that are not in the key.
    """
    given = [*args, *kwargs.values()]
    stand_ins = [_StandIn(i) for i in range(len(given))]
    names = dict(zip(kwargs, stand_ins[len(args) :], strict=True))
    bound = {k: v.place for k, v in bind(stand_ins[: len(args)], names).items() if type(v) is _StandIn}
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
    return Route(ready.plan, None if as_they_stand else order, outputs, values, defaults)


def _outputs(operation: Operation, ready: Prepared, bound: Mapping[str, int]) -> list[int] | None:
    """The arguments that results are written into; None where that is more than one tensor."""
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
