"""A bfloat16 compute step and a training step alone and beside one busy process per core, ttmesh and JAX.

    python benchmarks/busy.py [--rounds 6]

Each side has a process of its own. Quiet and busy spells of half a second take turns (the neighbours are stopped and
continued), so that whatever else the machine does hits both alike. Medians.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import training
from bench_rows import BenchRow, note

QUIET_TIMES = 2.5  # at most so many times the quiet time
SPELL_S = 0.5
ROWS = (32, 512)
Steps = dict[str, Callable[[], object]]
NEIGHBOUR = "while True: pass"


def training_steps(make: Callable[[], object]) -> Steps:
    """The steps that the training benchmark would time."""
    found: Steps = {}
    training.measure = lambda figures, samples, step, rounds=None: found.__setitem__(
        f"training, {samples} samples", step
    )
    training.SAMPLES = (64,)
    make()
    return found


def ttmesh_steps() -> Steps:
    import torch

    import ttmesh
    import ttmesh.ttnn as ttnn

    close = ttnn.close_mesh_device
    ttnn.close_mesh_device = lambda mesh: None  # the steps outlive the benchmark that they come from
    steps = training_steps(lambda: training.ttmesh_figures(traced=True))
    ttnn.close_mesh_device = close
    ttmesh.configure(system="galaxy")
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 8), physical_device_ids=list(range(8, 16)))

    def put(values: torch.Tensor, dim: int | None) -> ttnn.Tensor:
        mapper = ttnn.ReplicateTensorToMesh(mesh) if dim is None else ttnn.ShardTensorToMesh(mesh, dim=dim)
        return ttnn.from_torch(values.bfloat16(), layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)

    up, down = put(torch.randn(1024, 4096) / 32, 1), put(torch.randn(4096, 1024) / 64, 0)
    for rows in ROWS:
        x = put(torch.randn(rows, 1024), None)
        steps[f"bfloat16 MLP, {rows} rows"] = lambda x=x: ttnn.all_reduce(
            ttnn.matmul(ttnn.relu(ttnn.matmul(x, up)), down), cluster_axis=1
        )
    return steps


def jax_steps() -> Steps:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    steps = training_steps(training.jax_figures)
    devices = Mesh(jax.devices(), ("x",))

    def put(shape: tuple[int, int], *spec: str | None) -> jax.Array:
        values = jax.random.normal(jax.random.key(0), shape, jnp.bfloat16) / shape[0] ** 0.5
        return jax.device_put(values, NamedSharding(devices, PartitionSpec(*spec)))

    up, down = put((1024, 4096), None, "x"), put((4096, 1024), "x", None)
    mlp = jax.jit(lambda a, b, c: jax.nn.relu(a @ b) @ c, out_shardings=NamedSharding(devices, PartitionSpec()))
    for rows in ROWS:
        x = put((rows, 1024))
        steps[f"bfloat16 MLP, {rows} rows"] = lambda x=x: mlp(x, up, down).block_until_ready()
    return steps


def measure(steps: Steps, rounds: int) -> dict[str, list[float]]:
    """Median ms of each step, quiet and busy."""
    die_with_parent = "import ctypes; ctypes.CDLL(None).prctl(1, 9)\n"  # PR_SET_PDEATHSIG
    command = [sys.executable, "-c", die_with_parent + NEIGHBOUR]
    neighbours = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in steps}
    try:
        for _ in range(rounds):
            for busy in (0, 1):
                for neighbour in neighbours:
                    neighbour.send_signal(signal.SIGCONT if busy else signal.SIGSTOP)
                for name, step in steps.items():
                    end = time.perf_counter() + SPELL_S
                    while (start := time.perf_counter()) < end:
                        step()
                        times[name][busy].append((time.perf_counter() - start) * 1e3)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    return {name: [median(quiet), median(busy)] for name, (quiet, busy) in times.items()}


def run_side(name: str, rounds: int, folder: Path) -> dict[str, list[float]]:
    """One side in its own process."""
    env = dict(os.environ)
    if name == "jax":
        env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    out = folder / f"{name}.json"
    subprocess.run([sys.executable, __file__, "--side", name, str(out), "--rounds", str(rounds)], env=env, check=True)
    return json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        steps = {"ttmesh": ttmesh_steps, "jax": jax_steps}[options.side[0]]()
        for step in steps.values():
            step()
        Path(options.side[1]).write_text(json.dumps(measure(steps, options.rounds)))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = {name: run_side(name, options.rounds, Path(folder)) for name in ("ttmesh", "jax")}
    print(f"load before {os.getloadavg()[0]:.1f}; ms at the median: quiet, beside {os.cpu_count()} busy processes")
    for name, (quiet, busy) in found["ttmesh"].items():
        alone, beside = found["jax"][name]
        print(f"{name:28}{quiet:9.2f}{busy:9.2f} ({busy / quiet:.2f}x)   JAX{alone:9.2f}{beside:9.2f}")
        note(
            BenchRow(f"{name}, quiet", "ms", quiet, {"JAX": alone}),
            BenchRow(
                f"{name}, beside busy processes", "ms", busy, {"JAX": beside}, quiet, "quiet", peer_aim=1.0,
                limit_aim=QUIET_TIMES,
            ),
        )  # fmt: skip


if __name__ == "__main__":
    main()
