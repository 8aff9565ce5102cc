"""The layout of a program in L1: circular buffers from the bottom up, checked against the buffers above them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ttmesh.base.cores import CoreCoord, CoreRangeSet
from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError
from ttmesh.mesh.allocation.circular_buffer_clash import check_l1_size, make_clash_error
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.programs.circular_buffers import BufferPlacement, CircularBufferConfig
from ttmesh.programs.program import Kernel, Program

SEMAPHORE_BYTES = 16  # each counter has an L1 word line of its own (L1 alignment of both chip generations)


@dataclass(frozen=True)
class ProgramLayout:
    """The addresses of a program's buffers, semaphores and kernels; the same on every chip."""

    program: Program
    l1_start: int
    l1_ends: dict[CoreCoord, int]  # per core: where its circular buffers end
    semaphore_base: int
    buffers: dict[CoreCoord, tuple[BufferPlacement, ...]]
    kernels: dict[CoreCoord, tuple[tuple[int, Kernel], ...]]

    @property
    def cores(self) -> list[CoreCoord]:
        """Every core that the program uses, row by row."""
        counting = (core for spec in self.program.semaphores for core in spec.cores.cores())
        return sorted({*self.kernels, *self.buffers, *counting}, key=lambda core: (core.y, core.x))

    @property
    def l1_end(self) -> int:
        """The end of the highest circular buffer."""
        return max(self.l1_ends.values(), default=self.l1_start)

    def list_backed(self, core: CoreCoord) -> list[BufferPlacement]:
        """The circular buffers of a core that are backed by L1 buffers."""
        return [buffer for buffer in self.buffers.get(core, ()) if buffer.backed]

    def key(self) -> Hashable:
        """The key of the program cache: programs with the same key would be one binary on the chip."""
        kernels = tuple(
            (getattr(k.function, "__code__", k.function), k.cores, k.unit, _make_hashable(k.config.compile_args))
            for k in self.program.kernels
        )
        buffers = tuple(sorted({b for found in self.buffers.values() for b in found}, key=lambda b: b.index))
        return ("program", kernels, tuple((b.index, b.cores, b.size_bytes, b.page_bytes, b.dtype) for b in buffers))


def lay_out_program(program: Program, mesh: MeshDevice) -> ProgramLayout:
    """Lay a program out; raises when its cores do not exist or its circular buffers are larger than L1."""
    banks, memory = mesh.heap.map.banks[BufferType.L1], mesh.heap.map
    _check_cores(program, mesh)
    ends: dict[CoreCoord, int] = {}
    buffers: dict[CoreCoord, list[BufferPlacement]] = {}
    for cores, config in program.circular_buffers:
        if config.buffer is not None:
            _add_backed_buffer(config, cores, buffers)
            continue
        address = max(ends.get(core, banks.start) for core in cores.cores())
        end = -(-(address + config.total_size) // banks.page_alignment) * banks.page_alignment
        check_l1_size(
            cores.str(),
            end,
            memory.l1_bytes,
            expected=f"at most {memory.l1_bytes - banks.start} B of circular buffers on a core",
            fix="Use fewer or smaller pages.",
        )
        found = [
            BufferPlacement(index, cores, address, config.total_size, config.page_size(index), dtype)
            for index, dtype in config.data_formats.items()
        ]
        for core in cores.cores():
            ends[core] = end
            buffers.setdefault(core, []).extend(found)
    kernels: dict[CoreCoord, list[tuple[int, Kernel]]] = {}
    for handle, kernel in enumerate(program.kernels):
        for core in kernel.cores.cores():
            kernels.setdefault(core, []).append((handle, kernel))
    return ProgramLayout(
        program,
        banks.start,
        ends,
        mesh.chip.mem_map_end,  # the kernel-config ring, below the allocator's range, begins here
        {core: tuple(found) for core, found in buffers.items()},
        {core: tuple(found) for core, found in kernels.items()},
    )


def _add_backed_buffer(
    config: CircularBufferConfig, cores: CoreRangeSet, buffers: dict[CoreCoord, list[BufferPlacement]]
) -> None:
    """Add a circular buffer that uses the shards of an L1 buffer and needs no further memory."""
    assert config.buffer is not None, "a backed buffer"
    address = config.buffer.cell.address + config.address_offset
    for index, dtype in config.data_formats.items():
        found = BufferPlacement(index, cores, address, config.total_size, config.page_size(index), dtype, backed=True)
        for core in cores.cores():
            buffers.setdefault(core, []).append(found)


def check_clash(placement: ProgramLayout, mesh: MeshDevice) -> None:
    """Refuse a launch whose circular buffers overlap L1 buffers, which may be newer than the layout."""
    lowest = mesh.heap.lowest_used(BufferType.L1)
    if lowest is not None and placement.l1_end > lowest:
        cores = _find_cores_beyond(placement, lowest)
        raise make_clash_error(
            placement.program.id,
            cores.str(),
            lowest,
            placement.l1_end,
            expected=f"circular buffers that end below {lowest}",
            fix="Free L1 buffers, move them to DRAM, or use smaller circular buffers.",
        )


def _find_cores_beyond(placement: ProgramLayout, limit: int) -> CoreRangeSet:
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


def _make_hashable(args: object) -> Hashable:
    try:
        hash(args)
    except TypeError:
        return repr(args)
    return args if not isinstance(args, list) else tuple(args)
