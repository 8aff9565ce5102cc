"""c = a + b on eight chips, 64 cores each: reader, compute and writer kernels hand tiles over through circular buffers."""

from __future__ import annotations

import torch
from elementwise import TILE_BYTES, binary_program

import ttmesh


def main() -> None:
    mesh = ttmesh.open_mesh_device(ttmesh.MeshShape(2, 4))
    tiles = 100  # per chip
    shape, shard = (2 * tiles * 32, 4 * 32), (tiles * 32, 32)
    a, b, c = (
        ttmesh.create_mesh_buffer(mesh, "sharded", global_shape=shape, shard_shape=shard, page_size=TILE_BYTES)
        for _ in range(3)
    )
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(shape, generator=generator).bfloat16() for _ in range(2))
    ttmesh.enqueue_write_mesh_buffer(a, x)
    ttmesh.enqueue_write_mesh_buffer(b, y)

    workload = ttmesh.MeshWorkload()
    workload.add_program(ttmesh.MeshCoordinateRange(mesh.shape), binary_program(mesh, "add_tiles", a, b, c))
    ttmesh.enqueue_mesh_workload(mesh, workload)

    result = ttmesh.enqueue_read_mesh_buffer(c).view(torch.bfloat16).reshape(shape)
    assert torch.equal(result, x + y)
    print(f"{tiles} tiles on each of {mesh.get_num_devices()} chips added")
    ttmesh.close_mesh_device(mesh)


if __name__ == "__main__":
    with ttmesh.numerics("ideal"):  # to compare with torch to the bit; by default results are rounded as on the chip
        main()
