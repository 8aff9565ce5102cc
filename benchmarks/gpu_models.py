"""A Llama decode layer and a training step on one GPU beside torch's CUDA graph and JAX there; rows of benchmarks/gpu.py."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import torch
from model_steps import Put, llama_step
from training import CHIPS, SAMPLES, jax_figures, ttmesh_figures

import ttmesh.ttnn as ttnn

USERS, LENGTH, WIDTH, HEADS, KV_HEADS, HIDDEN = 32, 1024, 4096, 32, 8, 14336  # a layer of Llama 3.1 8B
CALLS, ROUNDS = 20, 25


def has_jax() -> bool:
    """Whether JAX is there and sees the GPU."""
    try:
        import jax
    except ImportError:
        return False
    jax.config.update("jax_default_matmul_precision", "highest")  # float32 in float32, as here
    return bool(jax.default_backend() == "gpu")


def seconds(call: Callable[[], object], wait: Callable[[], object]) -> float:
    """The best of a few rounds by the host's clock, per call."""
    for _ in range(3):
        call()
    best = math.inf
    for _ in range(ROUNDS):
        wait()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        wait()
        best = min(best, (time.perf_counter() - begin) / CALLS)
    return best


class ModelRow(NamedTuple):
    """Microseconds here and of a peer, and how many times the peer's may be taken."""

    name: str
    ours_us: float
    peer_us: float
    peer: str
    aim: float


def time_models() -> Iterator[ModelRow]:
    """The decode layer beside a CUDA graph of torch calls, and everything beside JAX where it is installed."""
    name = "Llama 8B decode layer, 32 users, traced"
    ours, graph = llama_seconds()
    yield ModelRow(name, ours * 1e6, graph * 1e6, "CUDA graph", 1.1)
    if not has_jax():
        print("JAX is not here or sees no GPU: its rows are left out")
        return
    yield ModelRow(name, ours * 1e6, jax_llama_seconds() * 1e6, "JAX", 1.0)
    figures, theirs = ttmesh_figures(traced=True), jax_figures()
    for samples in SAMPLES:
        name = f"training step, {CHIPS} x {samples} samples, float32, traced"
        yield ModelRow(name, figures[str(samples)] * 1e3, theirs[str(samples)] * 1e3, "JAX", 1.0)


def llama_seconds() -> tuple[float, float]:
    """The layer as a trace on 8 chips, each with four users, and as a CUDA graph of torch calls for all of them."""
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, CHIPS), trace_region_size=1 << 22)
    sizes = (USERS, LENGTH, WIDTH, HEADS, KV_HEADS, HIDDEN)
    steps = llama_step(Put(mesh), *sizes, waits=False, torch_device="cuda")
    ours, theirs = steps["8 chips"], steps["torch"]
    ours()
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    kept = ours()
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    here = seconds(
        lambda: ttnn.execute_trace(mesh, trace, cq_id=0, blocking=False), lambda: ttnn.synchronize_device(mesh)
    )
    there = seconds(capture_graph(theirs).replay, torch.cuda.synchronize)
    del kept, ours, theirs, steps
    ttnn.close_mesh_device(mesh)
    return here, there


def capture_graph(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of torch calls."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def jax_llama_seconds() -> float:
    """The same layer in JAX: one jitted function that updates its caches in place."""
    import jax
    import jax.numpy as jnp

    size = WIDTH // HEADS
    draw = torch.Generator().manual_seed(0)

    def values(*shape: int, scale: float = 1.0) -> Any:
        return jnp.asarray((torch.randn(shape, generator=draw) * scale).numpy(), dtype=jnp.bfloat16)

    x, norm = values(USERS, WIDTH), values(WIDTH)
    fused = values(WIDTH, (HEADS + 2 * KV_HEADS) * size, scale=WIDTH**-0.5)
    out, gate, up = (values(WIDTH, n, scale=WIDTH**-0.5) for n in (WIDTH, HIDDEN, HIDDEN))
    down = values(HIDDEN, WIDTH, scale=HIDDEN**-0.5)
    cos, sin = values(USERS, 1, size), values(USERS, 1, size)
    weights = (norm, fused, out, gate, up, down, cos, sin)

    def rms(t: Any, norm: Any) -> Any:
        wide = t.astype(jnp.float32)
        return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)).astype(t.dtype) * norm

    def rotate(t: Any, cos: Any, sin: Any) -> Any:
        pairs = jnp.stack([-t[..., 1::2], t[..., ::2]], -1).reshape(t.shape)
        return t * cos + pairs * sin

    def step(x: Any, keys: Any, kept_values: Any, weights: Any) -> Any:
        norm, fused, out, gate, up, down, cos, sin = weights
        projected = (rms(x, norm) @ fused).reshape(USERS, HEADS + 2 * KV_HEADS, size)
        q, k, v = jnp.split(projected, [HEADS, HEADS + KV_HEADS], 1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        keys, kept_values = keys.at[:, :, LENGTH - 1].set(k), kept_values.at[:, :, LENGTH - 1].set(v)
        grouped = q.reshape(USERS, KV_HEADS, HEADS // KV_HEADS, size)
        scores = jnp.einsum("ugqd,ugkd->ugqk", grouped, keys, preferred_element_type=jnp.float32) * size**-0.5
        shares = jax.nn.softmax(scores, -1).astype(x.dtype)
        attended = jnp.einsum("ugqk,ugkd->ugqd", shares, kept_values).reshape(USERS, WIDTH)
        y = x + attended @ out
        h = rms(y, norm)
        return y + (jax.nn.silu(h @ gate) * (h @ up)) @ down, keys, kept_values

    compiled = jax.jit(step, donate_argnums=(1, 2))
    state = [values(USERS, KV_HEADS, LENGTH, size) for _ in range(2)]
    result = x

    def call() -> None:
        nonlocal state, result
        result, *state = compiled(x, *state, weights)

    return seconds(call, lambda: jax.block_until_ready((result, state)))
