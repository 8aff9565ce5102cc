"""ttnn.graph: a program's calls, tensors and buffers captured as TT-NN's graph of nodes.

The recorder watches calls and listens to memory records; outside a capture it does nothing.
Both run modes allocate and record real addresses; with NO_DISPATCH no
program runs and nothing is written (open the mesh on the `meta` backend for models larger than memory).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ttmesh.base import ttnn_config
from ttmesh.base.atomic_files import write_file
from ttmesh.base.errors import MeshError
from ttmesh.mesh.functions import distributed_context
from ttmesh.ops.graph import comparison_records, graph_report, python_io
from ttmesh.ops.graph.graph_queries import Node
from ttmesh.ops.graph.graph_recorder import GraphRecorder, RunMode, active_captures

REPORT_VERSION = 1


def begin_graph_capture(run_mode: RunMode = RunMode.NORMAL) -> None:
    """Record every operation, tensor and buffer from now on; captures nest, each sees what happens while it is open."""
    if not active_captures:
        python_io.begin_outermost_capture(ttnn_config)
    active_captures.append(GraphRecorder(run_mode))


def end_graph_capture() -> list[Node]:
    """Stop the innermost capture and return its nodes."""
    if not active_captures:
        raise MeshError(
            "no graph capture is active",
            expected="end_graph_capture() after begin_graph_capture()",
            fix="Call begin_graph_capture() first.",
        )
    nodes = active_captures.pop().stop()
    if not active_captures:
        python_io.end_outermost_capture()
    return nodes


def end_graph_capture_to_file(report_path: str | Path) -> list[Node]:
    """Stop the innermost capture, write its report (nodes and metadata) as JSON, and return the nodes."""
    recorder = active_captures[-1] if active_captures else None
    nodes = end_graph_capture()
    assert recorder is not None, "end_graph_capture raises without a capture"
    ranks = distributed_context.distributed_context_is_initialized()
    report = {
        "version": REPORT_VERSION,
        "graph": nodes,
        "devices": list(recorder.devices.values()),
        "metadata": {
            "capture_timestamp_ns": recorder.started_ns,
            "total_duration_ns": nodes[-1]["duration_ns"],
            "rank": int(distributed_context.distributed_context_get_rank()) if ranks else 0,
            "world_size": int(distributed_context.distributed_context_get_size()) if ranks else 1,
        },
    }
    report |= graph_report.describe_topology()
    meshes = recorder.meshes()
    if graph_report.is_detailed_buffer_tracing_enabled() and meshes:
        report["buffer_pages"] = [page for mesh in meshes for page in graph_report.list_buffer_pages(mesh)]
    if recorder.buffers_by_operation:
        report["per_operation_buffers"] = recorder.buffers_by_operation
    if recorder.pages_by_address:
        report["buffer_pages_by_address"] = recorder.pages_by_address
    write_file(report_path, json.dumps(report))
    python_io.write_sidecar(report_path)
    comparison_records.hand_over_comparison_records(report_path)
    return nodes


@contextmanager
def record_function(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Callable[[Any], None]]:
    """A function of the program as a function of the active captures; gives what takes its result."""
    recorders = list(active_captures)
    if not recorders:
        yield _forget
        return
    for recorder in recorders:
        recorder.start_call(name, args, kwargs)
    results: list[Any] = []
    try:
        yield results.append
    except BaseException as error:  # raised again, once captures know
        for recorder in recorders:
            recorder.abort_call(error)
        raise
    for recorder in recorders:
        recorder.end_call(results[0] if results else None)


def _forget(result: Any) -> None:
    """Nothing is captured."""


def is_graph_capture_active() -> bool:
    """Whether a capture is active."""
    return bool(active_captures)


def track_function_start(function_name: str) -> None:
    """Start a function of the caller in the active capture."""
    if active_captures:
        active_captures[-1].function_start(function_name, [])


def track_function_end() -> None:
    """End the function that track_function_start started."""
    if active_captures:
        active_captures[-1].function_end()
