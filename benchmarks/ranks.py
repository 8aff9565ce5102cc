"""What crossing ranks costs: all_reduce on a 2x8 mesh that two ranks divide, beside its parts done by hand in the same run.

By hand: the sum of a rank's own lanes, then one all_reduce of it by the engine. "sum, engine" calls the kernel and the
transport; "op, engine" is ttnn.all_reduce of the same lanes on a 2x4 mesh of this rank alone, with the allocation and the
queue that every operation has, then the transport. The bar: at most 1.1 times "sum, engine". Starts itself under every
engine with `ttmesh launch`; best tenth of interleaved single calls, in microseconds, one thread per rank.

    python benchmarks/ranks.py [mpi | torchdist]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from bench_rows import BenchRow, note

import ttmesh.ttnn as ttnn
from ttmesh.base import settings
from ttmesh.chip.formats.kernels.lane_sum import lane_sum
from ttmesh.fabric.messaging import engines

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 26)  # bytes per chip
DTYPES = ("float32", "bfloat16")
WIDTH = 1024  # elements of a row: a row is a page, and three pages must fit into L1
BAR = 1.1
LOOKS = 3  # a figure above the bar is measured again, all calls alike, in other memory: neighbours and pages spoil some


def best_us(works: list[Callable[[], object]], rounds: int, meet: Callable[[], object]) -> list[float]:
    """The best tenth of the calls of each, in turns; ranks meet before every one.

    A busy machine spoils the best calls least; the very best of gloo's is luck, its threads wake when they wake.
    """
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for times, work in zip(taken, works, strict=True):
            meet()
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
    return [sorted(times)[rounds // 10] * 1e6 for times in taken]


def calls(mesh: ttnn.MeshDevice, here: ttnn.MeshDevice, count: int, dtype: str) -> list[Callable[[], object]]:
    """The sum and the engine, the operation and the engine, and the operation over ranks, each with values of its own."""
    group = mesh.rank_block.group(1)
    width = min(count, WIDTH)
    lanes = torch.randn(2, 4, count // width, width).to(getattr(torch, dtype))

    def on(device: ttnn.MeshDevice, values: torch.Tensor) -> ttnn.Tensor:
        rows = values.reshape(-1, width)
        mapper = ttnn.ShardTensorToMesh(device, 0)
        return ttnn.from_torch(rows, device=device, dtype=getattr(ttnn, dtype), mesh_mapper=mapper)

    big, local = on(mesh, torch.cat([lanes, lanes], 1)), on(here, lanes)
    works: list[Callable[[], object]] = [
        lambda: group.all_reduce(lane_sum(lanes, (1,))),
        lambda: group.all_reduce(ttnn.all_reduce(local, cluster_axis=1).buffer.cell.values),
        lambda: ttnn.all_reduce(big, cluster_axis=1),
    ]
    for work in works:
        work()
    return works


def measure() -> int:
    torch.set_num_threads(1)
    settings.override("TTMESH_SYSTEM", "4x8")  # room for the divided mesh and, below it, one of this rank's own
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 8))
    assert mesh.rank_block is not None, "two ranks"
    group, first = mesh.rank_block.group(1), int(ttnn.distributed_context_get_rank()) == 0
    here = ttnn.open_mesh_device(ttnn.MeshShape(2, 4), physical_device_ids=[16, 17, 18, 19, 24, 25, 26, 27])
    if first:
        print("| dtype | per chip | sum, engine | op, engine | big mesh | of sum, engine | of op, engine |")
        print("|---|--:|--:|--:|--:|--:|--:|", flush=True)
    missed = 0
    for dtype in DTYPES:
        kind = getattr(torch, dtype)
        for size in SIZES:
            rounds = 600 if size < 1 << 20 else 100 if size < 1 << 23 else 20 if size < 1 << 26 else 8
            best = [float("inf")] * 3
            for _ in range(LOOKS):
                works = calls(mesh, here, size // kind.itemsize, dtype)
                best = [min(pair) for pair in zip(best, best_us(works, rounds, group.barrier), strict=True)]
                del works
                if not mesh.rank_block.broadcast_number(best[2] > BAR * best[0]):  # all ranks stop together
                    break
            plain, op, ours = best
            missed += ours > BAR * plain
            if first:
                engine = getattr(engines.world(), "name", "")
                row = f"all_reduce over ranks, {size >> 10:,} KiB {dtype}, {engine}"
                note(BenchRow(row, "µs", ours, limit=plain, limit_name="sum and engine", limit_aim=BAR))
                print(
                    f"| {dtype} | {size >> 10:,} KiB | {plain:,.1f} | {op:,.1f} | {ours:,.1f} | {ours / plain:.2f} "
                    f"| {ours / op:.2f} |",
                    flush=True,
                )
    if first and missed:
        print(f"{missed} of {len(SIZES) * len(DTYPES)} figures miss the bar of {BAR}", flush=True)
    return int(first and bool(missed))  # one rank's clock decides


if __name__ == "__main__":
    if engines.choose_engine() is not None:
        sys.exit(measure())
    codes = []
    for name in sys.argv[1:] or engines.names():
        print(f"## {name}, 2 ranks", flush=True)
        words = ["-m", "ttmesh.cli.launch", "-n", "2", "--engine", name, __file__]
        codes.append(subprocess.run([sys.executable, *words], env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode)
    sys.exit(max(codes))
