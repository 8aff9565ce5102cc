"""ttnn.tracer: the graph of torch functions, modules and operations that a block ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.ttnn.tracer import codegen, get_graph, trace, visualize


@pytest.fixture(autouse=True)
def slow_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttnn.CONFIG, "enable_fast_runtime_mode", False)


@pytest.fixture
def device() -> Iterator[Any]:
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    yield mesh
    ttnn.close_mesh_device(mesh)


def describe(graph: Any) -> list[tuple[str, list[str]]]:
    """Every node's operation, with those of its inputs in order."""
    return [
        (
            repr(graph.nodes[node]["operation"]),
            [
                repr(graph.nodes[source]["operation"])
                for source, _, data in sorted(
                    graph.in_edges(node, data=True), key=lambda edge: edge[2]["sink_input_index"]
                )
            ],
        )
        for node in sorted(graph)
    ]


def test_fast_runtime_mode_refuses_and_a_trace_does_not_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    with trace(), pytest.raises(ValueError, match=r"^Tracing is already enabled\."), trace():
        pass

    assert not ttnn.tracer.is_tracing_enabled()
    monkeypatch.setattr(ttnn.CONFIG, "enable_fast_runtime_mode", True)
    with pytest.raises(ValueError, match=r"^Tracing is not supported in fast runtime mode\."), trace():
        pass


def test_tensors_are_followed_from_torch_through_operations_and_back(device: Any) -> None:
    outside = ttnn.from_torch(torch.ones(64, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)

    with trace():
        values = torch.rand(64, 64)
        x = ttnn.from_torch(values, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
        y = ttnn.to_torch(ttnn.multiply(x, outside) + x)

    assert describe(get_graph(y)) == [
        ("torch.rand", []),
        ("ttnn.from_torch", ["torch.rand"]),
        ("ttnn.Tensor", []),
        ("ttnn.multiply", ["ttnn.from_torch", "ttnn.Tensor"]),
        ("ttnn.add", ["ttnn.multiply", "ttnn.from_torch"]),
        ("ttnn.to_torch", ["ttnn.add"]),
    ]
    assert [node.name.rpartition("_")[0] for node in sorted(get_graph(y))][:2] == ["torch_input", "ttnn.from_torch"]
    attributes = get_graph(y).nodes[sorted(get_graph(y))[3]]
    assert (attributes["shapes"], attributes["layouts"]) == ((ttnn.Shape([64, 64]),), (ttnn.TILE_LAYOUT,))
    assert attributes["memory_configs"] == (ttnn.DRAM_MEMORY_CONFIG,)


def test_a_module_is_one_node_with_a_graph_of_its_own() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())

    with trace():
        y = model(torch.rand(2, 4))

    label = "torch.nn.modules.container.Sequential"
    assert describe(get_graph(y)) == [("torch.rand", []), (label, ["torch.rand"])]
    flat = get_graph(y, flatten=True)
    linear = ["torch.rand", "torch.nn.Parameter\n0.weight", "torch.nn.Parameter\n0.bias"]
    assert [step for step in describe(flat) if step[1]] == [
        ("torch.nn.functional.linear", linear),
        ("torch.nn.functional.relu", ["torch.nn.functional.linear"]),
    ]
    assert type(model).__call__ is torch.nn.Module.__call__


def test_tracing_changes_no_address_and_keeps_no_tensor_alive(device: Any) -> None:
    def run() -> tuple[int, int]:
        x = ttnn.from_torch(torch.ones(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
        y = ttnn.relu(ttnn.relu(x))
        return x.buffer_address(), y.buffer_address()

    run()
    plain = run()
    with trace():
        traced = run()

    assert traced == plain == run()


def test_graphs_are_drawn_and_written_as_programs() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Sequential(torch.nn.ReLU()))
    with trace():
        y = model(torch.rand(2, 4))

    deep, shallow = visualize(y).source, visualize(y, max_depth=1).source

    assert deep.count("subgraph") == 4
    assert "subgraph" not in shallow
    assert "subgraph" not in visualize(y, show_modules=False).source
    assert "torch.nn.functional.relu(input=input)" in codegen(y)
    with pytest.raises(ValueError, match=r"must have a \.svg, \.png or \.pdf suffix, not \.txt"):
        visualize(y, file_name="graph.txt")
    with pytest.raises(RuntimeError, match=r"Unexpected type <class 'torch.Tensor'>"):
        visualize(torch.ones(1))


def test_arguments_are_pairs_of_names_and_values_and_a_graph_can_be_evaluated_from_them() -> None:
    tracer = ttnn.tracer
    with trace():
        x = torch.rand(2, 3)
        y = torch.cat([x, torch.nn.functional.softmax(x, dim=-1)], dim=1)
        z = torch.nn.functional.layer_norm(y, (6,), torch.ones(6)) + 1

    graph = get_graph(z)
    operations = [graph.nodes[node]["operation"] for node in sorted(graph)]
    pairs = {operation.function.__name__: operation.arg_name_value_pairs for operation in operations}

    assert repr(pairs["cat"]) == "[(0, [$0, $1]), ('dim', 1)]"
    assert repr(pairs["softmax"]) == "[('input', $0), ('dim', -1)]"  # without what the function has by default
    assert repr(pairs["layer_norm"]) == "[('input', $0), ('normalized_shape', (6,)), ('weight', $1)]"
    assert pairs["add"][0] == (tracer.PositionalArgumentName(0), tracer.InputTensorIndex(0))
