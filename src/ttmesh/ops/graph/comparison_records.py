"""Results of comparisons with goldens, kept until a graph report or a database takes them (`ttnn.graph`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ttmesh.base.atomic_files import write_file
from ttmesh.base.signals import signals

SIDECAR_SUFFIX = ".comparison_records.json"
TABLES = ("local_tensor_comparison_records", "global_tensor_comparison_records")
Json = Mapping[str, Any]

_records: dict[str, list[Json]] = {table: [] for table in TABLES}
_tensors: dict[int, Json] = {}


def reset_comparison_records_data() -> None:
    """Forget every record."""
    for records in _records.values():
        records.clear()
    _tensors.clear()


def record_tensor_comparison_data(
    *,
    local_tensor_comparison_records: Iterable[Json] | None = None,
    global_tensor_comparison_records: Iterable[Json] | None = None,
    tensors: Iterable[Json] | None = None,
) -> None:
    """Keep records of comparisons, and the tensors that they name, each once."""
    for table, records in zip(TABLES, (local_tensor_comparison_records, global_tensor_comparison_records), strict=True):
        _records[table] += records or ()
    for tensor in tensors or ():
        _tensors.setdefault(tensor["tensor_id"], tensor)


def has_comparison_records() -> bool:
    """Whether anything is kept."""
    return bool(_tensors) or any(_records.values())


def take_comparison_records() -> dict[str, Any] | None:
    """Return the records so far, as files hold them, and forget them; None if there are none."""
    if not has_comparison_records():
        return None
    taken = {
        "version": 1,
        **{table: list(rows) for table, rows in _records.items()},
        "tensors": list(_tensors.values()),
    }
    reset_comparison_records_data()
    return taken


def hand_over_comparison_records(report_path: str | Path) -> None:
    """Write what is kept beside a report, for its importer."""
    if (records := take_comparison_records()) is not None:
        write_file(Path(report_path).with_suffix(SIDECAR_SUFFIX), json.dumps(records))


signals.provide("comparison records", take_comparison_records)
