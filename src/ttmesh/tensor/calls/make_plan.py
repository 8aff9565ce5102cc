"""The first call with a key: check it, infer its results, and keep what later calls need as a `Plan`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import torch

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, bfloat16
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange
from ttmesh.chip.numerics import fpu
from ttmesh.tensor.calls.argument_errors import check_types, shapes_misfit
from ttmesh.tensor.calls.circular_buffer_checks import check_size
from ttmesh.tensor.calls.dispatch_bytes import compute_dispatch_bytes
from ttmesh.tensor.calls.dispatch_factories import ProgramCall
from ttmesh.tensor.calls.lane_calls import (
    Arguments,
    body_maker,
    by_place,
    holds_tensor,
    infer,
    make_empty_body,
    only,
    positions_of,
    static_arguments,
)
from ttmesh.tensor.calls.operation import Call, Case, Operation
from ttmesh.tensor.calls.partial_plans import PartialPlan, bodies_on, presence_of_run
from ttmesh.tensor.calls.plan import Plan
from ttmesh.tensor.calls.plan_keys import key_of, without_topology
from ttmesh.tensor.calls.program_buffers import compute_buffer_bytes, find_free_l1
from ttmesh.tensor.distribution.allocate import footprint_of
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.spec_checks import ShardMisfitError
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology, merged_topology

META = torch.device("meta")


def make_plan(operation: Operation, call: Call, inputs: Arguments, key: Hashable) -> Plan:
    """Check and infer, for a key that was not seen before on this mesh."""
    check_types(operation.name, call.arguments)
    axes = call.mesh.shape.dims()
    names = positions_of(inputs)
    static = static_arguments(operation.lane_arguments, inputs, call.specs, axes, META)
    if operation.check is not None:
        try:
            operation.check(call)
        except MeshError as refusal:
            if refusal.in_order:
                raise
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
    programs = tuple(map(without_topology, programs))
    program = ProgramCall(
        call.specs, specs, call.mesh.core_grid, call.mesh.arch(), call.arguments, find_free_l1(call.mesh)
    )
    own = operation.scratch(call) if operation.scratch else None
    scratch = compute_buffer_bytes(operation.name, program, programs, own, composed=composed is not None)
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
        dispatch_bytes=compute_dispatch_bytes(operation.name, program, programs),
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
    given = [tensor for tensor in call.outputs if tensor is not None]
    topologies = [tensor.kind.topology for tensor in (*call.tensors, *given)]
    if not topologies:
        return TensorTopology.create_fully_replicated_tensor_topology(call.mesh.shape)
    if all(topology == topologies[0] for topology in topologies):
        return topologies[0]
    coords: list[MeshCoordinate] = MeshCoordinateRange(call.mesh.shape).coords()
    return merged_topology(topologies, coords)
