"""What a process pays before it works: the import, the first calls, many chips; and what an operation costs by their number.

    python benchmarks/start.py [--rounds 5]

Every figure of a process is the best of rounds, import of torch alone and of ttmesh in turns. Memory is that of the
objects of an open mesh, without tensors.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import tracemalloc
from statistics import median

from bench_rows import BenchRow, note

IMPORT_S = 0.3  # more than torch's own
THOUSAND_S = 3.0
FIRST_MS = 1.0
FLAT = 1.5
CHIPS = {1: ("n150", 1, 1), 8: ("t3000", 2, 4), 32: ("galaxy", 8, 4), 128: ("16x8", 16, 8)}
NAMES = (
    "relu", "exp", "sqrt", "abs", "neg", "sigmoid", "tanh", "gelu", "silu", "log1p", "square", "sin", "cos", "erf", "floor",
    "ceil", "sign", "softplus", "mish", "relu6",
)  # fmt: skip

THOUSAND = """
import torch, ttmesh, ttmesh.ttnn as ttnn
ttmesh.configure(system="galaxy")
mesh = ttnn.open_mesh_device(ttnn.MeshShape(8, 4))
x = ttnn.from_torch(torch.rand(32, 32, 32), layout=ttnn.TILE_LAYOUT, device=mesh,
                    mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0))
for _ in range(1000):
    x = ttnn.relu(x)
ttnn.to_torch(x, mesh_composer=ttnn.ConcatMeshToTensor(mesh, 0))
ttnn.close_mesh_device(mesh)
"""


def best_process_s(codes: dict[str, str], rounds: int) -> dict[str, float]:
    """The best wall time of processes that run these programs, in turns."""
    best = dict.fromkeys(codes, float("inf"))
    for _ in range(rounds):
        for name, code in codes.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def measure_memory() -> dict[int, float]:
    """KiB of host memory that an open mesh takes, by chips; the second time, when tables and caches are there."""
    import ttmesh
    import ttmesh.ttnn as ttnn

    taken: dict[int, float] = {}
    for _ in range(2):
        for chips, (system, rows, columns) in CHIPS.items():
            ttmesh.configure(system=system)
            tracemalloc.start()
            mesh = ttnn.open_mesh_device(ttnn.MeshShape(rows, columns))
            taken[chips] = tracemalloc.get_traced_memory()[0] / 1024
            tracemalloc.stop()
            ttnn.close_mesh_device(mesh)
    return taken


def measure_chips(rounds: int) -> tuple[dict[int, float], float]:
    """µs of a repeated add by chips, and the median ms of a first call of its kind."""
    import torch

    import ttmesh
    import ttmesh.ttnn as ttnn

    torch.set_num_threads(1)
    costs: dict[int, float] = {}
    first: list[float] = []
    for chips, (system, rows, columns) in CHIPS.items():
        ttmesh.configure(system=system)
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(rows, columns))
        tensors = [
            ttnn.from_torch(torch.rand(chips, 1, 1), device=mesh, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0))
            for _ in range(2)
        ]
        costs[chips] = _best_us(lambda t=tensors: ttnn.add(*t), rounds)
        if chips == 8:
            for name in NAMES:
                call = getattr(ttnn, name)
                start = time.perf_counter()
                call(tensors[0])
                first.append((time.perf_counter() - start) * 1e3)
        ttnn.close_mesh_device(mesh)
    return costs, median(first)


def _best_us(call: object, rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds * 5):
        start = time.perf_counter()
        for _ in range(100):
            call()  # type: ignore[operator]
        best = min(best, (time.perf_counter() - start) / 100 * 1e6)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    taken = best_process_s(
        {"import torch": "import torch", "import ttmesh.ttnn": "import ttmesh.ttnn", "1,000 ops": THOUSAND}, rounds
    )
    torch_s, ours_s, thousand_s = taken.values()
    own = ours_s - torch_s
    print(
        f"import torch {torch_s:.2f} s, ttmesh.ttnn {ours_s:.2f} s: {own:.2f} s of its own; 1,000 ops {thousand_s:.2f} s"
    )
    thousand = "process of 1,000 ops on 32 chips"
    note(
        BenchRow("import ttmesh.ttnn after torch", "s", own, limit=IMPORT_S, limit_name="promised", limit_aim=1.0),
        BenchRow(thousand, "s", thousand_s, limit=THOUSAND_S, limit_name="promised", limit_aim=1.0),
    )
    costs, first = measure_chips(rounds)
    memory = measure_memory()
    print(f"first call of a new kind {first:.2f} ms at the median")
    note(
        BenchRow("first call of a new kind, median", "ms", first, limit=FIRST_MS, limit_name="promised", limit_aim=1.0)
    )
    for chips, cost in costs.items():
        kib = memory[chips]
        print(
            f"{chips} chips: add of one number per chip {cost:.1f} µs; open {kib:.0f} KiB, {kib / chips:.1f} per chip"
        )
        row = f"add of one number per chip, {chips} chips"
        note(BenchRow(row, "µs", cost, limit=costs[1], limit_name="on 1 chip", limit_aim=None if chips == 1 else FLAT))


if __name__ == "__main__":
    main()
