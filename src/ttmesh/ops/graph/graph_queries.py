"""Queries of a captured graph (ttnn.graph): calls, peak memory, outputs, and drawings.

A graph is a list of nodes in the order of events; the fields are TT-NN's (tt-metal e4f9f0b, graph_consts.hpp):
counter, node_type, params, arguments, connections, input_tensors, stacking_level, and duration_ns on ends.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError
from ttmesh.base.signals import signals
from ttmesh.tensor.spec.shape import Shape

Node = dict[str, Any]
Graph = Sequence[Node]


@dataclass(frozen=True)
class TensorInfo:
    """One result of a graph: its shape, size in bytes and buffer type."""

    shape: Shape
    size: int
    type: BufferType


@dataclass(frozen=True)
class PeakMemoryUsagePerCore:
    """The peak use of one core's L1 during a graph, by kind of buffer, in bytes."""

    peak_cb: int
    peak_l1: int
    peak_dataflow_buffer: int
    peak_scratchpad: int
    peak_total: int

    def __str__(self) -> str:
        kinds = {
            "CB": self.peak_cb,
            "L1": self.peak_l1,
            "DFB": self.peak_dataflow_buffer,
            "Scratchpad": self.peak_scratchpad,
            "Total": self.peak_total,
        }
        return "\n".join(
            ["Peak Memory Usage Per Core:", *(f"  {kind + ':':<12}{size} bytes" for kind, size in kinds.items())]
        )


def extract_calltrace(trace: Graph) -> list[str]:
    """The names of all functions, in the order they were called."""
    return [node["params"]["name"] for node in trace if node["node_type"] == "function_start"]


def extract_peak_L1_memory_usage(trace: Graph) -> int:
    """The peak of L1 bytes on one chip, buffers and programs together, from what the functions' first inputs held.

    As in TT-NN inputs count where they follow an outermost function, and freeing what the trace did not allocate makes
    the number, which has 32 bits, wrap around.
    """
    programs = buffers = depth = peak = 0
    for i, node in enumerate(trace):
        kind, params = node["node_type"], node["params"]
        if kind == "function_start":
            buffers += 0 if depth else _count_inputs(trace, i + 1)
            depth += 1
        elif kind == "function_end":
            depth -= 1
        elif kind in PROGRAM_KINDS and str(params.get("borrows_memory")) != "1":
            programs += int(params["size"])
        elif kind == "circular_buffer_deallocate_all":
            programs = 0
        elif kind == "buffer_allocate" and params["type"] == "L1":
            buffers += int(params["size"])
        elif kind == "buffer_deallocate" and params["type"] == "L1":
            buffers -= int(params["size"])
        peak = max(peak, (programs + buffers) % 2**32)
    return peak


def _count_inputs(trace: Graph, start: int) -> int:
    """The bytes of the L1 buffers among the tensors and buffers that follow a function's start."""
    size = 0
    for node in trace[start:]:
        if node["node_type"] not in ("buffer", "tensor"):
            break
        if node["node_type"] == "buffer" and node["params"]["type"] == "L1":
            size += int(node["params"]["size"])
    return size


def extract_resource_usage_per_core(
    trace: Graph, interleaved_storage_cores: int | None = None
) -> PeakMemoryUsagePerCore:
    """The peak memory use of one core, from the bytes per bank of each allocation."""
    if interleaved_storage_cores is not None:
        warnings.warn("interleaved_storage_cores is no longer used", DeprecationWarning, stacklevel=2)
    for i, node in enumerate(trace):
        if node["counter"] != i:
            raise MeshError(
                "Graph trace counter/execution out of order",
                expected=f"node {i} to have the counter {i}, not {node['counter']}",
                fix="Pass the list that end_graph_capture() returned.",
            )
    peaks = dict.fromkeys((*PROGRAM_KINDS.values(), "l1", "total"), 0)
    for use in _track_l1_use(trace, "max_size_per_bank"):
        for kind, size in {**use, "total": sum(use.values())}.items():
            peaks[kind] = max(peaks[kind], size)
    return PeakMemoryUsagePerCore(**{f"peak_{kind}": size for kind, size in peaks.items()})


# Memory that a program holds while it runs; it is released before the next program.
PROGRAM_KINDS = {
    "circular_buffer_allocate": "cb",
    "dataflow_buffer_allocate": "dataflow_buffer",
    "scratchpad_allocate": "scratchpad",
}


def _track_l1_use(trace: Graph, buffer_size: str) -> Iterator[dict[str, int]]:
    """L1 in use by kind after every node that changes it; `buffer_size` names the parameter with a buffer's size."""
    use = dict.fromkeys((*PROGRAM_KINDS.values(), "l1"), 0)
    for node in trace:
        kind, params = node["node_type"], node["params"]
        if kind in PROGRAM_KINDS:
            if "1" not in (
                str(params.get("globally_allocated")),
                str(params.get("borrows_memory")),
            ):  # in a tensor's memory
                use[PROGRAM_KINDS[kind]] += int(params["size"])
        elif kind == "circular_buffer_deallocate_all":
            use.update(dict.fromkeys(PROGRAM_KINDS.values(), 0))
        elif kind == "buffer_allocate" and params["type"] == "L1":
            use["l1"] += int(params[buffer_size])
        elif kind == "buffer_deallocate" and params["type"] == "L1":
            use["l1"] -= int(params[buffer_size])
        else:
            continue
        yield use


def extract_output_tensors(trace: Graph) -> set[int]:
    """The counters of the tensor nodes that the last function with results returned."""
    for node in reversed(trace):
        if node["node_type"] == "function_end":
            outputs = {i for i in node["connections"] if trace[i]["node_type"] == "tensor"}
            if outputs:
                return outputs
    raise MeshError(
        "No function_end node with tensor connections found in the trace",
        expected="a capture in which an operation returned a tensor",
        fix="Call the operations between begin_graph_capture() and end_graph_capture().",
    )


def extract_output_info(trace: Graph) -> list[TensorInfo]:
    """Shape, bytes and memory of the device tensors that the last function returned."""
    outputs = extract_output_tensors(trace)
    return [
        TensorInfo(_parse_shape(trace[i]), node["params"]["size"], BufferType[node["params"]["type"]])
        for node in trace
        if node["node_type"] == "buffer"
        for i in node["connections"]
        if i in outputs
    ]


def _parse_shape(node: Node) -> Shape:
    return Shape([int(size) for size in re.findall(r"\d+", node["params"]["shape"])])


def count_intermediate_and_output_tensors(trace: Graph) -> tuple[int, int]:
    """The number of intermediate tensors and of output tensors."""
    outputs = {trace[i]["params"]["tensor_id"] for i in extract_output_tensors(trace)}
    created = {
        trace[i]["params"]["tensor_id"]
        for node in trace
        if node["node_type"] == "function_end" and node["params"]["name"] == "tt::tt_metal::create_device_tensor"
        for i in node["connections"]
        if trace[i]["node_type"] == "tensor"
    }
    return len(created - outputs), len(outputs)


def extract_levelized_graph(trace: Graph, max_level: int = 1) -> list[Node]:
    """Functions down to a depth as vertices, with edges from a tensor's producer to its consumers."""
    starts = [n for n in trace if n["node_type"] == "function_start" and n["stacking_level"] <= max_level]
    number = {node["counter"]: i for i, node in enumerate(starts)}
    ends = {node["counter"]: _find_end(trace, node) for node in starts}
    producers: dict[int, int] = {}  # tensor id -> vertex; the outermost producer is set last
    vertices: list[Node] = []
    for node in starts:
        results = [trace[i] for i in ends[node["counter"]]["connections"] if trace[i]["node_type"] == "tensor"]
        shapes = [result["params"]["shape"] for result in results]
        vertices.append(
            {
                "counter": number[node["counter"]],
                "stacking_level": node["stacking_level"],
                "name": node["params"]["name"],
                "arguments": node["arguments"],
                "in_edges": [],
                "out_edges": [],
                "internals": [],
                "output_info": [json.dumps(result["params"]) for result in results],
                "output_shape": shapes,
            }
        )
    for node in sorted(starts, key=lambda node: -node["stacking_level"]):
        for i in ends[node["counter"]]["connections"]:
            if trace[i]["node_type"] == "tensor":
                producers[trace[i]["params"]["tensor_id"]] = number[node["counter"]]
    for node in starts:
        consumer = number[node["counter"]]
        for i in node["input_tensors"]:
            producer = producers.get(trace[i]["params"]["tensor_id"])
            if producer is not None and producer != consumer and consumer not in vertices[producer]["out_edges"]:
                vertices[producer]["out_edges"].append(consumer)
                vertices[consumer]["in_edges"].append(producer)
        inner = (i for i in node["connections"] if trace[i]["node_type"] == "function_start")
        vertices[consumer]["internals"] = [number[i] for i in inner if i in number]
    return vertices


def _find_end(trace: Graph, start: Node) -> Node:
    return next(trace[i] for i in start["connections"] if trace[i]["node_type"] == "function_end")


def pretty_format(captured_graph: Graph) -> str:
    """The graph as indented text: functions and the memory they allocate and free."""
    lines = []
    for node in captured_graph:
        text = _format_node(node)
        if text:
            lines.append("    " * max(node["stacking_level"] - (node["node_type"] == "function_start"), 0) + text)
    return "\n".join(lines)


def pretty_print(captured_graph: Graph) -> None:
    """Print the graph as an indented text."""
    print(pretty_format(captured_graph))


def _format_node(node: Node) -> str:
    kind, params = node["node_type"], node["params"]
    if kind in ("capture_start", "capture_end"):
        return str(kind).replace("_", " ")
    if kind == "function_start":
        return f"begin: {params['name']}"
    if kind in ("buffer_allocate", "buffer_deallocate"):
        return f"{kind.replace('_', ' ')}: {params['type']} {params['size']} bytes at {params['address']}"
    if kind == "circular_buffer_allocate":
        return f"circular buffers: {params['size']} bytes per core"
    return ""


def visualize(captured_graph: Graph, *, file_name: str | Path | None = None) -> str:
    """The graph in Graphviz' language; with a file name it is also drawn by `dot`, in the suffix's format."""
    text = "digraph capture {\n  node [shape=box, fontname=monospace];\n"
    text += "".join(f"  {line};\n" for line in _format_edges(captured_graph)) + "}\n"
    if file_name is not None:
        path = Path(file_name)
        dot = shutil.which("dot")
        if dot is None:
            raise MeshError(
                "the graph cannot be drawn: Graphviz' dot is not installed",
                expected="the command `dot` on the path",
                fix="Install Graphviz, or use the text that visualize() returns without file_name=.",
            )
        subprocess.run([dot, f"-T{path.suffix[1:] or 'svg'}", "-o", str(path)], input=text.encode(), check=True)
    return text


signals.provide("graph drawing", lambda: visualize)


def _format_edges(graph: Graph) -> Iterable[str]:
    for vertex in extract_levelized_graph(graph, 2):
        yield f"n{vertex['counter']} [label={json.dumps(vertex['name'])}]"
        for to in vertex["out_edges"]:
            yield f"n{vertex['counter']} -> n{to} [label={json.dumps(', '.join(vertex['output_shape']))}]"
