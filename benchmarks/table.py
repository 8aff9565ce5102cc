"""Every benchmark, collected into one table, a JSON file and a picture: `make bench`.

    python benchmarks/table.py [--only NAME ...] [--out artefacts/bench]

Each benchmark runs in a process of its own, one after the other; what it prints is kept beside the table. A row has our
figure, the best peer's, the limit (what the machine allows, or what is promised), both ratios and whether the aim is met.
Peers are compared with numerics `ideal`; the same rows in `realistic` stand beside them without an aim.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from bench_picture import draw
from bench_rows import FILE, BenchRow, read_rows
from rich.console import Console
from rich.table import Table

import ttmesh

HERE = Path(__file__).parent
BOTH, ONE = ("ideal", "realistic"), ("ideal",)
BENCHMARKS = {
    "start": ONE, "frames": ONE, "foundation": ONE, "ops": BOTH, "collectives": BOTH, "model_steps": BOTH, "training": BOTH,
    "transfers": ONE, "formats": ONE, "numerics": ("realistic",), "busy": ONE, "programs": ONE, "engines": ONE,
    "ranks": ONE, "sockets": ONE, "tracking": ONE,
}  # fmt: skip


def run_benchmark(name: str, mode: str, out: Path) -> list[BenchRow]:
    """The rows of one benchmark, in a process of its own; what it prints is kept beside them."""
    rows, log = out / f"{name}_{mode}.rows", out / f"{name}_{mode}.log"
    rows.unlink(missing_ok=True)
    env = {**os.environ, FILE: str(rows), "TTMESH_NUMERICS": mode}
    start = time.perf_counter()
    print(f"{name}, {mode} ...", end=" ", flush=True)
    with log.open("w") as file:
        command = [sys.executable, str(HERE / f"{name}.py")]
        code = subprocess.run(command, env=env, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    found = read_group(name, mode, out)
    print(f"{len(found)} rows in {time.perf_counter() - start:.0f} s" + (f", exit status {code}" if code else ""))
    return found


def read_group(name: str, mode: str, out: Path) -> list[BenchRow]:
    """The rows that a benchmark has left in a folder."""
    found = read_rows(out / f"{name}_{mode}.rows", f"{name}, {mode}")
    if mode == "realistic" and "ideal" in BENCHMARKS[name]:  # printed beside the ideal ones, not judged
        found = [replace(row, peer_aim=None, limit_aim=None) for row in found]
    return found


def describe_machine() -> dict[str, object]:
    """What the figures depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(), "cores": os.cpu_count(),
        "bfloat16 instructions": torch.ops.mkldnn._is_mkldnn_bf16_supported(), "load": os.getloadavg()[0],
        "torch": torch.__version__, "python": platform.python_version(), "ttmesh": ttmesh.__version__,
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }  # fmt: skip


def make_table(rows: Sequence[BenchRow]) -> Table:
    """The one table."""
    table = Table(*("row", "ttmesh", "best peer", "limit", "/ peer", "/ limit", "aim"))
    group = ""
    for row in rows:
        if row.group != group:
            group = row.group
            table.add_section()
            table.add_row(f"[bold]{group}")
        peer, aims = row.best_peer, []
        if row.peer_aim is not None:
            aims.append(f"≤ {row.peer_aim:g} peer")
        if row.limit_aim is not None:
            aims.append(f"≤ {row.limit_aim:g} limit")
        table.add_row(
            row.name.replace("[", r"\["), f"{row.ours:,.4g} {row.unit}",
            "" if peer is None else f"{peer[1]:,.4g} {peer[0]}",
            "" if row.limit is None else f"{row.limit:,.4g} {row.limit_name}",
            "" if row.peer_ratio is None else f"{row.peer_ratio:.2f}",
            "" if row.limit_ratio is None else f"{row.limit_ratio:.2f}",
            ", ".join(aims) + ("" if not row.has_aim else " met" if row.is_met else " [red]MISSED"),
        )  # fmt: skip
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=[*BENCHMARKS, []], default=[], help="these benchmarks alone")
    parser.add_argument("--rows", action="store_true", help="measure nothing: the rows of the last runs")
    parser.add_argument("--out", type=Path, default=HERE.parent / "artefacts" / "bench")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    machine = describe_machine()
    rows: list[BenchRow] = []
    for name in options.only or BENCHMARKS:
        for mode in BENCHMARKS[name]:
            if not options.rows:
                run_benchmark(name, mode, options.out.resolve())
            rows += read_group(name, mode, options.out)
    Console(width=None if sys.stdout.isatty() else 170).print(make_table(rows))
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    found = [{**asdict(row), "met": row.is_met if row.has_aim else None} for row in rows]
    (options.out / "rows.json").write_text(json.dumps({"machine": machine, "rows": found}, indent=1))
    (options.out / "rows.svg").write_text(draw(rows))
    judged = [row for row in rows if row.has_aim]
    missed = [row for row in judged if not row.is_met]
    print(f"{len(judged) - len(missed)} of {len(judged)} aims met; {options.out}/rows.json, rows.svg")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
