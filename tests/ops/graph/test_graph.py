"""ttnn.graph: captures hold what was called, made and freed, and answer questions about memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base.errors import MeshError

NO_DISPATCH = ttnn.graph.RunMode.NO_DISPATCH
TILE_BYTES = 32 * 32 * 2


@pytest.fixture
def mesh():
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    yield device
    ttnn.close_mesh_device(device)


@pytest.fixture
def chip():
    """One chip: the buffers of a program are told once for every chip."""
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    yield device
    ttnn.close_mesh_device(device)


def on(mesh, *shape, memory_config=ttnn.L1_MEMORY_CONFIG):
    return ttnn.from_torch(
        torch.ones(shape), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, memory_config=memory_config
    )


def capture_of(work, mode=ttnn.graph.RunMode.NORMAL) -> list[dict]:
    ttnn.graph.begin_graph_capture(mode)
    work()
    return ttnn.graph.end_graph_capture()


def test_nodes_are_counted_in_the_order_of_events(mesh):
    graph = capture_of(lambda: ttnn.relu(on(mesh, 32, 32)))
    assert [node["counter"] for node in graph] == list(range(len(graph)))
    assert (graph[0]["node_type"], graph[-1]["node_type"]) == ("capture_start", "capture_end")
    assert ttnn.graph.extract_calltrace(graph) == [
        "ttnn.from_torch",
        "ttnn::convert_python_tensor_to_tt_tensor",
        "Tensor::to_device",
        "ttnn.relu",
        "UnaryDeviceOperation",
        "tt::tt_metal::create_device_tensor",
        "Tensor::deallocate",
        "Tensor::deallocate",
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
    assert ttnn.graph.extract_peak_L1_memory_usage(capture_of(work, NO_DISPATCH)) == 2 * 128 * 128 * 2 + 4 * TILE_BYTES


def test_inputs_from_before_the_capture_do_not_count_and_freeing_them_wraps_around(mesh):
    """As in TT-NN 0.81.1, whose number has 32 bits."""
    x = on(mesh, 128, 128)
    graph = capture_of(lambda: ttnn.relu(x, memory_config=ttnn.DRAM_MEMORY_CONFIG), NO_DISPATCH)
    assert ttnn.graph.extract_peak_L1_memory_usage(graph) == 4 * TILE_BYTES
    assert ttnn.graph.extract_peak_L1_memory_usage(capture_of(lambda: ttnn.deallocate(x))) == 2**32 - 128 * 128 * 2


def test_buffers_of_a_product_are_in_the_peak_per_core_without_dispatch(mesh):
    x = on(mesh, 256, 256, memory_config=ttnn.DRAM_MEMORY_CONFIG)
    usage = ttnn.graph.extract_resource_usage_per_core(capture_of(lambda: ttnn.matmul(x, x), NO_DISPATCH))
    assert usage.peak_total == usage.peak_dataflow_buffer > 0
    assert f"DFB:        {usage.peak_dataflow_buffer} bytes" in str(usage)
    assert ttnn.graph.extract_resource_usage_per_core(capture_of(lambda: ttnn.matmul(x, x))).peak_total == 0


def test_circular_buffers_show_where_a_program_is_built(mesh):
    x = on(mesh, 64, 64, memory_config=ttnn.DRAM_MEMORY_CONFIG)  # two chips
    sizes = [
        [node["params"]["size"] for node in capture_of(lambda: ttnn.add(x, x)) if node["node_type"] == kind]
        for kind in ["circular_buffer_allocate"] * 2
    ]
    assert sizes == [[6 * TILE_BYTES] * 2, []]


def test_transfers_are_functions_with_the_names_of_ttnn(mesh):
    host = ttnn.from_torch(torch.ones(64, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
    x = on(mesh, 64, 64)
    for work, names in (
        (lambda: ttnn.to_device(host, mesh), ["ttnn.to_device", "Tensor::to_device", "Tensor::deallocate"]),
        (lambda: ttnn.from_device(x), ["ttnn.from_device", "Tensor::cpu"]),
        (lambda: ttnn.reshape(x, (1, 64, 64)), ["ttnn.reshape", "Tensor::reshape"]),
        (lambda: ttnn.deallocate(x), ["ttnn.deallocate", "Tensor::deallocate"]),
    ):
        assert ttnn.graph.extract_calltrace(capture_of(work)) == names


def test_sharded_buffers_name_their_layout_and_cores(mesh):
    config = ttnn.create_sharded_memory_config((256, 64), ttnn.CoreGrid(y=1, x=8), ttnn.ShardStrategy.HEIGHT)
    graph = capture_of(lambda: ttnn.to_memory_config(on(mesh, 256, 64), config))
    made = [node["params"] for node in graph if node["node_type"] == "buffer_allocate"]
    assert [(params["layout"], params["num_cores"]) for params in made] == [("INTERLEAVED", 0), ("HEIGHT_SHARDED", 8)]


def test_results_are_told_with_shape_size_and_memory(mesh):
    graph = capture_of(lambda: ttnn.add(on(mesh, 32, 64), on(mesh, 32, 64)))
    (info,) = ttnn.graph.extract_output_info(graph)
    assert (list(info.shape), info.size, info.type) == ([32, 64], 32 * 64 * 2, ttnn.BufferType.L1)
    assert ttnn.graph.count_intermediate_and_output_tensors(graph) == (0, 1)


def test_edges_lead_from_who_made_a_tensor_to_who_read_it(mesh):
    graph = capture_of(lambda: ttnn.relu(ttnn.neg(on(mesh, 32, 32))))
    vertices = {v["counter"]: v for v in ttnn.graph.extract_levelized_graph(graph, 2)}
    made = next(v for v in vertices.values() if v["name"] == "ttnn.neg")
    (reader,) = made["out_edges"]
    assert vertices[reader]["in_edges"] == [made["counter"]]
    assert vertices[reader]["name"] == "UnaryDeviceOperation"
    assert "-> n" in ttnn.graph.visualize(graph)


def test_printed_graphs_show_nesting(mesh, capsys):
    ttnn.graph.pretty_print(capture_of(lambda: ttnn.relu(on(mesh, 32, 32))))
    lines = capsys.readouterr().out.splitlines()
    assert "begin: ttnn.relu" in lines
    assert "    begin: UnaryDeviceOperation" in lines
    assert "        begin: tt::tt_metal::create_device_tensor" in lines


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


def test_without_dispatch_nothing_reaches_the_chips(mesh):
    x, y = on(mesh, 32, 32), on(mesh, 32, 32)
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
    doubled, fresh = ttnn.add(x, x), on(mesh, 32, 32)
    ttnn.multiply_(y, 3.0)
    seen = ttnn.to_torch(doubled, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=0))
    graph = ttnn.graph.end_graph_capture()

    assert list(seen.shape) == [64, 32]
    assert [value(tensor) for tensor in (x, y)] == [1, 1]
    assert [value(tensor) for tensor in (doubled, fresh)] == [0, 0]  # memory that nobody wrote
    assert "ttnn.add" in ttnn.graph.extract_calltrace(graph)
    assert value(ttnn.add(x, x)) == 2


def test_a_capture_inside_one_without_dispatch_dispatches_nothing(mesh):
    x = on(mesh, 32, 32)
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
    inside = []
    capture_of(lambda: inside.append(ttnn.add(x, x)))
    ttnn.graph.end_graph_capture()

    assert value(inside[0]) == 0
    assert value(ttnn.add(x, x)) == 2


def value(tensor) -> float:
    return float(ttnn.to_torch(ttnn.get_device_tensors(tensor)[0]).unique())


def test_tensors_from_the_host_are_told_with_format_and_memory(mesh):
    graph = capture_of(lambda: on(mesh, 32, 32))
    recorded = [node["params"] for node in graph if node["node_type"] == "tensor"]
    assert [(t["shape"], t["dtype"], t["layout"]) for t in recorded] == [
        ("Shape([32, 32])", "DataType::BFLOAT16", "Layout::TILE")
    ]
    assert "BufferType::L1" in recorded[0]["memory_config"]


@pytest.mark.parametrize(
    ("work", "pages"),
    [
        (lambda x: ttnn.relu(x), 4),
        (lambda x: ttnn.logit(x), 6),
        (lambda x: ttnn.add(x, x), 6),
        (lambda x: ttnn.add(x, 2.0), 5),
        (lambda x: ttnn.add(x, x[:, :1, :]), 8),
        (lambda x: ttnn.add(x, x, input_tensor_a_activations=[ttnn.UnaryOpType.RELU]), 7),
    ],
)
def test_element_wise_programs_hold_pages_of_their_operands(chip, work, pages):
    x = on(chip, 1, 64, 64, memory_config=ttnn.DRAM_MEMORY_CONFIG)
    usage = ttnn.graph.extract_resource_usage_per_core(capture_of(lambda: work(x), NO_DISPATCH))
    assert usage.peak_total == pages * TILE_BYTES


def test_shards_are_used_where_they_lie(mesh):
    config = ttnn.create_sharded_memory_config((64, 64), ttnn.CoreGrid(y=1, x=2), ttnn.ShardStrategy.HEIGHT)
    x = on(mesh, 64, 64, memory_config=config)
    assert ttnn.graph.extract_resource_usage_per_core(capture_of(lambda: ttnn.relu(x))).peak_cb == 0


def test_element_wise_programs_need_room_below_the_buffers(mesh):
    x = on(mesh, 32, 32, memory_config=ttnn.DRAM_MEMORY_CONFIG)
    view = ttnn.get_memory_view(mesh, ttnn.BufferType.L1)
    rows = view.total_bytes_free_per_bank // TILE_BYTES * view.num_banks * 32
    full = ttnn.empty([rows, 32], ttnn.bfloat16, ttnn.TILE_LAYOUT, mesh, ttnn.L1_MEMORY_CONFIG)

    with pytest.raises(RuntimeError, match=r"circular buffers in program ttnn\.add clash with L1 buffers"):
        ttnn.add(x, x)
    ttnn.deallocate(full)
    assert value(ttnn.add(x, x)) == 2


def test_a_report_describes_the_meshes_it_saw(mesh, tmp_path: Path):
    ttnn.graph.begin_graph_capture()
    on(mesh, 32, 32)
    nodes = ttnn.graph.end_graph_capture_to_file(tmp_path / "report.json")

    report = json.loads((tmp_path / "report.json").read_text())
    (device,) = report["devices"]
    assert report["graph"] == json.loads(json.dumps(nodes))
    assert (device["device_id"], device["arch"], device["num_compute_cores"]) == (mesh.id(), "WORMHOLE_B0", 64)
    assert device["cb_limit"] == device["worker_l1_size"] - device["address_at_first_l1_cb_buffer"]
    assert "buffer_pages" not in report


def test_detailed_reports_hold_buffers_by_operation_and_pages_by_address(mesh, tmp_path: Path):
    ttnn.graph.enable_detailed_buffer_tracing()
    try:
        ttnn.graph.begin_graph_capture()
        x = on(mesh, 32, 64)
        y = ttnn.relu(x)
        ttnn.graph.end_graph_capture_to_file(tmp_path / "report.json")
    finally:
        ttnn.graph.disable_detailed_buffer_tracing()

    report = json.loads((tmp_path / "report.json").read_text())
    assert not ttnn.graph.is_detailed_buffer_tracing_enabled()
    after = list(report["per_operation_buffers"].values())
    assert [len(held) for held in after] == [1, 2]
    assert {held["address"] for held in after[-1]} == {x.buffer_address(), y.buffer_address()}
    (snapshot,) = report["buffer_pages_by_address"][str(y.buffer_address())]
    assert [page["page_index"] for page in snapshot["pages"]] == [0, 1]
    assert {page["device_id"] for page in report["buffer_pages"]} == {mesh.id()}


def _device_operations(graph):
    starts = (node for node in graph if node["node_type"] == "function_start")
    return [node for node in starts if node["params"]["name"].endswith("Operation")]


def test_a_call_holds_the_device_operations_that_tt_nn_launches(mesh):
    x = on(mesh, 2, 3, 40, 70)

    names = [node["params"]["name"] for node in _device_operations(capture_of(lambda: ttnn.sum(x)))]

    assert names == [
        "FillPadDeviceOperation",
        "FastReduceNCDeviceOperation",
        "FastReduceNCDeviceOperation",
        "SliceDeviceOperation",
        "ReduceDeviceOperation",
        "ReduceDeviceOperation",
    ]


def test_a_device_operation_prints_options_tensors_and_the_resolved_compute_config(mesh):
    rows = ttnn.to_layout(on(mesh, 1, 64, 4, 32), ttnn.ROW_MAJOR_LAYOUT)
    one = on(mesh, 1, 1, 1, 32)

    (permuted,) = _device_operations(capture_of(lambda: ttnn.transpose(rows, 1, 2)))
    (product,) = _device_operations(capture_of(lambda: ttnn.moreh_dot(one, one)))
    (filled,) = _device_operations(capture_of(lambda: ttnn.moreh_full_like(one, 3)))

    assert permuted["params"]["name"] == "PermuteDeviceOperation"
    assert "SmallVector([0, 2, 1, 3])" in permuted["arguments"][0]
    assert "logical_shape=Shape([1, 64, 4, 32])" in permuted["arguments"][1]
    assert "ComputeKernelConfig(math_fidelity=HiFi4" in product["arguments"][0]
    assert filled["arguments"][1] == "{}"
