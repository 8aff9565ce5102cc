"""generic_op: runs a program descriptor whose kernels are Python functions, on tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.cores import CoreRangeSet
from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import MeshError, NotEmulatedError, ShapeError, require
from ttmesh.base.geometry import MeshCoordinateRange
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.ops.catalogue.definition import composite
from ttmesh.programs.buffers import addresses
from ttmesh.programs.buffers.mesh_buffer import MeshBuffer
from ttmesh.programs.buffers.page_layout import BufferShardingArgs
from ttmesh.programs.circular_buffers import CircularBufferConfig
from ttmesh.programs.descriptors import (
    CBDescriptor,
    CBFormatDescriptor,
    ComputeConfigDescriptor,
    DataMovementConfigDescriptor,
    KernelDescriptor,
    MeshProgramDescriptor,
    ProgramDescriptor,
    ReaderConfigDescriptor,
    TileDescriptor,
    WriterConfigDescriptor,
)
from ttmesh.programs.execution.workload import MeshWorkload, enqueue_mesh_workload
from ttmesh.programs.program import (
    ComputeConfig,
    DataMovementConfig,
    DataMovementProcessor,
    KernelConfig,
    Program,
    SemaphoreSpec,
)
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.tensor import Tensor


def make_mesh_buffer(tensor: Tensor) -> MeshBuffer:
    """A mesh buffer over a tensor's memory, interleaved or sharded."""
    mesh = tensor.device()
    if mesh is None:
        raise MeshError("Tensor must be on a device", expected="a device tensor", fix="Move it with to_device().")
    return MeshBuffer.of(tensor.buffer, mesh, sharding_args=_make_sharding_args(tensor))


def _make_sharding_args(tensor: Tensor) -> BufferShardingArgs | None:
    spec = tensor.spec
    shards = spec.memory_config.shard_spec
    if spec.memory_config.interleaved:
        return None
    if shards is None:
        raise NotEmulatedError(
            "kernels cannot address tensors with n-dimensional shards",
            expected="an interleaved tensor or one with two-dimensional shards",
            fix="Convert it with ttnn.to_memory_config.",
        )
    page_height, page_width = spec.tile.tile_shape if spec.layout is Layout.TILE else (1, shards.shape[1])
    rows, columns = spec.physical_shape
    return BufferShardingArgs(
        shards.grid,
        (div_up(shards.shape[0], page_height), div_up(shards.shape[1], page_width)),
        (div_up(rows, page_height), div_up(columns, page_width)),
        shards.orientation,
    )


class TensorAccessorArgs(addresses.TensorAccessorArgs):
    """What a kernel needs to know about a tensor besides its address; it is one compile-time argument."""

    __slots__ = ()

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(make_mesh_buffer(tensor))

    def get_compile_time_args(self) -> list[Any]:
        """The values for compile_time_args: this object, for `tensor_accessor(address, args)`; TT-NN returns numbers."""
        return [self]

    def get_common_runtime_args(self) -> list[int]:
        """An empty list: everything is known at compile time."""
        return []


@name_wrong_types
def cb_descriptor_from_sharded_tensor(
    cb_index: int,
    tensor: Tensor,
    address_offset: int = 0,
    total_size: int = 0,
    core_ranges: CoreRangeSet | None = None,
) -> CBDescriptor:
    """A circular buffer in the memory of a sharded tensor, on its cores."""
    shards = tensor.spec.memory_config.shard_spec
    if tensor.device() is None or shards is None:
        raise ShapeError(
            "Tensor must be sharded to automatically create a CBDescriptor",
            expected="a tensor that is sharded over cores",
            fix="Use create_sharded_memory_config.",
        )
    cell = tensor.buffer.cell
    if address_offset + total_size > cell.bank_bytes:
        raise ShapeError(
            "Address offset + total size exceeds buffer size",
            expected=f"at most {cell.bank_bytes} B",
            fix="Use fewer pages.",
        )
    format_ = CBFormatDescriptor(cb_index, tensor.dtype, cell.page_bytes, TileDescriptor(tensor.spec.tile))
    return CBDescriptor(
        total_size or cell.bank_bytes,
        core_ranges or shards.grid,
        [format_],
        address_offset=address_offset,
        buffer=tensor.buffer,
    )


def _make_kernel_config(kernel: KernelDescriptor, name: str) -> KernelConfig:
    config, fixed, named = kernel.config, tuple(kernel.compile_time_args), dict(kernel.named_compile_time_args)
    if isinstance(config, ComputeConfigDescriptor):
        wrong = f"{name}: unpack_to_dest_mode is not emulated"
        require(not config.unpack_to_dest_mode, wrong, "an empty list", "Leave unpack_to_dest_mode out.")
        return ComputeConfig(config.fp32_dest_acc_en, fixed, named)
    if isinstance(config, ReaderConfigDescriptor):
        return DataMovementConfig(DataMovementProcessor.RISCV_1, fixed, named)
    if isinstance(config, WriterConfigDescriptor):
        return DataMovementConfig(DataMovementProcessor.RISCV_0, fixed, named)
    if isinstance(config, DataMovementConfigDescriptor):
        return DataMovementConfig(config.processor, fixed, named)
    raise MeshError(
        f"kernel {name} has the config {config!r}",
        expected="a ReaderConfigDescriptor, WriterConfigDescriptor, DataMovementConfigDescriptor or ComputeConfigDescriptor",
        fix="Pass config=.",
    )


def _find_function(kernel: KernelDescriptor) -> Callable[[Any], Any]:
    source = kernel.kernel_source
    if isinstance(source, str):
        text = source if len(source) < 100 and "\n" not in source else "source code"
        raise NotEmulatedError(
            f"C++ kernels are not emulated: {text}",
            expected="kernel_source=<a Python function of one argument, the processor> (docs/programs.md)",
            fix="Write the kernel in Python, or use the TT-NN operation that does the same.",
        )
    name = getattr(source, "__name__", repr(source))
    for option, value in (
        ("defines", kernel.defines), ("compiler_include_paths", kernel.compiler_include_paths),
        ("opt_level", kernel.opt_level),
    ):  # fmt: skip
        wrong = f"{option} of kernel {name} has no meaning for a Python function"
        require(not value, wrong, f"no {option}", f"Leave {option} out.")
    return source


def make_program(descriptor: ProgramDescriptor) -> Program:
    """Make the program of a descriptor."""
    program = Program()
    for cb in descriptor.cbs:
        if cb.global_circular_buffer is not None or cb.remote_format_descriptors:
            raise NotEmulatedError(
                "circular buffers of a program in a global circular buffer are not emulated",
                expected="buffers of the program's own, or in a sharded tensor",
                fix="Send through a semaphore and NoC writes instead.",
            )
        formats = {format_.buffer_index: format_.data_format for format_ in cb.format_descriptors}
        pages = {format_.buffer_index: format_.page_size for format_ in cb.format_descriptors}
        config = CircularBufferConfig(cb.total_size, formats, pages, cb.buffer, cb.address_offset)
        require(
            cb.buffer is not None or not cb.address_offset,
            "address_offset without a buffer",
            "a tensor's buffer",
            "Pass buffer=, or leave address_offset out.",
        )
        program.create_circular_buffer(cb.core_ranges, config)
    for semaphore in descriptor.semaphores:
        spec = SemaphoreSpec(semaphore.id, semaphore.core_ranges, semaphore.initial_value)
        program.semaphores.append(spec)
    for kernel in descriptor.kernels:
        function = _find_function(kernel)
        name = getattr(function, "__name__", repr(function))
        handle = program.create_kernel(function, kernel.core_ranges, _make_kernel_config(kernel, name))
        for core, values in kernel.runtime_args:
            if values and kernel.core_ranges.contains(core):
                program.set_runtime_args(handle, core, values)
        program.set_common_runtime_args(handle, kernel.common_runtime_args)
    return program


def _list_ranges(
    descriptor: ProgramDescriptor | MeshProgramDescriptor, mesh: MeshDevice
) -> list[tuple[MeshCoordinateRange, ProgramDescriptor]]:
    if isinstance(descriptor, ProgramDescriptor):
        return [(MeshCoordinateRange(mesh.shape), descriptor)]
    programs = list(descriptor)
    wrong = "generic_op: MeshProgramDescriptor.mesh_programs must not be empty"
    require(bool(programs), wrong, "a program", "Add a program with descriptor[range] = program.")
    for i, (range_, _) in enumerate(programs):
        duplicate = any(range_ == other for other, _ in programs[:i])
        wrong = f"Duplicate MeshCoordinateRange found in MeshProgramDescriptor: {range_!r}"
        require(not duplicate, wrong, "one program per range", "Merge the programs of this range.")
    return programs


@composite("ttnn.generic_op", names={"program_descriptor": "mesh_program_descriptor"})
def generic_op(
    io_tensors: Sequence[Tensor], mesh_program_descriptor: ProgramDescriptor | MeshProgramDescriptor
) -> Tensor:
    """Run a program of Python kernels on tensors; the last of them is the result."""
    require(
        bool(io_tensors), "io_tensors must not be empty", "tensors", "Pass the input tensors and the output tensor."
    )
    mesh = io_tensors[0].device()
    if mesh is None:
        raise MeshError("Tensor must be on a device", expected="device tensors", fix="Move it with to_device().")
    wrong = f"io_tensors must contain at least one input tensor and one output tensor, got {len(io_tensors)} tensors."
    require(len(io_tensors) >= 2, wrong, "inputs and an output", "Pass the output tensor last.")
    workload = MeshWorkload()
    for range_, descriptor in _list_ranges(mesh_program_descriptor, mesh):
        workload.add_program(range_, make_program(descriptor))
    workload.holds += [make_mesh_buffer(tensor) for tensor in io_tensors]
    if mesh.queue().recording is None or workload.is_known(mesh):
        workload.finalize(mesh)
    enqueue_mesh_workload(mesh, workload, blocking=False)
    return io_tensors[-1]
