"""Pipelines in every configuration and under every schedule give what the model gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.base import settings
from ttmesh.nn.pipelines import (
    PipelineConfig,
    create_pipeline_from_config,
    get_memory_config_for_persistent_dram_tensor,
)

CONFIGS = {
    "plain": PipelineConfig(use_trace=False),
    "traced": PipelineConfig(use_trace=True),
    "two queues": PipelineConfig(use_trace=False, num_command_queues=2),
    "two queues, traced": PipelineConfig(use_trace=True, num_command_queues=2),
    "pipelined": PipelineConfig(True, 2, all_transfers_on_separate_command_queue=True),
}


@pytest.fixture(params=["eager", "async", "adversarial"])
def mesh(request):
    ttmesh.configure(schedule=request.param)
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 2), num_command_queues=2, trace_region_size=200_000)
    yield opened
    if opened.is_open():
        ttnn.close_mesh_device(opened)
    settings.override("TTMESH_SCHEDULE", None)


def model(x: ttnn.Tensor) -> list[ttnn.Tensor]:
    assert x.memory_config().buffer_type is ttnn.BufferType.L1
    doubled = ttnn.add(x, x)
    return [ttnn.relu(doubled), doubled]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_gives_what_the_model_gives(mesh, name: str) -> None:
    config = CONFIGS[name]
    values = [torch.randn(2, 1, 32, 64).bfloat16() for _ in range(5)]
    mapper, composer = ttnn.ShardTensorToMesh(mesh, dim=0), ttnn.ConcatMeshToTensor(mesh, dim=0)
    inputs = [ttnn.from_torch(v, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper) for v in values]
    pipeline = create_pipeline_from_config(
        config, model, mesh, ttnn.L1_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG
    )

    outputs = pipeline.compile(inputs[0]).enqueue(inputs).pop_all()

    for value, (positive, doubled) in zip(values, outputs, strict=True):
        assert torch.equal(ttnn.to_torch(doubled, mesh_composer=composer), value + value)
        assert torch.equal(ttnn.to_torch(positive, mesh_composer=composer), torch.relu(value + value))
    pipeline.cleanup()
    assert mesh.heap.cells() == []


@pytest.mark.parametrize("name", CONFIGS)
def test_models_may_free_their_input(mesh, name: str) -> None:
    def freeing(x: ttnn.Tensor) -> ttnn.Tensor:
        doubled = ttnn.add(x, x)
        ttnn.deallocate(x)
        return ttnn.to_memory_config(doubled, ttnn.DRAM_MEMORY_CONFIG)

    values = [torch.full((1, 1, 32, 64), float(i)).bfloat16() for i in range(4)]
    inputs = [ttnn.from_torch(v, layout=ttnn.TILE_LAYOUT) for v in values]
    pipeline = create_pipeline_from_config(
        CONFIGS[name], freeing, mesh, ttnn.L1_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG
    )

    outputs = pipeline.compile(inputs[0]).enqueue(inputs).pop_all()

    assert [float(ttnn.to_torch(ttnn.get_device_tensors(out)[1]).min()) for out in outputs] == [0.0, 2.0, 4.0, 6.0]
    pipeline.cleanup()


def test_a_traced_model_that_keeps_something_where_its_input_was_is_refused(mesh) -> None:
    kept = []

    def greedy(x: ttnn.Tensor) -> ttnn.Tensor:
        spec = x.spec
        ttnn.deallocate(x)
        kept.append(ttnn.allocate_tensor_on_device(spec, mesh))
        return ttnn.add(kept[-1], 1.0, memory_config=ttnn.DRAM_MEMORY_CONFIG)

    host = ttnn.from_torch(torch.zeros(1, 1, 32, 32), layout=ttnn.TILE_LAYOUT)
    pipeline = create_pipeline_from_config(
        PipelineConfig(use_trace=True), greedy, mesh, ttnn.L1_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG
    )

    with pytest.raises(RuntimeError, match="L1 input tensor address mismatch: trace captured"):
        pipeline.compile(host)
    pipeline.cleanup()
    kept.clear()


def test_staging_and_input_may_lie_in_the_same_memory(mesh) -> None:
    values = [torch.full((1, 1, 32, 32), float(i)).bfloat16() for i in range(4)]
    inputs = [ttnn.from_torch(v, layout=ttnn.TILE_LAYOUT) for v in values]
    pipeline = create_pipeline_from_config(
        PipelineConfig(True, 2), lambda x: ttnn.add(x, x), mesh, ttnn.DRAM_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG
    )

    outputs = pipeline.compile(inputs[0]).enqueue(inputs).pop_all()

    assert [float(ttnn.to_torch(ttnn.get_device_tensors(out)[1]).min()) for out in outputs] == [0.0, 2.0, 4.0, 6.0]
    pipeline.cleanup()


def test_the_module_has_tt_metals_name_without_a_checkout(tmp_path: Path) -> None:
    script = tmp_path / "vision.py"
    script.write_text(
        "import torch, ttnn\n"
        "from models.tt_cnn.tt.pipeline import PipelineConfig, create_pipeline_from_config\n"
        "import models.tt_cnn.tt.pipeline as module\n"
        "mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2), num_command_queues=2, trace_region_size=100_000)\n"
        "host = ttnn.from_torch(torch.ones(1, 1, 32, 32), layout=ttnn.TILE_LAYOUT)\n"
        "pipeline = create_pipeline_from_config(PipelineConfig(True, 2), lambda x: ttnn.add(x, x), mesh,\n"
        "    ttnn.L1_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG)\n"
        "pipeline.compile(host).enqueue([host, host])\n"
        "print(module.__name__, len(pipeline.pop_all()))\n"
        "pipeline.cleanup()\n"
        "ttnn.close_mesh_device(mesh)\n"
    )
    environment = dict(os.environ, PYTHONPATH=str(Path(ttmesh.__file__).parents[1]))

    done = subprocess.run(
        [sys.executable, "-m", "ttmesh", "run", str(script)], cwd=tmp_path, env=environment, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip

    assert done.stdout.strip().endswith("ttmesh.nn.pipelines 2"), done.stdout + done.stderr


def test_preallocated_outputs_are_filled_and_too_many_inputs_are_refused(mesh) -> None:
    inputs = [ttnn.from_torch(torch.full((1, 1, 32, 32), float(i)), layout=ttnn.TILE_LAYOUT) for i in range(3)]
    pipeline = create_pipeline_from_config(
        PipelineConfig(use_trace=True), model, mesh, ttnn.L1_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG
    )
    pipeline.compile(inputs[0]).preallocate_output_tensors_on_host(2)

    first = pipeline.enqueue(inputs[:2]).pop_all()
    second = pipeline.enqueue(inputs[1:]).pop_all()

    assert [float(ttnn.to_torch(ttnn.get_device_tensors(pair[1])[0]).max()) for pair in second] == [2.0, 4.0]
    assert all(a[1] is b[1] for a, b in zip(first, second, strict=True))
    with pytest.raises(
        ValueError, match=r"Number of inputs \(3\) exceeds the number of pre-allocated output slots \(2\)"
    ):
        pipeline.enqueue(inputs)
    pipeline.cleanup()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (PipelineConfig(num_command_queues=3), "Unsupported pipeline configuration"),
        (PipelineConfig(use_trace=True), "dram_input_memory_config must be provided"),
        (PipelineConfig(False, 2, True), "requires tracing"),
        (PipelineConfig(True, 1, True), "needs two command queues"),
    ],
)
def test_configurations_that_cannot_work_are_refused(config: PipelineConfig, text: str) -> None:
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), num_command_queues=2)
    with pytest.raises(ValueError, match=text):
        create_pipeline_from_config(config, model, mesh, ttnn.L1_MEMORY_CONFIG)
    ttnn.close_mesh_device(mesh)


def test_device_tensors_and_uncompiled_pipelines_are_refused(mesh) -> None:
    pipeline = create_pipeline_from_config(PipelineConfig(use_trace=False), model, mesh, ttnn.L1_MEMORY_CONFIG)
    host = ttnn.from_torch(torch.zeros(1, 1, 32, 32), layout=ttnn.TILE_LAYOUT)

    with pytest.raises(RuntimeError, match="was not compiled"):
        pipeline.enqueue([host])
    pipeline.compile(host)
    with pytest.raises(ValueError, match="All input tensors must be on host"):
        pipeline.enqueue([ttnn.to_device(host, mesh)])


def test_persistent_tensors_are_cut_evenly_over_the_dram_banks() -> None:
    width = ttnn.TensorMemoryLayout.WIDTH_SHARDED

    config = get_memory_config_for_persistent_dram_tensor((1, 1, 64, 320), width, ttnn.CoreCoord(12, 1))

    assert config.shard_spec.shape == [64, 32]
    assert config.shard_spec.grid.num_cores() == 10
    with pytest.raises(RuntimeError, match="Only 1D DRAM grid"):
        get_memory_config_for_persistent_dram_tensor((64, 320), width, ttnn.CoreCoord(12, 2))
