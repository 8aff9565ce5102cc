"""Launch: check → infer → allocate → enqueue, once for every operation.

An `Operation` says what to compute (a lane function) and what comes out (a spec rule). The first call with some key
makes a `Plan`; later calls with the same key only allocate and enqueue.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, INTEGERS, BufferType, DataType
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange
from ttmesh.chip.formats.storage import finish, lane_dtype
from ttmesh.mesh.command_queue import Body, Cells, Command
from ttmesh.mesh.mesh_device import MeshDevice, same_mesh
from ttmesh.tensor.allocate import Footprint
from ttmesh.tensor.kind import Kind, kind_of
from ttmesh.tensor.spec import TensorSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.topology import TensorTopology, merged_topology

Lane = Callable[..., Any]
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One call of an operation, as its rules see it: arguments by name, tensors still in place."""

    name: str
    mesh: MeshDevice
    arguments: Arguments
    tensors: tuple[Tensor, ...]
    outputs: tuple[Tensor | None, ...] = ()  # tensors of the caller to write results into, by result

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The specs of the tensor arguments, in order."""
        return tuple(tensor.kind.spec for tensor in self.tensors)

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)


SpecRule = Callable[[Call, Sequence[tuple[tuple[int, ...], torch.dtype]]], Sequence[TensorSpec]]


@dataclass(frozen=True)
class Operation:
    """What launch needs to know of an operation.

    lane: computes on lanes; gets the arguments its signature names, tensors as torch lanes, plus `lane_axes` (and
      `specs`, the input specs) when it asks for them; returns a tensor or a tuple.
    out: output specs from the call and the (local shape, torch dtype) pairs that the lane function gave on meta.
    check: raises for a call that TT-NN would refuse.
    topology: output topology; by default TT-NN's merge.
    runtime: arguments that change values but never specs; they are not part of the key.
    programs: how many device programs TT-NN launches for one call.
    scratch: bytes of circular buffers per core.
    writes: the tensor argument that the result is written into (in-place operations), by name.
    outputs: the arguments that name tensors to write results into, one per result, where they are not `OUTPUTS`.
    """

    name: str
    lane: Lane
    out: SpecRule
    check: Callable[[Call], None] | None = None
    topology: Callable[[Call], TensorTopology] | None = None
    runtime: frozenset[str] = frozenset()
    programs: Callable[[Call], tuple[Hashable, ...]] | None = None
    scratch: Callable[[Call], int] | None = None
    writes: str | None = None
    outputs: tuple[str, ...] | None = None
    lane_arguments: frozenset[str] = field(default_factory=frozenset)


class Plan:
    """What was decided for one key on one mesh."""

    __slots__ = (
        "body", "cb_bytes", "footprints", "generation", "kinds", "name", "program_count", "programs", "runtime_body",
        "single",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kinds: tuple[Kind, ...],
        footprints: tuple[Footprint, ...],
        programs: tuple[Hashable, ...],
        cb_bytes: int,
        body: Body | None,
        runtime_body: Callable[[Arguments], Body],
        *,
        single: bool,
    ) -> None:
        self.name = name
        self.kinds = kinds
        self.footprints = footprints
        self.programs = programs
        self.program_count = len(programs)
        self.cb_bytes = cb_bytes
        self.body = body  # None when the call has runtime arguments
        self.runtime_body = runtime_body
        self.single = single
        self.generation = -1


OUTPUTS = ("output_tensor", "optional_output_tensor", "output_tensors")  # tensors to write into, not to read


@dataclass(frozen=True)
class Prepared:
    """A call with its plan, ready to be executed."""

    plan: Plan
    mesh: MeshDevice
    tensors: tuple[Tensor, ...]
    arguments: Arguments
    outputs: tuple[Tensor | None, ...]


def prepare(operation: Operation, arguments: Arguments) -> Prepared:
    """Check and infer, or find what was decided for the same key before."""
    targets = OUTPUTS if operation.outputs is None else operation.outputs
    inputs = {name: value for name, value in arguments.items() if name not in targets}
    tensors = tensors_in(inputs)
    mesh = _mesh_of(operation.name, tensors)
    outputs = _given_outputs(operation, arguments)
    key = (operation.name, *(key_of(value, name in operation.runtime) for name, value in arguments.items()))
    plan = mesh.program_cache.plans.get(key)
    if plan is None:
        plan = _plan(operation, Call(operation.name, mesh, arguments, tensors, outputs), inputs, key)
        mesh.program_cache.plans[key] = plan
    return Prepared(plan, mesh, tensors, arguments, outputs)


def launch(operation: Operation, arguments: Arguments) -> Any:
    """Run an operation on device tensors."""
    ready = prepare(operation, arguments)
    return execute(ready.plan, ready.mesh, ready.tensors, ready.arguments, ready.outputs)


def execute(
    plan: Plan, mesh: MeshDevice, tensors: Sequence[Tensor], arguments: Arguments, outputs: Sequence[Tensor | None] = ()
) -> Any:
    """Allocate the outputs and enqueue the command."""
    cache = mesh.program_cache
    if plan.generation != cache.generation:
        cache.compile(plan.name, plan.programs)
        plan.generation = cache.generation if cache.enabled else -1
    reads = [tensor.buffer.cell for tensor in tensors]
    if plan.cb_bytes:
        check_circular_buffers(plan, mesh)
    results: list[Tensor] = []
    for i, kind in enumerate(plan.kinds):
        given = outputs[i] if i < len(outputs) else None
        if given is None:
            given = Tensor(kind, plan.footprints[i].allocate(mesh, plan.name), mesh, None)
        results.append(given)
    body = plan.body if plan.body is not None else plan.runtime_body(arguments)
    writes = [tensor.buffer.cell for tensor in results]
    mesh.launch(Command(plan.name, body, reads, writes, programs=plan.program_count))
    return results[0] if plan.single else tuple(results)


def tensors_in(arguments: Arguments) -> tuple[Tensor, ...]:
    """Every tensor among the arguments, lists opened, in order."""
    found: list[Tensor] = []
    for value in arguments.values():
        if type(value) is Tensor:
            found.append(value)
        elif type(value) in (list, tuple):
            found += [item for item in value if type(item) is Tensor]
    return tuple(found)


def key_of(value: Any, runtime: bool = False) -> Hashable:
    """What of an argument decides the plan: a tensor's kind, the type of a runtime number, else the value."""
    if type(value) is Tensor:
        return value.kind
    if runtime:
        return type(value).__name__
    if type(value) in (list, tuple):
        return (type(value), *(key_of(item) for item in value))
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype, value.data_ptr())
    if isinstance(value, slice):
        return ("slice", value.start, value.stop, value.step)
    if isinstance(value, (int, float)):
        return (type(value), value)  # 1, 1.0 and True are equal in Python but not here
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value  # type: ignore[no-any-return]


def common_presence(tensors: Sequence[Tensor]) -> frozenset[tuple[int, ...]] | None:
    """The coordinates that all tensors have; None for the whole mesh."""
    common = None
    for tensor in tensors:
        presence = tensor.kind.presence
        if presence is not None:
            common = presence if common is None else common & presence
    return common


def check_circular_buffers(plan: Plan, mesh: MeshDevice) -> None:
    """Refuse a program whose circular buffers do not fit below the L1 buffers, as the chip's loader would."""
    banks = mesh.heap.map.banks[BufferType.L1]
    last = mesh.compute_with_storage_grid_size()
    cores = f"[(x=0,y=0) - (x={last.x - 1},y={last.y - 1})]"
    end = banks.start + plan.cb_bytes
    if end > mesh.heap.map.l1_bytes:
        raise MeshError(
            f"Statically allocated circular buffers on core range {cores} grow to {end} B which is beyond max L1 size of "
            f"{mesh.heap.map.l1_bytes} B",
            expected=f"{plan.name} to need at most {mesh.heap.map.l1_bytes - banks.start} B per core",
            fix="Use smaller blocks in program_config, or a smaller input.",
        )
    lowest = mesh.heap.lowest_used(BufferType.L1)
    if lowest is not None and end > lowest:
        users = sorted(mesh.heap.live[BufferType.L1].values(), key=lambda cell: cell.address)[:3]
        names = ", ".join(f"{cell.label or 'unnamed'} at {cell.address}" for cell in users)
        raise MeshError(
            f"Statically allocated circular buffers in program {plan.name} clash with L1 buffers on core range {cores}. "
            f"L1 buffer allocated at {lowest} and static circular buffer region ends at {end}",
            expected=f"{plan.cb_bytes} B free at the bottom of L1 for {plan.name}",
            fix=f"Move something to DRAM; the lowest L1 buffers are: {names}.",
        )


def _given_outputs(operation: Operation, arguments: Arguments) -> tuple[Tensor | None, ...]:
    if operation.writes is not None:
        return (arguments[operation.writes],)
    if operation.outputs is not None:
        first = arguments.get(operation.outputs[0])
        return tuple(first) if isinstance(first, (list, tuple)) else tuple(map(arguments.get, operation.outputs))
    for name in OUTPUTS:
        given = arguments.get(name)
        if given is not None:
            return tuple(given) if isinstance(given, (list, tuple)) else (given,)
    return ()


def _mesh_of(name: str, tensors: Sequence[Tensor]) -> MeshDevice:
    mesh: MeshDevice | None = None
    for tensor in tensors:
        own = tensor.device()
        if own is None:
            raise MeshError(
                f"{name} got a tensor on the host",
                expected="tensors on a device",
                fix="Move it with to_device() first.",
            )
        if mesh is None:
            mesh = own
        elif own is not mesh:
            same_mesh(mesh, own)
    if mesh is None:
        raise MeshError(f"{name} got no tensor", expected="at least one device tensor", fix="Check the arguments.")
    mesh.check_open()
    return mesh


def _plan(operation: Operation, call: Call, inputs: Arguments, key: Hashable) -> Plan:
    """Check and infer, for a key that was not seen before on this mesh."""
    if operation.check is not None:
        operation.check(call)
    axes = call.mesh.shape.dims()
    inferred = _infer(operation, call, inputs, axes)
    specs = tuple(operation.out(call, inferred))
    presence = common_presence(call.tensors)
    topology = operation.topology(call) if operation.topology else _merged(call)
    kinds = tuple(kind_of(spec, topology, presence) for spec in specs)
    programs = operation.programs(call) if operation.programs else (key,)
    scratch = operation.scratch(call) if operation.scratch else 0
    footprints = tuple(Footprint(spec, call.mesh.heap.map) for spec in specs)
    names = _positions(inputs)
    dynamic = any(name in operation.runtime and not _is_tensor(value) for name, value in inputs.items())
    in_specs = call.specs

    def body_for(arguments: Arguments) -> Body:
        static = _static(operation, arguments, in_specs, axes)
        return _body(operation.lane, names, static, in_specs, specs)

    body = None if dynamic else body_for(call.arguments)
    return Plan(
        operation.name, kinds, footprints, programs, scratch, body, body_for, single=not isinstance(inferred, tuple)
    )


def _infer(operation: Operation, call: Call, inputs: Arguments, axes: int) -> Any:
    """Local shapes and torch dtypes of the results, from one run on meta: a list for one result, a tuple for many."""
    lanes = [
        torch.empty((*[1] * axes, *spec.shape), dtype=lane_dtype(spec.dtype), device="meta") for spec in call.specs
    ]
    static = _static(operation, inputs, call.specs, axes)
    result = operation.lane(**_filled(_positions(inputs), static, lanes))
    if isinstance(result, torch.Tensor):
        return [(tuple(result.shape[axes:]), result.dtype)]
    return tuple((tuple(part.shape[axes:]), part.dtype) for part in result)


def _static(operation: Operation, arguments: Arguments, specs: Sequence[TensorSpec], axes: int) -> Arguments:
    """The arguments that the lane function takes, and what it asks the machinery for."""
    wanted = operation.lane_arguments
    static = {name: value for name, value in arguments.items() if name in wanted}
    if "lane_axes" in wanted:
        static["lane_axes"] = axes
    if "specs" in wanted:
        static["specs"] = specs
    return static


Positions = dict[str, int | list[int | None]]


def _is_tensor(value: Any) -> bool:
    return type(value) is Tensor


def _positions(arguments: Arguments) -> Positions:
    """Which arguments are tensors, and which number among all tensors; lists keep their places."""
    positions: Positions = {}
    count = 0
    for name, value in arguments.items():
        if type(value) is Tensor:
            positions[name] = count
            count += 1
        elif type(value) in (list, tuple) and any(type(item) is Tensor for item in value):
            places: list[int | None] = []
            for item in value:
                places.append(count if type(item) is Tensor else None)
                count += type(item) is Tensor
            positions[name] = places
    return positions


def _filled(positions: Positions, static: Arguments, lanes: Sequence[torch.Tensor]) -> Arguments:
    filled = dict(static)
    for name, place in positions.items():
        if name in static:
            if isinstance(place, int):
                filled[name] = lanes[place]
            else:
                filled[name] = [None if i is None else lanes[i] for i in place]
    return filled


def _body(
    lane: Lane, positions: Positions, static: Arguments, in_specs: Sequence[TensorSpec], out_specs: Sequence[TensorSpec]
) -> Body:
    """The command's body: read lanes, compute, round once, write. The common arities avoid building dicts."""
    rounders = [_rounder(spec.dtype) for spec in out_specs]
    plain = all(isinstance(place, int) and name in static for name, place in positions.items())
    rest = {name: value for name, value in static.items() if name not in positions}
    if plain and len(out_specs) == 1 and len(in_specs) in (1, 2):
        names = list(positions)
        round_, out = rounders[0], out_specs[0]
        if len(in_specs) == 1:
            (only,), (spec,) = names, in_specs

            def one(reads: Cells, writes: Cells) -> None:
                writes[0].write(round_(lane(**{only: reads[0].read(spec)}, **rest)), out)

            return one
        first, second = names
        spec_a, spec_b = in_specs

        def two(reads: Cells, writes: Cells) -> None:
            result = lane(**{first: reads[0].read(spec_a), second: reads[1].read(spec_b)}, **rest)
            writes[0].write(round_(result), out)

        return two

    def many(reads: Cells, writes: Cells) -> None:
        lanes = [cell.read(spec) for cell, spec in zip(reads, in_specs, strict=True)]
        results = lane(**_filled(positions, static, lanes))
        parts = (results,) if isinstance(results, torch.Tensor) else results
        for part, round_, cell, spec in zip(parts, rounders, writes, out_specs, strict=True):
            cell.write(round_(part), spec)

    return many


def _rounder(dtype: DataType) -> Callable[[torch.Tensor], torch.Tensor]:
    """Rounds a computed result once to the output format."""
    wanted = lane_dtype(dtype)
    if dtype in BLOCK_FLOATS or dtype in INTEGERS:
        return lambda values: finish(values, dtype)
    return lambda values: values if values.dtype is wanted else values.to(wanted)


def _merged(call: Call) -> TensorTopology:
    topologies = [tensor.kind.topology for tensor in call.tensors]
    if all(topology == topologies[0] for topology in topologies):
        return topologies[0]
    coords: list[MeshCoordinate] = MeshCoordinateRange(call.mesh.shape).coords()
    return merged_topology(topologies, coords)
