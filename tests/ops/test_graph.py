"""ttnn.graph: captures hold what was called, made and freed, and answer questions about memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base.errors import MeshError


@pytest.fixture
def mesh():
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    yield device
    ttnn.close_mesh_device(device)


def on(mesh, *shape, memory_config=ttnn.L1_MEMORY_CONFIG):
    return ttnn.from_torch(
        torch.ones(shape), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, memory_config=memory_config
    )


def capture_of(work) -> list[dict]:
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
    work()
    return ttnn.graph.end_graph_capture()


def test_nodes_are_counted_in_the_order_of_events(mesh):
    graph = capture_of(lambda: ttnn.relu(on(mesh, 32, 32)))
    assert [node["counter"] for node in graph] == list(range(len(graph)))
    assert (graph[0]["node_type"], graph[-1]["node_type"]) == ("capture_start", "capture_end")
    assert ttnn.graph.extract_calltrace(graph) == [
        "ttnn.from_torch",
        "ttnn.relu",
        "tt::tt_metal::create_device_tensor",
    ]
    json.dumps(graph)


def test_buffers_have_the_addresses_of_their_tensors(mesh):
    kept = []
    graph = capture_of(lambda: kept.append(ttnn.relu(on(mesh, 64, 64))))
    addresses = [node["params"]["address"] for node in graph if node["node_type"] == "buffer_allocate"]
    assert addresses[-1] == kept[0].buffer_address()


def test_what_is_freed_during_a_capture_no_longer_counts(mesh):
    def work():
        a = on(mesh, 128, 128)
        b = ttnn.relu(a, memory_config=ttnn.L1_MEMORY_CONFIG)
        ttnn.deallocate(a)
        ttnn.relu(b, memory_config=ttnn.L1_MEMORY_CONFIG)

    assert ttnn.graph.extract_peak_L1_memory_usage(capture_of(work)) == 2 * 128 * 128 * 2


def test_inputs_from_before_the_capture_count(mesh):
    x = on(mesh, 128, 128)
    graph = capture_of(lambda: ttnn.relu(x, memory_config=ttnn.DRAM_MEMORY_CONFIG))
    assert ttnn.graph.extract_peak_L1_memory_usage(graph) == 128 * 128 * 2


def test_circular_buffers_of_a_product_are_in_the_peak_per_core(mesh):
    x = on(mesh, 256, 256, memory_config=ttnn.DRAM_MEMORY_CONFIG)
    usage = ttnn.graph.extract_resource_usage_per_core(capture_of(lambda: ttnn.matmul(x, x)))
    assert usage.peak_cb > 0
    assert usage.peak_total == usage.peak_cb
    assert f"CB:         {usage.peak_cb} bytes" in str(usage)


def test_results_are_told_with_shape_size_and_memory(mesh):
    graph = capture_of(lambda: ttnn.add(on(mesh, 32, 64), on(mesh, 32, 64)))
    (info,) = ttnn.graph.extract_output_info(graph)
    assert (list(info.shape), info.size, info.type) == ([32, 64], 32 * 64 * 2, ttnn.BufferType.L1)
    assert ttnn.graph.count_intermediate_and_output_tensors(graph) == (0, 1)


def test_edges_lead_from_who_made_a_tensor_to_who_read_it(mesh):
    graph = capture_of(lambda: ttnn.relu(ttnn.neg(on(mesh, 32, 32))))
    names = {v["name"]: v for v in ttnn.graph.extract_levelized_graph(graph)}
    assert names["ttnn.neg"]["out_edges"] == [names["ttnn.relu"]["counter"]]
    assert names["ttnn.relu"]["in_edges"] == [names["ttnn.neg"]["counter"]]
    assert "-> n" in ttnn.graph.visualize(graph)


def test_printed_graphs_show_nesting(mesh, capsys):
    ttnn.graph.pretty_print(capture_of(lambda: ttnn.relu(on(mesh, 32, 32))))
    lines = capsys.readouterr().out.splitlines()
    assert "begin: ttnn.relu" in lines
    assert "    begin: tt::tt_metal::create_device_tensor" in lines


def test_arguments_become_json(mesh):
    graph = capture_of(lambda: ttnn.relu(on(mesh, 32, 32)))
    content = ttnn.graph_tracer_utils.GraphTracerUtils.serialize_graph(graph)["content"]
    made = next(item for item in content if item["operation"] == "tt::tt_metal::create_device_tensor")["arguments"]
    assert made[0] == {"arg0": {"Shape": [32, 32]}}
    assert made[1] == {"arg1": "DataType::BFLOAT16"}
    assert made[4]["arg4"]["MemoryConfig"]["buffer_type"] == "BufferType::L1"


def test_a_report_says_which_rank_wrote_it(mesh, tmp_path: Path):
    ttnn.graph.begin_graph_capture()
    on(mesh, 32, 32)
    ttnn.graph.end_graph_capture_to_file(tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["metadata"]["rank"] == 0
    assert report["metadata"]["world_size"] == 1
    assert report["graph"][0]["node_type"] == "capture_start"


def test_an_operation_that_fails_does_not_break_the_capture(mesh):
    ttnn.graph.begin_graph_capture()
    with pytest.raises(RuntimeError):
        ttnn.matmul(on(mesh, 32, 32), on(mesh, 64, 32))
    graph = ttnn.graph.end_graph_capture()
    starts, ends = (sum(node["node_type"] == f"function_{edge}" for node in graph) for edge in ("start", "end"))
    assert starts == ends
    assert not ttnn.graph.is_graph_capture_active()


def test_ending_without_beginning_is_refused():
    with pytest.raises(MeshError, match="no graph capture is active"):
        ttnn.graph.end_graph_capture()


def test_a_graph_out_of_order_is_refused():
    with pytest.raises(MeshError, match="out of order"):
        ttnn.graph.extract_resource_usage_per_core([{"counter": 1, "node_type": "capture_start", "params": {}}])


def test_no_dispatch_says_that_it_runs(mesh, caplog):
    with caplog.at_level("INFO", logger="ttmesh"):
        ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
        ttnn.graph.end_graph_capture()
    assert "NO_DISPATCH runs the operations here" in caplog.text
