"""One run of a workload: chips that run the same program run it together, on all their lanes at once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch

from ttmesh.base import numerics_mode, settings
from ttmesh.base.cores import CoreCoord
from ttmesh.base.errors import NotEmulatedError, RankError
from ttmesh.base.geometry import MeshCoordinateRange
from ttmesh.chip.cells import Cell
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.programs.execution.compute_api import Compute
from ttmesh.programs.execution.contents import Chips, CoreMemory, Diverged, Frame, NeedsOtherRank
from ttmesh.programs.execution.dataflow_api import DataMovement
from ttmesh.programs.execution.kernel_memory import Memory
from ttmesh.programs.execution.rings import PageRing
from ttmesh.programs.execution.scheduler import Scheduler, Task, add_location
from ttmesh.programs.l1_layout import SEMAPHORE_BYTES, ProgramLayout
from ttmesh.programs.program import ComputeConfig, Kernel

FINE, CROSSED, FAILED = range(3)  # the result of a rank's run of its own chips
POISON = 0xFF  # a bfloat16 or float32 of these bytes is NaN


@dataclass(frozen=True)
class Launch:
    """A program on some chips of the mesh, with its arguments at the time it was enqueued."""

    box: MeshCoordinateRange
    placement: ProgramLayout
    args: dict[tuple[int, CoreCoord], tuple[int, ...]]
    common: dict[int, tuple[int, ...]]
    numerics: str  # whose arithmetic was in force then


def run(mesh: MeshDevice, launches: Sequence[Launch], cells: Sequence[Cell]) -> None:
    """Run every kernel to its end, then write the cells; on an error nothing has changed.

    First, chips run together, and chips with equal values share a lane. When a kernel uses something in which they
    differ, that attempt is dropped and the next one separates more of them; in the last every chip runs alone.
    """
    if mesh.backend.device.type == "meta":
        raise NotEmulatedError(
            "kernels cannot run on lanes without values",
            expected="a backend with values: the meta backend has shapes only",
            fix="Set TTMESH_BACKEND to cpu.",
        )
    threads = torch.get_num_threads()
    mesh.backend.use_threads(0)  # copies of a few pages each: a second thread costs more than it saves
    try:
        if mesh.rank_block is None:
            _run_to_end(mesh, launches, cells, Frame.of(mesh)).commit()
        else:
            _run_divided(mesh, mesh.rank_block, launches, cells)
    finally:
        torch.set_num_threads(threads)


def _run_divided(mesh: MeshDevice, block: RankBlock, launches: Sequence[Launch], cells: Sequence[Cell]) -> None:
    """Each rank runs its own chips; if any kernel used a link between ranks, every rank runs all chips on gathered lanes.

    Then each keeps its block. A kernel that waits for another rank's chip cannot run alone: its error counts only when
    no rank used a link.
    """
    alone = [replace(one, box=box) for one in launches if (box := _narrow_to_rank(one.box, mesh)) is not None]
    memory, problem = None, None
    try:
        memory = _run_to_end(mesh, alone, cells, Frame.of(mesh))
        outcome = CROSSED if memory.used_links else FINE
    except NeedsOtherRank:
        outcome = CROSSED
    except Exception as error:  # raised again once the others know
        outcome, problem = FAILED, error
    axes = len(block.grid)
    results = block.gather_along(torch.full((1,) * (axes + 1), outcome, dtype=torch.int64, device="cpu"))
    if bool((results == CROSSED).any()):
        _run_to_end(mesh, launches, cells, Frame.of(mesh, whole=True)).commit()
    elif problem is not None:
        raise problem
    elif bool((results == FAILED).any()):
        failed = {block.find_rank(at) for at in product(*map(range, block.full_shape)) if results[at] == FAILED}
        raise RankError(
            f"kernels failed on rank(s) {sorted(failed)}",
            expected="every rank to run its chips without an error",
            fix="Read the error in the output of these ranks.",
            ranks=tuple(sorted(failed)),
        )
    else:
        assert memory is not None, "every rank succeeded"
        memory.commit()


def _narrow_to_rank(box: MeshCoordinateRange, mesh: MeshDevice) -> MeshCoordinateRange | None:
    return None if mesh.local_range is None else box.intersection(mesh.local_range)


def _run_to_end(mesh: MeshDevice, launches: Sequence[Launch], cells: Sequence[Cell], frame: Frame) -> Memory:
    # Where all ranks must take the same path, it may not depend on this rank's values.
    first = (_plan_shared_lanes,) if frame.gathers is None else ()
    for attempt in (*first, _plan_lane_per_chip, _plan_single_chips):
        try:
            return _run_plan(mesh, cells, attempt(frame, launches, cells), frame)
        except Diverged:
            continue
    raise AssertionError("chips that run alone cannot differ from themselves")


Plan = list[tuple[Launch, MeshCoordinateRange, tuple[int, ...]]]


def _plan_shared_lanes(frame: Frame, launches: Sequence[Launch], cells: Sequence[Cell]) -> Plan:
    """Each launch runs as one; an axis along which no cell differs has one lane."""
    differs = [any(_get_lane_extents(cell)[axis] > 1 for cell in cells) for axis in range(len(frame.shape))]
    return [
        (
            launch,
            launch.box,
            tuple(
                extent if extent != whole or differ else 1
                for extent, whole, differ in zip(launch.box.shape, frame.shape, differs, strict=True)
            ),
        )
        for launch in launches
    ]


def _plan_lane_per_chip(frame: Frame, launches: Sequence[Launch], cells: Sequence[Cell]) -> Plan:
    """Each launch runs as one, with a lane per chip."""
    return [(launch, launch.box, launch.box.shape.to_tuple()) for launch in launches]


def _plan_single_chips(frame: Frame, launches: Sequence[Launch], cells: Sequence[Cell]) -> Plan:
    """Every chip runs separately."""
    alone = (1,) * len(frame.shape)
    return [(launch, MeshCoordinateRange(coord), alone) for launch in launches for coord in launch.box]


def _get_lane_extents(cell: Cell) -> tuple[int, ...]:
    held = cell.values if cell.values is not None else cell.raw
    return tuple(held.shape[: cell.lane_axes]) if held is not None else (1,) * cell.lane_axes


def _run_plan(mesh: MeshDevice, cells: Sequence[Cell], plan: Plan, frame: Frame) -> Memory:
    scheduler = Scheduler()
    memory = Memory(mesh, cells, scheduler, frame)
    running = [Chips(box, frame, lanes) for _, box, lanes in plan]
    for chips, (launch, _, _) in zip(running, plan, strict=True):
        _build_cores(chips, launch.placement, memory)
    for chips, (launch, _, _) in zip(running, plan, strict=True):
        for core in launch.placement.cores:
            l1 = chips.cores[core.y * memory.columns + core.x]
            for handle, kernel in launch.placement.kernels.get(core, ()):
                args, common = launch.args.get((handle, core), ()), launch.common.get(handle, ())
                fpu = Compute if isinstance(kernel.config, ComputeConfig) else DataMovement
                processor = fpu(kernel, args, common, launch.placement, memory, chips, l1, running)
                if isinstance(processor, Compute) and launch.numerics != numerics_mode.IDEAL:
                    processor.follow_chip(mesh.arch())
                scheduler.add(_make_task(kernel, processor))
    scheduler.run()
    for chips in running:
        for l1 in chips.cores.values():
            for ring in l1.rings.values():
                ring.finish()
    for chips, (launch, _, _) in zip(running, plan, strict=True):
        for core in launch.placement.cores:
            memory.put_back(launch.placement.list_backed(core), core, chips)
    return memory


def _build_cores(chips: Chips, placement: ProgramLayout, memory: Memory) -> None:
    fill = 0 if settings.get_str("TTMESH_UNWRITTEN") == "zeros" else POISON
    for core in placement.cores:
        backed = placement.list_backed(core)
        ends = [placement.l1_ends.get(core, placement.l1_start), *(b.address + b.size_bytes for b in backed)]
        size = max(ends) - placement.l1_start
        data = torch.full((*chips.lanes, size), fill, dtype=torch.uint8, device=memory.mesh.backend.device)
        bank = core.y * memory.columns + core.x
        memory.take(backed, core, chips, data, placement.l1_start)
        l1 = chips.cores[bank] = CoreMemory(core, bank, placement.l1_start, data)
        for buffer in placement.buffers.get(core, ()):
            l1.rings[buffer.index] = PageRing(buffer, memory.scheduler.wake)
    for spec in placement.program.semaphores:
        for core in spec.cores.cores():
            held = chips.cores.get(core.y * memory.columns + core.x)
            if held is not None:
                held.semaphores[placement.semaphore_base + spec.id * SEMAPHORE_BYTES] = spec.initial_value


def _make_task(kernel: Kernel, processor: Compute | DataMovement) -> Task:
    if inspect.iscoroutinefunction(kernel.function):
        return Task(processor.actor.name, kernel.function(processor), processor.finish)
    return Task(processor.actor.name, None, functools.partial(_run_plain, kernel, processor))


def _run_plain(kernel: Kernel, processor: Compute | DataMovement) -> None:
    """Run a kernel that is not a coroutine."""
    try:
        kernel.function(processor)
    except Exception as failure:  # whatever the user's kernel raises gets its place and is raised again
        add_location(failure, processor.actor.name)
        raise
    processor.finish()
