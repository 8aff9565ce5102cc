"""`ttnn.graph_report.run_pytest_graph_report_fixture`: a graph report of each test, where CONFIG asks for one."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ttmesh.base.ttnn_config import CONFIG, manage_config, save_config_to_json_file
from ttmesh.mesh.functions import distributed_context as ranks
from ttmesh.monitor.graph_reports.comparison_import import flush_comparison_records_to_db
from ttmesh.monitor.graph_reports.import_report import import_report
from ttmesh.monitor.graph_reports.report_files import list_report_files
from ttmesh.ops.graph.comparison_records import has_comparison_records
from ttmesh.ops.graph.graph_capture import (
    begin_graph_capture,
    end_graph_capture_to_file,
    is_graph_capture_active,
)
from ttmesh.ops.graph.graph_recorder import RunMode
from ttmesh.ops.graph.graph_report import disable_detailed_buffer_tracing, enable_detailed_buffer_tracing

log = logging.getLogger(__name__)
NAME_LENGTH = 64  # more of report_name is not used
HASH_LENGTH = 8


def run_pytest_graph_report_fixture(request: pytest.FixtureRequest) -> Iterator[None]:
    """The body of a fixture: capture the test, and write and import its report.

    Without `CONFIG.report_name` the report is named after the test.
    """
    if CONFIG.report_name is not None:
        yield from _report(request)
        return
    with manage_config("report_name", derive_report_name(request.node.nodeid)):
        yield from _report(request)


def derive_report_name(nodeid: str) -> str:
    """`file_test_hash`, the same for every rank and another for each parameter of a test."""
    file, _, test = nodeid.partition("::")
    name = "_".join(filter(None, (Path(file).stem, test.rpartition("::")[2])))
    digest = hashlib.sha1(nodeid.encode(), usedforsecurity=False).hexdigest()[:HASH_LENGTH]
    return f"{name[: NAME_LENGTH - HASH_LENGTH - 1]}_{digest}"


def _report(request: pytest.FixtureRequest) -> Iterator[None]:
    if is_graph_capture_active():
        yield
        return
    folder, captures, detailed = CONFIG.report_path, CONFIG.enable_graph_report, CONFIG.enable_detailed_buffer_report
    compares = CONFIG.enable_comparison_mode
    assert folder is not None, "the report has a name here"
    for device in ("mesh_device", "device"):
        if device in request.fixturenames:
            request.getfixturevalue(device)  # opened first, so that it is closed after the report
    if captures:
        if detailed:
            enable_detailed_buffer_tracing()
        begin_graph_capture(RunMode.NORMAL)
    try:
        yield
    finally:
        folder.mkdir(parents=True, exist_ok=True)
        if captures:
            _write(folder)
            if detailed:
                disable_detailed_buffer_tracing()
        elif compares and has_comparison_records():
            flush_comparison_records_to_db(folder)
        save_config_to_json_file(folder / f"config{_rank_suffix()}.json")


def _write(folder: Path) -> None:
    """End the capture; the first rank imports what all of them wrote."""
    if not is_graph_capture_active():
        log.warning("the graph capture was ended by the test: no report is written")
        return
    end_graph_capture_to_file(folder / f"graph_capture{_rank_suffix()}.json")
    initialized = ranks.distributed_context_is_initialized()
    if initialized:
        ranks.distributed_context_barrier()
    if not initialized or int(ranks.distributed_context_get_rank()) == 0:
        import_report(folder, folder)
        for file in list_report_files(folder):
            if file.name.startswith("graph_capture"):
                file.unlink()
    if initialized:
        ranks.distributed_context_barrier()


def _rank_suffix() -> str:
    if not ranks.distributed_context_is_initialized():
        return ""
    count = int(ranks.distributed_context_get_size())
    return f"_{int(ranks.distributed_context_get_rank()) + 1}_of_{count}" if count > 1 else ""
