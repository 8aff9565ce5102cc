"""Replays of traces as CUDA graphs give the values of commands that run one by one, whatever happens between them."""

from __future__ import annotations

import pytest
import torch
from simulated_graphs import SimulatedGraph, simulate_capture

import ttmesh.ttnn as ttnn
from ttmesh.base import settings
from ttmesh.chip.backends import cpu, cuda_graphs
from ttmesh.chip.backends.index_guard import IndexGuard
from ttmesh.chip.formats.kernels import lane_sum
from ttmesh.nn.optimisers import SGD, AdamW, Optimiser
from ttmesh.nn.parameters import Parameter, ParameterSet

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch):
    """On a GPU; without one on a CPU whose traces become simulated graphs."""
    if torch.cuda.is_available():
        monkeypatch.setenv("TTMESH_BACKEND", "cuda")
    else:
        guard = IndexGuard()
        monkeypatch.setattr(
            cpu.CpuBackend, "make_replay", lambda self, *steps: cuda_graphs.TraceReplay(*steps, guard), raising=False
        )
        monkeypatch.setattr(cuda_graphs, "capture_graph", simulate_capture)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", SimulatedGraph)
        monkeypatch.setattr(lane_sum, "library", lambda name: None)  # its calls are not torch's
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 4), trace_region_size=1 << 20)
    yield opened
    ttnn.close_mesh_device(opened)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted: list[int] = []
    launch = cuda_graphs.TraceReplay._launch

    def count(self) -> None:
        counted.append(1)
        launch(self)

    monkeypatch.setattr(cuda_graphs.TraceReplay, "_launch", count)
    return counted


def upload(mesh: ttnn.MeshDevice, values: torch.Tensor, dtype: ttnn.DataType = ttnn.bfloat16) -> ttnn.Tensor:
    return ttnn.from_torch(
        values, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0)
    )


def host(mesh: ttnn.MeshDevice, values: torch.Tensor) -> ttnn.Tensor:
    return ttnn.from_torch(
        values, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0)
    )


def read(mesh: ttnn.MeshDevice, tensor: ttnn.Tensor) -> torch.Tensor:
    return ttnn.to_torch(tensor, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=0))


def capture(mesh: ttnn.MeshDevice, run) -> tuple[int, ttnn.Tensor]:
    run()
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    result = run()
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    return trace, result


def test_replays_with_new_inputs(mesh, launches) -> None:
    x, w = upload(mesh, torch.randn(4, 32, 64)), upload(mesh, torch.randn(4, 64, 64))

    def run() -> ttnn.Tensor:
        return ttnn.all_reduce(ttnn.gelu(ttnn.matmul(ttnn.add(x, 1.0), w)), cluster_axis=1)

    trace, result = capture(mesh, run)
    for _ in range(6):
        ttnn.copy_host_to_device_tensor(host(mesh, torch.randn(4, 32, 64)), x)
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
        assert torch.equal(read(mesh, result), read(mesh, run()))
    assert len(launches) >= 4
    ttnn.release_trace(mesh, trace)


def test_a_result_that_is_kept_is_not_overwritten(mesh, launches) -> None:
    x = upload(mesh, torch.randn(4, 32, 64))
    trace, result = capture(mesh, lambda: ttnn.multiply(x, 2.0))
    kept = []
    for _ in range(6):
        ttnn.copy_host_to_device_tensor(host(mesh, torch.randn(4, 32, 64)), x)
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
        kept.append((ttnn.clone(result), read(mesh, result).clone()))
        kept.append((ttnn.reshape(result, (4 // 4, 64, 32)), read(mesh, result).reshape(4, 64, 32).clone()))
    assert all(torch.equal(read(mesh, tensor), values) for tensor, values in kept)


def test_sums_that_are_updated_in_place(mesh, launches) -> None:
    total, x = upload(mesh, torch.zeros(4, 32, 32)), upload(mesh, torch.ones(4, 32, 32))
    ttnn.add(total, 0.0)
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    ttnn.add_(total, x)
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    before = float(read(mesh, total)[0, 0, 0])
    for step in range(1, 9):
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
        assert float(read(mesh, total).max()) == before + step
        if step == 5:
            ttnn.copy_host_to_device_tensor(host(mesh, torch.full((4, 32, 32), 100.0)), total)
            before = 100.0 - step
    assert len(launches) >= 4


def test_what_a_tensor_was_before_its_update_stays(mesh, launches) -> None:
    """The graph reads the new contents at its next launch, and not before."""
    total, step_size = upload(mesh, torch.zeros(4, 32, 32)), upload(mesh, torch.ones(4, 32, 32))

    def run() -> ttnn.Tensor:
        before = ttnn.clone(total)
        ttnn.add_(total, step_size)
        return before

    trace, before = capture(mesh, run)
    start = float(read(mesh, total).max())
    for step in range(6):
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
        assert float(read(mesh, before).max()) == start + step
        assert float(read(mesh, total).max()) == start + step + 1
    assert len(launches) >= 3


def test_a_copy_of_an_input_stays_when_the_input_gets_other_values(mesh, launches) -> None:
    x = upload(mesh, torch.zeros(4, 32, 32))
    trace, result = capture(mesh, lambda: ttnn.add(x, 1.0))
    copies = []
    for step in range(1, 8):
        copies.append((ttnn.clone(x), float(step - 1)))
        ttnn.copy_host_to_device_tensor(host(mesh, torch.full((4, 32, 32), float(step))), x)
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
        copies.append((ttnn.clone(x), float(step)))
        assert float(read(mesh, result).max()) == step + 1
    assert [float(read(mesh, copy).max()) for copy, _ in copies] == [value for _, value in copies]
    assert len(launches) >= 3


def test_two_tensors_change_places_at_every_launch(mesh, launches) -> None:
    a, b = upload(mesh, torch.full((4, 32, 32), 1.0)), upload(mesh, torch.full((4, 32, 32), 2.0))

    def run() -> ttnn.Tensor:
        kept = ttnn.clone(a)
        ttnn.copy(b, a)
        ttnn.copy(kept, b)
        return ttnn.add(a, b)

    trace, total = capture(mesh, run)
    for step in range(6):
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
        expected = (1.0, 2.0) if step % 2 == 0 else (2.0, 1.0)
        assert (float(read(mesh, a).max()), float(read(mesh, b).max())) == expected
        assert float(read(mesh, total).max()) == 3.0


def test_a_cache_is_updated_where_it_is_and_a_copy_of_it_stays(mesh, launches) -> None:
    cache = upload(mesh, torch.zeros(4, 1, 64, 32))
    rows = upload(mesh, torch.ones(4, 1, 1, 32))

    def run() -> ttnn.Tensor:
        ttnn.update_cache(cache, rows, 3)
        return ttnn.add(cache, 1.0)

    trace, result = capture(mesh, run)
    copies = []
    for step in range(6):
        ttnn.copy_host_to_device_tensor(host(mesh, torch.full((4, 1, 1, 32), float(step))), rows)
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
        assert float(read(mesh, result)[0, 0, 3, 0]) == step + 1
        copies.append((ttnn.clone(cache), step))
    assert all(float(read(mesh, copy)[0, 0, 3, 0]) == step for copy, step in copies)


def test_one_chips_part_of_a_tensor(mesh, launches) -> None:
    total = upload(mesh, torch.zeros(4, 32, 32))
    one = ttnn.get_device_tensors(total)[2]
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    ttnn.add_(one, 1.0)
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    for step in range(1, 7):
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
        values = read(mesh, total)
        assert [float(values[i].max()) for i in range(4)] == [0.0, 0.0, float(step), 0.0]


@needs_gpu
def test_a_bad_index_in_any_launch_is_reported(mesh, launches) -> None:
    index = ttnn.from_torch(
        torch.zeros(1, 32, 32, dtype=torch.int64), dtype=ttnn.uint32, layout=ttnn.TILE_LAYOUT, device=mesh
    )
    square = upload(mesh, torch.randn(4, 32, 32))

    def run() -> ttnn.Tensor:
        return ttnn.gather(square, 1, index)

    def put(value: int) -> None:
        values = torch.full((1, 32, 32), value)
        ttnn.copy_host_to_device_tensor(ttnn.from_torch(values, dtype=ttnn.uint32, layout=ttnn.TILE_LAYOUT), index)

    trace, _ = capture(mesh, run)
    for value in (1, 2, 3, 4):
        put(value)
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
    put(40)
    ttnn.execute_trace(mesh, trace, cq_id=0, blocking=False)
    put(1)
    ttnn.execute_trace(mesh, trace, cq_id=0, blocking=False)
    with pytest.raises((IndexError, RuntimeError), match="index 40 is out of bounds"):
        ttnn.synchronize_device(mesh)
    ttnn.execute_trace(mesh, trace, cq_id=0, blocking=False)
    ttnn.synchronize_device(mesh)
    assert launches


def test_what_cannot_be_captured_still_runs(mesh, launches) -> None:
    x = upload(mesh, torch.ones(4, 32, 32))

    def run() -> ttnn.Tensor:
        return ttnn.experimental.dropout(x, probability=0.5, scale=2.0, seed=1)

    trace, result = capture(mesh, run)
    for _ in range(4):
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
        assert set(read(mesh, result).unique().tolist()) <= {0.0, 2.0}


def test_what_goes_through_a_socket_is_part_of_no_graph(mesh, launches) -> None:
    sender, receiver = mesh.create_submeshes(ttnn.MeshShape(1, 2))
    core = ttnn.CoreCoord(0, 0)
    at = [ttnn.MeshCoreCoord(ttnn.MeshCoordinate(0, i), core) for i in range(2)]
    config = ttnn.SocketConfig(
        [ttnn.SocketConnection(coord, coord) for coord in at], ttnn.SocketMemoryConfig(ttnn.BufferType.L1, 1 << 16)
    )
    out, into = ttnn.create_socket_pair(sender, receiver, config)
    x = upload(sender, torch.zeros(2, 32, 32))
    arrived = upload(receiver, torch.zeros(2, 32, 32))

    def send() -> ttnn.Tensor:
        y = ttnn.add(x, 1.0)
        ttnn.experimental.send_async(y, out)
        return y

    def receive() -> ttnn.Tensor:
        ttnn.experimental.recv_async(arrived, into)
        return ttnn.multiply(ttnn.add(arrived, 1.0), 2.0)

    send()
    receive()
    traces = []
    for part, run in ((sender, send), (receiver, receive)):
        traces.append(ttnn.begin_trace_capture(part, cq_id=0))
        result = run()
        ttnn.end_trace_capture(part, traces[-1], cq_id=0)
    for step in range(5):
        ttnn.copy_host_to_device_tensor(host(sender, torch.full((2, 32, 32), float(step))), x)
        ttnn.execute_trace(sender, traces[0], cq_id=0, blocking=False)
        ttnn.execute_trace(receiver, traces[1], cq_id=0, blocking=False)
        assert torch.equal(read(receiver, result), torch.full((2, 32, 32), 2.0 * (step + 2)).bfloat16())
    assert launches


@needs_gpu
def test_a_capture_that_fails_leaves_the_thread_and_the_memory_as_they_were() -> None:
    x = torch.ones(1 << 20, device="cuda")
    stream = torch.cuda.current_stream()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()

    for _ in range(3):
        with pytest.raises(RuntimeError, match="captur"), cuda_graphs.capture_graph(torch.cuda.CUDAGraph()):
            (x * 2.0).sum().item()

    assert torch.cuda.current_stream() == stream
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved
    torch.rand(4, device="cuda")  # torch's own generator is not in a capture any more


@needs_gpu
def test_work_of_other_threads_is_ordered_with_what_the_program_reads_after_a_failed_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TTMESH_BACKEND", "cuda")
    with pytest.raises(RuntimeError, match="captur"), cuda_graphs.capture_graph(torch.cuda.CUDAGraph()):
        torch.ones(1, device="cuda").item()

    settings.override("TTMESH_SCHEDULE", "async")
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 4))
    try:
        for step in range(50):
            values = torch.full((4, 512, 512), float(step))
            y = upload(mesh, values)
            for _ in range(4):
                y = ttnn.add(y, 1.0)
            assert torch.equal(read(mesh, y), values + 4)
    finally:
        settings.override("TTMESH_SCHEDULE", None)
        ttnn.close_mesh_device(mesh)


@needs_gpu
def test_decode_attention_and_its_cache_are_one_launch(mesh, launches) -> None:
    users, length, width = 4, 64, 32
    caches = [upload(mesh, torch.randn(4 * users, 1, length, width)) for _ in range(2)]
    q, k = upload(mesh, torch.randn(4, users, 8, width)), upload(mesh, torch.randn(4, users, 1, width))
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(users - 1, 0))})
    shards = ttnn.ShardSpec(cores, [32, width], ttnn.ShardOrientation.ROW_MAJOR)
    by_user = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shards)
    k = ttnn.to_memory_config(k, by_user)
    host_positions = lambda n: ttnn.from_torch(torch.tensor([n, 0, -1, n + 9]), dtype=ttnn.int32)  # noqa: E731
    where = ttnn.to_device(host_positions(0), mesh)

    def run() -> ttnn.Tensor:
        for cache in caches:
            ttnn.experimental.paged_update_cache(cache, k, update_idxs_tensor=where)
        return ttnn.transformer.scaled_dot_product_attention_decode(q, *caches, cur_pos_tensor=where)

    trace, result = capture(mesh, run)
    for step in range(6):
        ttnn.copy_host_to_device_tensor(host_positions(step), where)
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
        assert torch.equal(read(mesh, result), read(mesh, run()))
        for cache in caches:
            held, new = read(mesh, cache).reshape(4, users, length, width), read(mesh, k)[:, :, 0]
            assert torch.equal(held[:, 0, step], new[:, 0])
            assert torch.equal(held[:, 3, step + 9], new[:, 3])
    assert len(launches) >= 3


@pytest.mark.parametrize("kind", [SGD, pytest.param(AdamW, marks=needs_gpu)])  # a CPU's AdamW counts on the host
def test_an_optimisers_step_is_one_launch(mesh, launches, kind: type[Optimiser]) -> None:
    weights, gradient = torch.randn(32, 32), torch.randn(32, 32)
    own = torch.nn.Parameter(weights.clone())
    options = {"momentum": 0.9, "weight_decay": 0.1} if kind is SGD else {"weight_decay": 0.1}
    theirs = getattr(torch.optim, kind.__name__)([own], 0.1, **options)
    parameters = ParameterSet({"w": Parameter(weights, mesh, dtype=ttnn.float32)})
    optimiser = kind(parameters, 0.1, **options)
    grad = ttnn.from_torch(gradient, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh)

    def run() -> None:
        parameters["w"].accumulate(grad)
        optimiser.step()
        parameters.zero_grad()

    trace, _ = capture(mesh, run)
    for _ in range(6):
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
    for _ in range(7):
        own.grad = gradient.clone()
        theirs.step()
    assert torch.allclose(parameters["w"].to_torch(), own.detach(), rtol=1e-5, atol=1e-6)
    assert len(launches) >= 3
