"""Drawings of traced graphs (`ttnn.tracer.visualize`), in Graphviz's language."""

from __future__ import annotations

import html
import importlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmesh.base.errors import NotEmulatedError
from ttmesh.ops.graph.graph_tracing import flatten_graph, get_graph
from ttmesh.ops.graph.traced_nodes import TorchModule, TorchModuleInput, TracedNode

if TYPE_CHECKING:
    import networkx

LEVEL_COLORS = ("#dbe4ff", "#f3d9fa", "#ffe3e3", "#fff3bf", "#d3f9d8", "#c5f6fa")  # of modules, by depth


@dataclass(frozen=True)
class GraphDrawing:
    """A drawing where the package graphviz is not installed: its text, which Graphviz's `dot` reads."""

    source: str

    def render(self, *args: Any, **options: Any) -> None:
        """Drawing needs Graphviz."""
        raise NotEmulatedError(
            "Graphviz is not installed",
            expected="the package graphviz and the program dot",
            fix="Install them, or write `source` into a file and draw it elsewhere.",
        )


def visualize(
    output: Any,
    *,
    show_modules: bool = True,
    max_depth: int | None = None,
    file_name: str | Path | None = None,
    graph_attr: dict[str, str] | None = None,
    node_attr: dict[str, str] | None = None,
    edge_attr: dict[str, str] | None = None,
    verbose: bool = False,
) -> Any:
    """Draw the graph that made some tensors: a graphviz.Source, or a GraphDrawing without that package.

    Args:
        max_depth: modules deeper than this are one node each.
        file_name: also draw it into this file (.svg, .png or .pdf), with Graphviz's `dot`.
    """
    if not show_modules and max_depth is not None:
        raise RuntimeError("max_depth is not supported with show_modules=True")
    if max_depth is not None and max_depth < 1:
        raise RuntimeError("max_depth must be greater than 0")
    if file_name is not None and Path(file_name).suffix not in (".svg", ".png", ".pdf"):
        raise ValueError(f"file_name must have a .svg, .png or .pdf suffix, not {Path(file_name).suffix}")
    graph = get_graph(output)
    drawn = _Drawn(max_depth, verbose)
    drawn.add(graph if show_modules else flatten_graph(graph), 0)
    attributes = [
        _attributes("graph", {"rankdir": "TB", "ordering": "in"} | (graph_attr or {})),
        _attributes("node", {"shape": "box", "style": "filled", "fillcolor": "#eeeeee"} | (node_attr or {})),
        _attributes("edge", {"fontsize": "10"} | (edge_attr or {})),
    ]
    source = "\n".join(["digraph {", *attributes, *drawn.lines, "}"])
    drawing = _with_graphviz(source)
    if file_name is not None:
        drawing.render(Path(file_name).with_suffix(""), format=Path(file_name).suffix[1:])
    return drawing


def _with_graphviz(source: str) -> Any:
    try:
        graphviz = importlib.import_module("graphviz")
    except ModuleNotFoundError:
        return GraphDrawing(source)
    return graphviz.Source(source) if shutil.which("dot") else GraphDrawing(source)


class _Drawn:
    """The lines of nodes, clusters and edges."""

    def __init__(self, max_depth: int | None, verbose: bool) -> None:
        self.lines: list[str] = []
        self._max_depth, self._verbose = max_depth, verbose

    def add(self, graph: networkx.MultiDiGraph, level: int) -> None:
        """Draw the nodes of a graph, then its edges."""
        for node in sorted(graph):
            operation = graph.nodes[node]["operation"]
            if self._is_open(operation, level):
                color = LEVEL_COLORS[level % len(LEVEL_COLORS)]
                label = _quote(operation.to_string(self._verbose))
                self.lines.append(f"subgraph {_quote(f'cluster_{node.name}')} {{ label={label} bgcolor={_quote(color)}")
                self.add(operation.graph, level + 1)
                self.lines.append("}")
            else:
                self.lines.append(f"{_quote(node.name)} [label={self._label(graph, node)}]")
        for source, sink, data in graph.edges(data=True):
            start, index = self._start(graph, source, data["source_output_index"], level)
            end = self._end(graph, sink, data["sink_input_index"], level)
            label = _quote(f"{index} -> {data['sink_input_index']}")
            self.lines.append(f"{_quote(start.name)} -> {_quote(end.name)} [label={label}]")

    def _is_open(self, operation: Any, level: int) -> bool:
        return isinstance(operation, TorchModule) and (self._max_depth is None or level < self._max_depth - 1)

    def _start(self, graph: networkx.MultiDiGraph, node: TracedNode, index: int, level: int) -> tuple[TracedNode, int]:
        """The node inside open modules that makes this output."""
        operation = graph.nodes[node]["operation"]
        if not self._is_open(operation, level):
            return node, index
        end = operation.outputs[index]
        return self._start(operation.graph, end.node, end.output_index, level + 1)

    def _end(self, graph: networkx.MultiDiGraph, node: TracedNode, index: int, level: int) -> TracedNode:
        """The node inside an open module that stands for this input."""
        operation = graph.nodes[node]["operation"]
        return operation.inputs[index].node if self._is_open(operation, level) else node

    def _label(self, graph: networkx.MultiDiGraph, node: TracedNode) -> str:
        """A table: the operation, then a row for every output."""
        attributes = graph.nodes[node]
        operation = attributes["operation"]
        title = html.escape(operation.to_string(self._verbose)).replace("\n", "<BR/>")
        rows = [f"<TR><TD><B>{title}</B></TD></TR>"]
        if not isinstance(operation, TorchModuleInput):
            for index, (shape, dtype) in enumerate(zip(attributes["shapes"], attributes["dtypes"], strict=True)):
                facts = [f"Output {index}", str(tuple(shape)), str(dtype)]
                for name in ("layouts", "memory_configs"):
                    value = attributes.get(name, ())[index : index + 1]
                    facts += [str(one) for one in value if one is not None]
                rows.append(f"<TR><TD>{'<BR/>'.join(html.escape(fact) for fact in facts)}</TD></TR>")
        return f"<<TABLE BORDER='0' CELLBORDER='0'>{''.join(rows)}</TABLE>>"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _attributes(kind: str, values: dict[str, str]) -> str:
    return f"{kind} [{' '.join(f'{name}={_quote(str(value))}' for name, value in values.items())}]"
