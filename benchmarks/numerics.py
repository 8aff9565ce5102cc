"""The FPU's arithmetic: exact products per second and core, and what realistic costs beside an ideal GEMM.

python benchmarks/numerics.py [--size 1024] [--cuda]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from bench_rows import BenchRow, note

from ttmesh.base.dtypes import Arch, MathFidelity
from ttmesh.chip.numerics import exact_matmul, realistic_matmul
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.ideal_matmul import FAST_BFLOAT16

FIDELITIES = [MathFidelity.LoFi, MathFidelity.HiFi2, MathFidelity.HiFi3, MathFidelity.HiFi4]
DECODE_ROWS = 32
LARGE_AIM, HIFI3_AIM, DECODE_AIM = 1.5, 2.4, 2.0  # of an ideal matmul's time
Work = Callable[[], object]


def configs(size: int) -> dict[str, dict[MathFidelity, FpuConfig]]:
    """By destination: 32 bits; 16 bits with sums in L1, in narrow and wide blocks of K; 16 bits alone."""
    forms = {
        "32 bits": (True, False, 64),
        "16 bits, L1, K block 64": (False, True, 64),
        f"16 bits, L1, K block {size // 8}": (False, True, size // 8),
        "16 bits, all of K": (False, False, None),
    }
    return {name: {f: FpuConfig(Arch.WORMHOLE_B0, f, *form) for f in FIDELITIES} for name, form in forms.items()}


def cpu_seconds(works: list[Work], repeats: int) -> list[float]:
    """The least processor time of each, taken in turns: other processes do not count, and disturb all alike."""
    best = [float("inf")] * len(works)
    for _ in range(repeats + 1):
        for i, work in enumerate(works):
            begin = time.process_time()
            work()
            best[i] = min(best[i], time.process_time() - begin)
    return best


def gpu_seconds(works: list[Work], repeats: int) -> list[float]:
    """The least time of each on the GPU, taken in turns: replays of CUDA graphs of a few calls, as in a trace."""
    replays = [_capture(work) for work in works]
    best = [float("inf")] * len(works)
    for _ in range(repeats + 2):
        for i, (replay, calls) in enumerate(replays):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            replay()
            end.record()
            torch.cuda.synchronize()
            best[i] = min(best[i], begin.elapsed_time(end) / 1e3 / calls)
    return best


def _capture(work: Work) -> tuple[Work, int]:
    """A graph of ten calls; exact matmuls look at the operands' exponents and are called as they are."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(10):
                work()
    except RuntimeError:
        torch.cuda.synchronize()
        return work, 1
    return graph.replay, 10


def report(rows: int, size: int, device: str, seconds: Callable[[list[Work], int], list[float]]) -> None:
    """Print one line per fidelity and destination."""
    a = torch.randn(rows, size, device=device).bfloat16()
    b = torch.randn(size, size, device=device).bfloat16()
    wide_a, wide_b = a.float(), b.float()
    products = rows * size * size / 1e9
    repeats = 20 if rows * size * size >= 1 << 30 else 100
    if device == "cuda" or FAST_BFLOAT16:  # what ideal costs there: bfloat16 by the machine's own instructions
        ideal: Work = lambda: a @ b  # noqa: E731
    else:
        ideal = lambda: (wide_a @ wide_b).bfloat16()  # noqa: E731
    print(f"{rows}x{size}x{size}, {'one core' if device == 'cpu' else torch.cuda.get_device_name()}")
    print(f"{'fidelity':8} {'destination':24} {'exact ms':>9} {'G MAC/s':>9} {'realistic ms':>13} {'/ ideal':>8}")
    for name, by_fidelity in configs(size).items():
        for fidelity, config in by_fidelity.items():
            (exact,) = seconds([lambda c=config: exact_matmul.matmul(a, b, c)], 1 if device == "cpu" else 3)
            costs = seconds([ideal, lambda c=config: realistic_matmul.matmul(a, b, c)], repeats)
            figures = f"{exact * 1e3:9.2f} {products / exact:9.2f} {costs[1] * 1e3:13.3f} {costs[1] / costs[0]:8.2f}"
            print(f"{fidelity.name:8} {name:24} {figures}", flush=True)
            aim = DECODE_AIM if rows == DECODE_ROWS else HIFI3_AIM if fidelity is MathFidelity.HiFi3 else LARGE_AIM
            row = f"realistic {rows}x{size}x{size} {fidelity.name}, {name}"
            note(BenchRow(row, "ms", costs[1] * 1e3, limit=costs[0] * 1e3, limit_name="ideal", limit_aim=aim))
    kind = "bfloat16" if device == "cuda" or FAST_BFLOAT16 else "float32"
    print(f"ideal ({kind}): {costs[0] * 1e3:.3f} ms, {products / costs[0]:.1f} G MAC/s\n")


def main() -> None:
    """A large matmul, then one of decode's 32 rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, help="rows, columns and K (default 1024; 4096 with --cuda)")
    parser.add_argument("--cuda", action="store_true", help="measure on the GPU")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    size: int = arguments.size or (4096 if arguments.cuda else 1024)
    for rows in (size, DECODE_ROWS):
        if arguments.cuda:
            report(rows, size, "cuda", gpu_seconds)
        else:
            report(rows, size, "cpu", cpu_seconds)


if __name__ == "__main__":
    main()
