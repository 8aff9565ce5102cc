"""Results of comparisons with goldens, kept until a graph report or a database takes them (`ttnn.graph`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ttmesh.base.atomic_files import write_file

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


def get_comparison_records() -> dict[str, Any]:
    """What is kept, as it is written to files."""
    return {"version": 1, **_records, "tensors": list(_tensors.values())}


def write_comparison_records(path: Path) -> None:
    """Write what is kept to a file."""
    write_file(path, json.dumps(get_comparison_records()))


def hand_over_comparison_records(report_path: str | Path) -> None:
    """Write what is kept beside a report, for its importer, and forget it."""
    if has_comparison_records():
        write_comparison_records(Path(report_path).with_suffix(SIDECAR_SUFFIX))
        reset_comparison_records_data()
