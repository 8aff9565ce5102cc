"""Collectives over 8 devices beside JAX with 8 host devices, torch.distributed gloo with 8 processes and MPI with 8 ranks.

Every engine runs in its own process(es), one after the other; each figure is the best of rounds, in microseconds per
call with the result ready. Below the table: the time as a multiple of that in which torch reads all eight inputs once
(a sum), with as many threads, the two taking turns. Fails when a peer is ahead in a row, when a peer is not installed,
or when a sum takes more than 1.5 times as long as reading.
Where a result is the same on every chip ttmesh stores it once; "copied 8x" is the same call with every chip's copy made.
JAX has no broadcast from one device: it is measured as an all_gather of which one shard is kept.
MPI has no bfloat16: its sums of bfloat16 are converted to float32 and back, its copies move bytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench_rows import BenchRow, note

N = 8
COLUMNS = 32 * N  # each chip gets a tile of them
SIZES = (1 << 10, 1 << 20, 1 << 24)  # bytes per device
DTYPES = ("float32", "bfloat16")
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
READ_BAR = 1.5  # all_reduce and reduce_scatter from 1 MiB up, in times of reading the inputs once
ROUND_S = 0.3  # how long a figure of one process is looked for, at least 3 rounds
PAIR_S = 0.8
RANK_ROUNDS = 4  # of engines with ranks, which must agree on the number
Figures = dict[str, float]


def best_us(call: Callable[[], object], size: int, repeats: dict[int, int] | None = None) -> float:
    """The best of a few rounds: of as many as fit into a while, or of a number that ranks agree on (with `repeats`)."""
    times_each = repeats[size] if repeats else 50 if size < 1 << 16 else 4 if size < 1 << 22 else 1
    call()
    times: list[float] = []
    while len(times) < (RANK_ROUNDS if repeats else 3) or (repeats is None and sum(times) * times_each < ROUND_S):
        start = time.perf_counter()
        for _ in range(times_each):
            call()
        times.append((time.perf_counter() - start) / times_each)
    return min(times) * 1e6


def paired_us(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """The best of two calls that take turns for a while, so that a busy neighbour disturbs both alike."""
    best, end = [float("inf")] * 2, time.perf_counter() + PAIR_S
    while time.perf_counter() < end:
        for i, call in enumerate((one, other)):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - start)
    return best[0] * 1e6, best[1] * 1e6


def key(operation: str, size: int, dtype: str) -> str:
    return f"{operation} {size} {dtype}"


def ttmesh_figures() -> Figures:
    import torch

    import ttmesh.ttnn as ttnn

    figures: Figures = {}
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D_RING)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, N))
    root = ttnn.MeshCoordinate(0, 3)
    for dtype in DTYPES:
        for size in SIZES:
            count = size // getattr(torch, dtype).itemsize
            values = torch.randn(N, count // COLUMNS, COLUMNS).to(getattr(torch, dtype))
            tensor = ttnn.from_torch(
                values, device=mesh, layout=ttnn.TILE_LAYOUT, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0)
            )
            dim = 1 if count // COLUMNS % COLUMNS == 0 else 2  # rows, where each chip gets whole tiles of them
            calls = {
                "all_reduce": lambda t=tensor: ttnn.all_reduce(t),
                "reduce_scatter": lambda t=tensor, d=dim: ttnn.reduce_scatter(t, d),
                "all_gather": lambda t=tensor: ttnn.all_gather(t, 0),
                "broadcast": lambda t=tensor: ttnn.broadcast(t, root),
                "all_to_all": lambda t=tensor: ttnn.experimental.all_to_all_async_generic(t, 0, 2),
            }
            for operation, call in calls.items():
                figures[key(operation, size, dtype)] = best_us(call, size)
                result = call()
                lanes = result.buffer.cell.read(result.spec)
                if lanes.shape[1] == 1:
                    copy = lambda call=call: _every_copy(call(), N)  # noqa: E731
                    figures[key(f"{operation} copied", size, dtype)] = best_us(copy, size)
            wide = tensor.buffer.cell.read(tensor.spec).flatten().view(torch.float32)
            for threads in (1, torch.get_num_threads()) if size >= 1 << 20 else ():
                torch.set_num_threads(threads)
                for operation in ("all_reduce", "reduce_scatter"):
                    own, read = paired_us(calls[operation], lambda w=wide: w.sum())
                    figures[key(f"{operation}, {threads} thread(s)", size, dtype)] = own / read
    ttnn.close_mesh_device(mesh)
    return figures


def _every_copy(result: object, n: int) -> object:
    lanes = result.buffer.cell.read(result.spec)
    return lanes.expand(lanes.shape[0], n, *lanes.shape[2:]).contiguous()


def jax_figures() -> Figures:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={N}"
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(jax.devices()[:N], ("x",))
    spec = PartitionSpec("x")
    bodies = {
        "all_reduce": lambda v: jax.lax.psum(v, "x"),
        "reduce_scatter": lambda v: jax.lax.psum_scatter(v, "x", scatter_dimension=1, tiled=True),
        "all_gather": lambda v: jax.lax.all_gather(v, "x", axis=0, tiled=True),
        "broadcast": lambda v: jax.lax.all_gather(v, "x", axis=0)[3],
        "all_to_all": lambda v: jax.lax.all_to_all(v, "x", 1, 0, tiled=True),
    }
    figures: Figures = {}
    for dtype in DTYPES:
        for size in SIZES:
            count = size // jnp.dtype(dtype).itemsize
            values = jax.device_put(jnp.ones((N, N, count // N), dtype), NamedSharding(mesh, spec))
            for operation, body in bodies.items():
                run = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
                figures[key(operation, size, dtype)] = best_us(lambda r=run, v=values: r(v).block_until_ready(), size)
    return figures


def gloo_figures() -> Figures:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    figures: Figures = {}
    repeats = dict(zip(SIZES, (5, 3, 1), strict=True))  # a call of the smallest size takes some 20 ms
    for dtype in DTYPES:
        for size in SIZES:
            kind = getattr(torch, dtype)
            count = size // kind.itemsize
            x, whole = torch.zeros(count, dtype=kind), torch.empty(count * N, dtype=kind)
            part, other = torch.empty(count // N, dtype=kind), torch.empty(count, dtype=kind)
            calls = {
                "all_reduce": lambda x=x: dist.all_reduce(x),
                "reduce_scatter": lambda x=x, p=part: dist.reduce_scatter_tensor(p, x),
                "all_gather": lambda x=x, w=whole: dist.all_gather_into_tensor(w, x),
                "broadcast": lambda x=x: dist.broadcast(x, 3),
                "all_to_all": lambda x=x, o=other: dist.all_to_all_single(o, x),
            }
            for operation, call in calls.items():
                dist.barrier()
                figures[key(operation, size, dtype)] = best_us(call, size, repeats)
    dist.barrier()
    return figures


def mpi_figures() -> Figures:
    import torch
    from mpi4py import MPI

    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    figures: Figures = {}
    repeats = dict(zip(SIZES, (50, 4, 1), strict=True))
    for dtype in DTYPES:
        for size in SIZES:
            kind = getattr(torch, dtype)
            count = size // kind.itemsize
            x, total = torch.zeros(count, dtype=kind), torch.zeros(count)
            raw, other = x.view(torch.uint8).numpy(), torch.empty(size, dtype=torch.uint8).numpy()
            whole, part = torch.empty(size * N, dtype=torch.uint8).numpy(), torch.empty(count // N)
            wide = x.float

            def reduce(wide: object = wide, total: torch.Tensor = total, kind: torch.dtype = kind) -> None:
                world.Allreduce(wide().numpy(), total.numpy())
                total.to(kind)

            def scatter(wide: object = wide, part: torch.Tensor = part, kind: torch.dtype = kind) -> None:
                world.Reduce_scatter_block(wide().numpy(), part.numpy())
                part.to(kind)

            calls = {
                "all_reduce": reduce,
                "reduce_scatter": scatter,
                "all_gather": lambda r=raw, w=whole: world.Allgather(r, w),
                "broadcast": lambda r=raw: world.Bcast(r, 3),
                "all_to_all": lambda r=raw, o=other: world.Alltoall(r, o),
            }
            for operation, call in calls.items():
                world.Barrier()
                figures[key(operation, size, dtype)] = best_us(call, size, repeats)
    world.Barrier()
    return figures


ENGINES = {"ttmesh": ttmesh_figures, "jax": jax_figures, "gloo": gloo_figures, "mpi": mpi_figures}


def run_engine(name: str, folder: Path) -> Figures | None:
    """The figures of one engine in its own processes, or None where it is not installed."""
    out = folder / f"{name}.json"
    own = [sys.executable, __file__, name, str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} if name in ("gloo", "mpi") else dict(os.environ)
    if name == "gloo":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={N}", *own[1:]]
    elif name == "mpi":
        launcher = Path(sys.executable).with_name("mpirun")
        command = [str(launcher), "-n", str(N), "--oversubscribe", "--allow-run-as-root", *own]
    else:
        command = own
    print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    if done.returncode or not out.exists():
        print(f"{name} did not run: {done.stderr.strip().splitlines()[-1:]}")
        return None
    return json.loads(out.read_text())


def table(results: dict[str, Figures | None]) -> list[str]:
    """Print all rows; what was to be shown and was not."""
    mine = results["ttmesh"]
    if mine is None:
        return ["ttmesh did not run"]
    missed = [f"not compared with {name}" for name, figures in results.items() if figures is None]
    peers = {name: figures for name, figures in results.items() if name != "ttmesh" and figures}
    heads = "".join(f"{name:>11}" for name in peers)
    print(f"{'8 devices, us per call':30}{'ttmesh':>11}{heads}{'ahead by':>10}{'copied 8x':>11}")
    for operation in OPERATIONS:
        for size in SIZES:
            for dtype in DTYPES:
                at = key(operation, size, dtype)
                own, others = mine[at], [figures[at] for figures in peers.values()]
                lead = min(others, default=float("nan")) / own
                shown = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
                if lead < 1:
                    missed.append(f"{operation} {shown} {dtype}: a peer is ahead")
                note(
                    BenchRow(
                        f"{operation} {shown} {dtype}", "µs", own, {name: found[at] for name, found in peers.items()},
                        peer_aim=1.0,
                    )
                )  # fmt: skip
                copied = mine.get(key(f"{operation} copied", size, dtype))
                print(
                    f"{operation:15}{shown:>7} {dtype:8}{own:10.1f}"
                    + "".join(f"{other:11.1f}" for other in others)
                    + f"{lead:9.1f}x{'' if copied is None else round(copied, 1)!s:>11}"
                )
    for at, ratio in mine.items():
        if "thread" in at:
            operation, size, dtype = at.rsplit(" ", 2)
            line = f"{operation}, {int(size) >> 20} MiB {dtype}: {ratio:.2f}x the time to read the inputs once"
            print(line)
            shown = f"{operation}, {int(size) >> 20} MiB {dtype}"
            note(BenchRow(shown, "x", ratio, limit=1.0, limit_name="reading once", limit_aim=READ_BAR))
            if ratio > READ_BAR:
                missed.append(f"{line}, more than {READ_BAR}")
    return missed


def main() -> None:
    if len(sys.argv) == 3:
        figures = ENGINES[sys.argv[1]]()
        rank = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0"
        if rank == "0":
            Path(sys.argv[2]).write_text(json.dumps(figures))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = {name: run_engine(name, Path(folder)) for name in ENGINES}
    missed = table(results)
    print("\n".join(f"missed: {line}" for line in missed) or "every bar is met")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
