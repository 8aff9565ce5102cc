"""Seed 003's whole flow: two queues, homogeneous and heterogeneous workloads, events between them, a mesh trace."""

from __future__ import annotations

import torch
from elementwise import TILE_BYTES, binary_program

import ttmesh

DATA, WORK = 1, 0  # command queues: transfers go over one, programs over the other


def main() -> None:
    mesh = ttmesh.open_mesh_device(ttmesh.MeshShape(2, 4), num_command_queues=2, trace_region_size=1 << 20)
    tiles = 16
    shape, shard = (2 * tiles * 32, 4 * 32), (tiles * 32, 32)
    a, b, total, result = (
        ttmesh.create_mesh_buffer(mesh, "sharded", global_shape=shape, shard_shape=shard, page_size=TILE_BYTES)
        for _ in range(4)
    )

    # total = a + b everywhere; then the first column of chips multiplies by b, the others subtract b.
    everywhere = ttmesh.MeshWorkload()
    everywhere.add_program(ttmesh.MeshCoordinateRange(mesh.shape), binary_program(mesh, "add_tiles", a, b, total))
    first = ttmesh.MeshCoordinateRange(ttmesh.MeshCoordinate(0, 0), ttmesh.MeshCoordinate(1, 0))
    others = ttmesh.MeshCoordinateRange(ttmesh.MeshCoordinate(0, 1), ttmesh.MeshCoordinate(1, 3))
    mixed = ttmesh.MeshWorkload()
    mixed.add_program(first, binary_program(mesh, "mul_tiles", total, b, result))
    mixed.add_program(others, binary_program(mesh, "sub_tiles", total, b, result))
    workloads = (everywhere, mixed)

    for workload in workloads:  # compiles them: a capture cannot load new binaries
        ttmesh.enqueue_mesh_workload(mesh, workload, cq_id=WORK)
    trace = ttmesh.begin_trace_capture(mesh, cq_id=WORK)
    for workload in workloads:
        ttmesh.enqueue_mesh_workload(mesh, workload, blocking=False, cq_id=WORK)
    ttmesh.end_trace_capture(mesh, trace, cq_id=WORK)

    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        x, y = (torch.randn(shape, generator=generator).bfloat16() for _ in range(2))
        ttmesh.enqueue_write_mesh_buffer(a, x, cq_id=DATA)
        ttmesh.enqueue_write_mesh_buffer(b, y, cq_id=DATA)
        written = ttmesh.record_event(mesh, DATA)
        ttmesh.wait_for_event(WORK, written)
        ttmesh.execute_trace(mesh, trace, cq_id=WORK, blocking=False)
        computed = ttmesh.record_event(mesh, WORK)
        ttmesh.wait_for_event(DATA, computed)
        got = ttmesh.enqueue_read_mesh_buffer(result, cq_id=DATA).view(torch.bfloat16).reshape(shape)

        expected = (x + y) - y
        expected[:, :32] = ((x + y) * y)[:, :32]
        assert torch.equal(got, expected)

    ttmesh.release_trace(mesh, trace)
    print("three replays of two workloads, fed by the other queue, gave what torch gives")
    ttmesh.close_mesh_device(mesh)


if __name__ == "__main__":
    with ttmesh.numerics("ideal"):  # to compare with torch to the bit; by default results are rounded as on the chip
        main()
