"""Mesh buffers: sharded over the chips, replicated, read and written in full, by chip and by pages."""

from __future__ import annotations

import torch

import ttmesh


def main() -> None:
    mesh = ttmesh.open_mesh_device(ttmesh.MeshShape(2, 4))
    shape = (64, 128)
    values = torch.arange(64 * 128, dtype=torch.int32).reshape(shape)

    # Each chip gets one 32x32 block, all at the same address, in L1.
    sharded = ttmesh.create_mesh_buffer(
        mesh,
        layout="sharded",
        global_shape=shape,
        shard_shape=(32, 32),
        datum_bytes=4,
        page_size=1024,
        buffer_type=ttmesh.BufferType.L1,
    )
    ttmesh.enqueue_write_mesh_buffer(sharded, values)
    back = ttmesh.enqueue_read_mesh_buffer(sharded).view(torch.int32).reshape(shape)
    assert torch.equal(back, values)

    corner = ttmesh.MeshCoordinate(1, 3)
    if mesh.is_local(corner):  # always, unless several ranks hold the mesh (docs/ranks.md)
        block = ttmesh.read_shard(sharded, corner).view(torch.int32).reshape(32, 32)
        assert torch.equal(block, values[32:, 96:])
    ttmesh.write_shard(sharded, -values[32:, 96:], corner)
    back = ttmesh.enqueue_read_mesh_buffer(sharded).view(torch.int32).reshape(shape)
    assert torch.equal(back[32:, 96:], -values[32:, 96:])
    assert torch.equal(back[:32], values[:32])

    # Every chip gets the same; then two of them get another second page.
    copies = ttmesh.create_mesh_buffer(mesh, global_shape=(4, 256), datum_bytes=4)
    ttmesh.enqueue_write_mesh_buffer(copies, torch.zeros(4, 256, dtype=torch.int32))
    first_column = ttmesh.MeshCoordinateRange(ttmesh.MeshCoordinate(0, 0), ttmesh.MeshCoordinate(1, 0))
    page = ttmesh.BufferRegion(copies.page_size, copies.page_size)
    ones = torch.ones(256, dtype=torch.int32)
    ttmesh.enqueue_write_shard_to_sub_grid(copies, ones, first_column, region=page)
    for coord in filter(mesh.is_local, ttmesh.MeshCoordinateRange(mesh.shape)):
        rows = ttmesh.read_shard(copies, coord).view(torch.int32).reshape(4, 256).sum(1).tolist()
        assert rows == ([0, 256, 0, 0] if first_column.contains(coord) else [0, 0, 0, 0]), (coord, rows)

    print(f"{sharded} at {sharded.address()} and {copies} at {copies.address()} on every chip")
    ttmesh.close_mesh_device(mesh)


if __name__ == "__main__":
    main()
