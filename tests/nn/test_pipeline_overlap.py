"""With a worker per queue, transfers and compute run at the same time: shown by the queues' own records."""

from __future__ import annotations

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.base import settings
from ttmesh.base.records import Enqueued, Finished
from ttmesh.base.signals import signals
from ttmesh.nn.pipelines import PipelineConfig, create_pipeline_from_config

INPUTS = 5
SIDE, LAYERS = 512, 4


@pytest.fixture
def mesh():
    ttmesh.configure(schedule="async")
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 2), num_command_queues=2, trace_region_size=200_000)
    yield opened
    if opened.is_open():
        ttnn.close_mesh_device(opened)
    settings.override("TTMESH_SCHEDULE", None)


def timeline(mesh, config: PipelineConfig) -> list[Finished]:
    """Everything that ran while five inputs went through a model that takes a while."""
    draw = torch.Generator().manual_seed(0)
    weight = ttnn.from_torch(
        torch.randn(SIDE, SIDE, generator=draw) * SIDE**-0.5, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh
    )

    def model(x: ttnn.Tensor) -> ttnn.Tensor:
        for _ in range(LAYERS):
            x = ttnn.matmul(x, weight)
        return x

    mapper = ttnn.ShardTensorToMesh(mesh, dim=0)
    values = [torch.randn(4, SIDE, SIDE, generator=draw) for _ in range(INPUTS)]
    inputs = [ttnn.from_torch(v, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper) for v in values]
    pipeline = create_pipeline_from_config(
        config, model, mesh, ttnn.L1_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG
    )
    pipeline.compile(inputs[0])
    found: list[Finished | Enqueued] = []
    stop = signals.listen(found.append, commands=True)
    outputs = pipeline.enqueue(inputs).pop_all()
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
    records = timeline(mesh, PipelineConfig(True, 2, all_transfers_on_separate_command_queue=separate))

    replays = [r for r in records if r.queue == 0 and r.name.startswith("execute_trace")]
    writes = [r for r in records if r.queue == 1 and r.name == "write"]
    reads = [r for r in records if r.name == "read"]
    assert (len(replays), len(writes)) == (INPUTS, INPUTS)
    assert overlaps(writes[1:], replays) == INPUTS - 1  # all but the first, which nothing runs before
    assert {r.queue for r in reads} == {int(separate)}
    if separate:
        assert overlaps(reads[:-1], replays) == INPUTS - 1  # results leave during the next replay


def test_one_queue_overlaps_nothing(mesh) -> None:
    records = timeline(mesh, PipelineConfig(use_trace=True, num_command_queues=1))

    assert overlaps([r for r in records if r.name == "write"], [r for r in records if r.name != "write"]) == 0
