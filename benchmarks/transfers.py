"""Host to mesh and back beside memcpy: 64 MiB sharded, concatenated and replicated, and what a small transfer costs.

    python benchmarks/transfers.py [--mib 64] [--rounds 15]

Minimum of interleaved rounds, wall time and processor time of all threads (the one to look at on a busy machine).
"memcpy" copies the source into memory that already exists, with the same threads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from bench_rows import BenchRow, note

from ttmesh.base import settings
from ttmesh.base.dtypes import TILE_LAYOUT, bfloat8_b, bfloat16
from ttmesh.base.geometry import MeshShape
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.device.opening import close_mesh_device, open_mesh_device
from ttmesh.tensor.distribution.composers import ConcatMesh2dToTensor, ConcatMeshToTensor
from ttmesh.tensor.distribution.mappers import ReplicateTensorToMesh, ShardTensor2dMesh, ShardTensorToMesh
from ttmesh.tensor.transfer.device_tensors import get_device_tensors
from ttmesh.tensor.transfer.transfers import copy_host_to_device_tensor, from_torch, to_torch

SMALL_US = 10.0  # what a small transfer of one tensor may cost
Rows = dict[str, Callable[[], object]]


def fastest_ms(rows: Rows, rounds: int) -> dict[str, tuple[float, float]]:
    """The minima of each row, rounds interleaved so that a busy moment hits all of them."""
    best = dict.fromkeys(rows, (float("inf"), float("inf")))
    for _ in range(rounds):
        for name, row in rows.items():
            wall, cpu = time.perf_counter(), time.process_time()
            row()
            cpu, wall = (time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3
            best[name] = min(best[name][0], wall), min(best[name][1], cpu)
    return best


def large_rows(mesh: MeshDevice, values: torch.Tensor, there: torch.Tensor) -> Rows:
    by_rows, by_columns = ShardTensorToMesh(mesh, 0), ShardTensorToMesh(mesh, 1)
    grid = ShardTensor2dMesh(mesh, tuple(mesh.shape), (0, 1))
    on_rows = from_torch(values, device=mesh, mesh_mapper=by_rows)
    on_columns = from_torch(values, device=mesh, mesh_mapper=by_columns)
    on_grid = from_torch(values, device=mesh, mesh_mapper=grid)
    return {
        "memcpy": lambda: there.copy_(values),
        "shard dim 0": lambda: from_torch(values, device=mesh, mesh_mapper=by_rows),
        "shard dim 1": lambda: from_torch(values, device=mesh, mesh_mapper=by_columns),
        "shard both": lambda: from_torch(values, device=mesh, mesh_mapper=grid),
        "replicate": lambda: from_torch(values, device=mesh, mesh_mapper=ReplicateTensorToMesh(mesh)),
        "concat dim 0": lambda: to_torch(on_rows, mesh_composer=ConcatMeshToTensor(mesh, 0)),
        "concat dim 1": lambda: to_torch(on_columns, mesh_composer=ConcatMeshToTensor(mesh, 1)),
        "concat both": lambda: to_torch(on_grid, mesh_composer=ConcatMesh2dToTensor(mesh, tuple(mesh.shape), (0, 1))),
        "shard dim 0 as bfloat16": lambda: from_torch(values, bfloat16, device=mesh, mesh_mapper=by_rows),
        "shard dim 0 as bfloat8_b": lambda: from_torch(
            values, bfloat8_b, layout=TILE_LAYOUT, device=mesh, mesh_mapper=by_rows
        ),
    }


def small_rows(mesh: MeshDevice) -> Rows:
    values, mapper, composer = torch.rand(8, 32), ShardTensorToMesh(mesh, 0), ConcatMeshToTensor(mesh, 0)
    host = from_torch(values, mesh_mapper=mapper)
    tensor = host.to(mesh)

    def hundred(work: Callable[[], object]) -> Callable[[], object]:
        return lambda: [work() for _ in range(100)]

    one = get_device_tensors(from_torch(torch.rand(32, 32), device=mesh, layout=TILE_LAYOUT))[0]
    tile = torch.rand(32, 32)
    return {
        "from_torch": hundred(lambda: from_torch(tile, device=mesh, layout=TILE_LAYOUT)),
        "to_torch": hundred(lambda: to_torch(one)),
        "from_torch with a mapper": hundred(lambda: from_torch(values, device=mesh, mesh_mapper=mapper)),
        "to_torch with a composer": hundred(lambda: to_torch(tensor, mesh_composer=composer)),
        "copy_host_to_device_tensor": hundred(lambda: copy_host_to_device_tensor(host, tensor)),
    }


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--mib", type=int, default=64)
    options.add_argument("--rounds", type=int, default=15)
    chosen = options.parse_args()
    values = torch.rand(chosen.mib * 2**20 // 4 // 2048, 2048)
    there = torch.empty_like(values)
    print(f"{chosen.mib} MiB float32, {torch.get_num_threads()} threads; times memcpy in brackets")
    for system, shape in (("n300", (1, 2)), ("t3000", (2, 4)), ("galaxy", (8, 4))):
        settings.override("TTMESH_SYSTEM", system)
        mesh = open_mesh_device(MeshShape(*shape))
        best = fastest_ms(large_rows(mesh, values, there), chosen.rounds)
        print(f"-- {mesh!r}")
        wall_copy, cpu_copy = best["memcpy"]
        for name, (wall, cpu) in best.items():
            print(f"{name:28}{wall:9.2f} ms ({wall / wall_copy:.2f}x){cpu:9.2f} ms cpu ({cpu / cpu_copy:.2f}x)")
            if name != "memcpy":
                row = f"{name}, {chosen.mib} MiB, {mesh.get_num_devices()} chips"
                note(BenchRow(row, "ms", wall, limit=wall_copy, limit_name="memcpy"))
        if shape == (2, 4):
            print("-- small tensors, 8 x 32 float32 over 8 devices")
            for name, (wall, cpu) in fastest_ms(small_rows(mesh), chosen.rounds).items():
                print(f"{name:28}{wall * 10:9.2f} µs{cpu * 10:19.2f} µs cpu")
                aim = 1.0 if name in ("from_torch", "to_torch") else None
                note(BenchRow(f"small {name}", "µs", wall * 10, limit=SMALL_US, limit_name="promised", limit_aim=aim))
        close_mesh_device(mesh)


if __name__ == "__main__":
    main()
