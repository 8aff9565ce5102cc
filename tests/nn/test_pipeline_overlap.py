"""With a worker per queue, transfers and compute run at the same time: a model that waits for them is not kept waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.base import settings
from ttmesh.base.records import Enqueued, Finished
from ttmesh.base.signals import signals
from ttmesh.mesh.queue.command_queue import Command
from ttmesh.nn.pipelines import PipelineConfig, create_pipeline_from_config

INPUTS = 5
SIDE, LAYERS = 64, 4
GUARD_S = 60.0


@pytest.fixture
def mesh():
    ttmesh.configure(schedule="async")
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 2), num_command_queues=2, trace_region_size=200_000)
    yield opened
    if opened.is_open():
        ttnn.close_mesh_device(opened)
    settings.override("TTMESH_SCHEDULE", None)


class Replays:
    """What a captured model does last: replay k stays under way until its condition holds for the transfers seen so far."""

    def __init__(self, until: Callable[[int, list[Finished], list[Finished]], bool]) -> None:
        self._until = until
        self._news = threading.Condition()
        self._seen: list[Finished] = []
        self.met: list[bool] = []

    def saw(self, record: Finished | Enqueued) -> None:
        """Take a record of the queues."""
        with self._news:
            if isinstance(record, Finished):
                self._seen.append(record)
                self._news.notify_all()

    def stay(self, *_: object) -> None:
        """Return when the condition holds, and remember whether it did."""
        with self._news:
            replay = len(self.met) + 1
            self.met.append(self._news.wait_for(lambda: self._until(replay, *self._transfers()), GUARD_S))

    def _transfers(self) -> tuple[list[Finished], list[Finished]]:
        return [r for r in self._seen if r.name == "write"], [r for r in self._seen if r.name == "read"]


def run_pipeline(mesh, config: PipelineConfig, replays: Replays | None = None) -> list[Finished]:
    """Everything that ran while five inputs went through a model."""
    draw = torch.Generator().manual_seed(0)
    weight = ttnn.from_torch(
        torch.randn(SIDE, SIDE, generator=draw) * SIDE**-0.5, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh
    )

    def model(x: ttnn.Tensor) -> ttnn.Tensor:
        for _ in range(LAYERS):
            x = ttnn.matmul(x, weight)
        if replays is not None and mesh.queues[0].recording is not None:
            mesh.queues[0].enqueue(Command("stay", replays.stay))
        return x

    mapper = ttnn.ShardTensorToMesh(mesh, dim=0)
    values = [torch.randn(4, SIDE, SIDE, generator=draw) for _ in range(INPUTS)]
    inputs = [ttnn.from_torch(v, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper) for v in values]
    pipeline = create_pipeline_from_config(
        config, model, mesh, ttnn.L1_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG
    )
    pipeline.compile(inputs[0])
    found: list[Finished | Enqueued] = []
    stops = [signals.listen(hear, commands=True) for hear in (found.append, *([replays.saw] if replays else []))]
    outputs = pipeline.enqueue(inputs).pop_all()
    for stop in stops:
        stop()

    composer = ttnn.ConcatMeshToTensor(mesh, dim=0)
    for value, output in zip(values, outputs, strict=True):
        for _ in range(LAYERS):
            value = value @ ttnn.to_torch(ttnn.get_device_tensors(weight)[0])
        torch.testing.assert_close(ttnn.to_torch(output, mesh_composer=composer), value, rtol=1e-3, atol=1e-3)
    pipeline.cleanup()
    return [record for record in found if isinstance(record, Finished)]


def overlaps(first: list[Finished], second: list[Finished]) -> int:
    """How many of the first run while one of the second does."""
    return sum(
        any(a.time_ns - a.duration_ns < b.time_ns and b.time_ns - b.duration_ns < a.time_ns for b in second)
        for a in first
    )


@pytest.mark.parametrize("separate", [False, True], ids=["overlapped input", "pipelined I/O"])
def test_the_next_input_travels_while_the_model_works(mesh, separate: bool) -> None:
    replays = Replays(lambda replay, writes, reads: len(writes) >= min(replay + 1, INPUTS))
    records = run_pipeline(mesh, PipelineConfig(True, 2, all_transfers_on_separate_command_queue=separate), replays)

    assert replays.met == [True] * INPUTS
    assert sum(r.queue == 0 and r.name.startswith("execute_trace") for r in records) == INPUTS
    assert [r.queue for r in records if r.name == "write"] == [1] * INPUTS
    assert [r.queue for r in records if r.name == "read"] == [int(separate)] * INPUTS


def test_results_leave_during_the_next_replay_where_both_transfers_have_their_queue(mesh) -> None:
    replays = Replays(lambda replay, writes, reads: len(reads) >= replay - 1)
    run_pipeline(mesh, PipelineConfig(True, 2, all_transfers_on_separate_command_queue=True), replays)

    assert replays.met == [True] * INPUTS


def test_one_queue_overlaps_nothing(mesh) -> None:
    records = run_pipeline(mesh, PipelineConfig(use_trace=True, num_command_queues=1))

    assert overlaps([r for r in records if r.name == "write"], [r for r in records if r.name != "write"]) == 0
