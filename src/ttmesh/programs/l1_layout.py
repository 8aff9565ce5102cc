"""A program laid out in a core's L1: circular buffers from the bottom up, checked against what lies above them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ttmesh.base.cores import CoreCoord, CoreRangeSet
from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError, OutOfMemoryError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.programs.circular_buffers import CircularBufferConfig, PlacedBuffer
from ttmesh.programs.program import Kernel, Program

SEMAPHORE_BYTES = 16  # each counter has an L1 word line of its own (L1 alignment of both chip generations)


@dataclass(frozen=True)
class Placement:
    """Where everything of a program lies; the same on every chip."""

    program: Program
    l1_start: int
    l1_ends: dict[CoreCoord, int]  # per core: where its circular buffers end
    semaphore_base: int
    buffers: dict[CoreCoord, tuple[PlacedBuffer, ...]]
    kernels: dict[CoreCoord, tuple[tuple[int, Kernel], ...]]

    @property
    def cores(self) -> list[CoreCoord]:
        """Every core that holds something of the program, row by row."""
        counting = (core for spec in self.program.semaphores for core in spec.cores.cores())
        return sorted({*self.kernels, *self.buffers, *counting}, key=lambda core: (core.y, core.x))

    @property
    def l1_end(self) -> int:
        """Where the highest circular buffer ends."""
        return max(self.l1_ends.values(), default=self.l1_start)

    def backed(self, core: CoreCoord) -> list[PlacedBuffer]:
        """The circular buffers of a core that lie in L1 buffers."""
        return [placed for placed in self.buffers.get(core, ()) if placed.backed]

    def key(self) -> Hashable:
        """Programs with the same key would be one binary on the chip."""
        kernels = tuple(
            (getattr(k.function, "__code__", k.function), k.cores, k.unit, _frozen(k.config.compile_args))
            for k in self.program.kernels
        )
        buffers = tuple(sorted({b for placed in self.buffers.values() for b in placed}, key=lambda b: b.index))
        return ("program", kernels, tuple((b.index, b.cores, b.size_bytes, b.page_bytes, b.dtype) for b in buffers))


def place(program: Program, mesh: MeshDevice) -> Placement:
    """Lay a program out; raises when its cores do not exist or its circular buffers are larger than L1."""
    banks, memory = mesh.heap.map.banks[BufferType.L1], mesh.heap.map
    _check_cores(program, mesh)
    ends: dict[CoreCoord, int] = {}
    buffers: dict[CoreCoord, list[PlacedBuffer]] = {}
    for cores, config in program.circular_buffers:
        if config.buffer is not None:
            _lay_over(config, cores, buffers)
            continue
        address = max(ends.get(core, banks.start) for core in cores.cores())
        end = -(-(address + config.total_size) // banks.page_alignment) * banks.page_alignment
        if end > memory.l1_bytes:
            raise OutOfMemoryError(
                f"Statically allocated circular buffers on core range {cores.str()} grow to {end} B which is beyond max "
                f"L1 size of {memory.l1_bytes} B",
                expected=f"at most {memory.l1_bytes - banks.start} B of circular buffers on a core",
                fix="Use fewer or smaller pages.",
            )
        placed = [
            PlacedBuffer(index, cores, address, config.total_size, config.page_size(index), dtype)
            for index, dtype in config.data_formats.items()
        ]
        for core in cores.cores():
            ends[core] = end
            buffers.setdefault(core, []).extend(placed)
    kernels: dict[CoreCoord, list[tuple[int, Kernel]]] = {}
    for handle, kernel in enumerate(program.kernels):
        for core in kernel.cores.cores():
            kernels.setdefault(core, []).append((handle, kernel))
    return Placement(
        program,
        banks.start,
        ends,
        mesh.chip.mem_map_end,  # the kernel-config ring, below the allocator's range, begins here
        {core: tuple(found) for core, found in buffers.items()},
        {core: tuple(found) for core, found in kernels.items()},
    )


def _lay_over(config: CircularBufferConfig, cores: CoreRangeSet, buffers: dict[CoreCoord, list[PlacedBuffer]]) -> None:
    """A circular buffer in the shards of an L1 buffer takes no memory of its own."""
    assert config.buffer is not None, "it lies in a buffer"
    address = config.buffer.cell.address + config.address_offset
    for index, dtype in config.data_formats.items():
        placed = PlacedBuffer(index, cores, address, config.total_size, config.page_size(index), dtype, backed=True)
        for core in cores.cores():
            buffers.setdefault(core, []).append(placed)


def check_clash(placement: Placement, mesh: MeshDevice) -> None:
    """Refuse to launch over L1 buffers; they may have come after the program was laid out."""
    lowest = mesh.heap.lowest_used(BufferType.L1)
    if lowest is not None and placement.l1_end > lowest:
        cores = _grown_past(placement, lowest)
        raise OutOfMemoryError(
            f"Statically allocated circular buffers in program {placement.program.id} clash with L1 buffers on core range "
            f"{cores.str()}. L1 buffer allocated at {lowest} and static circular buffer region ends at {placement.l1_end}",
            expected=f"circular buffers that end below {lowest}",
            fix="Free L1 buffers, move them to DRAM, or use smaller circular buffers.",
        )


def _grown_past(placement: Placement, limit: int) -> CoreRangeSet:
    found = CoreRangeSet()
    for cores, _ in placement.program.circular_buffers:
        if any(placement.l1_ends[core] > limit for core in cores.cores()):
            found = found.merge(cores)
    return found


def _check_cores(program: Program, mesh: MeshDevice) -> None:
    grid = mesh.compute_with_storage_grid_size()
    sets = [k.cores for k in program.kernels] + [cores for cores, _ in program.circular_buffers]
    for cores in [*sets, *(s.cores for s in program.semaphores)]:
        last = cores.bounding_box().end
        if last.x >= grid.x or last.y >= grid.y:
            raise MeshError(
                f"core {last.str()} does not exist on {mesh!r}",
                expected=f"cores up to {CoreCoord(grid.x - 1, grid.y - 1).str()}",
                fix="Derive the cores from compute_with_storage_grid_size().",
            )


def _frozen(args: object) -> Hashable:
    try:
        hash(args)
    except TypeError:
        return repr(args)
    return args if not isinstance(args, list) else tuple(args)
