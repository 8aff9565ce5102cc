"""How a collective becomes a command: request → decision → plan, made once per key, then allocate and enqueue."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from ttmesh.base import numerics_mode
from ttmesh.base.errors import MeshError, RankError, ShapeError, one_of
from ttmesh.ccl.planning.collective_parameters import TAGS
from ttmesh.ccl.planning.link_limits import check_link_number, check_links
from ttmesh.ccl.planning.plan_traffic import Loads
from ttmesh.ccl.planning.present_lanes import hide_absent_lanes
from ttmesh.fabric.fabric_config import FabricConfig
from ttmesh.fabric.fabric_state import fabric_process
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.mesh.device.mesh_device import MeshDevice, check_same_mesh
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.mesh.queue.command_queue import Body, Cells
from ttmesh.ops.catalogue.definition import Golden, OpFunction, composite
from ttmesh.ops.catalogue.parameter_tags import PER_OPERATION, Tag
from ttmesh.tensor.calls.argument_snapshots import snapshot_all
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.dispatch_bytes import COLLECTIVE, compute_dispatch_bytes
from ttmesh.tensor.calls.dispatch_factories import ProgramCall
from ttmesh.tensor.calls.fast_paths import PlanPath
from ttmesh.tensor.calls.lane_calls import make_empty_body, only, rounder
from ttmesh.tensor.calls.partial_plans import PartialPlan, bodies_on, presence_of_run
from ttmesh.tensor.calls.plan import FREED, Plan, execute, find_cell
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.calls.program_buffers import compute_buffer_bytes, find_free_l1
from ttmesh.tensor.distribution.allocate import footprint_of
from ttmesh.tensor.distribution.lane_transfers import present_chips
from ttmesh.tensor.observer import LaunchedProgram, observer
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor

WITHOUT_DEVICE = {  # what TT-NN says of a tensor that is freed or on the host
    "high_bw_all_gather": "Input tensor should be on device for high_bw_all_gather operation",
    "reduce_scatter_minimal_direct": "Input tensor must be on a mesh device for reduce_scatter_minimal_direct",
    "reduce_scatter_minimal_direct_create_staging_buffer": "input tensor must be on device to allocate the staging buffer",
    "reduce_scatter_minimal_direct_create_persistent_buffers": "input tensor must be on device to allocate persistent "
    "buffers",
    "reduce_scatter_minimal_async_create_intermediate_buffer": "Mesh device is required to allocate the reduce_scatter "
    "intermediate buffer",
    **dict.fromkeys(("point_to_point", "ring_attention_all_gather_async"), "Input Tensor is not allocated"),
    "all_to_all_async": "DeviceStorage is not allocated",
}
ON_HOST = {  # and of one on the host, where it is another text
    **dict.fromkeys(
        ("point_to_point", "ring_attention_all_gather_async", "moe_routing_remap", "moe_expert_token_remap"),
        "Device Operations expect device tensors as inputs",
    ),
    "all_to_all_async": "Expected Tensor with DeviceStorage, got StorageType::HOST",
}
MODES = ("fabric", "host")
Presence = frozenset[tuple[int, ...]]


@dataclass(frozen=True)
class Request:
    """The arguments of a collective, as its rules read them."""

    name: str
    mesh: MeshDevice
    tensors: tuple[Tensor, ...]
    outputs: tuple[Tensor | None, ...]
    options: dict[str, Any]

    @property
    def tensor(self) -> Tensor:
        """The first tensor."""
        return self.tensors[0]

    @property
    def over_host(self) -> bool:
        """Whether data goes through the host."""
        return self.options.get("mode") == "host"

    def __getitem__(self, name: str) -> Any:
        return self.options.get(name)

    def result_spec(self, shape: Sequence[int], *, result: int = 0, source: int = 0) -> TensorSpec:
        """The output spec: of the given output tensor, else from memory_config and dtype, else like the source tensor."""
        given = self.outputs[result] if result < len(self.outputs) else None
        if given is not None:
            if tuple(given.shape) != tuple(shape):
                raise ShapeError(
                    f"Output tensor shape must be {list(shape)}, got {list(given.shape)}",
                    expected=f"{list(shape)} for the result of {self.name}",
                    fix="Allocate it with that shape.",
                )
            return given.spec
        spec = self.tensors[source].spec
        config: MemoryConfig = self["memory_config"] or spec.memory_config
        if config.is_sharded() and config.shard_spec is None and config.nd_shard_spec is None:
            raise MeshError(
                "bad optional access: a sharded memory config without shards",
                expected="a shard_spec",
                fix="Make it with ttnn.create_sharded_memory_config.",
            )
        spec_of_result = spec.with_memory_config(MemoryConfig(buffer_type=config.buffer_type)).with_shape(shape)
        if self["dtype"] is not None:
            spec_of_result = TensorSpec(
                shape, self["dtype"], spec_of_result.layout, memory_config=spec_of_result.memory_config
            )
        return spec_of_result.with_memory_config(config)


@dataclass(frozen=True)
class Decision:
    """What a collective does. `compute` maps the lanes of the inputs to those of the results.

    `changed`: the coordinates that change, if not those of the run (the tensor with the fewest); the others keep the
    output's values.
    `exchange_axes`: the mesh axes along which chips exchange data (None: all); `compute` needs all lanes along them and
    accepts any number along others. `compute_on_rank`: the same from the lanes of one rank, if that is cheaper.
    `stages`: the programs and the memory that it takes, where they are not one program and the results.
    """

    specs: tuple[TensorSpec, ...]
    compute: Callable[..., Sequence[torch.Tensor]]
    loads: Loads
    topology: TensorTopology
    programs: int = 1
    single: bool = True
    changed: Presence | None = None
    exchange_axes: tuple[int, ...] | None = None
    compute_on_rank: Callable[..., Sequence[torch.Tensor]] | None = None
    stages: tuple[Composition, Sequence[PlannedTensor]] | None = None


Decide = Callable[[Request], Decision]


def run(
    name: str, decide: Decide, tensors: Sequence[Tensor], options: dict[str, Any], outputs: Sequence[Tensor | None] = ()
) -> Any:
    """Run a collective on the current queue."""
    mesh = mesh_of(name, tensors)
    for output in outputs:
        if output is not None:
            _require_on_device(output)
    if options.get("mode", "fabric") == "fabric" and mesh.get_num_devices() > 1:  # one chip sends nothing
        require_fabric(name)
    key = (name, *[t.kind for t in tensors], *map(key_of, outputs), *map(key_of, options.values()))
    place = (numerics_mode.state.mode, *key)  # programs are counted without the mode: the chip has none
    known = mesh.plans.get(place)
    launched = None
    if isinstance(known, PlanPath) and not observer.active:
        plan = known.plan
    else:
        request = Request(
            name,
            mesh,
            tuple(map(drop_memory, tensors)),
            tuple(map(_drop_memory_of_optional, outputs)),
            snapshot_all(options),
        )
        plan = known.plan if isinstance(known, PlanPath) else _make_plan(request, _decide_checked(request, decide))
        mesh.plans[place] = PlanPath(plan, None)
        launched = _describe_launch(request, decide) if observer.active else None
    result = execute(plan, mesh, tensors, {}, outputs, launched)
    for watcher in observer.watchers:
        watcher.after_collective(name, decide, tensors, options, result)
    return result


def _decide_checked(request: Request, decide: Decide) -> Decision:
    """The decision; as in TT-NN, links are looked for when the program is made, after all that the tensors break."""
    decision = decide(request)
    if request["num_links"] is not None and not request.over_host:
        check_links(request.name, request.mesh, request.tensor.coords(), request["axis"], request["num_links"])
    return decision


def _describe_launch(request: Request, decide: Decide) -> LaunchedProgram:
    """How watchers can compute it another way: ideally."""
    mode, numerics_mode.state.mode = numerics_mode.state.mode, numerics_mode.IDEAL
    try:
        decision = decide(request)
    finally:
        numerics_mode.state.mode = mode
    mesh, compute = request.mesh, make_rank_compute(request, decision)
    presence = presence_of_run((*request.tensors, *request.outputs)) if decision.changed is None else decision.changed
    chips = None if presence is None else (present_chips(mesh, presence), mesh.lane_shape)
    specs = tuple(tensor.spec for tensor in request.tensors)
    return LaunchedProgram(request.name, request.options, specs, lambda lanes: compute(*lanes), chips=chips)


def drop_memory(tensor: Tensor) -> Tensor:
    """A tensor of the same kind without memory: a stored plan must not keep the tensors of its first call alive."""
    return Tensor(tensor.kind, None, tensor.device(), None)


def _drop_memory_of_optional(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else drop_memory(tensor)


def mesh_of(name: str, tensors: Sequence[Tensor]) -> MeshDevice:
    """The open mesh that holds all the tensors."""
    mesh = tensors[0].device()
    short = name.rpartition(".")[2]
    if mesh is None:
        raise MeshError(
            ON_HOST.get(short) or _no_device_text(short),
            expected="a tensor on a device",
            fix="Move it with to_device() first.",
        )
    find_cell(name, tensors[0])
    for tensor in tensors[1:]:
        other = tensor.device()
        _require_on_device(tensor)
        if other is not mesh and other is not None:
            check_same_mesh(mesh, other)
    mesh.check_open()
    return mesh


def _require_on_device(tensor: Tensor) -> None:
    if tensor.device() is None:
        raise MeshError(
            "Device Operations expect device tensors as inputs",
            expected="tensors on a device",
            fix="Move it with to_device() first.",
        )


def print_spec(spec: TensorSpec) -> str:
    """A spec as TT-NN prints it in texts."""
    layout = f"dtype=DataType::{spec.dtype.name},page_config=PageConfig({spec.layout.name}),{spec.memory_config!r}"
    return f"TensorSpec(logical_shape={spec.shape!r},tensor_layout=TensorLayout({layout}))"


def _no_device_text(name: str) -> str:
    return WITHOUT_DEVICE.get(name, f"Mesh device is required for {name} operation")


def require_fabric(name: str) -> None:
    """Raise if no fabric, which gives links between chips, was ever configured."""
    if get_fabric_config() is FabricConfig.DISABLED and not fabric_process.launched:
        raise MeshError(
            f"{name}: Trying to get un-initialized fabric context",
            expected="a fabric: set_fabric_config(FabricConfig.FABRIC_1D) before the mesh is opened",
            fix='Configure a fabric, or pass mode="host".',
        )


def require_routers(request: Request) -> None:
    """Raise if a program that sends through the fabric's routers finds none: they went with the last mesh."""
    if get_fabric_config() is FabricConfig.DISABLED and not request.over_host:
        raise MeshError(
            "Unsupported fabric config: the fabric is DISABLED since the last mesh was closed",
            expected="a fabric: set_fabric_config(FabricConfig.FABRIC_1D) before the mesh is opened",
            fix="Configure the fabric again before every open_mesh_device.",
        )


def check_common(
    mesh: MeshDevice, mode: str | None, num_links: int | None, subdevice_id: SubDeviceId | None = None
) -> str:
    """Check the options that all collectives share; returns the mode."""
    checked: str = common_options("", mesh, mode, num_links, subdevice_id)["mode"]
    return checked


def common_options(
    name: str, mesh: MeshDevice, mode: str | None, num_links: int | None, subdevice_id: SubDeviceId | None = None
) -> dict[str, Any]:
    """The options that all collectives share, checked, for a request."""
    check_link_number(name, num_links)
    if subdevice_id is not None:
        mesh.sub_devices.check([subdevice_id])
    if mode not in (None, *MODES):
        raise MeshError(f"no mode named {mode!r}", expected=one_of(MODES), fix="Change mode.")
    return {"mode": mode or "fabric", "num_links": num_links, "subdevice_id": subdevice_id}


collective_names: list[str] = []  # names of all functions defined with `collective`
OWN_OPTIONS = frozenset({"mode", "algorithm", "reduction"})


def collective(
    name: str,
    *,
    golden: Golden | None = None,
    direct: bool = False,
    no_effect: Mapping[str, Tag] = MappingProxyType({}),
) -> Callable[[Callable[..., Any]], OpFunction]:
    """Define a function as the collective of this name; it gets the arguments it names.

    `direct`: it only calls `run` once on its first argument, so that repeated calls can skip it. `no_effect`: parameters
    that it accepts and does not use, with the reasons, besides those in `collective_parameters.TAGS`.
    """

    def decorate(function: Callable[..., Any]) -> OpFunction:
        defined = composite(name, golden=golden, direct=direct, own_options=OWN_OPTIONS)(function)
        collective_names.append(name)
        FREED[name] = _no_device_text(name.rpartition(".")[2])
        found = {parameter: tag for parameter, tag in {**TAGS, **no_effect}.items() if parameter not in defined.takes}
        PER_OPERATION[name] = {**found, **PER_OPERATION.get(name, {})}
        return defined

    return decorate


def program_key(request: Request) -> tuple[Hashable, ...]:
    """What tells two programs of a collective apart: a tensor's topology does not."""
    tensors = [None if t is None else (t.spec, t.kind.presence) for t in (*request.tensors, *request.outputs)]
    return (request.name, *tensors, *map(key_of, request.options.values()))


def _make_plan(request: Request, decision: Decision) -> Plan:
    mesh, specs = request.mesh, decision.specs
    presence = presence_of_run((*request.tensors, *request.outputs)) if decision.changed is None else None
    kinds = tuple(kind_of(spec, decision.topology, presence) for spec in specs)
    footprints = tuple(footprint_of(spec, mesh.heap.map) for spec in specs)
    body = _make_body(request, decision)
    programs: tuple[Hashable, ...] = tuple((*program_key(request), i) for i in range(decision.programs))
    schedule = None
    if decision.stages is not None:
        composition, results = decision.stages
        programs, schedule = tuple(composition.programs), composition.schedule(results, mesh.heap.map)
    plan: type[Plan] = Plan
    make_body: Callable[[], Body] = lambda: body  # noqa: E731
    chips = decision.changed or presence
    if chips is not None:
        plan, make_body = PartialPlan, bodies_on(make_body, mesh, chips, kinds, request.outputs)
    config = key_of(request["compute_kernel_config"])
    wrap = only if decision.single else list
    inputs = [tensor.spec for tensor in request.tensors]
    program = ProgramCall(inputs, specs, mesh.core_grid, mesh.arch(), request.options, find_free_l1(mesh))
    size = compute_dispatch_bytes(request.name, program, programs, COLLECTIVE)
    buffers = compute_buffer_bytes(request.name, program, programs, None, composed=decision.stages is not None)
    return plan(
        request.name, kinds, footprints, wrap, make_body, programs=programs, schedule=schedule, dispatch_bytes=size,
        exchanged_bytes=sum(spec.packed_size_bytes for spec in inputs), compute_config=config,
        circular_buffer_bytes=buffers,
    )  # fmt: skip


def _make_body(request: Request, decision: Decision) -> Body:
    """A function that reads lanes, computes, rounds, writes and counts link traffic; rank errors name the collective."""
    name = request.name
    in_specs = [tensor.spec for tensor in request.tensors]
    finishing = [(rounder(spec.dtype), spec) for spec in decision.specs]
    compute, counters = make_rank_compute(request, decision), request.mesh.traffic.counters
    tally = counters.tally(decision.loads) if decision.loads else None
    if request.mesh.backend.device.type == "meta":
        count = None if tally is None else functools.partial(counters.count, tally)
        return make_empty_body(decision.specs, request.mesh.shape.dims(), count)
    if len(in_specs) == len(finishing) == 1 and tally is not None:
        in_spec, (round_one, out_spec) = in_specs[0], finishing[0]

        def run_single(reads: Cells, writes: Cells) -> None:
            try:
                (lanes,) = compute(reads[0].read(in_spec))
            except RankError as error:
                raise error.during(name) from error
            writes[0].write(round_one(lanes), out_spec)
            counters.count(tally)

        return run_single

    def body(reads: Cells, writes: Cells) -> None:
        lanes = [cell.read(spec) for cell, spec in zip(reads, in_specs, strict=True)]
        try:
            results = compute(*lanes)
        except RankError as error:
            raise error.during(name) from error
        for result, (round_, spec), cell in zip(results, finishing, writes, strict=True):
            cell.write(round_(result), spec)
        if tally is not None:
            counters.count(tally)

    return body


def _copy_block(all_lanes: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """Copy this rank's lanes: a view would keep those of all ranks alive."""
    return block if block.shape == all_lanes.shape else block.clone(memory_format=torch.contiguous_format)


def make_rank_compute(request: Request, decision: Decision) -> Callable[..., Sequence[torch.Tensor]]:
    """A function from this rank's lanes to this rank's results; `compute` if no exchange crosses ranks.

    Otherwise the collective's `compute_on_rank`, or: gather the lanes of all ranks along the axes it needs, run the same
    function as in one process, and keep this rank's block. So every collective gives the bits of one process.
    """
    rank_block, exchange_axes = request.mesh.rank_block, decision.exchange_axes
    presences = [tensor.kind.presence for tensor in request.tensors]
    if rank_block is None:
        return hide_absent_lanes(decision.compute, presences)
    local = [None if p is None else rank_block.find_local_positions(p) for p in presences]
    axes = [
        axis
        for axis in range(len(rank_block.grid))
        if rank_block.is_divided(axis) and (exchange_axes is None or axis in exchange_axes)
    ]
    if not axes:
        return hide_absent_lanes(decision.compute, local)
    if decision.compute_on_rank is not None:
        return hide_absent_lanes(decision.compute_on_rank, local)
    gathered = [None if p is None else rank_block.find_local_positions(p, axes) for p in presences]
    compute = hide_absent_lanes(decision.compute, gathered)

    def gather_and_compute(*lanes: torch.Tensor) -> Sequence[torch.Tensor]:
        results = compute(*(rank_block.gather_along(block, axes) for block in lanes))
        return [_copy_block(result, rank_block.narrow_to_block(result, axes)) for result in results]

    return gather_and_compute
