"""How a collective becomes a command: request → decision → plan, made once per key, then allocate and enqueue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from ttmesh.base import numerics_mode
from ttmesh.base.errors import MeshError, RankError, ShapeError, one_of
from ttmesh.ccl.planning.collective_parameters import TAGS
from ttmesh.ccl.planning.plan_traffic import Loads
from ttmesh.fabric.fabric_config import FabricConfig
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.mesh.device.mesh_device import MeshDevice, check_same_mesh
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.mesh.queue.command_queue import Body, Cells
from ttmesh.ops.catalogue.definition import Golden, OpFunction, composite
from ttmesh.ops.catalogue.parameter_tags import PER_OPERATION, Tag
from ttmesh.ops.catalogue.spec_rules import inherit_memory_config
from ttmesh.tensor.calls.argument_snapshots import snapshot_all
from ttmesh.tensor.calls.call_keys import key_of
from ttmesh.tensor.calls.call_routes import PlanRoute
from ttmesh.tensor.calls.lane_calls import only, rounder
from ttmesh.tensor.calls.partial_plans import PartialPlan, bodies_on, presence_of_run
from ttmesh.tensor.calls.plan import Plan, execute
from ttmesh.tensor.distribution.allocate import footprint_of
from ttmesh.tensor.observer import observer
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor

MODES = ("fabric", "host")
Presence = frozenset[tuple[int, ...]]


@dataclass(frozen=True)
class Request:
    """A collective as its rules see it."""

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
        """The caller's output tensor decides, else memory_config and dtype of the options, else the source tensor."""
        given = self.outputs[result] if result < len(self.outputs) else None
        if given is not None:
            if tuple(given.shape) != tuple(shape):
                raise ShapeError(
                    f"Output tensor shape must be {list(shape)}, got {list(given.shape)}",
                    expected=f"an output tensor for {self.name}",
                    fix="Allocate it with that shape.",
                )
            return given.spec
        spec = self.tensors[source].spec
        config: MemoryConfig = self["memory_config"] or inherit_memory_config(spec, shape)
        made = spec.with_memory_config(MemoryConfig(buffer_type=config.buffer_type)).with_shape(shape)
        if self["dtype"] is not None:
            made = TensorSpec(shape, self["dtype"], made.layout, memory_config=made.memory_config)
        return made.with_memory_config(config)


@dataclass(frozen=True)
class Decision:
    """What a collective does. `compute` turns the lanes of the inputs into those of the results.

    `changed`: the coordinates that change; the others keep what the output held.
    `across`: the mesh axes along which chips exchange something (None: all), which `compute` needs whole; along others
    it takes any extent. `over_ranks`: the same with the lanes of one rank, where that is cheaper than all of them.
    """

    specs: tuple[TensorSpec, ...]
    compute: Callable[..., Sequence[torch.Tensor]]
    loads: Loads
    topology: TensorTopology
    programs: int = 1
    single: bool = True
    changed: Presence | None = None
    presence: Presence | None = None
    across: tuple[int, ...] | None = None
    over_ranks: Callable[..., Sequence[torch.Tensor]] | None = None


Decide = Callable[[Request], Decision]


def run(
    name: str, decide: Decide, tensors: Sequence[Tensor], options: dict[str, Any], outputs: Sequence[Tensor | None] = ()
) -> Any:
    """Carry a collective out on the queue in force."""
    mesh = mesh_of(name, tensors)
    if options.get("mode", "fabric") == "fabric" and mesh.get_num_devices() > 1:  # one chip sends nothing
        require_fabric(name)
    key = (name, *[t.kind for t in tensors], *map(key_of, outputs), *map(key_of, options.values()))
    place = (numerics_mode.state.mode, *key)  # programs are counted without the mode: the chip has none
    known = mesh.plans.get(place)
    if isinstance(known, PlanRoute):
        plan = known.plan
    else:
        request = Request(
            name,
            mesh,
            tuple(map(_shadow, tensors)),
            tuple(map(_shadow_or_none, outputs)),
            snapshot_all(options),
        )
        plan = _make_plan(request, decide(request), key)
        mesh.plans[place] = PlanRoute(plan, None)
    result = execute(plan, mesh, tensors, {}, outputs)
    for watcher in observer.watchers:
        watcher.after_collective(name, decide, tensors, options, result)
    return result


def _shadow(tensor: Tensor) -> Tensor:
    """The same kind without the memory: a plan is kept, and must not keep the tensors of its first call alive."""
    return Tensor(tensor.kind, None, tensor.device(), None)


def _shadow_or_none(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else _shadow(tensor)


def mesh_of(name: str, tensors: Sequence[Tensor]) -> MeshDevice:
    """The open mesh that holds all the tensors."""
    mesh = tensors[0].device()
    if mesh is None:
        raise MeshError(
            f"Mesh device is required for {name.rpartition('.')[2]} operation",
            expected="a tensor on a device",
            fix="Move it with to_device() first.",
        )
    for tensor in tensors[1:]:
        other = tensor.device()
        if other is not mesh and other is not None:
            check_same_mesh(mesh, other)
    mesh.check_open()
    return mesh


def require_fabric(name: str) -> None:
    """Refuse what needs links between chips while the fabric is disabled."""
    if get_fabric_config() is FabricConfig.DISABLED:
        raise MeshError(
            f"{name}: Trying to get un-initialized fabric context",
            expected="a fabric: set_fabric_config(FabricConfig.FABRIC_1D) before the mesh is opened",
            fix='Configure one, or pass mode="host".',
        )


def check_common(
    mesh: MeshDevice, mode: str | None, num_links: int | None, subdevice_id: SubDeviceId | None = None
) -> str:
    """The mode, after the checks that all collectives share."""
    if num_links is not None and num_links <= 0:
        raise MeshError(
            f"Error, num_links should be more than 0 but has {num_links}", expected="1 or more", fix="Change num_links."
        )
    if subdevice_id is not None:
        mesh.sub_devices.check([subdevice_id])
    if mode not in (None, *MODES):
        raise MeshError(f"no mode named {mode!r}", expected=one_of(MODES), fix="Choose one of them.")
    return mode or "fabric"


collective_names: list[str] = []  # of everything that `collective` entered
OWN_OPTIONS = frozenset({"mode", "algorithm", "reduction"})


def collective(
    name: str,
    *,
    golden: Golden | None = None,
    direct: bool = False,
    no_effect: Mapping[str, Tag] = MappingProxyType({}),
) -> Callable[[Callable[..., Any]], OpFunction]:
    """Enter a function as the collective of this name; it gets the arguments it names.

    `direct`: all it does is one `run` on its first argument, so that a second call can skip it. `no_effect`: what it
    takes and does not use, with the reasons, beside what `parameters.TAGS` says of all collectives.
    """

    def enter(function: Callable[..., Any]) -> OpFunction:
        entered = composite(name, golden=golden, direct=direct, own_options=OWN_OPTIONS)(function)
        collective_names.append(name)
        tags = {**TAGS, **no_effect}
        found = {p: tags[p] for p in entered.parameters() if p in tags and p not in entered.takes}
        PER_OPERATION[name] = {**found, **PER_OPERATION.get(name, {})}
        return entered

    return enter


def _make_plan(request: Request, decision: Decision, key: tuple[Any, ...]) -> Plan:
    mesh, specs = request.mesh, decision.specs
    kinds = tuple(kind_of(spec, decision.topology, decision.presence) for spec in specs)
    footprints = tuple(footprint_of(spec, mesh.heap.map) for spec in specs)
    body = _body(request, decision)
    programs = tuple((*key, i) for i in range(decision.programs))
    plan: type[Plan] = Plan
    make_body: Callable[[], Body] = lambda: body  # noqa: E731
    chips = presence_of_run((*request.tensors, *request.outputs)) if decision.changed is None else decision.changed
    if chips is not None:
        plan, make_body = PartialPlan, bodies_on(make_body, mesh, chips, kinds, request.outputs)
    config = key_of(request["compute_kernel_config"])
    wrap = only if decision.single else list
    return plan(request.name, kinds, footprints, wrap, make_body, programs=programs, compute_config=config)


def _body(request: Request, decision: Decision) -> Body:
    """Read lanes, compute, round, write, and count what went over links; errors of ranks say which collective it was."""
    name = request.name
    in_specs = [tensor.spec for tensor in request.tensors]
    finishing = [(rounder(spec.dtype), spec) for spec in decision.specs]
    compute, counters = over_ranks(request, decision), request.mesh.traffic.counters
    tally = counters.tally(decision.loads) if decision.loads else None
    if len(in_specs) == len(finishing) == 1 and tally is not None:
        in_spec, (round_one, out_spec) = in_specs[0], finishing[0]

        def short(reads: Cells, writes: Cells) -> None:
            try:
                (part,) = compute(reads[0].read(in_spec))
            except RankError as error:
                raise error.during(name) from error
            writes[0].write(round_one(part), out_spec)
            counters.count(tally)

        return short

    def body(reads: Cells, writes: Cells) -> None:
        lanes = [cell.read(spec) for cell, spec in zip(reads, in_specs, strict=True)]
        try:
            results = compute(*lanes)
        except RankError as error:
            raise error.during(name) from error
        for part, (round_, spec), cell in zip(results, finishing, writes, strict=True):
            cell.write(round_(part), spec)
        if tally is not None:
            counters.count(tally)

    return body


def _own_copy(whole: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """This rank's lanes in memory of their own: a view would keep those of all ranks alive."""
    return own if own.shape == whole.shape else own.clone(memory_format=torch.contiguous_format)


def over_ranks(request: Request, decision: Decision) -> Callable[..., Sequence[torch.Tensor]]:
    """What turns this rank's lanes into this rank's results: the collective itself where no rank is crossed.

    Where one is: what the collective says itself, or else the lanes of all ranks along the axes it needs, the same
    function as in one process, and of its results this rank's block. So every collective gives the bits of one process.
    """
    part, compute, across = request.mesh.rank_block, decision.compute, decision.across
    if part is None:
        return compute
    axes = [axis for axis in range(len(part.grid)) if part.is_divided(axis) and (across is None or axis in across)]
    if not axes:
        return compute

    def everything(*lanes: torch.Tensor) -> Sequence[torch.Tensor]:
        results = compute(*(part.gather_along(own, axes) for own in lanes))
        return [_own_copy(whole, part.narrow_to_block(whole, axes)) for whole in results]

    return decision.over_ranks or everything
