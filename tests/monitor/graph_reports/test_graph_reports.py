"""Reports of graph captures become databases: `ttnn.graph_report`."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh import shim
from ttmesh.ttnn import graph_report

Rows = list[tuple[Any, ...]]


def ask(database: Path, question: str) -> Rows:
    """Rows of a database."""
    connection = sqlite3.connect(database)
    try:
        return connection.execute(question).fetchall()
    finally:
        connection.close()


def write(path: Path, graph: list[dict[str, Any]], **more: Any) -> Path:
    """A report file of a graph whose nodes are numbered here."""
    empty = {"params": {}, "connections": [], "input_tensors": [], "arguments": []}
    nodes = [{**empty, **node, "counter": i} for i, node in enumerate(graph)]
    path.write_text(json.dumps({"version": 1, "graph": nodes, "metadata": {"rank": 0}, **more}))
    return path


def start(name: str, **more: Any) -> dict[str, Any]:
    """The first node of a function."""
    return {"node_type": "function_start", "params": {"name": name}, **more}


def end(name: str, *results: int, **params: Any) -> dict[str, Any]:
    """The last node of a function, and the nodes of its results."""
    params = {"name": name, **params}
    return {"node_type": "function_end", "params": params, "connections": [*results], "duration_ns": 2_000_000_000}


def tensor(number: int, **params: Any) -> dict[str, Any]:
    """A tensor on a device."""
    on = {"tensor_id": str(number), "shape": "Shape([32, 32])", "dtype": "DataType::BFLOAT16", "address": number << 10}
    return {"node_type": "tensor", "params": {**on, **params}}


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report that a program wrote, with a call that was refused in the middle."""
    path = tmp_path_factory.mktemp("captured") / "report.json"
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    x = torch.rand(64, 32)
    ttnn.graph.enable_python_stack_traces()
    ttnn.graph.enable_detailed_buffer_tracing()
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
    a = ttnn.from_torch(x, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
    b = ttnn.add(a, a)
    with pytest.raises(ttmesh.MeshError):
        ttnn.matmul(a, a)
    ttnn.softmax(b, dim=-1, memory_config=ttnn.L1_MEMORY_CONFIG)
    ttnn.deallocate(b)
    ttnn.graph.end_graph_capture_to_file(path)
    ttnn.graph.disable_detailed_buffer_tracing()
    ttnn.graph.disable_python_stack_traces()
    ttnn.close_mesh_device(mesh)
    return path


def test_a_capture_becomes_operations_with_arguments_tensors_buffers_and_source(captured: Path, tmp_path: Path) -> None:
    database = graph_report.import_report(captured, tmp_path)

    names = [name for (name,) in ask(database, "SELECT name FROM operations ORDER BY operation_id")]
    assert names[:3] == ["ttnn.add", "ttnn.matmul", "ttnn.softmax"]
    assert "ttnn.deallocate" in names
    assert ask(database, "SELECT operation_name, error_type FROM errors") == [("ttnn.matmul", "ShapeError")]
    assert ("dim", "-1") in ask(database, "SELECT name, value FROM operation_arguments WHERE operation_id = 3")
    made = ask(database, "SELECT producer_operation_id, last_use_operation_id, producer_source_file FROM tensor_lifetime "
                         "WHERE producer_operation_id = 1")  # fmt: skip
    assert made == [(1, 3, __file__)]
    assert ask(database, "SELECT DISTINCT path FROM source_files") == [(__file__,)]
    assert ask(database, "SELECT count(*) FROM buffers WHERE operation_id = 1") == [(2,)]
    assert ask(database, "SELECT count(*) FROM buffer_chunks WHERE operation_id = 1")[0][0] > 0
    assert {p.name for p in tmp_path.iterdir()} == {
        "db.sqlite", "report.tensor_lifetime.json", "cluster_descriptor.yaml", "physical_chip_mesh_coordinate_mapping.yaml"
    }  # fmt: skip


def test_the_module_runs_from_the_command_line(captured: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ttnn.graph_report", str(captured), str(tmp_path), "--db-name", "other.sqlite"]
    path = f"{shim.__path__[0]}:{Path(ttmesh.__path__[0]).parent}"

    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=180)

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'other.sqlite'}\n"


def test_what_an_operation_calls_belongs_to_it(tmp_path: Path) -> None:
    graph = [
        {"node_type": "capture_start"},
        tensor(1),
        start("ttnn.linear"),
        start("MatmulDeviceOperation", input_tensors=[1]),
        end("MatmulDeviceOperation", 5),
        tensor(2),
        start("AddDeviceOperation", input_tensors=[5]),
        end("AddDeviceOperation", 8),
        tensor(3),
        end("ttnn.linear"),
        start("Tensor::reshape"),
        end("Tensor::reshape"),
    ]

    database = graph_report.import_report(write(tmp_path / "r.json", graph), tmp_path)

    assert ask(database, "SELECT * FROM operations") == [(1, "ttnn.linear", 2.0, 0)]
    assert ask(database, "SELECT tensor_id FROM input_tensors") == [(1,)]
    assert ask(database, "SELECT tensor_id FROM output_tensors") == [(3,)], "tensor 2 is used up inside"
    (subgraph,) = ask(database, "SELECT captured_graph FROM captured_graph")[0]
    assert [node["counter"] for node in json.loads(subgraph)] == list(range(11))


@pytest.mark.parametrize(
    ("last", "kind", "text"),
    [
        ([], "incomplete_operation", "never completed"),
        ([end("ttnn.conv2d", aborted="true", abort_reason="no room")], "aborted_operation", "no room"),
        ([{"node_type": "error", "params": {"error_operation": "ttnn.conv2d", "error_type": "E", "error_message": "m"}},
          end("ttnn.conv2d")], "E", "m"),
    ],
)  # fmt: skip
def test_an_operation_that_failed_has_an_error(tmp_path: Path, last: Any, kind: str, text: str) -> None:
    graph = [{"node_type": "capture_start"}, start("ttnn.conv2d", arguments=["7"]), *last]

    database = graph_report.import_report(write(tmp_path / "r.json", graph), tmp_path)

    ((operation, found, message),) = ask(database, "SELECT operation_id, error_type, error_message FROM errors")
    assert (operation, found) == (1, kind)
    assert text in message
    assert ask(database, "SELECT name, value FROM operation_arguments") == [("arg_0", "7")]


def test_captures_of_ranks_and_of_one_rank_are_merged(tmp_path: Path) -> None:
    graph = [{"node_type": "capture_start"}, start("ttnn.exp"), end("ttnn.exp")]
    for i in (1, 2):
        ranks = {"rank": i - 1, "world_size": 2}
        write(tmp_path / f"graph_capture_{i}_of_2.json", graph, metadata=ranks, cluster_descriptor="arch: {}")
    write(tmp_path / "graph_capture_3_of_2.json", graph)

    database = graph_report.import_report(tmp_path, tmp_path / "out")

    rows = ask(database, "SELECT operation_id, rank FROM operations ORDER BY rank, operation_id")
    assert rows == [(1, 0), (10001, 0), (1, 1)]
    assert (tmp_path / "out" / "cluster_descriptor_2_of_2.yaml").exists()


def test_devices_are_numbered_from_zero(tmp_path: Path) -> None:
    graph = [
        {
            "node_type": "buffer_allocate",
            "params": {"device_id": "6", "address": "64", "size": "4096", "page_size": "32"},
        },
        start("ttnn.exp"),
        end("ttnn.exp"),
    ]
    devices = [{"device_id": 6, "num_dram_channels": 12}, {"device_id": 4}]

    database = graph_report.import_report(write(tmp_path / "r.json", graph, devices=devices), tmp_path)

    assert ask(database, "SELECT device_id FROM devices ORDER BY 1") == [(0,), (1,)]
    assert ask(database, "SELECT device_id, max_size_per_bank FROM buffers") == [(1, 11 * 32)]


@pytest.mark.parametrize(
    ("report", "text"),
    [([], "must be a JSON object"), ({}, "missing metadata"), ({"metadata": {}}, "missing required field rank")],
)
def test_what_is_no_report_is_refused(tmp_path: Path, report: Any, text: str) -> None:
    (tmp_path / "r.json").write_text(json.dumps(report))

    with pytest.raises(ValueError, match=text):
        graph_report.import_report(tmp_path / "r.json", tmp_path)


def test_comparison_mode_is_in_the_report(tmp_path: Path) -> None:
    device = ttnn.open_device(device_id=0)
    with ttnn.manage_config("enable_comparison_mode", True):
        ttnn.graph.begin_graph_capture()
        x = ttnn.from_torch(torch.rand(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
        result = ttnn.exp(x)
        ttnn.graph.end_graph_capture_to_file(tmp_path / "r.json")
    ttnn.close_device(device)

    database = graph_report.import_report(tmp_path / "r.json", tmp_path)

    for table in ("local_tensor_comparison_records", "global_tensor_comparison_records"):
        ((tensor_id, golden, matches, desired),) = ask(
            database, f"SELECT tensor_id, golden_tensor_id, matches, desired_pcc FROM {table}"
        )
        assert (tensor_id, matches, desired) == (result.tensor_id, 1, 0.9999)
        assert ask(database, f"SELECT storage_type FROM tensors WHERE tensor_id = {golden}") == [("HOST",)]
    assert not ttnn.graph.has_comparison_records()


def test_records_that_a_program_made_go_into_a_database_of_their_own(tmp_path: Path) -> None:
    record = {"tensor_id": 1, "golden_tensor_id": 2, "matches": False, "desired_pcc": 0.99, "actual_pcc": 0.5}
    ttnn.graph.record_tensor_comparison_data(local_tensor_comparison_records=[record], tensors=[{"tensor_id": 1}] * 2)

    ttnn.graph.flush_comparison_records_to_db(tmp_path)

    assert ask(tmp_path / "db.sqlite", "SELECT * FROM local_tensor_comparison_records") == [(1, 2, 0, 0.99, 0.5, 0)]
    assert ask(tmp_path / "db.sqlite", "SELECT tensor_id FROM tensors") == [(1,)]
    assert not ttnn.graph.has_comparison_records()


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://user:secret@github.com/o/r.git?x=1#y", "https://github.com/o/r.git"),
        ("git@github.com:o/r.git", "github.com:o/r.git"),
        ("ssh://git@host:org/r.git", "ssh://host:org/r.git"),
        ("http://[::1]:8080/r", "http://[::1]:8080/r"),
        ("/home/me/r", "/home/me/r"),
    ],
)
def test_no_password_gets_into_a_report(url: str, kept: str) -> None:
    assert graph_report.sanitize_git_remote_url(url) == kept


def test_a_report_reads_no_file_outside_the_folders_of_programs(tmp_path: Path) -> None:
    trace = '  File "/etc/passwd", line 1, in main\n'

    assert graph_report.normalize_source_path_from_stack_trace(trace) is None
    assert graph_report.read_source_file("/etc/passwd") is None


def test_reports_of_parametrized_tests_have_names_of_their_own() -> None:
    names = {graph_report.derive_report_name(f"tests/test_long.py::{'x' * 80}[{i}]") for i in range(3)}

    assert len(names) == 3
    assert all(len(name) == 64 and name.startswith("test_long_xxx") for name in names)
