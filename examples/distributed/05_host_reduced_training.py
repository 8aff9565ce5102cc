"""Seed 003's phases 0 and 1: the host shards a batch over the chips, and reduces their gradients itself."""

from __future__ import annotations

import torch

import ttmesh

TILE, TILE_BYTES = 1024, 4096  # float32
W, X, T, Y, ERROR, GRADIENT = range(6)


async def reader(core):
    for cb in (W, X, T):
        await core.cb_reserve_back(cb, 1)
        core.noc_async_read_page(0, core.tensor_accessor(core.get_arg_val(cb)), core.get_write_ptr(cb))
        core.noc_async_read_barrier()
        core.cb_push_back(cb, 1)


async def gradient(core):
    """(w * x - t) * x, the gradient of half the squared error, element by element."""
    steps = [(core.mul_tiles, W, X, Y), (core.sub_tiles, Y, T, ERROR), (core.mul_tiles, ERROR, X, GRADIENT)]
    for operation, a, b, out in steps:
        await core.cb_wait_front(a, 1)
        await core.cb_wait_front(b, 1)
        await core.cb_reserve_back(out, 1)
        core.tile_regs_acquire()
        operation(a, b, 0, 0, 0)
        core.tile_regs_commit()
        core.tile_regs_wait()
        core.pack_tile(0, out)
        core.tile_regs_release()
        core.cb_push_back(out, 1)


async def writer(core):
    await core.cb_wait_front(GRADIENT, 1)
    core.noc_async_write_page(0, core.tensor_accessor(core.get_arg_val(0)), core.get_read_ptr(GRADIENT))
    core.noc_async_write_barrier()


def main() -> None:
    mesh = ttmesh.open_mesh_device(ttmesh.MeshShape(2, 4))
    chips, core = mesh.get_num_devices(), ttmesh.CoreCoord(0, 0)
    weights = ttmesh.create_mesh_buffer(mesh, "replicated", global_shape=(1, TILE), datum_bytes=4)
    sharded = {"global_shape": (chips, TILE), "shard_shape": (1, TILE), "datum_bytes": 4}
    inputs, targets, gradients = (ttmesh.create_mesh_buffer(mesh, "sharded", **sharded) for _ in range(3))
    program = ttmesh.Program()
    for cb in range(6):
        program.create_circular_buffer(core, ttmesh.CircularBufferConfig(TILE_BYTES, {cb: ttmesh.float32}))
    read = program.create_kernel(reader, core, ttmesh.ReaderDataMovementConfig())
    program.create_kernel(gradient, core, ttmesh.ComputeConfig(fp32_dest_acc_en=True))
    write = program.create_kernel(writer, core, ttmesh.WriterDataMovementConfig())
    program.set_runtime_args(read, core, [weights, inputs, targets])
    program.set_runtime_args(write, core, [gradients])
    workload = ttmesh.MeshWorkload()
    workload.add_program(ttmesh.MeshCoordinateRange(mesh.shape), program)

    generator = torch.Generator().manual_seed(0)
    truth, w, reference = torch.randn(TILE, generator=generator), torch.zeros(TILE), torch.zeros(TILE)
    for _ in range(40):
        x = torch.randn(chips, TILE, generator=generator)
        ttmesh.enqueue_write_mesh_buffer(inputs, x)
        ttmesh.enqueue_write_mesh_buffer(targets, truth * x)
        ttmesh.enqueue_write_mesh_buffer(weights, w)
        ttmesh.enqueue_mesh_workload(mesh, workload)
        w = w - 0.4 / chips * ttmesh.enqueue_read_mesh_buffer(gradients).view(torch.float32).reshape(chips, TILE).sum(0)
        reference = reference - 0.4 / chips * ((reference * x - truth * x) * x).sum(0)
    assert torch.allclose(w, reference, atol=1e-5), "the chips and torch disagree"
    assert (w - truth).abs().max() < 0.01, "training did not converge"
    print(f"after 40 steps on {chips} chips the largest error is {(w - truth).abs().max():.1e}")
    ttmesh.close_mesh_device(mesh)


if __name__ == "__main__":
    with ttmesh.numerics("ideal"):  # to compare with torch to the bit; by default results are rounded as on the chip
        main()
