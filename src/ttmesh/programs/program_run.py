"""One run of a workload: chips that run the same program run it together, on all their lanes at once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch

from ttmesh.base import settings
from ttmesh.base.cores import CoreCoord
from ttmesh.base.errors import NotEmulatedError, RankError
from ttmesh.base.geometry import MeshCoordinateRange
from ttmesh.chip.cells import Cell
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.programs.compute_api import Compute
from ttmesh.programs.contents import Chips, CoreMemory, Crosses, Diverged, Frame
from ttmesh.programs.dataflow_api import DataMovement
from ttmesh.programs.kernel_memory import Memory
from ttmesh.programs.l1_layout import SEMAPHORE_BYTES, Placement
from ttmesh.programs.program import ComputeConfig, Kernel
from ttmesh.programs.rings import PageRing
from ttmesh.programs.scheduler import Scheduler, Task, name_place

FINE, CROSSED, FAILED = range(3)  # what a rank says of its own chips' run
POISON = 0xFF  # a bfloat16 or float32 of these bytes is NaN


@dataclass(frozen=True)
class Launch:
    """A program on a part of the mesh, with the arguments of the moment it was enqueued."""

    box: MeshCoordinateRange
    placement: Placement
    args: dict[tuple[int, CoreCoord], tuple[int, ...]]
    common: dict[int, tuple[int, ...]]


def run(mesh: MeshDevice, launches: Sequence[Launch], cells: Sequence[Cell]) -> None:
    """Run every kernel to its end, then let the cells change; on an error nothing has changed.

    First chips are taken together, those that hold the same as one. When a kernel asks for something in which they
    differ, that attempt is dropped and the next one tells more of them apart; in the last every chip runs alone.
    """
    if mesh.backend.device.type == "meta":
        raise NotEmulatedError(
            "kernels cannot run on lanes without values",
            expected="another backend",
            fix="Set TTMESH_BACKEND to cpu.",
        )
    threads = torch.get_num_threads()
    mesh.backend.use_threads(0)  # copies of a few pages each: a second thread costs more than it brings
    try:
        if mesh.rank_block is None:
            _finished(mesh, launches, cells, Frame.of(mesh)).commit()
        else:
            _run_divided(mesh, mesh.rank_block, launches, cells)
    finally:
        torch.set_num_threads(threads)


def _run_divided(mesh: MeshDevice, part: RankBlock, launches: Sequence[Launch], cells: Sequence[Cell]) -> None:
    """Each rank runs its own chips; if any kernel reached for a link, every rank runs all of them on everybody's lanes.

    Then each keeps its block. A kernel that waits for another rank's chip cannot move alone: its error counts only when
    no rank used a link.
    """
    alone = [replace(one, box=box) for one in launches if (box := _here(one.box, mesh)) is not None]
    memory, problem = None, None
    try:
        memory = _finished(mesh, alone, cells, Frame.of(mesh))
        said = CROSSED if memory.used_links else FINE
    except Crosses:
        said = CROSSED
    except Exception as error:  # raised again once the others know
        said, problem = FAILED, error
    axes = len(part.grid)
    votes = part.gather_along(torch.full((1,) * (axes + 1), said, dtype=torch.int64))
    if bool((votes == CROSSED).any()):
        _finished(mesh, launches, cells, Frame.of(mesh, whole=True)).commit()
    elif problem is not None:
        raise problem
    elif bool((votes == FAILED).any()):
        failed = {part.find_rank(at) for at in product(*map(range, part.full_shape)) if votes[at] == FAILED}
        raise RankError(
            f"kernels failed on rank(s) {sorted(failed)}",
            expected="every rank to run its chips",
            fix="Look at the output of these ranks.",
            ranks=tuple(sorted(failed)),
        )
    else:
        assert memory is not None, "all went well"
        memory.commit()


def _here(box: MeshCoordinateRange, mesh: MeshDevice) -> MeshCoordinateRange | None:
    return None if mesh.local_range is None else box.intersection(mesh.local_range)


def _finished(mesh: MeshDevice, launches: Sequence[Launch], cells: Sequence[Cell], frame: Frame) -> Memory:
    # What cells hold on this rank decides nothing where all ranks must take the same way.
    first = (_as_few_as_possible,) if frame.gathers is None else ()
    for attempt in (*first, _together, _apart):
        try:
            return _attempt(mesh, cells, attempt(frame, launches, cells), frame)
        except Diverged:
            continue
    raise AssertionError("chips that run alone cannot differ from themselves")


Plan = list[tuple[Launch, MeshCoordinateRange, tuple[int, ...]]]


def _as_few_as_possible(frame: Frame, launches: Sequence[Launch], cells: Sequence[Cell]) -> Plan:
    """Each launch as one; an axis on which no cell differs has one lane."""
    differs = [any(_lanes(cell)[axis] > 1 for cell in cells) for axis in range(len(frame.shape))]
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


def _together(frame: Frame, launches: Sequence[Launch], cells: Sequence[Cell]) -> Plan:
    """Each launch as one, a lane per chip."""
    return [(launch, launch.box, launch.box.shape.to_tuple()) for launch in launches]


def _apart(frame: Frame, launches: Sequence[Launch], cells: Sequence[Cell]) -> Plan:
    """Every chip by itself."""
    alone = (1,) * len(frame.shape)
    return [(launch, MeshCoordinateRange(coord), alone) for launch in launches for coord in launch.box]


def _lanes(cell: Cell) -> tuple[int, ...]:
    held = cell.values if cell.values is not None else cell.raw
    return tuple(held.shape[: cell.lane_axes]) if held is not None else (1,) * cell.lane_axes


def _attempt(mesh: MeshDevice, cells: Sequence[Cell], plan: Plan, frame: Frame) -> Memory:
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
                engine = Compute if isinstance(kernel.config, ComputeConfig) else DataMovement
                processor = engine(kernel, args, common, launch.placement, memory, chips, l1, running)
                scheduler.add(_task(kernel, processor))
    scheduler.run()
    for chips in running:
        for l1 in chips.cores.values():
            for ring in l1.rings.values():
                ring.finish()
    for chips, (launch, _, _) in zip(running, plan, strict=True):
        for core in launch.placement.cores:
            memory.put_back(launch.placement.backed(core), core, chips)
    return memory


def _build_cores(chips: Chips, placement: Placement, memory: Memory) -> None:
    fill = 0 if settings.get_str("TTMESH_UNWRITTEN") == "zeros" else POISON
    for core in placement.cores:
        backed = placement.backed(core)
        ends = [placement.l1_ends.get(core, placement.l1_start), *(b.address + b.size_bytes for b in backed)]
        size = max(ends) - placement.l1_start
        data = torch.full((*chips.lanes, size), fill, dtype=torch.uint8, device=memory.mesh.backend.device)
        bank = core.y * memory.columns + core.x
        memory.take(backed, core, chips, data, placement.l1_start)
        l1 = chips.cores[bank] = CoreMemory(core, bank, placement.l1_start, data)
        for placed in placement.buffers.get(core, ()):
            l1.rings[placed.index] = PageRing(placed, memory.scheduler.wake)
    for spec in placement.program.semaphores:
        for core in spec.cores.cores():
            held = chips.cores.get(core.y * memory.columns + core.x)
            if held is not None:
                held.semaphores[placement.semaphore_base + spec.id * SEMAPHORE_BYTES] = spec.initial_value


def _task(kernel: Kernel, processor: Compute | DataMovement) -> Task:
    if inspect.iscoroutinefunction(kernel.function):
        return Task(processor.actor.name, kernel.function(processor), processor.finish)
    return Task(processor.actor.name, None, functools.partial(_run_plain, kernel, processor))


def _run_plain(kernel: Kernel, processor: Compute | DataMovement) -> None:
    """A kernel that waits for nothing."""
    try:
        kernel.function(processor)
    except Exception as failure:
        name_place(failure, processor.actor.name)
        raise
    processor.finish()
