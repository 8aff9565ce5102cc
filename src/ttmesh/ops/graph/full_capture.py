"""TT-NN's capture of everything that a graph can tell, into one file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ttmesh.base.ttnn_config import CONFIG
from ttmesh.ops.graph import graph_report
from ttmesh.ops.graph.graph_capture import (
    begin_graph_capture,
    end_graph_capture,
    end_graph_capture_to_file,
    is_graph_capture_active,
)
from ttmesh.ops.graph.graph_recorder import RunMode


@contextmanager
def full_graph_capture(
    report_path: str | Path, *, run_mode: RunMode | None = None, slow_dispatch: bool = True
) -> Iterator[None]:
    """Capture the block with every buffer and page, and write the report when it ends; settings are restored."""
    detailed, fast = graph_report.is_detailed_buffer_tracing_enabled(), CONFIG.enable_fast_runtime_mode
    graph_report.enable_detailed_buffer_tracing()
    CONFIG.enable_fast_runtime_mode = fast and not slow_dispatch
    try:
        begin_graph_capture(RunMode.NORMAL if run_mode is None else run_mode)
        yield
        end_graph_capture_to_file(report_path)
    finally:
        if is_graph_capture_active():  # the block raised
            end_graph_capture()
        CONFIG.enable_fast_runtime_mode = fast
        if not detailed:
            graph_report.disable_detailed_buffer_tracing()
