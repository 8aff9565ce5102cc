"""Program: kernels, circular buffers and semaphores on the cores of a chip."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NewType

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import MathFidelity
from ttmesh.base.errors import MeshError, NotEmulatedError, ShapeError
from ttmesh.mesh.functions.global_semaphores import GlobalSemaphore
from ttmesh.programs.buffers.mesh_buffer import MeshBuffer
from ttmesh.programs.buffers.page_layout import BufferShardingArgs
from ttmesh.programs.circular_buffers import CircularBufferConfig, CircularBufferError, check_config

Cores = CoreCoord | CoreRange | CoreRangeSet
RuntimeArg = int | MeshBuffer | GlobalSemaphore
KernelFunction = Callable[[Any], Awaitable[None] | None]
KernelHandle = NewType("KernelHandle", int)
CBHandle = NewType("CBHandle", int)

MAX_RUNTIME_ARGS = 4096  # unique and common ones together (tt-metal e4f9f0b, impl/kernels/kernel.cpp)
NUM_SEMAPHORES = 16  # per core (tt-metal e4f9f0b, semaphore.hpp)

_ids = itertools.count(1)


class DataMovementProcessor(IntEnum):
    """The two cores of a Tensix core that move data."""

    RISCV_0 = 0
    RISCV_1 = 1


@dataclass(frozen=True)
class DataMovementConfig:
    """A kernel that moves data; `compile_args` and `named_compile_args` are fixed, runtime arguments are set later."""

    processor: DataMovementProcessor = DataMovementProcessor.RISCV_0
    compile_args: Sequence[Any] = ()
    named_compile_args: Mapping[str, Any] = field(default_factory=dict)


def ReaderDataMovementConfig(  # TT-Metal's name
    compile_args: Sequence[Any] = (), named_compile_args: Mapping[str, Any] | None = None
) -> DataMovementConfig:
    """A data-movement kernel on the processor that readers use."""
    return DataMovementConfig(DataMovementProcessor.RISCV_1, compile_args, named_compile_args or {})


def WriterDataMovementConfig(  # TT-Metal's name
    compile_args: Sequence[Any] = (), named_compile_args: Mapping[str, Any] | None = None
) -> DataMovementConfig:
    """A data-movement kernel on the processor that writers use."""
    return DataMovementConfig(DataMovementProcessor.RISCV_0, compile_args, named_compile_args or {})


@dataclass(frozen=True)
class ComputeConfig:
    """A kernel that computes on tiles; with `fp32_dest_acc_en` the destination registers hold float32.

    `math_fidelity` counts where TTMESH_NUMERICS is realistic or exact.
    """

    fp32_dest_acc_en: bool = False
    compile_args: Sequence[Any] = ()
    named_compile_args: Mapping[str, Any] = field(default_factory=dict)
    math_fidelity: MathFidelity = MathFidelity.HiFi4


KernelConfig = DataMovementConfig | ComputeConfig


@dataclass(frozen=True)
class Kernel:
    """A function, where it runs and how it was configured."""

    function: KernelFunction
    cores: CoreRangeSet
    config: KernelConfig

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.function, "__name__", repr(self.function))

    @property
    def unit(self) -> str:
        """Which of a core's processors runs it."""
        return "compute" if isinstance(self.config, ComputeConfig) else self.config.processor.name

    @property
    def code_bytes(self) -> int:
        """The size of the function's byte code: what the tracker shows, not what a RISC-V binary would take."""
        code = getattr(self.function, "__code__", None)
        return len(code.co_code) if code is not None else 0


@dataclass(frozen=True)
class SemaphoreSpec:
    """A counter on some cores."""

    id: int
    cores: CoreRangeSet
    initial_value: int


class Program:
    """A program for one chip; a MeshWorkload runs it on a mesh. Arguments may change between launches."""

    def __init__(self) -> None:
        self.id = next(_ids)
        self.kernels: list[Kernel] = []
        self.circular_buffers: list[tuple[CoreRangeSet, CircularBufferConfig]] = []
        self.semaphores: list[SemaphoreSpec] = []
        self.compiled = False
        self.in_workload = False
        self._args: dict[tuple[int, CoreCoord], tuple[int, ...]] = {}
        self._common: dict[int, tuple[int, ...]] = {}
        self._global_semaphores: dict[GlobalSemaphore, MeshBuffer] = {}

    def create_kernel(self, kernel: KernelFunction, core_spec: Cores, config: KernelConfig) -> KernelHandle:
        """Run a function on every core of a set; `async def` when it waits for anything."""
        self._check_open("kernel")
        if not callable(kernel):
            raise NotEmulatedError(
                f"create_kernel got {kernel!r}: kernels written in C++ do not run here",
                expected="a Python function, such as `async def reader(api): ...`",
                fix="Write the kernel with ttmesh's Python kernel API (docs/programs.md).",
            )
        new = Kernel(kernel, to_core_set(core_spec), config)
        for other in self.kernels:
            if other.unit == new.unit and other.cores.intersects(new.cores):
                shared = next(core for core in new.cores.cores() if other.cores.contains(core))
                raise MeshError(
                    f'Core Overlap Between ("{other.name}") and new kernel ("{new.name}") at {shared.str()}',
                    expected=f"one kernel per core on {new.unit}",
                    fix="Use the other data-movement processor or other cores.",
                )
        self.kernels.append(new)
        return KernelHandle(len(self.kernels) - 1)

    def create_circular_buffer(self, core_spec: Cores, config: CircularBufferConfig) -> CBHandle:
        """A circular buffer on every core of a set."""
        self._check_open("circular buffer")
        check_config(config)
        cores = to_core_set(core_spec)
        for others, known in self.circular_buffers:
            twice = set(known.data_formats) & set(config.data_formats)
            if twice and others.intersects(cores):
                raise CircularBufferError(
                    f"Invalid circular buffer index: Cannot add circular buffer at index {min(twice)}, another circular "
                    "buffer already exists",
                    expected="one buffer per index and core",
                    fix="Choose another index.",
                )
        self.circular_buffers.append((cores, config))
        return CBHandle(len(self.circular_buffers) - 1)

    def create_semaphore(self, core_spec: Cores, initial_value: int = 0) -> int:
        """A counter on every core of a set; the number kernels give to get_semaphore."""
        self._check_open("semaphore")
        cores = to_core_set(core_spec)
        taken = {s.id for s in self.semaphores if s.cores.intersects(cores)}
        free = next((i for i in range(NUM_SEMAPHORES) if i not in taken), None)
        if free is None:
            raise MeshError(
                f"Semaphore id {NUM_SEMAPHORES} exceeds max value {NUM_SEMAPHORES - 1}",
                expected=f"at most {NUM_SEMAPHORES} semaphores on a core",
                fix="Use a global semaphore.",
            )
        self.semaphores.append(SemaphoreSpec(free, cores, initial_value))
        return free

    def set_runtime_args(self, kernel: KernelHandle, core_spec: Cores, args: Sequence[RuntimeArg]) -> None:
        """Set what get_arg_val returns on these cores; buffers and global semaphores mean their addresses."""
        described, values = self._find_kernel(kernel), self._to_words(args)
        self._check_count(described, len(values) + len(self._common.get(kernel, ())))
        renewed = dict(self._args)  # an enqueued command keeps the arguments it was enqueued with
        for core in to_core_set(core_spec).cores():
            if not described.cores.contains(core):
                raise MeshError(
                    f"Cannot set runtime args for core {core.str()}: kernel {described.name} is not on that core",
                    expected=f"a core of {described.cores.str()}",
                    fix="Create the kernel on that core too.",
                )
            renewed[kernel, core] = values
        self._args = renewed

    def set_common_runtime_args(self, kernel: KernelHandle, args: Sequence[RuntimeArg]) -> None:
        """Set what get_common_arg_val returns on all cores of a kernel."""
        described, values = self._find_kernel(kernel), self._to_words(args)
        self._check_count(described, len(values))
        self._common = {**self._common, kernel: values}

    def get_runtime_args(self, kernel: KernelHandle, core: CoreCoord) -> tuple[int, ...]:
        """The runtime arguments of a core."""
        return self._args.get((kernel, core), ())

    def arguments(self) -> tuple[dict[tuple[int, CoreCoord], tuple[int, ...]], dict[int, tuple[int, ...]]]:
        """All runtime arguments at this time; the dicts are never changed later."""
        return self._args, self._common

    def cores(self) -> CoreRangeSet:
        """Every core that a kernel runs on."""
        found = CoreRangeSet()
        for kernel in self.kernels:
            found = found.merge(kernel.cores)
        return found

    def _to_words(self, args: Sequence[RuntimeArg]) -> tuple[int, ...]:
        for arg in args:
            if isinstance(arg, GlobalSemaphore) and arg not in self._global_semaphores:
                self._global_semaphores[arg] = _make_counter_buffer(arg)
        return tuple(_to_word(arg) for arg in args)

    def _find_kernel(self, handle: KernelHandle) -> Kernel:
        if not 0 <= handle < len(self.kernels):
            raise MeshError(
                f"Expected Kernel with ID {handle} to be in Program {self.id}",
                expected=f"0 to {len(self.kernels) - 1}",
                fix="Pass what create_kernel returned.",
            )
        return self.kernels[handle]

    def _check_count(self, kernel: Kernel, count: int) -> None:
        if count > MAX_RUNTIME_ARGS:
            raise MeshError(
                f"{count} unique+common runtime args targeting kernel {kernel.name} on {kernel.cores.str()} are too "
                f"large. Max allowable is {MAX_RUNTIME_ARGS}",
                expected="fewer arguments",
                fix="Pass them in a buffer.",
            )

    def _check_open(self, what: str) -> None:
        if self.compiled:
            raise MeshError(
                f"Cannot add {what} to an already compiled program {self.id}",
                expected="a program that was not enqueued yet",
                fix="Build a new program.",
            )


def to_core_set(spec: Cores) -> CoreRangeSet:
    """One core, a rectangle or a set, as a set."""
    if isinstance(spec, CoreRangeSet):
        if spec.empty():
            raise ShapeError(
                "an empty set of cores", expected="at least one core", fix="Pass a CoreCoord or CoreRange."
            )
        return spec
    return CoreRangeSet([CoreRange(spec, spec) if isinstance(spec, CoreCoord) else spec])


def _to_word(arg: RuntimeArg) -> int:
    value = arg.address() if isinstance(arg, (MeshBuffer, GlobalSemaphore)) else int(arg)
    if not -(1 << 31) <= value < 1 << 32:
        raise MeshError(
            f"runtime argument {value}", expected="a 32-bit number", fix="Pass it as two arguments of 32 bits."
        )
    return value


def _make_counter_buffer(semaphore: GlobalSemaphore) -> MeshBuffer:
    """A global semaphore as a buffer of one page per core, so that kernels can address each core's counter."""
    cores = semaphore.cores
    args = BufferShardingArgs(cores, (1, 1), (cores.num_cores(), 1))
    return MeshBuffer.of(semaphore.buffer, semaphore.mesh, sharding_args=args)
