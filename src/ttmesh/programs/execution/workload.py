"""MeshWorkload: programs on boxes of a mesh, launched together."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError, ShapeError, TraceError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange, MeshShape
from ttmesh.chip.cells import Cell
from ttmesh.mesh.allocation.program_memory import Residents
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.queue_functions import command_queue
from ttmesh.mesh.queue.command_queue import Cells, Command
from ttmesh.mesh.queue.trace import make_capture_error
from ttmesh.programs.execution.program_run import Launch, run
from ttmesh.programs.l1_layout import ProgramLayout, check_clash, lay_out_program
from ttmesh.programs.program import Program


class MeshWorkload:
    """Programs by the box of coordinates they run on. The first launch finalises it and binds it to its mesh."""

    def __init__(self) -> None:
        self._programs: dict[MeshCoordinateRange, Program] = {}
        self._placements: dict[MeshCoordinateRange, ProgramLayout] = {}
        self._mesh_id: int | None = None
        self._mesh_shape: MeshShape | None = None
        self.holds: list[object] = []  # kept alive with it: views of the buffers that its programs read
        self._numbers: list[int] = []  # of the records for trackers, see Residents

    def add_program(self, device_range: MeshCoordinateRange | MeshCoordinate, program: Program) -> None:
        """Run a program on these chips; ranges may not overlap."""
        box = MeshCoordinateRange(device_range) if isinstance(device_range, MeshCoordinate) else device_range
        if self.is_finalized():
            raise MeshError(
                "Cannot add programs to a MeshWorkload after it has been finalized.",
                expected="a workload that was not launched yet",
                fix="Build a new MeshWorkload.",
            )
        for known in self._programs:
            if known.start_coord.dims() == box.start_coord.dims() and known.intersects(box):
                raise MeshError(
                    f"Program range {box!r} overlaps with the previously added range {known!r}",
                    expected="disjoint ranges",
                    fix="Give every chip one program.",
                )
        if program.in_workload:
            raise MeshError(
                f"program {program.id} is already part of a MeshWorkload",
                expected="a separate program for every range",
                fix="Add it once with a larger range, or build it again.",
            )
        program.in_workload = True
        self._programs[box] = program

    def get_programs(self) -> dict[MeshCoordinateRange, Program]:
        """The programs by range."""
        return dict(self._programs)

    def is_finalized(self) -> bool:
        """Whether it was laid out for a mesh."""
        return self._mesh_id is not None

    def is_known(self, mesh: MeshDevice) -> bool:
        """Whether a mesh has the programs in its cache."""
        return all(lay_out_program(program, mesh).key() in mesh.program_cache for program in self._programs.values())

    def finalize(self, mesh: MeshDevice) -> None:
        """Compile the programs for a mesh and lay them out in L1; done once, by the first launch unless before."""
        if self.is_finalized():
            raise MeshError(
                "MeshWorkload has already been finalized",
                expected="one finalize per workload",
                fix="Launch it with enqueue_mesh_workload.",
            )
        whole = MeshCoordinateRange(mesh.shape)
        for box in self._programs:
            if box.start_coord.dims() != mesh.shape.dims() or not whole.contains(box):
                raise ShapeError(
                    f"program range {box!r} lies outside {mesh!r}",
                    expected=f"a range inside {whole!r}",
                    fix="Choose a smaller range.",
                )
        placements = {box: lay_out_program(program, mesh) for box, program in self._programs.items()}
        mesh.program_cache.compile("MeshWorkload", [placement.key() for placement in placements.values()])
        for program in self._programs.values():
            program.compiled = True
        self._placements, self._mesh_id, self._mesh_shape = placements, mesh.id(), mesh.shape
        weakref.finalize(self, _release_all, mesh.residents, self._numbers).atexit = False

    def launches(self, mesh: MeshDevice) -> list[Launch]:
        """The programs with their arguments as they are now, checked against the L1 buffers of now."""
        if not self.is_finalized():
            self.finalize(mesh)
        if self._mesh_id != mesh.id():
            raise MeshError(
                "Reusing MeshWorkloads across MeshDevices is currently not supported.",
                expected=f"mesh {self._mesh_id}, where it was launched first",
                fix="Build a workload per mesh.",
            )
        if self._mesh_shape != mesh.shape:
            raise MeshError(
                f"the mesh was reshaped from {self._mesh_shape!r} to {mesh.shape!r}",
                expected="the shape that the workload was finalised for",
                fix="Build the workload again.",
            )
        for placement in self._placements.values():
            check_clash(placement, mesh)
        self._report_memory(mesh)
        mode = numerics_mode.current()
        return [
            Launch(box, placement, *placement.program.arguments(), mode) for box, placement in self._placements.items()
        ]

    def _report_memory(self, mesh: MeshDevice) -> None:
        """Report the programs' memory to trackers, until others are launched on these chips or this workload is freed."""
        numbers = self._numbers
        everyone = [mesh.chip_at(coord) for box in self._placements for coord in box if mesh.is_local(coord)]
        mesh.residents.evict(everyone, numbers)
        if numbers and all(mesh.residents.has_program(number) for number in numbers):
            return
        _release_all(mesh.residents, numbers)
        for box, placement in self._placements.items():
            chips = [mesh.chip_at(coord) for coord in box if mesh.is_local(coord)]
            label = f"program {placement.program.id}"
            if placement.l1_ends and chips:
                size, cores = placement.l1_end - placement.l1_start, len(placement.l1_ends)
                numbers.append(mesh.residents.hold("CB", chips, placement.l1_start, size, cores, size, label))
            code = sum(kernel.code_bytes for kernel in placement.program.kernels)
            if code and chips:
                at, cores = placement.semaphore_base, len(placement.kernels)
                numbers.append(mesh.residents.hold("KERNEL", chips, at, code, cores, code, label))


def enqueue_mesh_workload(
    mesh: MeshDevice, workload: MeshWorkload, blocking: bool = True, *, cq_id: int | None = None
) -> None:
    """Launch a workload: all its programs at once, on their chips."""
    queue = mesh.queue(cq_id)
    if queue.recording is not None:
        if blocking:
            raise make_capture_error("Blocking is not supported when recording a trace.", queue.id)
        if not workload.is_finalized():
            raise TraceError(
                "Cannot load new binaries during trace capture."
                "This program is not yet in program cache. Warm up before capturing a trace."
                "See the operation's hash signature for arguments that must match.",
                expected="a workload that was launched before the capture",
                fix="Launch it once before begin_trace_capture.",
            )
    launches = workload.launches(mesh)
    cells = _find_named_cells(mesh, launches)
    device = weakref.ref(mesh)  # a recorded command lives in its mesh: it must not hold it

    def body(reads: Cells, writes: Cells) -> None:
        held = device()
        assert held is not None, "a command runs only while its mesh is open"
        assert workload.is_finalized(), "a trace keeps the workload, so that its programs stay on the chips"
        run(held, launches, reads)

    command = Command("mesh_workload", body, cells, cells, programs=1)
    with command_queue(queue.id):
        mesh.launch(command)
    if blocking:
        queue.finish_through(command)


def _find_named_cells(mesh: MeshDevice, launches: Iterable[Launch]) -> list[Cell]:
    """The live buffers whose addresses are among the arguments: the cells that the command reads and writes.

    TT-Metal passes addresses, not buffers, so this is all that can be known before the kernels run.
    """
    numbers = {n for launch in launches for args in (*launch.args.values(), *launch.common.values()) for n in args}
    for launch in launches:
        for kernel in launch.placement.program.kernels:
            given = (*kernel.config.compile_args, *kernel.config.named_compile_args.values())
            numbers.update(n for n in given if isinstance(n, int))
        backing = [config.buffer for _, config in launch.placement.program.circular_buffers]
        numbers.update(buffer.cell.address for buffer in backing if buffer is not None)
    live = mesh.heap.live
    kinds = (BufferType.DRAM, BufferType.L1, BufferType.L1_SMALL)
    return [live[kind][n] for kind in kinds for n in sorted(numbers & live[kind].keys())]


def _release_all(residents: Residents, numbers: list[int]) -> None:
    while numbers:
        residents.release(numbers.pop(0))
