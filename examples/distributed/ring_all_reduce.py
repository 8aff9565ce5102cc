"""All-reduce as kernels: a ring reduce-scatter, then a ring all-gather; only fabric sends and a semaphore."""

from __future__ import annotations

import torch
from elementwise import compute

import ttmesh

PAGE, CHUNK = 2048, 2  # bytes of a tile; tiles per chunk, one chunk per chip of the ring
MINE, THEIRS, SUM, PACKET = 0, 1, 2, 3  # the first three are those of elementwise.compute


async def mover(core):
    data, inbox = core.tensor_accessor(core.get_arg_val(0)), core.tensor_accessor(core.get_arg_val(1))
    arrived, ring, me = core.get_arg_val(2), core.mesh_shape[1], core.mesh_coord[1]
    east = core.fabric_connection(ttmesh.MeshCoordinate(0, (me + 1) % ring))
    counter, packet = core.get_noc_addr(core.my_x, core.my_y, arrived), core.get_write_ptr(PACKET)

    def send(page, where):
        core.noc_async_read_page(page, data, packet)
        core.noc_async_read_barrier()
        east.noc_fused_unicast_atomic_inc(packet, where, PAGE, counter, 1)

    for step in range(ring - 1):  # reduce-scatter: add what arrived to our own copy of the same chunk
        for i in range(CHUNK):
            send((me - step) % ring * CHUNK + i, inbox.get_noc_addr(step * CHUNK + i))
        await core.noc_semaphore_wait_min(arrived, (step + 1) * CHUNK)
        for i in range(CHUNK):
            page = (me - step - 1) % ring * CHUNK + i
            for cb, source, at in ((MINE, data, page), (THEIRS, inbox, step * CHUNK + i)):
                await core.cb_reserve_back(cb, 1)
                core.noc_async_read_page(at, source, core.get_write_ptr(cb))
                core.noc_async_read_barrier()
                core.cb_push_back(cb, 1)
            await core.cb_wait_front(SUM, 1)
            core.noc_async_write_page(page, data, core.get_read_ptr(SUM))
            core.noc_async_write_barrier()
            core.cb_pop_front(SUM, 1)
    for step in range(ring - 1):  # all-gather: pass the finished chunks on
        for page in range((me + 1 - step) % ring * CHUNK, (me + 1 - step) % ring * CHUNK + CHUNK):
            send(page, data.get_noc_addr(page))
        await core.noc_semaphore_wait_min(arrived, (ring + step) * CHUNK)
    core.noc_semaphore_set(arrived, 0)


def main() -> None:
    mesh = ttmesh.open_mesh_device(ttmesh.MeshShape(1, 8))  # a line that follows the links: its ends are neighbours
    ring, core, width = mesh.get_num_devices(), ttmesh.CoreCoord(0, 0), 8 * CHUNK * PAGE // 2
    data = ttmesh.create_mesh_buffer(
        mesh, "sharded", global_shape=(ring, width), shard_shape=(1, width), page_size=PAGE
    )
    inbox = ttmesh.create_mesh_buffer(mesh, global_shape=((ring - 1) * CHUNK, PAGE // 2))
    arrived = ttmesh.create_global_semaphore(mesh, ttmesh.CoreRange(core), 0)
    # Small whole numbers: their sums are exact in bfloat16, whatever the order of additions.
    values = torch.randint(-8, 9, (ring, width), generator=torch.Generator().manual_seed(0)).bfloat16()
    ttmesh.enqueue_write_mesh_buffer(data, values)
    program = ttmesh.Program()
    for cb in (MINE, THEIRS, SUM, PACKET):
        program.create_circular_buffer(core, ttmesh.CircularBufferConfig(PAGE, {cb: ttmesh.bfloat16}))
    adder = program.create_kernel(compute, core, ttmesh.ComputeConfig(compile_args=["add_tiles"]))
    program.set_runtime_args(adder, core, [(ring - 1) * CHUNK])
    kernel = program.create_kernel(mover, core, ttmesh.DataMovementConfig())
    program.set_runtime_args(kernel, core, [data, inbox, arrived])
    workload = ttmesh.MeshWorkload()
    workload.add_program(ttmesh.MeshCoordinateRange(mesh.shape), program)
    ttmesh.enqueue_mesh_workload(mesh, workload)
    for coord in filter(mesh.is_local, ttmesh.MeshCoordinateRange(mesh.shape)):
        assert torch.equal(ttmesh.read_shard(data, coord).view(torch.bfloat16), values.sum(0)), coord
    print(f"{ring} chips hold the sum of their {width} values")
    ttmesh.close_mesh_device(mesh)


if __name__ == "__main__":
    main()
