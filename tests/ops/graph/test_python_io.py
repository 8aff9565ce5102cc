"""What a capture records of Python: arguments, tensors by id, call stacks, and the file beside the report."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import ttmesh.ttnn as ttnn
import ttmesh.ttnn.graph as graph


def test_a_report_has_a_file_with_the_arguments_and_tensors_of_every_call(tmp_path: Path) -> None:
    with ttnn.manage_device(0) as device:
        graph.begin_graph_capture()
        made = ttnn.ones([32, 32], layout=ttnn.TILE_LAYOUT, device=device)
        total = ttnn.add(made, 2.5, memory_config=ttnn.L1_MEMORY_CONFIG)
        graph.end_graph_capture_to_file(tmp_path / "report.json")

    first, second = json.loads((tmp_path / "report.python_io.json").read_text())
    assert first["name"] == "ttnn.ones"
    assert first["output_tensor_ids"] == second["input_tensor_ids"] == [made.tensor_id]
    assert second["output_tensor_ids"] == [total.tensor_id]
    assert second["arguments"]["1"] == "2.5"
    assert "BufferType::L1" in second["arguments"]["memory_config"]
    assert "python_stack_trace" not in second
    assert not graph.is_python_io_recording_enabled()


def test_call_stacks_are_recorded_where_the_configuration_asks_for_them() -> None:
    with ttnn.manage_config("enable_graph_python_stack_traces", True):
        graph.begin_graph_capture()
        graph.record_python_operation("ttnn.relu", (torch.ones(2, 3),), {})
        graph.end_graph_capture()

    (record,) = graph._python_io_data
    assert record["arguments"]["0"] == "torch.Tensor(shape=[2, 3], dtype=torch.float32)"
    assert "test_python_io.py" in record["python_stack_trace"][0]
    assert not any("/ttmesh/" in frame for frame in record["python_stack_trace"])
    assert not graph.is_python_stack_trace_enabled()


def test_records_go_to_the_list_that_a_program_puts_in_place() -> None:
    graph._python_io_data = [{"name": "mine"}]

    graph.store_captured_graph("graph")

    assert graph._python_io_data == [{"name": "mine", "captured_graph": "graph"}]


def test_replacing_the_configuration_changes_it_for_all() -> None:
    before = ttnn.Config(ttnn.CONFIG)
    ttnn.CONFIG.comparison_mode_pcc = 0.5
    same = ttnn.CONFIG

    ttnn.CONFIG = before

    assert ttnn.CONFIG is same
    assert ttnn.CONFIG.comparison_mode_pcc == before.comparison_mode_pcc
