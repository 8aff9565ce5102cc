"""A program that adds, subtracts or multiplies two buffers of bfloat16 tiles on every core of a chip."""

from __future__ import annotations

import ttmesh

TILE_BYTES = 2048
A, B, OUT = 0, 1, 2  # circular buffers


async def reader(core):
    first, count = core.get_arg_val(2), core.get_arg_val(3)
    sources = [(A, core.tensor_accessor(core.get_arg_val(0))), (B, core.tensor_accessor(core.get_arg_val(1)))]
    for tile in range(first, first + count):
        for cb, pages in sources:
            await core.cb_reserve_back(cb, 1)
            core.noc_async_read_tile(tile, pages, core.get_write_ptr(cb))
            core.noc_async_read_barrier()
            core.cb_push_back(cb, 1)


async def compute(core):
    operation = getattr(core, core.get_compile_time_arg_val(0))
    for _ in range(core.get_arg_val(0)):
        await core.cb_wait_front(A, 1)
        await core.cb_wait_front(B, 1)
        core.tile_regs_acquire()
        operation(A, B, 0, 0, 0)
        core.tile_regs_commit()
        core.cb_pop_front(A, 1)
        core.cb_pop_front(B, 1)
        await core.cb_reserve_back(OUT, 1)
        core.tile_regs_wait()
        core.pack_tile(0, OUT)
        core.tile_regs_release()
        core.cb_push_back(OUT, 1)


async def writer(core):
    pages, first, count = core.tensor_accessor(core.get_arg_val(0)), core.get_arg_val(1), core.get_arg_val(2)
    for tile in range(first, first + count):
        await core.cb_wait_front(OUT, 1)
        core.noc_async_write_tile(tile, pages, core.get_read_ptr(OUT))
        core.noc_async_write_barrier()
        core.cb_pop_front(OUT, 1)


def binary_program(mesh, operation, a, b, out):
    """out = a <operation> b, tile by tile; `operation` is add_tiles, sub_tiles or mul_tiles."""
    grid = mesh.compute_with_storage_grid_size()
    cores = ttmesh.CoreRange((0, 0), (grid.x - 1, grid.y - 1))
    program = ttmesh.Program()
    for cb in (A, B, OUT):
        config = ttmesh.CircularBufferConfig(2 * TILE_BYTES, {cb: ttmesh.bfloat16})
        program.create_circular_buffer(cores, config)
    read = program.create_kernel(reader, cores, ttmesh.ReaderDataMovementConfig())
    work = program.create_kernel(compute, cores, ttmesh.ComputeConfig(compile_args=[operation]))
    write = program.create_kernel(writer, cores, ttmesh.WriterDataMovementConfig())
    share, rest = divmod(a.num_pages, cores.size())
    first = 0
    for number, core in enumerate(cores):
        count = share + (number < rest)
        program.set_runtime_args(read, core, [a, b, first, count])
        program.set_runtime_args(work, core, [count])
        program.set_runtime_args(write, core, [out, first, count])
        first += count
    return program
