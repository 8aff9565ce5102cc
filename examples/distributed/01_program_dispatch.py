"""One program on every core of eight chips: the smallest workload there is."""

from __future__ import annotations

import ttmesh


def kernel(core):
    """Count the launches on this core in its own L1: a semaphore that the host can read."""
    counter = core.get_arg_val(0)
    core.noc_semaphore_inc(core.get_noc_addr(core.my_x, core.my_y, counter), 1)


def main() -> None:
    mesh = ttmesh.open_mesh_device(ttmesh.MeshShape(2, 4))
    grid = mesh.compute_with_storage_grid_size()
    cores = ttmesh.CoreRange((0, 0), (grid.x - 1, grid.y - 1))
    counters = ttmesh.create_global_semaphore(mesh, cores, 0)

    program = ttmesh.CreateProgram()
    handle = ttmesh.CreateKernel(program, kernel, cores, ttmesh.DataMovementConfig())
    ttmesh.SetRuntimeArgs(program, handle, cores, [counters])

    workload = ttmesh.MeshWorkload()
    workload.add_program(ttmesh.MeshCoordinateRange(mesh.shape), program)
    ttmesh.enqueue_mesh_workload(mesh, workload, blocking=False)
    ttmesh.enqueue_mesh_workload(mesh, workload, blocking=False)
    ttmesh.synchronize_device(mesh)

    launches = counters.values()
    assert (launches == 2).all(), launches
    print(f"{cores.size()} cores on each of {mesh.get_num_devices()} chips ran twice")
    ttmesh.close_mesh_device(mesh)


if __name__ == "__main__":
    main()
