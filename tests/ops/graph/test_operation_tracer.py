"""ttnn.operation_tracer writes a JSON file per call in slow runtime mode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ttmesh.ttnn as ttnn


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(ttnn.CONFIG, "enable_fast_runtime_mode", False)
    monkeypatch.setattr(ttnn.CONFIG, "root_report_path", tmp_path)
    ttnn.operation_tracer._OPERATION_COUNTER = 0
    ttnn.operation_tracer._ENABLE_TRACE = True
    yield tmp_path / "operation_parameters"
    ttnn.operation_tracer.enable_tracing(False)
    ttnn.operation_tracer.enable_tensor_value_serialization(False)


def _read(folder: Path) -> list[dict[str, object]]:
    files = sorted(folder.glob("*.json"), key=lambda path: int(path.name.split("_")[0]))
    return [json.loads(path.read_text()) for path in files]


def test_transfers_and_operations_are_written_with_their_specs(folder: Path) -> None:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 2)) as mesh:
        host = ttnn.from_torch(torch.ones(32, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
        x = ttnn.to_device(host, mesh)
        ttnn.add(x, 2.0, memory_config=ttnn.L1_MEMORY_CONFIG)

    first, second, third = _read(folder)
    assert [r["operation_name"] for r in (first, second, third)] == ["ttnn.from_torch", "ttnn.to_device", "ttnn.add"]
    assert first["args"] == [
        {"position": 0, "value": {"type": "torch.Tensor", "shape": [32, 64], "dtype": "torch.float32"}}
    ]
    assert second["args"][1]["value"]["type"] == "MeshDevice"
    assert third["args"][0]["value"]["mesh_device"]["shape"] == [1, 2]
    assert third["args"][1]["value"] == 2.0
    assert third["kwargs"]["memory_config"]["buffer_type"] == "BufferType.L1"
    assert third["return_value"]["dtype"] == "DataType.BFLOAT16"
    assert "values" not in third["return_value"]


def test_values_are_written_on_request(folder: Path) -> None:
    ttnn.operation_tracer.enable_tensor_value_serialization(True)
    ttnn.operation_tracer.set_sweep_source_hash("abc")
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        x = ttnn.from_torch(torch.ones(2, 3), layout=ttnn.TILE_LAYOUT, device=mesh)
        ttnn.neg(x)

    last = _read(folder)[-1]
    ttnn.operation_tracer.set_sweep_source_hash(None)
    assert last["return_value"]["values"] == [[-1.0] * 3] * 2
    assert last["sweep_source_hash"] == "abc"


def test_nothing_is_written_in_fast_runtime_mode(folder: Path) -> None:
    ttnn.CONFIG.enable_fast_runtime_mode = True

    ttnn.from_torch(torch.ones(2, 3))

    assert ttnn.operation_tracer.is_tracing_enabled()
    assert not folder.exists()
