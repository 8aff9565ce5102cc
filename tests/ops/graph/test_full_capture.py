"""`graph.full_graph_capture`: one report with every buffer, settings as they were, also after an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import ttmesh.ttnn as ttnn


def test_a_full_capture_writes_its_report_and_restores_settings(tmp_path: Path) -> None:
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    x = ttnn.from_torch(torch.ones(32, 32), layout=ttnn.TILE_LAYOUT, device=mesh)

    with ttnn.graph.full_graph_capture(str(tmp_path / "report.json")):
        assert not ttnn.CONFIG.enable_fast_runtime_mode
        ttnn.relu(x)
    with pytest.raises(ValueError, match="stop"), ttnn.graph.full_graph_capture(tmp_path / "none.json"):
        raise ValueError("stop")

    report = json.loads((tmp_path / "report.json").read_text())
    assert {"graph", "devices", "metadata", "buffer_pages", "per_operation_buffers"} <= report.keys()
    assert not (tmp_path / "none.json").exists()
    assert ttnn.CONFIG.enable_fast_runtime_mode
    assert not ttnn.graph.is_graph_capture_active()
    assert not ttnn.graph.is_detailed_buffer_tracing_enabled()
    ttnn.close_mesh_device(mesh)
