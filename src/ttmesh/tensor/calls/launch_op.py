"""Launch: check → infer → allocate → enqueue, once for every operation.

An `Operation` says what to compute (a lane function) and what comes out (a spec rule). The first call with some key
makes a `Plan`; later calls with the same key only allocate and enqueue.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import BLOCK_FLOATS, Arch, DataType, bfloat16
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange
from ttmesh.chip.memory import MemoryMap
from ttmesh.chip.numerics import fpu
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.queue.command_queue import Body
from ttmesh.tensor.calls.argument_errors import check_types, shapes_misfit
from ttmesh.tensor.calls.argument_snapshots import snapshot_all
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.circular_buffer_checks import check_size
from ttmesh.tensor.calls.dispatch_bytes import compute_dispatch_bytes
from ttmesh.tensor.calls.fast_paths import PlanPath
from ttmesh.tensor.calls.lane_calls import (
    Arguments as Arguments,
)
from ttmesh.tensor.calls.lane_calls import (
    Lane,
    body_maker,
    by_place,
    describe_results,
    fill_arguments,
    holds_tensor,
    infer,
    list_results,
    make_empty_body,
    only,
    positions_of,
    rounder,
    static_arguments,
    wrap_like,
)
from ttmesh.tensor.calls.partial_plans import PartialPlan, bodies_on, presence_of_run
from ttmesh.tensor.calls.plan import OUTPUTS as OUTPUTS
from ttmesh.tensor.calls.plan import Plan, execute, mesh_of
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.distribution.allocate import footprint_of
from ttmesh.tensor.distribution.lane_transfers import present_chips
from ttmesh.tensor.observer import LaunchedProgram, observer
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.spec_checks import ShardMisfitError
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology, merged_topology
from ttmesh.tensor.tensor import Tensor


@dataclass(frozen=True)
class Call:
    """One call of an operation as its rules get it: arguments by name, tensors included."""

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
StageRule = Callable[[Call, Sequence[TensorSpec]], tuple[Composition, Sequence[PlannedTensor]] | None]


@dataclass(frozen=True)
class Case:
    """What a plan knows of its calls: everything but the values of tensors and of runtime arguments."""

    arguments: Arguments  # None in place of a tensor
    tensors: Sequence[str]  # the names of the tensor arguments
    specs: Sequence[TensorSpec]
    results: Sequence[TensorSpec]
    lane_axes: int
    options: Arguments  # of the whole call, also those that the lane function does not take
    arch: Arch
    memory: MemoryMap

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name] if name in self.arguments else self.options.get(name)

    def equal_ranks(self) -> bool:
        """Whether all tensors have the same rank."""
        return len({len(spec.shape) for spec in self.specs}) == 1

    def one_format(self, *formats: DataType) -> bool:
        """Whether all tensors and results have the same of these formats."""
        found = {spec.dtype for spec in (*self.specs, *self.results)}
        return len(found) == 1 and found <= set(formats)


Specialise = Callable[[Case], Lane | None]


@dataclass(frozen=True)
class Operation:
    """What launch needs to know of an operation.

    lane: computes on lanes; gets the arguments its signature names, tensors as torch lanes, plus what it asks for of
      `lane_axes`, `specs` (of the inputs) and `torch_device`; returns a tensor, or a list or tuple that may hold None.
    out: output specs from the call and the (local shape, torch dtype) pairs that the lane function gave on meta.
    check: raises for a call that TT-NN would refuse.
    topology: output topology; by default TT-NN's merge.
    runtime: arguments that change values but never specs; they are not part of the key.
    recheck: `check` looks at values of runtime arguments, so it is asked at every call and calls have no fast path; a
      function says for which arguments.
    programs: the program-cache keys of the device programs that TT-NN launches for one call, one each.
    scratch: bytes of circular buffers per core.
    stages: the programs that a call comes to where they are several or allocate more than the results; the stages of
      the results, and the composition that they stand in.
    writes: the tensor argument that the result is written into (in-place operations), by name.
    outputs: the arguments that name tensors to write results into, one per result, where they are not `OUTPUTS`.
    host: whether it takes host tensors too, and gives host tensors then.
    specialise: a function of the tensors and runtime values alone, in the order that the lane function takes them, with
      everything decided that the other arguments and the specs decide; None where there is none. Plans keep it.
    alias: the shape of the result where TT-NN hands the first tensor's own memory back, else None.
    min_rank: how many dims of the first tensor the lane function counts on: with fewer it would reach the mesh axes.
    fpu: how the FPU is set for a call, where TTMESH_NUMERICS is not ideal; None where it has no part in it.
    in_place: the lane function changes the values of `writes` themselves (and rounds them itself) instead of making
      new ones: a kv cache is not copied.
    """

    name: str
    lane: Lane
    out: SpecRule
    check: Callable[[Call], None] | None = None
    topology: Callable[[Call], TensorTopology] | None = None
    runtime: frozenset[str] = frozenset()
    programs: Callable[[Call], tuple[Hashable, ...]] | None = None
    scratch: Callable[[Call], int] | None = None
    stages: StageRule | None = None
    writes: str | None = None
    outputs: tuple[str, ...] | None = None
    host: bool = False
    in_place: bool = False
    specialise: Specialise | None = None
    recheck: bool | Callable[[Arguments], bool] = False
    alias: Callable[[Call], Sequence[int] | None] | None = None
    min_rank: int = 0
    fpu: Callable[[Case], FpuConfig | None] | None = None
    lane_arguments: frozenset[str] = field(default_factory=frozenset)


META = torch.device("meta")
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
    outputs = _given_outputs(operation, arguments)
    key = (operation.name, *(key_of(value, name in operation.runtime) for name, value in arguments.items()))
    place = (numerics_mode.state.mode, *key)  # programs are counted without the mode: the chip has none
    known = mesh.plans.get(place)
    if isinstance(known, PlanPath):
        plan = known.plan
        if operation.recheck and operation.check is not None:
            operation.check(Call(operation.name, mesh, arguments, tensors, outputs))
    else:
        plan = _plan(operation, Call(operation.name, mesh, arguments, tensors, outputs), inputs, key)
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
    if operation.alias is None or any(given is not None for given in _given_outputs(operation, arguments)):
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
    return Tensor.on_device(kind, first.buffer, call.mesh)


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


def _given_outputs(operation: Operation, arguments: Arguments) -> tuple[Tensor | None, ...]:
    if operation.writes is not None:
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


def _plan(operation: Operation, call: Call, inputs: Arguments, key: Hashable) -> Plan:
    """Check and infer, for a key that was not seen before on this mesh."""
    check_types(operation.name, call.arguments)
    axes = call.mesh.shape.dims()
    names = positions_of(inputs)
    static = static_arguments(operation.lane_arguments, inputs, call.specs, axes, META)
    if operation.check is not None:
        try:
            operation.check(call)
        except MeshError as refusal:
            misfit = _find_shard_misfit(operation, call, names, static, axes)
            raise misfit or refusal from None
    if operation.min_rank:
        _check_rank(call, operation.min_rank)
    try:
        inferred, wrap = infer(operation.lane, names, static, call.specs, axes)
    except (MeshError, NotImplementedError):
        raise
    except (RuntimeError, IndexError) as problem:  # torch refused a shape
        raise shapes_misfit(operation.name, inputs, problem) from None
    specs = tuple(operation.out(call, inferred))
    presence = presence_of_run((*call.tensors, *call.outputs))
    topology = operation.topology(call) if operation.topology else _merge_topologies(call)
    kinds = tuple(kind_of(spec, topology, presence) for spec in specs)
    programs, schedule = operation.programs(call) if operation.programs else (key,), None
    composed = operation.stages(call, specs) if operation.stages else None
    if composed is not None:
        composition, stages = composed
        programs, schedule = tuple(composition.programs), composition.schedule(stages, call.mesh.heap.map)
    scratch = operation.scratch(call) if operation.scratch else 0
    if scratch:
        check_size(operation.name, scratch, call.mesh)
    footprints = tuple(footprint_of(spec, call.mesh.heap.map) for spec in specs)
    in_specs, device = call.specs, call.mesh.backend.device
    lasting = static_arguments(operation.lane_arguments, inputs, in_specs, axes, device)
    changing = tuple(name for name in lasting if name in operation.runtime and name not in names)
    changed = operation.writes if operation.in_place else None
    held = [kind.spec for kind in kinds]  # the kind's own object, so that a later read of the cell finds the same one
    lane, order = operation.lane, by_place(operation.lane)
    case = _case(call, lasting, names, held)
    emulated = _fpu_of(operation, case)
    special = operation.specialise(case) if operation.specialise and emulated is None else None
    if emulated is not None:
        lane = fpu.run_in(emulated, lane)
    elif special is not None:
        lane, order = special, [name for name in order if name in names or name in changing]
        lasting = dict.fromkeys(order)
    lane = call.mesh.backend.guard_indices(lane, lambda: infer(operation.lane, names, static, call.specs, axes))
    packs = _packed_formats(emulated)
    make_body = body_maker(
        lane, order, names, lasting, changing, in_specs, held, single=wrap is only, changed=changed, packs=packs
    )
    plan = Plan
    if presence is not None:
        plan, make_body = PartialPlan, bodies_on(make_body, call.mesh, presence, kinds, call.outputs)
    if device.type == "meta":
        empty = make_empty_body(held, axes)
        make_body = lambda *values: empty  # noqa: E731
    return plan(
        operation.name,
        kinds,
        footprints,
        wrap,
        make_body,
        changing,
        programs=programs,
        schedule=schedule,
        circular_buffer_bytes=scratch,
        dispatch_bytes=compute_dispatch_bytes(
            operation.name, call.specs, specs, call.mesh.core_grid.num_cores, programs
        ),
        compute_config=key_of(call["compute_kernel_config"]),
    )


def _case(call: Call, lasting: Arguments, names: Iterable[str], results: Sequence[TensorSpec]) -> Case:
    options = {name: None if holds_tensor(value) else value for name, value in call.arguments.items()}
    mesh, axes = call.mesh, call.mesh.shape.dims()
    return Case(lasting, tuple(names), call.specs, results, axes, options, mesh.arch(), mesh.heap.map)


def _fpu_of(operation: Operation, case: Case) -> fpu.Fpu | None:
    """The FPU that a call is computed with; None: torch's float32."""
    mode = numerics_mode.current()
    if mode == numerics_mode.IDEAL or operation.fpu is None:
        return None
    config = operation.fpu(case)
    return None if config is None else fpu.Fpu(config, mode == numerics_mode.EXACT)


def _packed_formats(emulated: fpu.Fpu | None) -> frozenset[DataType]:
    """What the chip's packer writes to its bits: block floats in every mode but ideal, bfloat16 where all bits count."""
    if numerics_mode.current() == numerics_mode.IDEAL:
        return frozenset()
    return BLOCK_FLOATS | {bfloat16} if emulated is not None and emulated.exact else frozenset(BLOCK_FLOATS)


def _find_shard_misfit(
    operation: Operation, call: Call, names: dict[str, int | list[int | None]], static: Arguments, axes: int
) -> ShardMisfitError | None:
    """Of a call that is refused: the error that its result's shards would give, which TT-NN reports first."""
    try:
        inferred, _ = infer(operation.lane, names, static, call.specs, axes)
        operation.out(call, inferred)
    except ShardMisfitError as misfit:
        return misfit
    except Exception:  # the call is refused already: that error is raised, not this one
        return None
    return None


def _check_rank(call: Call, least: int) -> None:
    rank = len(call.specs[0].shape)
    if rank < least:
        raise ShapeError(
            f"{call.name}: ShapeBase[] index out of range. {least - 1} not in [-4, {rank})",
            expected=f"{least} dims or more",
            fix=f"Reshape the tensor to {least} dims first.",
        )


def _merge_topologies(call: Call) -> TensorTopology:
    topologies = [tensor.kind.topology for tensor in call.tensors]
    if not topologies:
        return TensorTopology.create_fully_replicated_tensor_topology(call.mesh.shape)
    if all(topology == topologies[0] for topology in topologies):
        return topologies[0]
    coords: list[MeshCoordinate] = MeshCoordinateRange(call.mesh.shape).coords()
    return merged_topology(topologies, coords)
