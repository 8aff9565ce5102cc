"""Where the names of TT-NN's tool modules live here: reports of graphs, comparisons, serialised configurations."""

from __future__ import annotations

_REPORTS = "ttmesh.monitor.graph_reports"
_STATEMENTS = (
    "CREATE_SOURCE_FILES_TABLE_SQL CREATE_STACK_TRACES_TABLE_WITH_SOURCE_SQL CREATE_INDEX_STACK_TRACES_SOURCE_FILE_SQL"
)
_SOURCE_FILES = "get_source_file_id normalize_source_path_from_stack_trace read_source_file"


def _table(modules: dict[str, str], **renamed: str) -> dict[str, str]:
    """Name -> place, from the names of each module."""
    return {name: f"{module}:{name}" for module, names in modules.items() for name in names.split()} | renamed


_GRAPH_REPORT = _table(
    {
        "ttmesh.monitor.exports.report_schema": (
            f"DATABASE_SCHEMA_VERSION create_database_schema save_database_schema_version {_STATEMENTS}"
        ),
        f"{_REPORTS}.import_report": "import_report generate_svg main",
        f"{_REPORTS}.graph_import": (
            "import_devices import_graph import_metadata import_tensor_comparison_records extract_operation_durations "
            "extract_total_duration_from_graph"
        ),
        f"{_REPORTS}.report_files": (
            "SUPPORTED_REPORT_VERSION PYTHON_IO_SIDECAR_SUFFIX COMPARISON_RECORDS_SIDECAR_SUFFIX "
            "COMPARISON_RECORDS_FALLBACK_NAME"
        ),
        f"{_REPORTS}.git_facts": "get_tt_metal_git_report_metadata sanitize_git_remote_url",
        f"{_REPORTS}.tensor_lifetimes": "compute_tensor_lifetime_records",
        f"{_REPORTS}.source_files": _SOURCE_FILES,
        "ttmesh.testing.graph_report_fixture": "run_pytest_graph_report_fixture derive_report_name",
    },
    # Private names that tt-metal's tests of the module use.
    _aggregate_pages_to_chunks=f"{_REPORTS}.buffer_chunks:aggregate_pages_to_chunks",
    _innermost_stack_frame=f"{_REPORTS}.tensor_lifetimes:innermost_stack_frame",
    _validate_graph_integrity=f"{_REPORTS}.integrity:validate_graph_integrity",
    _OPERATION_ID_STRIDE_PER_RANK_FILE=f"{_REPORTS}.import_report:OPERATIONS_PER_FILE",
)

# Modules that exist for these names alone.
TOOL_MODULES: dict[str, dict[str, str]] = {
    "graph_report": _GRAPH_REPORT,
    "stack_trace_source": _table(
        {
            "ttmesh.monitor.exports.report_schema": _STATEMENTS,
            f"{_REPORTS}.source_files": f"{_SOURCE_FILES} extract_stack_trace_file normalize_existing_source_file_path",
        }
    ),
}

# Names that modules of names.py have besides.
TOOL_NAMES: dict[str, dict[str, str]] = {
    "graph": _table(
        {
            f"{_REPORTS}.import_report": "import_report",
            f"{_REPORTS}.graph_import": "extract_operation_durations extract_total_duration_from_graph",
            f"{_REPORTS}.report_files": "COMPARISON_RECORDS_SIDECAR_SUFFIX",
            "ttmesh.ops.graph.python_io": "append_python_io_record record_python_operation_error",
            f"{_REPORTS}.comparison_import": "flush_comparison_records_to_db",
            "ttmesh.base.comparison_records": (
                "has_comparison_records record_tensor_comparison_data reset_comparison_records_data"
            ),
        }
    ),
}
