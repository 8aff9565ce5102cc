"""The matrix engine's arithmetic: exact products per second and core, and what realistic costs beside an ideal GEMM.

python benchmarks/numerics.py [--size 1024]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from ttmesh.base.dtypes import Arch, MathFidelity
from ttmesh.chip.numerics import exact_matmul, realistic_matmul
from ttmesh.chip.numerics.engine_config import EngineConfig

FIDELITIES = [MathFidelity.LoFi, MathFidelity.HiFi2, MathFidelity.HiFi3, MathFidelity.HiFi4]
REPEATS = 5


def cpu_seconds(work: Callable[[], object]) -> float:
    """The least processor time of some calls: other processes do not count."""
    work()
    times = []
    for _ in range(REPEATS):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def main() -> None:
    """Print one line per fidelity and destination."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1024)
    size: int = parser.parse_args().size
    torch.set_num_threads(1)
    for rows in (size, 32):
        a = torch.randn(rows, size).bfloat16()
        b = torch.randn(size, size).bfloat16()
        wide_a, wide_b = a.float(), b.float()
        ideal = cpu_seconds(lambda a=wide_a, b=wide_b: (a @ b).bfloat16())
        products = rows * size * size / 1e9
        print(f"{rows}x{size}x{size}, one core: ideal {products / ideal:.1f} G MAC/s")
        print(f"{'fidelity':8} {'destination':24} {'exact G MAC/s':>14} {'realistic / ideal':>18}")
        for fp32_dest, l1_acc, name in ((True, False, "32 bits"), (False, True, "16 bits, L1 accumulation")):
            for fidelity in FIDELITIES:
                config = EngineConfig(Arch.WORMHOLE_B0, fidelity, fp32_dest, l1_acc, 64)
                exact = cpu_seconds(lambda c=config, a=a, b=b: exact_matmul.matmul(a, b, c))
                realistic = cpu_seconds(lambda c=config, a=a, b=b: realistic_matmul.matmul(a, b, c))
                print(f"{fidelity.name:8} {name:24} {products / exact:14.2f} {realistic / ideal:18.2f}", flush=True)


if __name__ == "__main__":
    main()
