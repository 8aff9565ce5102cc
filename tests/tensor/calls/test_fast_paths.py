"""Repeated calls take a fast path: it must do exactly what a first call does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base.dtypes import BufferType
from ttmesh.base.signals import signals
from ttmesh.tensor.observer import Watcher, observer

Pool = list[ttnn.Tensor]


@pytest.fixture
def mesh() -> Iterator[ttnn.MeshDevice]:
    opened = ttnn.open_mesh_device(ttnn.MeshShape(2, 2), trace_region_size=1 << 20)
    yield opened
    if opened.is_open():
        ttnn.close_mesh_device(opened)


def on(mesh: ttnn.MeshDevice, seed: int = 0, shape: tuple[int, ...] = (4, 32, 64)) -> ttnn.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    mapper = ttnn.ShardTensorToMesh(mesh, dim=0)
    return ttnn.from_torch(values, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)


def back(tensor: ttnn.Tensor) -> torch.Tensor:
    return ttnn.to_torch(tensor, mesh_composer=ttnn.ConcatMeshToTensor(tensor.device(), dim=0)).float()


# Everything takes tensors of [1, 32, 64] per device and gives some, so that any order of them is a program.
FORMS: dict[str, Callable[[Pool, random.Random], Any]] = {
    "add": lambda t, r: ttnn.add(t[0], t[1]),
    "add itself": lambda t, r: ttnn.add(t[0], t[0]),
    "operator": lambda t, r: t[0] * t[1],
    "number": lambda t, r: ttnn.multiply(t[0], r.choice([0.5, 0.25, 2])),
    "number by name": lambda t, r: ttnn.add(input_tensor_a=t[0], input_tensor_b=r.choice([0.5, 3])),
    "number first": lambda t, r: 1 - t[0],
    "unary": lambda t, r: ttnn.relu(t[0]),
    "slope": lambda t, r: ttnn.leaky_relu(t[0], negative_slope=r.choice([0.1, 0.2])),
    "L1": lambda t, r: ttnn.tanh(t[0], memory_config=ttnn.L1_MEMORY_CONFIG),
    "dtype": lambda t, r: ttnn.typecast(ttnn.add(t[0], t[1], dtype=ttnn.float32), ttnn.bfloat16),
    "comparison": lambda t, r: ttnn.gt(t[0], t[1]),
    "where": lambda t, r: ttnn.where(ttnn.gtz(t[0]), t[1], t[2]),
    "where a number": lambda t, r: ttnn.where(t[0], t[1], r.choice([0.5, 1.5])),
    "addcmul": lambda t, r: ttnn.addcmul(t[0], t[1], t[2], value=r.choice([0.5, 1.0])),
    "softmax": lambda t, r: ttnn.softmax(t[0], dim=-1),
    "mean": lambda t, r: ttnn.subtract(t[0], ttnn.mean(t[0], dim=-1, keepdim=True)),
    "norm": lambda t, r: ttnn.layer_norm(t[0], epsilon=1e-5),
    "matmul": lambda t, r: ttnn.matmul(ttnn.matmul(t[0], ttnn.transpose(t[1], -2, -1)), t[2]),
    "permute": lambda t, r: ttnn.permute(ttnn.permute(t[0], (0, 2, 1)), (0, 2, 1)),
    "reshape": lambda t, r: ttnn.reshape(ttnn.reshape(t[0], (1, 1, 32, 64)), (1, 32, 64)),
    "copy": lambda t, r: ttnn.reshape(ttnn.reshape(t[0], (1, 64, 32)), (1, 32, 64)),
    "itself": lambda t, r: ttnn.reshape(t[0], (1, 32, 64)),
    "slices": lambda t, r: ttnn.concat([t[0][:, :, :32], ttnn.slice(t[1], (0, 0, 32), (1, 32, 64))], dim=-1),
    "memory": lambda t, r: ttnn.to_memory_config(t[0], ttnn.L1_MEMORY_CONFIG),
    "rows": lambda t, r: ttnn.to_layout(ttnn.to_layout(t[0], ttnn.ROW_MAJOR_LAYOUT), ttnn.TILE_LAYOUT),
    "zeros": lambda t, r: ttnn.zeros_like(t[0]),
    "in place": lambda t, r: ttnn.add_(t[0], t[1]),
    "output": lambda t, r: ttnn.add(t[1], t[2], output_tensor=t[0]),
    "several": lambda t, r: ttnn.concat(list(ttnn.split(t[0], 32, dim=-1)), dim=-1),
}


def program(mesh: ttnn.MeshDevice, seed: int, steps: int, before: Callable[[], None]) -> list[Any]:
    """A random program and everything that can be seen of it."""
    rng = random.Random(seed)
    pool = [on(mesh, i) for i in range(4)]
    seen: list[Any] = []
    for _ in range(steps):
        form = rng.choice(list(FORMS))
        chosen = rng.sample(pool, 3)
        before()
        result = FORMS[form](chosen, rng)
        same = next((i for i, tensor in enumerate(pool) if tensor is result), None)
        seen.append((form, same, result.buffer_address(), repr(result.spec), repr(result.tensor_topology())))
        seen.append((mesh.num_program_cache_entries(), [len(mesh.heap.live[kind]) for kind in BufferType]))
        if same is None:
            old = pool.pop(rng.randrange(len(pool)))
            if rng.random() < 0.3 and old.buffer_address() not in [t.buffer_address() for t in (*pool, result)]:
                ttnn.deallocate(old)
            pool.append(result)
        del result, chosen
    seen += [back(tensor).tolist() for tensor in pool]
    seen.append([mesh.heap.view(kind).block_table for kind in (BufferType.DRAM, BufferType.L1)])
    return seen


@contextmanager
def listening(*, commands: bool) -> Iterator[list[Any]]:
    records: list[Any] = []
    stop = signals.listen(records.append, commands=commands)
    try:
        yield records
    finally:
        stop()


@contextmanager
def watched() -> Iterator[None]:
    watcher = Watcher()
    observer.add(watcher)
    try:
        yield
    finally:
        observer.remove(watcher)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "again": nullcontext,
    "a listener": lambda: listening(commands=False),
    "a listener of commands": lambda: listening(commands=True),
    "a hook": lambda: ttnn.register_pre_operation_hook(lambda operation, args, kwargs: None),
    "a watcher": watched,
    "nothing remembered": nullcontext,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_a_random_program_is_the_same_in_every_mode(mesh: ttnn.MeshDevice, mode: str, seed: int) -> None:
    def forget() -> None:
        other.plans.clear()

    expected = program(mesh, seed, 60, lambda: None)
    ttnn.close_mesh_device(mesh)
    other = ttnn.open_mesh_device(ttnn.MeshShape(2, 2), trace_region_size=1 << 20)
    try:
        with MODES[mode]():
            seen = program(other, seed, 60, forget if mode == "nothing remembered" else lambda: None)
    finally:
        ttnn.close_mesh_device(other)

    assert seen == expected


def test_memory_records_name_every_buffer_of_a_routed_call(mesh: ttnn.MeshDevice) -> None:
    a, b = on(mesh, 1), on(mesh, 2)
    ttnn.add(a, b)

    with listening(commands=False) as records:
        result = ttnn.add(a, b)
        address = result.buffer_address()
        del result

    allocated, freed = records
    assert (allocated.label, allocated.address) == ("ttnn.add", address)
    assert freed.buffer_id == allocated.buffer_id


def test_the_records_of_commands_name_what_a_program_ran(mesh: ttnn.MeshDevice) -> None:
    a, b = on(mesh, 1), on(mesh, 2)
    ttnn.add(a, b)

    with listening(commands=True) as records:
        ttnn.add(a, b)

    names = [(type(record).__name__, record.name) for record in records if hasattr(record, "command_id")]
    assert names == [("Enqueued", "ttnn.add"), ("Finished", "ttnn.add")]


def test_a_trace_replays_routed_calls_with_their_own_numbers(mesh: ttnn.MeshDevice) -> None:
    a = on(mesh, 1)
    scaled = [ttnn.multiply(a, factor) for factor in (2.0, 3.0)]
    del scaled
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    results = [ttnn.multiply(a, 2.0), ttnn.multiply(a, 3.0)[:, :, :32]]
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    ttnn.copy(on(mesh, 2), a)

    ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)

    new = back(a)
    assert torch.equal(back(results[0]), new * 2)
    assert torch.equal(back(results[1]), (new[:, :, :32] * 3).bfloat16().float())
    ttnn.release_trace(mesh, trace)


def test_tensors_by_name_keep_their_names_whatever_the_order(mesh: ttnn.MeshDevice) -> None:
    x, one = on(mesh), on(mesh, 3, (4, 1, 64))
    weight, bias = (on(mesh, seed, (4, 1, 64)) for seed in (1, 2))
    ttnn.layer_norm(x, bias=one, weight=one)

    swapped = ttnn.layer_norm(x, bias=bias, weight=weight)
    expected = ttnn.layer_norm(x, weight=weight, bias=bias)

    assert torch.equal(back(swapped), back(expected))


def test_a_shard_spec_that_was_written_to_is_another_key(mesh: ttnn.MeshDevice) -> None:
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 0))})
    shards = ttnn.ShardSpec(cores, [32, 64], ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shards)
    x = on(mesh, shape=(8, 32, 64))
    config.shard_spec.shape = [64, 64]
    large = ttnn.relu(x, memory_config=config)
    del large

    config.shard_spec.shape = [96, 64]
    result = ttnn.relu(x, memory_config=config)

    assert result.memory_config().shard_spec.shape == [96, 64]


def test_a_routed_call_refuses_what_a_first_call_refuses(mesh: ttnn.MeshDevice) -> None:
    a, b = on(mesh, 1), on(mesh, 2)
    ttnn.add(a, b)
    host = ttnn.from_device(b)
    freed = on(mesh, 3)
    ttnn.deallocate(freed)

    with pytest.raises(RuntimeError, match="got a tensor on the host"):
        ttnn.add(a, host)
    with pytest.raises(RuntimeError, match="memory was freed"):
        ttnn.add(a, freed)
    ttnn.close_mesh_device(mesh)
    with pytest.raises(RuntimeError, match="was closed"):
        ttnn.add(a, b)


def test_a_routed_call_refuses_tensors_of_two_meshes(mesh: ttnn.MeshDevice) -> None:
    submeshes = mesh.create_submeshes(ttnn.MeshShape(1, 2))
    a, b = (on(submesh, 1, (2, 32, 64)) for submesh in submeshes)
    ttnn.add(a, a)

    with pytest.raises(RuntimeError, match="operands live on different devices"):
        ttnn.add(a, b)


def test_a_cleared_program_cache_counts_a_remembered_call_again(mesh: ttnn.MeshDevice) -> None:
    a, b = on(mesh, 1), on(mesh, 2)
    ttnn.add(a, b)
    mesh.clear_program_cache()

    ttnn.add(a, b)
    ttnn.add(a, b)

    assert mesh.num_program_cache_entries() == 1
    mesh.clear_program_cache()
    mesh.set_program_cache_misses_allowed(False)
    with pytest.raises(RuntimeError, match="cache misses are forbidden"):
        ttnn.add(a, b)


def test_a_repeated_broadcast_is_not_bound_again_and_follows_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    with ttnn.create_mesh_device(ttnn.MeshShape(2, 2)) as mesh:
        x = on(mesh)
        senders = [ttnn.MeshCoordinate(0, i) for i in range(2)]
        first = [back(ttnn.broadcast(x, sender, cluster_axis=1)) for sender in senders]
        monkeypatch.setattr(type(ttnn.broadcast), "bind", None)

        again = [back(ttnn.broadcast(x, sender, cluster_axis=1)) for sender in senders]

    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    assert not torch.equal(*again)
