"""All-gather as a kernel: every chip passes pages to the next one of a ring; only fabric sends and a semaphore."""

from __future__ import annotations

import torch

import ttmesh

PAGE, PAGES = 2048, 4  # bytes of a page; pages per chip


async def all_gather(core):
    source, out = core.tensor_accessor(core.get_arg_val(0)), core.tensor_accessor(core.get_arg_val(1))
    arrived = core.get_arg_val(2)
    ring, me = core.mesh_shape[1], core.mesh_coord[1]
    east = core.fabric_connection(ttmesh.MeshCoordinate(0, (me + 1) % ring))
    counter = core.get_noc_addr(core.my_x, core.my_y, arrived)  # the same core on the next chip
    scratch = core.get_write_ptr(0)

    for page in range(PAGES):
        core.noc_async_read_page(page, source, scratch)
        core.noc_async_read_barrier()
        core.noc_async_write_page(me * PAGES + page, out, scratch)
        core.noc_async_write_barrier()
    for step in range(ring - 1):
        owner = (me - step) % ring  # whose pages came last (at first: our own)
        for page in range(owner * PAGES, (owner + 1) * PAGES):
            core.noc_async_read_page(page, out, scratch)
            core.noc_async_read_barrier()
            east.noc_fused_unicast_atomic_inc(scratch, out.get_noc_addr(page), PAGE, counter, 1)
        await core.noc_semaphore_wait_min(arrived, (step + 1) * PAGES)
    core.noc_semaphore_set(arrived, 0)  # ready for the next launch


def main() -> None:
    mesh = ttmesh.open_mesh_device(ttmesh.MeshShape(1, 8))  # a line that follows the links: its ends are neighbours
    chips, core = mesh.get_num_devices(), ttmesh.CoreCoord(0, 0)
    width = PAGES * PAGE // 2
    shards = ttmesh.create_mesh_buffer(
        mesh, "sharded", global_shape=(1, chips * width), shard_shape=(1, width), page_size=PAGE
    )
    gathered = ttmesh.create_mesh_buffer(mesh, global_shape=(chips, width), page_size=PAGE)
    arrived = ttmesh.create_global_semaphore(mesh, ttmesh.CoreRange(core), 0)
    values = torch.randn(chips * width, generator=torch.Generator().manual_seed(0)).bfloat16()
    ttmesh.enqueue_write_mesh_buffer(shards, values)

    program = ttmesh.Program()
    program.create_circular_buffer(core, ttmesh.CircularBufferConfig(PAGE, {0: ttmesh.bfloat16}))
    kernel = program.create_kernel(all_gather, core, ttmesh.DataMovementConfig())
    program.set_runtime_args(kernel, core, [shards, gathered, arrived])
    workload = ttmesh.MeshWorkload()
    workload.add_program(ttmesh.MeshCoordinateRange(mesh.shape), program)
    for _ in range(2):
        ttmesh.enqueue_mesh_workload(mesh, workload)

    for coord in filter(mesh.is_local, ttmesh.MeshCoordinateRange(mesh.shape)):
        assert torch.equal(ttmesh.read_shard(gathered, coord).view(torch.bfloat16), values), coord
    print(f"{chips} chips hold all {values.numel()} values")
    ttmesh.close_mesh_device(mesh)


if __name__ == "__main__":
    main()
