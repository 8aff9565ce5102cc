"""Operations beside bare torch and beside JAX with 8 host devices, in one run: the cost of a tiny op, and real work."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.table import Table

import ttmesh
import ttmesh.ttnn as ttnn

Call = Callable[[], object]
console = Console()


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


def tiny_ops() -> None:
    table = Table("tiny add (32x32 bfloat16 per chip)", "µs", "aim", title="Dispatch")
    devices = Mesh(jax.devices(), ("x",))
    spread = NamedSharding(devices, PartitionSpec("x"))
    a = jax.device_put(jnp.ones((8, 32, 32), jnp.bfloat16), spread)
    jitted = jax.jit(jnp.add)
    peers = {
        "JAX, 8 devices, jit": lambda: jitted(a, a).block_until_ready(),
        "JAX, 8 devices, eager": lambda: jnp.add(a, a).block_until_ready(),
    }
    for name, cost in best_us(peers, 200).items():
        table.add_row(name, f"{cost:.1f}", "")
    for rows, columns in ((1, 1), (2, 4), (8, 4)):
        mesh = mesh_of(rows, columns)
        chips = rows * columns
        x = on_mesh(mesh, torch.ones(chips, 32, 32), 0, ttnn.bfloat16)
        bare = torch.ones(rows, columns, 1, 32, 32, dtype=torch.bfloat16)
        costs = best_us(
            {
                "ttmesh": partial(ttnn.add, x, x),
                "ttmesh, a number": partial(ttnn.multiply, x, 0.5),
                "bare torch, same lanes": partial(torch.add, bare, bare),
            },
            2000,
        )
        for name, cost in costs.items():
            table.add_row(f"{name}, {chips} chips", f"{cost:.1f}", "≤ 5 (at most 15)" if name == "ttmesh" else "")
        del x
        ttnn.close_mesh_device(mesh)
    console.print(table)


def work(dtype: ttnn.DataType, jax_dtype: jnp.dtype) -> None:
    name = "bfloat16" if dtype is ttnn.bfloat16 else "float32"
    table = Table("", "ttmesh µs", "JAX µs", "ratio", title=f"8 chips, {name}")
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


def main() -> None:
    tiny_ops()
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    work(ttnn.bfloat16, jnp.bfloat16)
    work(ttnn.float32, jnp.float32)


if __name__ == "__main__":
    main()
