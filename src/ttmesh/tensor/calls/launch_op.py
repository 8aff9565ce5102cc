"""Launch: find the plan of a call or make it, then allocate and enqueue, once for every operation.

An `Operation` says what to compute (a lane function) and what comes out (a spec rule). The first call with some key
makes a `Plan` (make_plan.py); later calls with the same key only allocate and enqueue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ttmesh.base import numerics_mode
from ttmesh.base.errors import MeshError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.queue.command_queue import Body
from ttmesh.tensor.calls.argument_snapshots import snapshot_all
from ttmesh.tensor.calls.fast_paths import PlanPath
from ttmesh.tensor.calls.lane_calls import (
    Arguments,
    describe_results,
    fill_arguments,
    list_results,
    positions_of,
    rounder,
    static_arguments,
    wrap_like,
)
from ttmesh.tensor.calls.make_plan import make_plan
from ttmesh.tensor.calls.operation import Call, Operation
from ttmesh.tensor.calls.partial_plans import presence_of_run
from ttmesh.tensor.calls.plan import OUTPUTS, Plan, execute, mesh_of
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.distribution.lane_transfers import present_chips
from ttmesh.tensor.observer import LaunchedProgram, observer
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.tensor import Tensor

HOST = torch.device("cpu")


@dataclass(frozen=True)
class Prepared:
    """A call with its plan, ready to be executed."""

    plan: Plan
    mesh: MeshDevice
    tensors: tuple[Tensor, ...]
    arguments: Arguments
    outputs: tuple[Tensor | None, ...]


def prepare(operation: Operation, arguments: Arguments) -> Prepared:
    """Check and infer, or find what was decided for the same key before; the plan keeps the arguments."""
    targets = OUTPUTS if operation.outputs is None else operation.outputs
    inputs = {name: value for name, value in arguments.items() if name not in targets}
    tensors = tensors_in(inputs)
    mesh = mesh_of(operation.name, tensors, arguments)
    outputs = _find_outputs(operation, arguments)
    key = (operation.name, *(key_of(value, name in operation.runtime) for name, value in arguments.items()))
    place = (numerics_mode.state.mode, *key)  # programs are counted without the mode: the chip has none
    known = mesh.plans.get(place)
    if isinstance(known, PlanPath):
        plan = known.plan
        if operation.recheck and operation.check is not None:
            operation.check(Call(operation.name, mesh, arguments, tensors, outputs))
    else:
        plan = make_plan(operation, Call(operation.name, mesh, arguments, tensors, outputs), inputs, key)
        mesh.plans[place] = PlanPath(plan, None)
    return Prepared(plan, mesh, tensors, arguments, outputs)


def launch(operation: Operation, arguments: Arguments) -> Any:
    """Run an operation on device tensors, or on host tensors where it takes them."""
    if operation.host:
        tensors = tensors_in(arguments)
        if tensors and all(tensor.device() is None for tensor in tensors):
            return launch_on_host(operation, arguments, tensors)
    arguments = snapshot_all(arguments)
    same = alias_of(operation, arguments)
    if same is not None:
        return same
    ready = prepare(operation, arguments)
    launched = _describe_launch(operation, ready) if observer.active else None
    result = execute(ready.plan, ready.mesh, ready.tensors, ready.arguments, ready.outputs, launched)
    report(operation, ready.arguments, result)
    return result


def _describe_launch(operation: Operation, ready: Prepared) -> LaunchedProgram:
    """How watchers can compute it another way; the tensors are not kept."""
    targets = OUTPUTS if operation.outputs is None else operation.outputs
    inputs = {name: value for name, value in ready.arguments.items() if name not in targets}
    specs, mesh = tuple(tensor.spec for tensor in ready.tensors), ready.mesh
    positions = positions_of(inputs)
    static = static_arguments(operation.lane_arguments, inputs, specs, mesh.shape.dims(), mesh.backend.device)
    presence = presence_of_run((*ready.tensors, *ready.outputs))

    def compute(lanes: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        own = [values.clone() for values in lanes] if operation.in_place else lanes
        return list_results(operation.lane(**fill_arguments(positions, static, own)))

    def vary(changes: Arguments) -> Body:
        plan = prepare(operation, {**ready.arguments, **changes}).plan
        return plan.body or plan.make_body(*(ready.arguments[name] for name in plan.changing))

    chips = None if presence is None else (present_chips(mesh, presence), mesh.lane_shape)
    return LaunchedProgram(operation.name, ready.arguments, specs, compute, vary, chips)


def report(operation: Operation, arguments: Arguments, result: Any) -> None:
    """Report a launch to the watchers, or work on the host that computed the same as this operation."""
    for watcher in observer.watchers:
        watcher.after_launch(operation, arguments, result)


def separate(tensor: Tensor) -> Tensor:
    """A second tensor on the memory of this one, which TT-NN gives where a call changes nothing."""
    return tensor if tensor._mesh is None or observer.needs_programs else tensor.share()


def alias_of(operation: Operation, arguments: Arguments) -> Tensor | None:
    """The first tensor, or a view of its memory, where that is what TT-NN gives; None where a program runs."""
    if operation.alias is None or any(given is not None for given in _find_outputs(operation, arguments)):
        return None
    tensors = tensors_in(arguments)
    call = Call(operation.name, mesh_of(operation.name, tensors, arguments), arguments, tensors)
    if operation.check is not None:
        operation.check(call)
    first, shape = tensors[0], operation.alias(call)
    if shape is None or call["memory_config"] not in (None, first.memory_config()):
        return None
    own = first.kind
    first.check_allocated()
    if tuple(shape) == tuple(own.spec.shape):
        return separate(first)
    if observer.needs_programs or own.spec.memory_config.is_sharded():
        return None
    kind = kind_of(own.spec.with_shape(shape), own.topology, own.presence)
    return first.make_view(kind)


def launch_on_host(operation: Operation, arguments: Arguments, tensors: Sequence[Tensor]) -> Any:
    """The same on the lanes of host tensors: nothing is allocated or enqueued."""
    # Rules of operations that take host tensors do not look at the mesh.
    call = Call(operation.name, None, arguments, tuple(tensors))  # type: ignore[arg-type]
    if operation.check is not None:
        operation.check(call)
    shapes = [tensor.mesh_shape for tensor in tensors]
    mesh_shape = max(shapes, key=lambda shape: shape.mesh_size())
    source = max((t for t in tensors if t.mesh_shape == mesh_shape), key=lambda t: t.rank_block is not None)
    lanes = []
    for tensor in tensors:
        if tensor.mesh_shape != mesh_shape and tensor.mesh_shape.mesh_size() != 1:
            raise MeshError(
                f"{operation.name} got host tensors sharded for {tensor.mesh_shape!r} and {mesh_shape!r}",
                expected="tensors sharded for one mesh",
                fix="Shard them with mappers of the same mesh.",
            )
        own = tensor.lanes
        if tensor.mesh_shape != mesh_shape:
            own = own.reshape(*[1] * mesh_shape.dims(), *tensor.shape)
        elif source.rank_block is not None and tensor.rank_block is None:  # sharded for the shape alone
            own = source.rank_block.narrow_to_block(own)
        lanes.append(own)
    axes = mesh_shape.dims()
    static = static_arguments(operation.lane_arguments, arguments, call.specs, axes, HOST)
    result = operation.lane(**fill_arguments(positions_of(arguments), static, lanes))
    specs = operation.out(call, describe_results(result, axes))
    made = [
        source.make_host_tensor(spec, rounder(spec.dtype)(value))
        for spec, value in zip(specs, list_results(result), strict=True)
    ]
    return wrap_like(result)(made)


def tensors_in(arguments: Arguments) -> tuple[Tensor, ...]:
    """Every tensor among the arguments, including those in lists, in order."""
    found: list[Tensor] = []
    for value in arguments.values():
        if type(value) is Tensor:
            found.append(value)
        elif type(value) in (list, tuple):
            found += [item for item in value if type(item) is Tensor]
    return tuple(found)


def _find_outputs(operation: Operation, arguments: Arguments) -> tuple[Tensor | None, ...]:
    if operation.writes is not None and (operation.writes_if is None or operation.writes_if(arguments)):
        return (arguments[operation.writes],)
    if operation.outputs is not None:
        first = arguments.get(operation.outputs[0])
        if isinstance(first, (list, tuple)):
            return tuple(first)
        targets = tuple(map(arguments.get, operation.outputs))
        asked = arguments.get("are_required_outputs")  # of gradients: one that is not required is not computed
        return targets if asked is None else tuple(t for t, wanted in zip(targets, asked, strict=False) if wanted)
    for name in OUTPUTS:
        given = arguments.get(name)
        if given is not None:
            return tuple(given) if isinstance(given, (list, tuple)) else (given,)
    return ()
