"""The structural hash of a program's description: what would be compiled, without what changes from call to call."""

from __future__ import annotations

from ttmesh.programs.descriptors import CBDescriptor, KernelDescriptor, ProgramDescriptor, SemaphoreDescriptor

_BITS = 64


def compute_program_descriptor_hash(program_descriptor: ProgramDescriptor) -> int:
    """A number that is equal for programs of the same structure; values of runtime arguments and addresses do not count."""
    if program_descriptor.custom_program_hash is not None:
        return program_descriptor.custom_program_hash
    parts = (
        tuple(_list_kernel_parts(kernel) for kernel in program_descriptor.kernels),
        tuple(_list_buffer_parts(cb) for cb in program_descriptor.cbs),
        tuple(_list_semaphore_parts(semaphore) for semaphore in program_descriptor.semaphores),
    )
    return hash(parts) % (1 << _BITS)


def _list_kernel_parts(kernel: KernelDescriptor) -> tuple[object, ...]:
    with_runtime_args = tuple((core.x, core.y) for core, _ in kernel.runtime_args)
    compiled = (
        kernel.compile_time_args,
        kernel.named_compile_time_args,
        kernel.defines,
        kernel.opt_level,
        kernel.config,
    )
    common = len(kernel.common_runtime_args)
    return (
        kernel.kernel_source, kernel.source_type, repr(kernel.core_ranges), repr(compiled), with_runtime_args, common,
    )  # fmt: skip


def _list_buffer_parts(cb: CBDescriptor) -> tuple[object, ...]:
    formats = (cb.format_descriptors, cb.remote_format_descriptors)
    return (cb.total_size, repr(cb.core_ranges), repr(formats), cb.has_buffer(), cb.has_global_circular_buffer())


def _list_semaphore_parts(semaphore: SemaphoreDescriptor) -> tuple[object, ...]:
    return (semaphore.core_type, repr(semaphore.core_ranges), semaphore.initial_value)
