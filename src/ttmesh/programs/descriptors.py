"""Programs as data: what TT-NN's generic_op takes. Kernels are Python functions; C++ sources are kept but cannot run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from ttmesh.base.cores import NOC, CoreCoord, CoreRangeSet
from ttmesh.base.dtypes import DataType, MathFidelity, PrintedEnum
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinateRange
from ttmesh.chip.formats.tiles import TILE_HEIGHT, TILE_WIDTH, Tile
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.programs.program import DataMovementProcessor, KernelFunction
from ttmesh.programs.runtime_args import RuntimeArgs


class NOC_MODE(PrintedEnum):
    """Whether a data-movement processor keeps to one network."""

    DM_DEDICATED_NOC = 0
    DM_DYNAMIC_NOC = 1


class UnpackToDestMode(PrintedEnum):
    """Whether a circular buffer's float32 values go to the destination registers whole."""

    UnpackToDestFp32 = 0
    Default = 1


class CoreType(PrintedEnum):
    """Kinds of cores on a chip."""

    ARC = 0
    DRAM = 1
    ACTIVE_ETH = 2
    IDLE_ETH = 3
    PCIE = 4
    TENSIX = 5
    ROUTER_ONLY = 6
    SECURITY = 7
    L2CPU = 8
    HARVESTED = 9
    ETH = 10
    WORKER = 11


@dataclass(unsafe_hash=True, init=False)
class TileDescriptor:
    """The shape of a tile in a circular buffer."""

    height: int = TILE_HEIGHT
    width: int = TILE_WIDTH
    transpose: bool = False

    def __init__(self, height: int | Tile = TILE_HEIGHT, width: int = TILE_WIDTH, transpose: bool = False) -> None:
        if isinstance(height, Tile):
            tile = height
            height, width, transpose = *tile.tile_shape, tile.transpose_tile
        self.height, self.width, self.transpose = height, width, transpose


@dataclass(unsafe_hash=True)
class FaceGeometry:
    """Rows of a face and faces of an operand, where they are not those of its tile."""

    face_r_dim: int
    num_faces: int


@dataclass(unsafe_hash=True)
class CBFormatDescriptor:
    """One index of a circular buffer: format and page size."""

    buffer_index: int
    data_format: DataType
    page_size: int
    tile: TileDescriptor | None = None
    face_geometry: FaceGeometry | None = None


@dataclass
class CBDescriptor:
    """Bytes on every core of a set; with a buffer, those of a tensor's shards."""

    total_size: int = 0
    core_ranges: CoreRangeSet = field(default_factory=CoreRangeSet)
    format_descriptors: list[CBFormatDescriptor] = field(default_factory=list)
    remote_format_descriptors: list[CBFormatDescriptor] = field(default_factory=list, kw_only=True)
    address_offset: int = field(default=0, kw_only=True)
    buffer: Buffer | None = field(default=None, kw_only=True, compare=False)
    global_circular_buffer: Any = field(default=None, kw_only=True, compare=False)

    def has_buffer(self) -> bool:
        """Whether it uses a tensor's memory."""
        return self.buffer is not None

    def has_global_circular_buffer(self) -> bool:
        """Whether it belongs to a global circular buffer."""
        return self.global_circular_buffer is not None

    def set_global_circular_buffer(self, global_circular_buffer: Any) -> None:
        """Let it use a global circular buffer's memory."""
        self.global_circular_buffer = global_circular_buffer

    def set_global_circular_buffer_from_cb(self, other: CBDescriptor) -> None:
        """Let it use the same global circular buffer as another."""
        self.global_circular_buffer = other.global_circular_buffer

    def set_buffer_from_cb(self, other: CBDescriptor) -> None:
        """Let it use the same tensor's memory as another."""
        self.buffer = other.buffer

    def buffer_address(self) -> int | None:
        """Where the tensor's memory begins in L1, None without one."""
        return None if self.buffer is None else self.buffer.cell.address


def get_cb_address(descriptor: CBDescriptor) -> int:
    """Where a circular buffer begins: its tensor's address and its offset, or the offset alone."""
    return (descriptor.buffer_address() or 0) + descriptor.address_offset


@dataclass(unsafe_hash=True)
class ReaderConfigDescriptor:
    """A data-movement kernel on the processor that readers use."""


@dataclass(unsafe_hash=True)
class WriterConfigDescriptor:
    """A data-movement kernel on the processor that writers use."""


@dataclass(unsafe_hash=True)
class DataMovementConfigDescriptor:
    """A data-movement kernel; networks are equally fast here, so `noc` and `noc_mode` change nothing."""

    processor: DataMovementProcessor = DataMovementProcessor.RISCV_0
    noc: NOC = NOC.RISCV_0_default
    noc_mode: NOC_MODE = NOC_MODE.DM_DEDICATED_NOC


@dataclass
class ComputeConfigDescriptor:
    """A compute kernel; `fp32_dest_acc_en` says what registers hold, the others how a chip approximates."""

    math_fidelity: MathFidelity = MathFidelity.HiFi4
    math_approx_mode: bool = False
    fp32_dest_acc_en: bool = False
    dst_full_sync_en: bool = False
    bfp8_pack_precise: bool = False
    unpack_to_dest_mode: list[Any] = field(default_factory=list)


ConfigDescriptor = (
    ReaderConfigDescriptor | WriterConfigDescriptor | DataMovementConfigDescriptor | ComputeConfigDescriptor
)


class KernelSource(Enum):
    """Whether a kernel's source is a file's path or the code itself."""

    FILE_PATH = 0
    SOURCE_CODE = 1


class KernelDescriptor:
    """A kernel, its cores, its arguments and how it is configured."""

    SourceType: ClassVar[type[KernelSource]] = KernelSource

    def __init__(
        self,
        kernel_source: str | KernelFunction = "",
        source_type: KernelSource = KernelSource.FILE_PATH,
        core_ranges: CoreRangeSet | None = None,
        compile_time_args: Sequence[Any] = (),
        named_compile_time_args: Sequence[tuple[str, Any]] | Mapping[str, Any] = (),
        defines: Sequence[tuple[str, str]] = (),
        runtime_args: RuntimeArgs | Iterable[Any] = (),
        common_runtime_args: Sequence[int] = (),
        opt_level: Any = None,
        config: ConfigDescriptor | None = None,
        compiler_include_paths: Sequence[str] = (),
    ) -> None:
        self.kernel_source, self.source_type = kernel_source, source_type
        self.core_ranges = CoreRangeSet() if core_ranges is None else core_ranges
        self.compile_time_args = list(compile_time_args)
        self.named_compile_time_args = list(dict(named_compile_time_args).items())
        self.defines, self.opt_level = list(defines), opt_level
        self.runtime_args = runtime_args  # type: ignore[assignment]  # the setter takes more than the getter gives
        self.common_runtime_args = list(common_runtime_args)
        self.config = config
        self.compiler_include_paths = list(compiler_include_paths)

    @property
    def runtime_args(self) -> RuntimeArgs:
        """Arguments by core: args[x][y]."""
        return self._runtime_args

    @runtime_args.setter
    def runtime_args(self, given: RuntimeArgs | Iterable[Any]) -> None:
        self._runtime_args = RuntimeArgs(_list_by_core(given))

    def clear_runtime_args(self) -> None:
        """Forget the arguments of all cores."""
        self._runtime_args.clear()

    def append_runtime_args_from(self, other: KernelDescriptor) -> None:
        """Append the other kernel's arguments to every core's, filled with zeros up to the longest of them."""
        if other is self:
            raise _make_error("Cannot append a kernel's runtime args from itself", "another kernel")
        longest = max((len(values) for _, values in other.runtime_args), default=0)
        theirs = dict(other.runtime_args)
        if not len(self._runtime_args):
            self._runtime_args = RuntimeArgs((core, []) for core in self.core_ranges.cores())
        for core, values in self._runtime_args:
            more = theirs.get(core, [])
            values += [*more, *[0] * (longest - len(more))]

    def extend_runtime_args_uniform(self, values: Sequence[int]) -> None:
        """Append the same values to every core's arguments."""
        for _, own in self._runtime_args:
            own.extend(values)

    def append_common_runtime_args_from(self, other: KernelDescriptor) -> None:
        """Append the other kernel's common arguments."""
        if other is self:
            raise _make_error("Cannot append a kernel's common_runtime_args from itself", "another kernel")
        self.common_runtime_args += other.common_runtime_args


def _list_by_core(given: RuntimeArgs | Iterable[Any]) -> list[tuple[CoreCoord, Sequence[int]]]:
    """Pairs of core and arguments; nested lists mean args[x][y], as TT-NN's first form did."""
    entries = list(given)
    if all(isinstance(entry, tuple) and isinstance(entry[0], CoreCoord) for entry in entries):
        return entries
    return [(CoreCoord(x, y), values) for x, column in enumerate(entries) for y, values in enumerate(column)]


@dataclass
class SemaphoreDescriptor:
    """A counter on some cores."""

    id: int
    core_type: CoreType = CoreType.WORKER
    core_ranges: CoreRangeSet = field(default_factory=CoreRangeSet)
    initial_value: int = 0


@dataclass
class ProgramDescriptor:
    """Kernels, semaphores and circular buffers of one chip."""

    kernels: list[KernelDescriptor] = field(default_factory=list)
    semaphores: list[SemaphoreDescriptor] = field(default_factory=list)
    cbs: list[CBDescriptor] = field(default_factory=list)
    custom_program_hash: int | None = None


def merge_program_descriptors(descriptors: Sequence[ProgramDescriptor]) -> ProgramDescriptor:
    """One program of several that share no core."""
    merged = ProgramDescriptor()
    for i, one in enumerate(descriptors):
        for j, other in enumerate(descriptors[:i]):
            if any(a.core_ranges.intersects(b.core_ranges) for a in one.kernels for b in other.kernels):
                raise _make_error(
                    f"Cannot merge ProgramDescriptors with overlapping kernel core ranges between descriptor {j} and {i}. "
                    "Ensure that each descriptor operates on a distinct set of cores.",
                    "disjoint cores",
                )
        merged.kernels += one.kernels
        merged.semaphores += one.semaphores
        merged.cbs += one.cbs
    return merged


class MeshProgramDescriptor:
    """Programs by the box of coordinates they run on, in the order they were added."""

    def __init__(self, mesh_programs: Mapping[MeshCoordinateRange, ProgramDescriptor] | None = None) -> None:
        self.mesh_programs = list((mesh_programs or {}).items())

    def __getitem__(self, key: MeshCoordinateRange) -> ProgramDescriptor:
        for box, program in self.mesh_programs:
            if box == key:
                return program
        raise _make_error("MeshCoordinateRange not found in MeshProgramDescriptor", "a range that was added")

    def __setitem__(self, key: MeshCoordinateRange, value: ProgramDescriptor) -> None:
        self.mesh_programs.append((key, value))

    def __contains__(self, key: MeshCoordinateRange) -> bool:
        return any(box == key for box, _ in self.mesh_programs)

    def __iter__(self) -> Iterator[tuple[MeshCoordinateRange, ProgramDescriptor]]:
        return iter(self.mesh_programs)


def _make_error(wrong: str, expected: str) -> MeshError:
    return MeshError(wrong, expected=expected, fix="Correct the descriptors.")
