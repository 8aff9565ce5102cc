"""Operations beside bare torch and beside JAX with 8 host devices, in one run: the cost of a tiny op, and real work."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import sys
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import torch
from bench_rows import BenchRow, note
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch.nn import functional as F

import ttmesh
import ttmesh.ttnn as ttnn

Call = Callable[[], object]
SHAPES = ((1, 1), (2, 4), (8, 4))
REPLAYED = 100
AIM_US, BAR_US = 5, 15  # what one tiny op on 8 chips should cost, and must not exceed
console = Console(width=None if sys.stdout.isatty() else 110)


def best_us(calls: dict[str, Call], repeats: int, rounds: int = 9) -> dict[str, float]:
    """Fastest round per call, rounds interleaved so that a busy moment hits all alike."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / repeats * 1e6)
    return best


def mesh_of(rows: int, columns: int) -> ttnn.MeshDevice:
    ttmesh.configure(system="t3000" if rows * columns <= 8 else "galaxy")
    return ttnn.open_mesh_device(ttnn.MeshShape(rows, columns))


def on_mesh(mesh: ttnn.MeshDevice, values: torch.Tensor, dim: int | None, dtype: ttnn.DataType) -> ttnn.Tensor:
    mapper = ttnn.ReplicateTensorToMesh(mesh) if dim is None else ttnn.ShardTensorToMesh(mesh, dim=dim)
    return ttnn.from_torch(values, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)


def forms(mesh: ttnn.MeshDevice, rows: int, columns: int) -> dict[str, tuple[Call, Call]]:
    """How programs write operations, on one tile per chip, each beside the same work on the same lanes in bare torch."""
    x, y, c, out, sums = (on_mesh(mesh, torch.rand(rows * columns, 32, 32), 0, ttnn.bfloat16) for _ in range(5))
    w, row = (
        on_mesh(mesh, torch.rand(32, 32), None, ttnn.bfloat16),
        on_mesh(mesh, torch.rand(1, 32), None, ttnn.bfloat16),
    )
    a, b = (torch.rand(rows, columns, 1, 32, 32).bfloat16() for _ in range(2))
    weights, bias, where = torch.rand(32, 32).bfloat16(), torch.rand(32).bfloat16(), a > 0.5
    l1 = ttnn.L1_MEMORY_CONFIG

    def freed() -> None:
        ttnn.deallocate(ttnn.add(x, y))

    return {
        "add(a, b)": (lambda: ttnn.add(x, y), lambda: torch.add(a, b)),
        "a + b": (lambda: x + y, lambda: a + b),
        "a * 2": (lambda: x * 2, lambda: a * 2),
        "add(..., memory_config=, dtype=)": (
            lambda: ttnn.add(x, y, memory_config=l1, dtype=ttnn.bfloat16), lambda: torch.add(a, b),
        ),
        "add(..., output_tensor=)": (lambda: ttnn.add(x, y, output_tensor=out), lambda: torch.add(a, b)),
        "add_(a, b)": (lambda: ttnn.add_(sums, x), lambda: torch.add(a, b)),
        "add, deallocate": (freed, lambda: torch.add(a, b)),
        "relu(a)": (lambda: ttnn.relu(x), lambda: torch.relu(a)),
        "gt(a, b)": (lambda: ttnn.gt(x, y), lambda: torch.gt(a, b).bfloat16()),
        "where(c, a, b)": (lambda: ttnn.where(c, x, y), lambda: torch.where(where, a, b)),
        "addcmul(a, b, c, value=)": (lambda: ttnn.addcmul(x, y, c, value=0.5), lambda: torch.addcmul(a, b, b, value=0.5)),
        "sum(a, dim=-1)": (lambda: ttnn.sum(x, dim=-1), lambda: torch.sum(a, -1)),
        "mean(a, dim=-1)": (lambda: ttnn.mean(x, dim=-1), lambda: torch.mean(a, -1)),
        "softmax(a, dim=-1)": (lambda: ttnn.softmax(x, dim=-1), lambda: torch.softmax(a, -1)),
        "layer_norm(a, weight=, bias=)": (
            lambda: ttnn.layer_norm(x, weight=row, bias=row), lambda: F.layer_norm(a, (32,), bias, bias),
        ),
        "rms_norm(a, weight=)": (lambda: ttnn.rms_norm(x, weight=row), lambda: F.rms_norm(a, (32,), bias)),
        "matmul(a, w)": (lambda: ttnn.matmul(x, w), lambda: torch.matmul(a, weights)),
        "linear(a, w, bias=)": (lambda: ttnn.linear(x, w, bias=row), lambda: F.linear(a, weights, bias)),
        "reshape, a view": (lambda: ttnn.reshape(x, (1, 1, 32, 32)), lambda: a.reshape(rows, columns, 1, 1, 32, 32)),
        "reshape, a copy": (lambda: ttnn.reshape(x, (1, 1024)), lambda: a.reshape(rows, columns, 1, 1024)),
        "permute(a, ...)": (lambda: ttnn.permute(x, (0, 2, 1)), lambda: a.permute(0, 1, 2, 4, 3)),
        "a[:, :, :16]": (lambda: x[:, :, :16], lambda: a[..., :16]),
        "concat([a, b], dim=-1)": (lambda: ttnn.concat([x, y], dim=-1), lambda: torch.cat([a, b], -1)),
        "typecast(a, float32)": (lambda: ttnn.typecast(x, ttnn.float32), lambda: a.float()),
        "to_memory_config(a, L1)": (lambda: ttnn.to_memory_config(x, l1), lambda: a.clone()),
    }  # fmt: skip


def replay(mesh: ttnn.MeshDevice, rows: int, columns: int) -> tuple[Call, Call, list[ttnn.Tensor]]:
    """A trace of many adds, and what it keeps alive."""
    x = on_mesh(mesh, torch.rand(rows * columns, 32, 32), 0, ttnn.bfloat16)
    bare = torch.rand(rows, columns, 1, 32, 32).bfloat16()
    ttnn.add(x, x)
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    kept = [x, *(ttnn.add(x, x) for _ in range(REPLAYED))]
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    ours = partial(ttnn.execute_trace, mesh, trace, cq_id=0, blocking=False)
    return ours, lambda: [torch.add(bare, bare) for _ in range(REPLAYED)], kept


def measured(rows: int, columns: int) -> dict[str, tuple[float, float]]:
    """µs per form, ttmesh and bare torch, on a mesh of this shape; one thread, as the cost of calls is what is asked."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    mesh = mesh_of(rows, columns)
    costs = {}
    for name, (ours, bare) in forms(mesh, rows, columns).items():
        best = best_us({"ttmesh": ours, "torch": bare}, 100, 15)
        costs[name] = (best["ttmesh"], best["torch"])
    ours, bare, kept = replay(mesh, rows, columns)
    best = best_us({"ttmesh": ours, "torch": bare}, 2, 15)
    costs[f"one of {REPLAYED} adds in a trace"] = (best["ttmesh"] / REPLAYED, best["torch"] / REPLAYED)
    kept.clear()
    ttnn.close_mesh_device(mesh)
    torch.set_num_threads(threads)
    return costs


def tiny_ops() -> None:
    devices = Mesh(jax.devices(), ("x",))
    spread = NamedSharding(devices, PartitionSpec("x"))
    a = jax.device_put(jnp.ones((8, 32, 32), jnp.bfloat16), spread)
    jitted = jax.jit(jnp.add)
    peers = {
        "JAX, 8 devices, jit": lambda: jitted(a, a).block_until_ready(),
        "JAX, 8 devices, eager": lambda: jnp.add(a, a).block_until_ready(),
    }
    peer = Table("tiny add (32x32 bfloat16 per chip)", "µs", title="Dispatch in JAX")
    dispatch = best_us(peers, 200)
    for name, cost in dispatch.items():
        peer.add_row(name, f"{cost:.1f}")
    console.print(peer)
    costs = {rows * columns: measured(rows, columns) for rows, columns in SHAPES}
    table = Table(title="One tile per chip, µs: ttmesh (bare torch on the same lanes)")
    table.add_column("bfloat16", no_wrap=True)
    for chips in costs:
        table.add_column(f"{chips} chips", justify="right", no_wrap=True)
    table.add_column("own at 8", justify="right", no_wrap=True)
    most = max(costs)
    for name in costs[8]:
        cells = [f"{ours:.1f} ({bare:.1f})" for ours, bare in (of[name] for of in costs.values())]
        ours, bare = costs[8][name]
        table.add_row(escape(name), *cells, f"{ours - bare:.1f}")
        peers_us = dispatch if name in ("add(a, b)", "a + b") else {}
        aim = 1.0 if peers_us else None
        note(BenchRow(f"{name}, 8 chips", "µs", ours, peers_us, bare, "torch on the same lanes", peer_aim=aim))
        flat = costs[1][name][0]
        note(BenchRow(f"{name}, {most} chips", "µs", costs[most][name][0], limit=flat, limit_name="on 1 chip"))
    console.print(table)
    add = costs[8]["add(a, b)"][0]
    console.print(
        f"add on 8 chips: {add:.1f} µs (aim {AIM_US}, at most {BAR_US}: {'met' if add <= BAR_US else 'MISSED'})"
    )


def work(dtype: ttnn.DataType, jax_dtype: jnp.dtype) -> None:
    name = "bfloat16" if dtype is ttnn.bfloat16 else "float32"
    table = Table("", "ttmesh µs", "JAX µs", "ratio", title=f"8 chips, {name}")
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)  # closing a mesh disables it
    mesh = mesh_of(1, 8)
    devices = Mesh(jax.devices(), ("x",))

    def put(values: torch.Tensor, *spec: str | None) -> jax.Array:
        return jax.device_put(jnp.asarray(values.numpy(), jax_dtype), NamedSharding(devices, PartitionSpec(*spec)))

    up, down = torch.randn(1024, 4096) / 32, torch.randn(4096, 1024) / 64
    for rows in (32, 128, 512):
        values = torch.randn(rows, 1024)
        x, w1 = on_mesh(mesh, values, None, dtype), on_mesh(mesh, up, 1, dtype)
        w2 = on_mesh(mesh, down, 0, dtype)
        jx, jw1, jw2 = put(values), put(up, None, "x"), put(down, "x", None)
        replicated = NamedSharding(devices, PartitionSpec())
        mlp = jax.jit(lambda a, b, c: jax.nn.relu(a @ b) @ c, out_shardings=replicated)
        _row(
            table,
            f"tensor-parallel MLP, {rows} rows",
            lambda x=x, w1=w1, w2=w2: ttnn.all_reduce(ttnn.matmul(ttnn.relu(ttnn.matmul(x, w1)), w2), cluster_axis=1),
            lambda f=mlp, a=jx, b=jw1, c=jw2: f(a, b, c).block_until_ready(),
        )
        batch = torch.randn(8, rows, 1024)
        xb, w = on_mesh(mesh, batch, 0, dtype), on_mesh(mesh, up, None, dtype)
        jb, jw = put(batch, "x"), put(up)
        layer = jax.jit(lambda a, b: a @ b)
        _row(
            table,
            f"data-parallel linear, {rows} rows per chip",
            lambda x=xb, w=w: ttnn.linear(x, w),
            lambda f=layer, a=jb, b=jw: f(a, b).block_until_ready(),
        )
    ttnn.close_mesh_device(mesh)
    console.print(table)


def _row(table: Table, name: str, ours: Call, theirs: Call) -> None:
    costs = best_us({"ttmesh": ours, "JAX": theirs}, 3)
    table.add_row(name, f"{costs['ttmesh']:.0f}", f"{costs['JAX']:.0f}", f"{costs['ttmesh'] / costs['JAX']:.2f}")
    note(BenchRow(f"{name}, {table.title}", "µs", costs["ttmesh"], {"JAX": costs["JAX"]}, peer_aim=1.0))


def main() -> None:
    tiny_ops()
    work(ttnn.bfloat16, jnp.bfloat16)
    work(ttnn.float32, jnp.float32)


if __name__ == "__main__":
    main()
