"""Records of comparisons written straight into a database, where no graph is reported."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from ttmesh.base.atomic_files import write_file
from ttmesh.base.signals import signals
from ttmesh.monitor.exports.report_schema import DATABASE_NAME, create_database_schema, save_database_schema_version
from ttmesh.monitor.graph_reports.graph_import import import_tensor_comparison_records
from ttmesh.monitor.graph_reports.report_files import COMPARISON_RECORDS_FALLBACK_NAME


def flush_comparison_records_to_db(report_dir: str | Path) -> None:
    """Write the records that are kept into the folder's database and a JSON file beside it, and forget them."""
    records = signals.ask("comparison records")
    if not isinstance(records, dict):
        return
    folder = Path(report_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / COMPARISON_RECORDS_FALLBACK_NAME, json.dumps(records))
    rank = signals.ask("rank")
    database = sqlite3.connect(folder / DATABASE_NAME)
    try:
        cursor = database.cursor()
        create_database_schema(cursor)
        save_database_schema_version(cursor)
        import_tensor_comparison_records(cursor, records, rank if isinstance(rank, int) else 0)
        database.commit()
    finally:
        database.close()
