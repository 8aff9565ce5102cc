"""Parts of a report written into a database: `ttnn.graph_report.import_graph` and its neighbours."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ttmesh.monitor.exports.report_schema import insert_rows
from ttmesh.monitor.graph_reports.graph_rows import GraphReader, Node
from ttmesh.monitor.graph_reports.integrity import validate_graph_integrity
from ttmesh.monitor.graph_reports.source_files import (
    get_source_file_id,
    normalize_source_path_from_stack_trace,
    read_source_file,
)
from ttmesh.monitor.graph_reports.tensor_lifetimes import compute_tensor_lifetime_records
from ttmesh.monitor.graph_reports.tensor_rows import make_tensor_row

log = logging.getLogger(__name__)
Json = Mapping[str, Any]
DEVICE_KEYS = (
    "num_y_cores", "num_x_cores", "num_y_compute_cores", "num_x_compute_cores", "worker_l1_size", "l1_num_banks",
    "l1_bank_size", "address_at_first_l1_bank", "address_at_first_l1_cb_buffer", "num_banks_per_storage_core",
    "num_compute_cores", "num_storage_cores", "total_l1_memory", "total_l1_for_tensors",
    "total_l1_for_interleaved_buffers", "total_l1_for_sharded_buffers", "cb_limit",
)  # fmt: skip
COMPARISONS = ("local_tensor_comparison_records", "global_tensor_comparison_records")
# What happens to a row that is there already, by table; elsewhere two equal rows are an error.
CONFLICTS = {
    "operations": "REPLACE",
    "operation_executions": "REPLACE",
    "sub_device_managers": "IGNORE",
    "sub_devices": "IGNORE",
    "execution_sub_devices": "IGNORE",
    "tensor_consumers": "IGNORE",
    "tensor_producers": "IGNORE",
    "tensors": "IGNORE",
}


def import_devices(cursor: sqlite3.Cursor, devices: Iterable[Json], rank: int = 0) -> set[int]:
    """Write the devices of a report; their ids."""
    rows = [(device.get("device_id", 0), *(device.get(key, 0) for key in DEVICE_KEYS), rank) for device in devices]
    insert_rows(cursor, "devices", rows, conflict="REPLACE")
    return {row[0] for row in rows}


def import_graph(
    cursor: sqlite3.Cursor,
    graph: Sequence[Node],
    base_operation_id: int = 0,
    devices: Sequence[Json] | None = None,
    python_io: Iterable[Json] | None = None,
    per_operation_buffers: Mapping[str, Iterable[Json]] | None = None,
    rank: int = 0,
    record_tensor_lifetime: bool = False,
) -> dict[str, Any]:
    """Write the operations, tensors and buffers of a graph; what was written, by table.

    Args:
        base_operation_id: added to the operations' numbers, which start at 1
        python_io: what Python recorded of the calls, which says more than the graph
        per_operation_buffers: the buffers after an operation, by the counter of its first node
        record_tensor_lifetime: fill tensor_lifetime as well
    """
    reader = GraphReader(
        graph,
        base_operation_id=base_operation_id,
        devices=devices or (),
        python_io=python_io or (),
        live_buffers=per_operation_buffers or {},
        rank=rank,
    )
    rows = reader.rows
    traces = rows.pop("stack_traces", [])
    for table, lines in list(rows.items()):
        insert_rows(cursor, table, lines, conflict=CONFLICTS.get(table, "ABORT"))
    _import_stack_traces(cursor, traces)
    lifetimes: list[dict[str, Any]] = []
    if record_tensor_lifetime:
        numbers = {row[0] for row in rows["tensors"]}
        lifetimes = compute_tensor_lifetime_records(
            rows["operations"], rows["input_tensors"], rows["output_tensors"], traces, numbers
        )
        lifetimes = [{**record, "rank": rank} for record in lifetimes]
        insert_rows(cursor, "tensor_lifetime", [tuple(r.values()) for r in lifetimes], conflict="REPLACE")
    warnings = validate_graph_integrity(
        rows["operations"],
        rows["tensors"],
        rows["input_tensors"],
        rows["output_tensors"],
        rows["operation_arguments"],
        rows["device_tensors"],
        rows["buffers"],
        devices,
    )
    for warning in warnings:
        log.warning("graph report: %s", warning)
    counted = "operations operation_executions tensors device_tensors buffers nodes edges errors"
    return {
        **{table: len(rows[table]) for table in counted.split()},
        "sub_device_managers": len(set(rows["sub_device_managers"])),
        "sub_devices": len(set(rows["sub_devices"])),
        "stack_traces": len(traces),
        "warnings": warnings,
        "graph_counter_to_op_id": reader.operation_ids,
        "tensor_lifetime": lifetimes,
        "tensor_consumers": len(rows["tensor_consumers"]),
        "tensor_producers": len(rows["tensor_producers"]),
    }


def import_tensor_comparison_records(cursor: sqlite3.Cursor, comparison_data: Json, rank: int = 0) -> dict[str, int]:
    """Write what comparison mode found; how many rows."""
    data = comparison_data or {}
    tensors = [make_tensor_row(int(tensor["tensor_id"]), tensor, rank) for tensor in data.get("tensors", ())]
    insert_rows(cursor, "tensors", tensors, conflict="IGNORE")
    counts = {"tensors": len(tensors)}
    for table in COMPARISONS:
        rows = [
            (
                int(record["tensor_id"]),
                int(record["golden_tensor_id"]),
                int(bool(record["matches"])),
                float(record["desired_pcc"]),
                float(record["actual_pcc"]),
                int(record.get("rank", rank)),
            )
            for record in data.get(table, ())
        ]
        insert_rows(cursor, table, rows, conflict="REPLACE")  # a tensor that is written in place has one row, the last
        counts[table] = len(rows)
    return counts


def import_metadata(cursor: sqlite3.Cursor, metadata: Json) -> None:
    """Write a report's metadata."""
    rows = [(key, str(value)) for key, value in (metadata or {}).items()]
    insert_rows(cursor, "report_metadata", rows, conflict="REPLACE")


def extract_total_duration_from_graph(graph: Sequence[Json]) -> float:
    """How long a capture took, in seconds."""
    ends = (node for node in reversed(graph) if node.get("node_type") == "capture_end")
    return float(next((node.get("duration_ns", 0) / 1e9 for node in ends), 0.0))


def extract_operation_durations(graph: Iterable[Json]) -> dict[str, float]:
    """How long each function took the last time, in seconds."""
    ends = (node for node in graph if node.get("node_type") == "function_end")
    return {node.get("params", {}).get("name", "unknown"): node.get("duration_ns", 0) / 1e9 for node in ends}


def _import_stack_traces(cursor: sqlite3.Cursor, traces: Iterable[Sequence[Any]]) -> None:
    """Stack traces, each with the source file of its innermost frame where that can be read."""
    numbers: dict[str | None, int | None] = {None: None}
    rows = []
    for operation, trace, rank in traces:
        path = normalize_source_path_from_stack_trace(trace)
        if path is not None and path not in numbers:
            contents = read_source_file(path)
            numbers[path] = None if contents is None else get_source_file_id(cursor, path, contents)
        rows.append((operation, trace, numbers[path], rank))
    insert_rows(cursor, "stack_traces", rows)
