"""Traced graphs as Python text (`ttnn.tracer.codegen`): one function per module, and one for the program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ttmesh.ops.graph.graph_tracing import get_graph
from ttmesh.ops.graph.traced_nodes import (
    InputTensorIndex,
    TorchModule,
    TorchModuleInput,
    TorchParameter,
    TorchTensor,
    TracedNode,
    TTNNTensor,
)

if TYPE_CHECKING:
    import networkx


def codegen(output: Any) -> str:
    """The trace that made some tensors as a program: a reading aid, which runs only after editing."""
    graph = get_graph(output)
    functions = [_module_function(module) for module in _modules(graph)]
    return "\n\n\n".join([*dict.fromkeys(functions), _function("top_level_module", [], graph, [])]) + "\n"


def _modules(graph: networkx.MultiDiGraph) -> Iterator[TorchModule]:
    """The modules of a graph, inner ones first."""
    for node in sorted(graph):
        operation = graph.nodes[node]["operation"]
        if isinstance(operation, TorchModule):
            yield from _modules(operation.graph)
            yield operation


def _module_function(operation: TorchModule) -> str:
    names = ["config", *(one.name for one in operation.inputs), "*", "parameters"]
    ends = [(end.node, end.output_index) for end in operation.outputs]
    return _function(type(operation.module).__name__, names, operation.graph, ends)


def _function(
    name: str, parameters: list[str], graph: networkx.MultiDiGraph, returned: list[tuple[TracedNode, int]]
) -> str:
    lines, variables = [f"def {name}({', '.join(parameters)}):"], dict[TracedNode, str]()
    for node in sorted(graph):
        attributes = graph.nodes[node]
        operation = attributes["operation"]
        if isinstance(operation, TorchModuleInput):
            variables[node] = operation.name
        elif isinstance(operation, TorchParameter):
            variables[node] = f"parameters.{operation.name.rpartition('.')[2]}"
        else:
            variables[node] = f"variable_{len(lines) - 1}"
            edges = sorted(graph.in_edges(node, data=True), key=lambda edge: edge[2]["sink_input_index"])
            inputs = [_output(variables, graph, source, data["source_output_index"]) for source, _, data in edges]
            shapes = ", ".join(str(tuple(shape)) for shape in attributes["shapes"])
            lines.append(f"    {variables[node]} = {_call(operation, inputs)}  # {shapes}")
    if returned:
        lines.append(f"    return {', '.join(_output(variables, graph, *end) for end in returned)}")
    return "\n".join(lines if len(lines) > 1 else [*lines, "    pass"])


def _output(variables: dict[TracedNode, str], graph: networkx.MultiDiGraph, node: TracedNode, index: int) -> str:
    return f"{variables[node]}[{index}]" if len(graph.nodes[node]["shapes"]) > 1 else variables[node]


def _call(operation: Any, inputs: list[str]) -> str:
    if isinstance(operation, TorchTensor | TTNNTensor):
        return f"...  # a {operation}"
    if isinstance(operation, TorchModule):
        tail = operation.name.rpartition(".")[2]
        given = [f"{one.name}={value}" for one, value in zip(operation.inputs, inputs, strict=True)]
        parameters = f"parameters={f'parameters.{tail}' if tail else 'parameters'}"
        return f"{type(operation.module).__name__}({', '.join(['config', *given, parameters])})"
    arguments = [
        f"{name}={_text(value, inputs)}" if isinstance(name, str) else _text(value, inputs)
        for name, value in operation.arg_name_value_pairs
    ]
    return f"{operation}({', '.join(arguments)})"


def _text(value: Any, inputs: list[str]) -> str:
    if isinstance(value, InputTensorIndex):
        return inputs[value.index]
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(item, inputs) for item in value)}]"
    return repr(value) if isinstance(value, str) else str(value)
