"""What the transports cost: all_reduce through the protocol beside the bare engine, and messages, for two ranks here.

Starts itself under every engine with `ttmesh launch`. Prints the best of interleaved single calls, which a
busy machine spoils least; one thread per rank.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from bench_rows import BenchRow, note

from ttmesh.fabric.messaging import engines

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 24)


def bare(engine: str, tensor: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    """The engine's own blocking all_reduce on the same memory."""
    if engine == "mpi":
        from mpi4py import MPI

        a, b = tensor.numpy(), out.numpy()
        return lambda: MPI.COMM_WORLD.Allreduce(a, b)

    def reduce() -> None:
        out.copy_(tensor)
        torch.distributed.all_reduce(out)

    return reduce


def measure() -> None:
    torch.set_num_threads(1)
    w = engines.connect(60.0)
    rows = []
    for size in SIZES:
        x, out = torch.ones(size // 4), torch.empty(size // 4)
        bare_reduce = bare(w.name, x, out)
        peer = 1 - w.rank

        def exchange(x: torch.Tensor = x, out: torch.Tensor = out, peer: int = peer) -> None:
            for sender in (0, 1):
                w.send(x, peer) if w.rank == sender else w.recv(out, peer)

        works = (bare_reduce, lambda x=x, out=out: w.all_reduce(x, out=out), exchange)
        best = [float("inf")] * 3
        for _ in range(60 if size < 1 << 24 else 10):
            for i, work in enumerate(works):
                w.barrier()
                began = time.perf_counter()
                work()
                best[i] = min(best[i], (time.perf_counter() - began) * 1e6)
        rows.append((size, *best))
    if w.rank == 0:
        print("| size | bare all_reduce µs | through the protocol µs | ratio | one message µs | GB/s |")
        print("|--:|--:|--:|--:|--:|--:|")
        for size, plain, ours, pair in rows:
            row = f"all_reduce of {size >> 10} KiB through the protocol, {w.name}"
            note(BenchRow(row, "µs", ours, limit=plain, limit_name="bare engine"))
            print(
                f"| {size >> 10} KiB | {plain:.1f} | {ours:.1f} | {ours / plain:.2f} | {pair / 2:.1f} "
                f"| {size / (pair / 2) / 1e3:.2f} |"
            )
    w.close()


if __name__ == "__main__":
    if engines.choose_engine() is not None:
        measure()
    else:
        for engine in engines.names():
            print(f"## {engine}, 2 ranks", flush=True)
            words = ["-m", "ttmesh.cli.launch", "-n", "2", "--engine", engine, __file__]
            subprocess.run([sys.executable, *words], check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
