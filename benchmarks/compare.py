"""Two checkouts side by side: the same calls in two live processes, a round of one after a round of the other.

    python benchmarks/compare.py BEFORE AFTER [--rounds 60] [--group '8 chips'] [--rows TEXT]

BEFORE and AFTER are folders or git revisions. Whatever else the machine does hits both alike, so a row tells change
from noise: it counts as changed only where the best and the median round agree that it did, and by more than the rounds
of one side differ among themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import ops
import torch

import ttmesh
import ttmesh.ttnn as ttnn

HERE = Path(__file__).parent
ROUND_S = 0.004
LIMIT = 1.05
Call = Callable[[], object]


def tiny_rows(rows: int, columns: int) -> Iterator[tuple[str, Call]]:
    """What programs write, on one tile per chip."""
    mesh = ops.mesh_of(rows, columns)
    chips, small = rows * columns, torch.rand(32, 32)
    for name, (ours, _) in ops.forms(mesh, rows, columns).items():
        yield name, ours
    yield "from_torch", lambda: ttnn.from_torch(small, layout=ttnn.TILE_LAYOUT, device=mesh)
    one = ttnn.get_device_tensors(ops.on_mesh(mesh, torch.rand(chips, 32, 32), 0, ttnn.bfloat16))[0]
    yield "to_torch of one chip's tensor", lambda: ttnn.to_torch(one)
    replay, _, kept = ops.replay(mesh, rows, columns)
    yield f"{len(kept) - 1} adds in a trace", lambda: replay() or kept


def large_rows() -> Iterator[tuple[str, Call]]:
    """Collectives and matmuls of a size that models have."""
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ops.mesh_of(2, 4)
    for kib in (2, 1024):
        x = ops.on_mesh(mesh, torch.rand(8, 32, kib * 16), 0, ttnn.bfloat16)
        yield f"all_reduce of {kib} KiB", partial(ttnn.all_reduce, x, cluster_axis=1)
        yield f"all_gather of {kib} KiB", partial(ttnn.all_gather, x, 2, cluster_axis=1)
    up = ops.on_mesh(mesh, torch.randn(1024, 1024) / 32, None, ttnn.bfloat16)
    x = ops.on_mesh(mesh, torch.randn(8, 32, 1024), 0, ttnn.bfloat16)
    yield "linear of 32 x 1024 x 1024 per chip", partial(ttnn.linear, x, up)


GROUPS = {
    "1 chip": partial(tiny_rows, 1, 1), "8 chips": partial(tiny_rows, 2, 4), "32 chips": partial(tiny_rows, 8, 4),
    "8 chips, large": large_rows,
}  # fmt: skip


def serve(group: str) -> None:
    """The side of one checkout: prints the rows' names, then one round's µs per call for each number read."""
    with contextlib.suppress(TypeError):  # checkouts before 0.2 have one kind of numerics, the ideal one
        ttmesh.configure(numerics="ideal")
    torch.set_num_threads(1)
    calls = list(GROUPS[group]())
    repeats = []
    for _, call in calls:
        call()
        start = time.perf_counter()
        call()
        repeats.append(max(1, min(500, int(ROUND_S / (time.perf_counter() - start)))))
    print(json.dumps([name for name, _ in calls]), flush=True)
    for line in sys.stdin:
        call, count = calls[int(line)][1], repeats[int(line)]
        for _ in range(count // 2):  # the other side has had the caches
            call()
        start = time.perf_counter()
        for _ in range(count):
            call()
        print((time.perf_counter() - start) / count * 1e6, flush=True)


def start_side(checkout: Path, group: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, __file__, "--serve", group], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def ask(side: subprocess.Popen[str], row: int) -> float:
    assert side.stdin
    assert side.stdout
    side.stdin.write(f"{row}\n")
    side.stdin.flush()
    return float(side.stdout.readline())


def compare(group: str, arguments: argparse.Namespace) -> int:
    """Print a group's rows; how many of them are slower."""
    sides = [start_side(checkout, group) for checkout in (arguments.before, arguments.after)]
    names, _ = (json.loads(side.stdout.readline()) for side in sides if side.stdout)
    slower = 0
    for row, name in enumerate(names):
        if arguments.rows not in name:
            continue
        found: tuple[list[float], list[float]] = ([], [])
        for turn in range(arguments.rounds):
            for side in (0, 1) if turn % 2 else (1, 0):
                found[side].append(ask(sides[side], row))
        best = min(found[1]) / min(found[0])
        middle = median(found[1]) / median(found[0])
        spread = max(quantiles(costs, n=4)[0] / min(costs) for costs in found)
        changed = (
            "slower" if min(best, middle) > max(LIMIT, spread)
            else "faster" if max(best, middle) < 1 / max(LIMIT, spread)
            else ""
        )  # fmt: skip
        slower += changed == "slower"
        cells = "".join(f"{f'{min(costs):.1f} ({median(costs):.1f})':>16}" for costs in found)
        print(f"{f'{name}, {group}'[:44]:45}{cells}{best:7.2f}{middle:8.2f}   {changed}", flush=True)
    for one in sides:
        one.communicate()
    return slower


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a checkout of ttmesh, or a revision of this one")
    parser.add_argument("after", help="another one")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--group", choices=GROUPS, action="append", help="only this group of rows")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments.before = find_checkout(arguments.before, Path(folder, "before"))
        arguments.after = find_checkout(arguments.after, Path(folder, "after"))
        print_rows(arguments)
    subprocess.run(["git", "-C", HERE, "worktree", "prune"], check=True)
    return 0


def find_checkout(name: str, folder: Path) -> Path:
    """The folder of this name, else a checkout of the revision in a folder of its own."""
    if Path(name, "src").is_dir():
        return Path(name)
    subprocess.run(["git", "-C", HERE, "worktree", "add", "-q", "--detach", folder, name], check=True)
    return folder


def print_rows(arguments: argparse.Namespace) -> None:
    print(f"{'':45}{'before':>16}{'after':>16}{'best':>7}{'median':>8}   µs, best (median)")
    slower = sum(compare(group, arguments) for group in arguments.group or GROUPS)
    print(f"{slower} rows slower by more than {LIMIT - 1:.0%} and more than the noise")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        sys.exit(main())
