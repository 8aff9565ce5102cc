"""Where the names of TT-NN's tools live here: reports of graphs, comparisons, instrumentation, registration."""

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

_DECORATORS = _table(
    {
        "ttmesh.ops.graph.python_operations": (
            "register_python_operation attach_golden_function query_registered_operations dump_operations "
            "create_module_if_not_exists"
        ),
    }
)
_INSTRUMENTATION = "ttmesh.mesh.functions.instrumentation"
_TRACY = _table({_INSTRUMENTATION: "start_tracy_zone stop_tracy_zone tracy_frame tracy_message"})
_SLOW_DISPATCH = _table({_INSTRUMENTATION: "enable_asynchronous_slow_dispatch disable_asynchronous_slow_dispatch"})
_SET_ROOT_DIR = {"SetRootDir": f"{_INSTRUMENTATION}:set_root_dir"}
_DEVICE = _table(
    {
        _INSTRUMENTATION: (
            "is_asynchronous_slow_dispatch_enabled initialize_fast_dispatch terminate_fast_dispatch get_dispatch_core_axis"
        )
    },
    EnableMemoryReports=f"{_INSTRUMENTATION}:enable_memory_reports",
    DisableMemoryReports=f"{_INSTRUMENTATION}:disable_memory_reports",
    ClearKernelCache=f"{_INSTRUMENTATION}:clear_kernel_cache",
    **_SLOW_DISPATCH,
    **_SET_ROOT_DIR,
)
_DTYPES = {"ttnn_dtype_to_torch_dtype": "ttmesh.tensor.transfer.torch_dtypes:ttnn_dtype_to_torch_dtype"}
_COMPARISON = "ttmesh.drift.golden_comparison"
_CONFIGS = "memory_config_to_dict compute_kernel_config_to_dict program_config_to_dict"
_PARALLEL_CONFIG = "ttmesh.ops.configs.conv_config:SlidingWindowParallelConfig"
_IDS = " ".join(
    f"{verb}_{what}_id"
    for what in ("tensor", "python_operation", "device_operation")
    for verb in ("get", "set", "fetch_and_increment")
)

# Names of the root.
TOOL_ROOT_NAMES: dict[str, str] = {
    **_DECORATORS,
    **_TRACY,
    **_SLOW_DISPATCH,
    **_SET_ROOT_DIR,
    **_DTYPES,
    "SlidingWindowParallelConfig": _PARALLEL_CONFIG,
}

# Modules that exist for these names alone.
TOOL_MODULES: dict[str, dict[str, str]] = {
    "graph_report": _GRAPH_REPORT,
    "comparison": _table({_COMPARISON: "comp_pcc comp_ulp ulp"}),
    "config_serialization": _table({"ttmesh.ops.configs.config_dicts": _CONFIGS}),
    "reflection": _table({"ttmesh.ops.graph.python_operations": "pop_argument"}),
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
            "ttmesh.ops.graph.comparison_records": (
                "has_comparison_records record_tensor_comparison_data reset_comparison_records_data"
            ),
        }
    ),
    "decorators": {
        **_DECORATORS,
        **_table({_COMPARISON: "comp_pcc comp_ulp", "ttmesh.ops.graph.python_operations": "RegisteredOperations"}),
    },
    "profiler": _TRACY,
    "_ttnn.profiler": _TRACY,
    "core": _DTYPES,
    "device": {**_DEVICE, **_table({_INSTRUMENTATION: "setup_fast_dispatch"})},
    "_ttnn.device": {
        **_DEVICE,
        **_table({_INSTRUMENTATION: "pad_to_tile_shape"}),
        "ClearDefaultDevice": "ttmesh.mesh.device.opening:clear_default_device",
    },
    "_ttnn": _table({"ttmesh.tensor.spec.id_counters": _IDS}),
    "_ttnn.bfp_utils": _table({"ttmesh.chip.formats.tile_packing": "pack_bfp8 pack_bfp4 unpack_bfp8 unpack_bfp4"}),
    "_ttnn.reports": _table(
        {
            "ttmesh.mesh.functions.device_info": "DeviceInfo get_device_info",
            "ttmesh.mesh.functions.memory_reports": "BufferInfo BufferPageInfo",
        }
    ),
    "_ttnn.operations.sliding_window": {"ParallelConfig": _PARALLEL_CONFIG},
    "operations.conv2d": {"SlidingWindowParallelConfig": _PARALLEL_CONFIG},
    "operations.comparison": {"pearson_correlation_coefficient": "ttmesh.ttnn:pearson_correlation_coefficient"},
    "model_preprocessing": _table(
        {
            "ttmesh.nn.weights.parameter_tree": (
                "make_dot_access_dict repr_parameters merge_ttnn_module_args_into_parameters"
            ),
            f"{_REPORTS}.git_facts": "git_hash",
        }
    ),
}
