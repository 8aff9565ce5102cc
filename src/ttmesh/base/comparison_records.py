"""Results of comparisons with goldens, kept until a graph report or a database takes them (`ttnn.graph`).

`ttnn.CONFIG.enable_comparison_mode` reports through the log and adds nothing here; programs and importers do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ttmesh.base.atomic_files import write_file

SIDECAR_SUFFIX = ".comparison_records.json"
TABLES = ("local_tensor_comparison_records", "global_tensor_comparison_records")
Json = Mapping[str, Any]

_records: dict[str, list[Json]] = {}


def reset_comparison_records_data() -> None:
    """Forget every record."""
    _records.clear()


def record_tensor_comparison_data(
    *,
    local_tensor_comparison_records: Iterable[Json] | None = None,
    global_tensor_comparison_records: Iterable[Json] | None = None,
    tensors: Iterable[Json] | None = None,
) -> None:
    """Keep records of comparisons, and the tensors that they name, each once."""
    for table, records in zip(TABLES, (local_tensor_comparison_records, global_tensor_comparison_records), strict=True):
        _records.setdefault(table, []).extend(records or ())
    known = {tensor["tensor_id"]: tensor for tensor in _records.get("tensors", ())}
    for tensor in tensors or ():
        known.setdefault(tensor["tensor_id"], tensor)
    _records["tensors"] = list(known.values())


def has_comparison_records() -> bool:
    """Whether anything is kept."""
    return any(_records.values())


def get_comparison_records() -> dict[str, Any]:
    """What is kept, as it is written to files."""
    return {"version": 1, **{table: list(_records.get(table, ())) for table in (*TABLES, "tensors")}}


def write_comparison_records(path: Path) -> None:
    """Write what is kept to a file."""
    write_file(path, json.dumps(get_comparison_records()))


def hand_over_comparison_records(report_path: str | Path) -> None:
    """Write what is kept beside a report, for its importer, and forget it."""
    if has_comparison_records():
        write_comparison_records(Path(report_path).with_suffix(SIDECAR_SUFFIX))
        reset_comparison_records_data()
