"""Float32 shadows follow a program through views, updates in place, traces and collectives; reports explain what is lost."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import ttmesh
from ttmesh import ttnn
from ttmesh.cli import main
from ttmesh.drift.drift_page import draw_pcc, make_page
from ttmesh.drift.measures import EQUAL, measure
from ttmesh.drift.recorder import DriftRecorder
from ttmesh.drift.report import DriftReport, format_table, make_report
from ttmesh.tensor.distribution import lane_transfers

EXAMPLES = Path(__file__).parents[2] / "examples" / "models"


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[ttnn.MeshDevice]:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 4), trace_region_size=1 << 20)
    yield device
    ttnn.close_mesh_device(device)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


def _on(mesh: ttnn.MeshDevice, values: torch.Tensor, dtype: ttnn.DataType, mapper: object = None) -> ttnn.Tensor:
    mapper = mapper or ttnn.ReplicateTensorToMesh(mesh)
    return ttnn.from_torch(values, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)


def _views_and_updates(mesh: ttnn.MeshDevice, dtype: ttnn.DataType) -> None:
    x = _on(mesh, torch.randn(1, 1, 64, 96), dtype)
    y = _on(mesh, torch.randn(1, 1, 64, 96), dtype)
    ttnn.add_(x, y)
    target = ttnn.empty_like(x)
    ttnn.multiply(x, y, output_tensor=target)
    view = ttnn.reshape(target, (1, 2, 32, 96))
    ttnn.deallocate(y)
    ttnn.multiply_(x, 0.5)
    again = ttnn.add(ttnn.reshape(view, (1, 1, 64, 96)), x)
    ttnn.softmax(ttnn.permute(again, (0, 1, 3, 2)), dim=-1)


def _collectives(mesh: ttnn.MeshDevice, dtype: ttnn.DataType) -> None:
    x = _on(mesh, torch.randn(1, 1, 64, 256), dtype, ttnn.ShardTensorToMesh(mesh, dim=3))
    w = _on(mesh, torch.randn(1, 1, 256, 64), dtype, ttnn.ShardTensorToMesh(mesh, dim=2))
    partial = ttnn.matmul(x, w)
    ttnn.all_reduce(partial)
    ttnn.all_gather(x, dim=3)


def _trace(mesh: ttnn.MeshDevice, dtype: ttnn.DataType) -> None:
    x = _on(mesh, torch.randn(1, 1, 32, 64), dtype)
    w = _on(mesh, torch.randn(1, 1, 64, 32), dtype)
    ttnn.gelu(ttnn.matmul(x, w))
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    y = ttnn.gelu(ttnn.matmul(x, w))
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    for _ in range(3):
        new = ttnn.from_torch(torch.randn(1, 1, 32, 64), dtype=dtype, layout=ttnn.TILE_LAYOUT)
        ttnn.copy_host_to_device_tensor(new, x)
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
    ttnn.add(y, 1.0)


Program = Callable[[ttnn.MeshDevice, ttnn.DataType], None]


@pytest.mark.parametrize("program", [_views_and_updates, _collectives, _trace])
@pytest.mark.parametrize("dtype", [ttnn.float32, ttnn.bfloat16, ttnn.bfloat8_b])
def test_shadows_follow_views_updates_traces_and_collectives(
    mesh: ttnn.MeshDevice, program: Program, dtype: ttnn.DataType
) -> None:
    """A shadow that missed a write would be of other values altogether."""
    torch.manual_seed(0)
    with ttmesh.numerics("ideal"), DriftRecorder() as recorder:
        program(mesh, dtype)

    least = {ttnn.float32: 1 - 1e-9, ttnn.bfloat16: 0.9999, ttnn.bfloat8_b: 0.995}[dtype]
    assert recorder.records
    for record in recorder.records:
        assert record.followed, record.name
        assert record.total.pcc >= least, (record.name, record.total)
        assert record.own.pcc >= least, (record.name, record.own)


def test_replays_of_a_trace_are_runs_of_their_own(mesh: ttnn.MeshDevice) -> None:
    with DriftRecorder() as recorder:
        _trace(mesh, ttnn.bfloat16)

    runs = {line.name: line.runs for line in make_report(recorder).calls if line.name == "ttnn.matmul"}
    assert sum(record.name == "ttnn.matmul" for record in recorder.records) == 4, runs


def test_watching_changes_neither_results_nor_memory(mesh: ttnn.MeshDevice) -> None:
    a, b = torch.randn(1, 1, 64, 64), torch.randn(1, 1, 64, 64)

    def run() -> tuple[torch.Tensor, int]:
        left, right = _on(mesh, a, ttnn.bfloat16), _on(mesh, b, ttnn.bfloat8_b)
        result = ttnn.gelu(ttnn.matmul(left, right))
        return ttnn.to_torch(ttnn.get_device_tensors(result)[0]), mesh.heap.live[ttnn.BufferType.DRAM]

    with ttmesh.numerics("realistic"):
        plain = run()
        with DriftRecorder():
            watched = run()

    assert torch.equal(plain[0], watched[0])
    assert plain[1] == watched[1]


def _llama(fidelity: str, monkeypatch: pytest.MonkeyPatch) -> DriftReport:
    monkeypatch.setenv("TTMESH_SYSTEM", "n150")
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    example = importlib.import_module("llama_fidelity")
    with ttmesh.numerics("realistic"), DriftRecorder() as recorder:
        example.run(getattr(ttnn.MathFidelity, fidelity), 1)
    return make_report(recorder)


def test_a_small_llama_loses_less_with_every_fidelity_and_the_report_says_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports = {name: _llama(name, monkeypatch) for name in ("LoFi", "HiFi2", "HiFi4")}

    logits = {name: report.records[-1].total.pcc for name, report in reports.items()}
    assert 0.99 < logits["LoFi"] < 0.9995 < logits["HiFi2"] < logits["HiFi4"] < 1.0
    low = reports["LoFi"]
    assert [line.module for line in low.modules][-1].endswith("Llama/head")
    assert any(line.module.endswith("layers[0]/attention/query") for line in low.modules)
    assert low.first is not None
    assert all(line.name in ("ttnn.linear", "ttnn.matmul") for line in low.worst)
    query = next(line for line in low.calls if line.module.endswith("attention/query"))
    found = {finding.label: finding for finding in query.remedies}
    assert found["HiFi4"].distance.lost < found["HiFi2"].distance.lost < 0.1 * query.own.lost
    assert found["HiFi4"].cost == "2,048 -> 8,192 cycles"  # 2 x 8 x 8 tiles, 16 cycles a phase
    assert found["format of weights: bfloat16"].distance.lost > 1e-5
    modes = {finding.label: finding.distance.lost for finding in query.modes}
    assert modes["mode ideal"] < 0.1 * query.own.lost
    assert modes["mode exact"] == pytest.approx(query.own.lost, rel=0.1)
    assert "HiFi4: 1 - PCC" in format_table(low)
    page = make_page(low, "Llama")
    assert "layers[0]/attention/query" in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert draw_pcc(low.records).count("<circle") == len(low.records)


def test_the_command_writes_its_files_and_keeps_the_program_s_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, torch\nimport ttmesh.ttnn as ttnn\n"
        "device = ttnn.open_device(device_id=0)\n"
        "x = ttnn.from_torch(torch.randn(32, 32), dtype=ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT, device=device)\n"
        "ttnn.matmul(x, x)\nttnn.close_device(device)\nsys.exit(3)\n"
    )
    monkeypatch.setenv("TTMESH_NUMERICS", "ideal")
    files = [tmp_path / name for name in ("drift.json", "drift.html", "drift.svg")]
    options = ["--json", str(files[0]), "--html", str(files[1]), "--picture", str(files[2])]
    try:
        status = main(["drift", "--force", *options, str(script)])
    finally:
        ttmesh.configure(numerics=None)

    printed = capsys.readouterr().out
    assert status == 3
    assert "ttnn.matmul" in printed
    data = json.loads(files[0].read_text())
    assert data["calls"][0]["name"] == "ttnn.matmul"
    assert data["calls"][0]["site"] == "program.py:5"
    assert data["runs"][0]["total"]["pcc"] < 1
    assert files[1].read_text().startswith("<!doctype html>")
    assert files[2].read_text().startswith("<svg")


def test_a_program_without_operations_and_a_missing_file_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTMESH_NUMERICS", "ideal")
    script = tmp_path / "empty.py"
    script.write_text("print('nothing')\n")
    try:
        assert main(["drift", "--force", str(script)]) == 0
        assert "No operation with floating-point results ran" in capsys.readouterr().out
        assert main(["drift", "--force", str(tmp_path / "none.py")]) == 2
    finally:
        ttmesh.configure(numerics=None)
    assert "no file" in capsys.readouterr().err


def test_comparison_mode_reports_or_raises_in_tt_nn_s_words(
    mesh: ttnn.MeshDevice, caplog: pytest.LogCaptureFixture
) -> None:
    x = _on(mesh, torch.randn(1, 1, 64, 64), ttnn.bfloat16)
    failed = (
        r"ttnn.matmul: Comparing output tensor 0 against CPU locally failed: pcc is 0\.\d+ but should be >=0\.9999999"
    )
    with ttnn.manage_config("comparison_mode_pcc", 0.9999999):
        with ttnn.manage_config("enable_comparison_mode", True):
            with caplog.at_level(logging.ERROR):
                ttnn.matmul(x, x)
            assert "against CPU locally failed" in caplog.text
            raising = ttnn.manage_config("comparison_mode_should_raise_exception", True)
            with raising, pytest.raises(RuntimeError, match=failed):
                ttnn.matmul(x, x)
        caplog.clear()
        ttnn.matmul(x, x)
    assert not caplog.text


def test_distances_of_equal_constant_and_infinite_values() -> None:
    ones = torch.ones(8)
    assert measure(ones, ones, ttnn.bfloat16) == EQUAL
    assert measure(ones * 1.00001, ones, ttnn.bfloat16).pcc == 1.0
    assert measure(ones * 2, ones, ttnn.bfloat16).pcc == 0.0
    infinite = torch.tensor([1.0, torch.inf, 3.0])
    assert measure(infinite, infinite.nan_to_num(posinf=2.0), ttnn.float32).pcc == 0.0
    assert measure(torch.tensor([1.0, 2.0 + 2**-6]), torch.tensor([1.0, 2.0]), ttnn.bfloat16).ulp == 1.0


def test_the_original_of_values_is_found_where_they_were_copied_to(
    mesh: ttnn.MeshDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As to a GPU: what the cell gets shares no memory with the host's lanes."""
    send = lane_transfers.write_on
    monkeypatch.setattr(lane_transfers, "write_on", lambda *args: send(*args[:4], args[4].clone(), *args[5:]))
    x, w = torch.randn(1, 1, 32, 64), torch.randn(1, 1, 64, 32)
    with ttmesh.numerics("realistic"), DriftRecorder() as recorder:
        ttnn.matmul(_on(mesh, x, ttnn.bfloat16), _on(mesh, w, ttnn.bfloat8_b))

    assert "format of weights: bfloat16" in {finding.label for finding in recorder.records[-1].remedies}
