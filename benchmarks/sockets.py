"""What a socket between ranks costs: there and back through two sockets, beside the engine's own send and recv.

Starts itself under every engine with `ttmesh launch`; best of interleaved round trips, in microseconds, one thread per rank.

    python benchmarks/sockets.py [mpi | torchdist]
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import torch
from bench_rows import BenchRow, note
from ranks import best_us

import ttmesh.ttnn as ttnn
from ttmesh.fabric.messaging import engines
from ttmesh.fabric.messaging.transport import Transport

ROWS = (32, 512, 8192, 131072)  # of 64 bfloat16 numbers: 4 KiB to 16 MiB
ROUNDS = 30


def main() -> int:
    if engines.choose_engine() is not None:
        return measure()
    for engine in sys.argv[1:] or engines.names():
        print(f"engine {engine}: round trip in µs", flush=True)
        command = ["-m", "ttmesh", "launch", "-n", "2", "--mesh-per-rank", "--engine", engine, __file__]
        code = subprocess.run([sys.executable, *command], env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode
        if code:
            return code
    return 0


def measure() -> int:
    torch.set_num_threads(1)
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_2D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    world = engines.world()
    assert world is not None, "two ranks"
    first = world.rank == 0
    core = ttnn.MeshCoreCoord(ttnn.MeshCoordinate(0, 0), ttnn.CoreCoord(0, 0))
    memory = ttnn.SocketMemoryConfig(ttnn.BufferType.DRAM, 32 << 20)
    forth, back = (
        ttnn.MeshSocket(mesh, ttnn.SocketConfig([ttnn.SocketConnection(core, core)], memory, *ends))
        for ends in ((0, 1), (1, 0))
    )
    if first:
        print("| bytes | engine | socket |\n|--:|--:|--:|", flush=True)
    for rows in ROWS:
        values = torch.randn(rows, 64).bfloat16()
        times = best_us([bare(world, values), through(mesh, forth, back, values, first)], ROUNDS, world.barrier)
        if first:
            row = f"round trip of {values.nbytes >> 10} KiB by sockets, {world.name}"
            note(BenchRow(row, "µs", times[1], limit=times[0], limit_name="bare engine"))
            print(f"| {values.nbytes} | {times[0]:.0f} | {times[1]:.0f} |", flush=True)
    ttnn.close_device(mesh)
    return 0


def bare(world: Transport, values: torch.Tensor) -> Callable[[], None]:
    """There and back by the engine alone."""
    room = torch.empty_like(values)

    def first() -> None:
        world.send(values, 1)
        world.recv(room, 1)

    def second() -> None:
        world.recv(room, 0)
        world.send(room, 0)

    return second if world.rank else first


def through(
    mesh: ttnn.MeshDevice, forth: ttnn.MeshSocket, back: ttnn.MeshSocket, values: torch.Tensor, first: bool
) -> Callable[[], None]:
    """There and back through the sockets."""
    tensor = ttnn.from_torch(values, layout=ttnn.TILE_LAYOUT, device=mesh)
    calls = [(ttnn.experimental.send_async, forth), (ttnn.experimental.recv_async, back)]
    if not first:
        calls = [(ttnn.experimental.recv_async, forth), (ttnn.experimental.send_async, back)]

    def trip() -> None:
        for call, socket in calls:
            call(tensor, socket)
        ttnn.synchronize_device(mesh)

    return trip


if __name__ == "__main__":
    sys.exit(main())
