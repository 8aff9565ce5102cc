"""TT-Metal's free functions under their names; each calls a method of Program."""

from __future__ import annotations

from collections.abc import Sequence

from ttmesh.base.cores import CoreCoord
from ttmesh.programs.circular_buffers import CircularBufferConfig
from ttmesh.programs.program import CBHandle, Cores, KernelConfig, KernelFunction, KernelHandle, Program, RuntimeArg


def CreateProgram() -> Program:
    """An empty program."""
    return Program()


def CreateKernel(program: Program, kernel: KernelFunction, core_spec: Cores, config: KernelConfig) -> KernelHandle:
    """Program.create_kernel; the kernel is a Python function, not a file."""
    return program.create_kernel(kernel, core_spec, config)


def CreateCircularBuffer(program: Program, core_spec: Cores, config: CircularBufferConfig) -> CBHandle:
    """Program.create_circular_buffer."""
    return program.create_circular_buffer(core_spec, config)


def CreateSemaphore(program: Program, core_spec: Cores, initial_value: int) -> int:
    """Program.create_semaphore."""
    return program.create_semaphore(core_spec, initial_value)


def SetRuntimeArgs(program: Program, kernel: KernelHandle, core_spec: Cores, args: Sequence[RuntimeArg]) -> None:
    """Program.set_runtime_args."""
    program.set_runtime_args(kernel, core_spec, args)


def SetCommonRuntimeArgs(program: Program, kernel: KernelHandle, args: Sequence[RuntimeArg]) -> None:
    """Program.set_common_runtime_args."""
    program.set_common_runtime_args(kernel, args)


def GetRuntimeArgs(program: Program, kernel: KernelHandle, core: CoreCoord) -> tuple[int, ...]:
    """Program.get_runtime_args."""
    return program.get_runtime_args(kernel, core)
