"""The tables of a report that ttnn-visualizer opens, and how rows get into them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

DATABASE_SCHEMA_VERSION = "3.5"  # of TT-NN 0.81.1
DATABASE_NAME = "db.sqlite"

_RANK = "rank int NOT NULL DEFAULT 0"
_COMPARISON = "tensor_id int, golden_tensor_id int, matches int, desired_pcc float, actual_pcc float"
# table -> its columns and, behind a semicolon, the columns that no two rows share
_TABLES = {
    "devices": (
        "device_id int, num_y_cores int, num_x_cores int, num_y_compute_cores int, num_x_compute_cores int, "
        "worker_l1_size int, l1_num_banks int, l1_bank_size int, address_at_first_l1_bank int, "
        "address_at_first_l1_cb_buffer int, num_banks_per_storage_core int, num_compute_cores int, "
        "num_storage_cores int, total_l1_memory int, total_l1_for_tensors int, total_l1_for_interleaved_buffers int, "
        "total_l1_for_sharded_buffers int, cb_limit int"
    ),
    "operations": "operation_id int, name text, duration float; operation_id",
    "operation_arguments": "operation_id int, name text, value text",
    "sub_device_managers": "device_id int, sub_device_manager_id int; device_id, sub_device_manager_id",
    "sub_devices": (
        "device_id int, sub_device_manager_id int, sub_device_id int, worker_core_ranges text; "
        "device_id, sub_device_manager_id, sub_device_id"
    ),
    "operation_executions": (
        "execution_id int, operation_id int, device_id int, physical_device_id int, runtime_id int, "
        "global_call_count int, command_queue_id int; execution_id"
    ),
    "execution_sub_devices": (
        "execution_id int, device_id int, sub_device_manager_id int, sub_device_id int; "
        "execution_id, device_id, sub_device_manager_id, sub_device_id"
    ),
    "device_tensors": "tensor_id int, device_id int, address int",
    "buffers": (
        "operation_id int, device_id int, address int, max_size_per_bank int, buffer_type int, buffer_layout int"
    ),
    "captured_graph": "operation_id int, captured_graph text",
    "nodes": "operation_id int, unique_id int, node_operation_id int, name text",
    "edges": (
        "operation_id int, source_unique_id int, sink_unique_id int, source_output_index int, sink_input_index int, "
        "key int"
    ),
    "errors": (
        "operation_id int, operation_name text, error_type text, error_message text, stack_trace text, timestamp text"
    ),
    "stack_traces": "operation_id int, stack_trace text, source_file_id int REFERENCES source_files(id)",
    "input_tensors": "operation_id int, input_index int, tensor_id int",
    "output_tensors": "operation_id int, output_index int, tensor_id int",
    "tensor_lifetime": (
        "tensor_id int, producer_operation_id int, last_use_operation_id int, deallocate_operation_id int, "
        "producer_source_file text, producer_source_line int, last_use_source_file text, last_use_source_line int; "
        "tensor_id"
    ),
    "tensor_consumers": "tensor_id int, operation_id int, input_index int; tensor_id, operation_id, input_index",
    "tensor_producers": "tensor_id int, operation_id int, output_index int; tensor_id, operation_id, output_index",
    "local_tensor_comparison_records": f"{_COMPARISON}; tensor_id",
    "global_tensor_comparison_records": f"{_COMPARISON}; tensor_id",
    "buffer_chunks": (
        "operation_id int, device_id int, address int, bank_id int, core_x int, core_y int, chunk_address int, "
        "chunk_size int, page_size int, num_pages int, buffer_type int"
    ),
}
# Tables of another form: without a rank, or with a column behind it.
_OTHER_TABLES = {
    "tensors": (
        "tensor_id int, shape text, dtype text, layout text, memory_config text, device_id int, address int, "
        f"buffer_type int, {_RANK}, storage_type text, UNIQUE(tensor_id, rank)"
    ),
    "report_metadata": "key text UNIQUE, value text",
    "source_files": "id INTEGER PRIMARY KEY, path text UNIQUE NOT NULL, contents text",
}


def _create(table: str) -> str:
    """The statement that creates a table unless it is there."""
    if table in _OTHER_TABLES:
        return f"CREATE TABLE IF NOT EXISTS {table} ({_OTHER_TABLES[table]})"
    columns, _, unique = _TABLES[table].partition("; ")
    key = f", UNIQUE({unique}, rank)" if unique else ""
    return f"CREATE TABLE IF NOT EXISTS {table} ({columns}, {_RANK}{key})"


CREATE_SOURCE_FILES_TABLE_SQL = _create("source_files")
CREATE_STACK_TRACES_TABLE_WITH_SOURCE_SQL = _create("stack_traces")
CREATE_INDEX_STACK_TRACES_SOURCE_FILE_SQL = (
    "CREATE INDEX IF NOT EXISTS idx_stack_traces_source_file_id ON stack_traces (source_file_id)"
)


def create_database_schema(cursor: sqlite3.Cursor) -> None:
    """Create every table that is not there yet."""
    for table in (*_TABLES, *_OTHER_TABLES):
        cursor.execute(_create(table))
    cursor.execute(CREATE_INDEX_STACK_TRACES_SOURCE_FILE_SQL)


def save_database_schema_version(cursor: sqlite3.Cursor) -> None:
    """Write the version of the schema into the database."""
    insert_rows(cursor, "report_metadata", [("schema_version", DATABASE_SCHEMA_VERSION)], conflict="REPLACE")


def insert_rows(
    cursor: sqlite3.Cursor, table: str, rows: Iterable[Sequence[object]], *, conflict: str = "ABORT"
) -> None:
    """Insert rows with a value for each column; `conflict`: what happens to one that is there already."""
    rows = list(rows)
    if rows:
        cursor.executemany(f"INSERT OR {conflict} INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
