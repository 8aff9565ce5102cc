"""The JSON files of a report, read and checked, and the database that they go into."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ttmesh.monitor.exports.report_schema import DATABASE_SCHEMA_VERSION

Report = dict[str, Any]
SUPPORTED_REPORT_VERSION = 1
PYTHON_IO_SIDECAR_SUFFIX = ".python_io.json"
COMPARISON_RECORDS_SIDECAR_SUFFIX = ".comparison_records.json"
COMPARISON_RECORDS_FALLBACK_NAME = "comparison_records.json"
OF_A_RANK = re.compile(r"graph_capture_(\d+)_of_(\d+)\.json", re.IGNORECASE)


def list_report_files(report_path: Path) -> list[Path]:
    """The captures in a folder: those of the ranks, else every JSON file that belongs to no capture; or the one file."""
    if report_path.is_file():
        return [report_path]
    of_ranks = [(found, path) for path in report_path.iterdir() if (found := OF_A_RANK.fullmatch(path.name))]
    if of_ranks:
        return [path for _, path in sorted(of_ranks, key=lambda pair: (int(pair[0][1]), int(pair[0][2])))]
    beside = (PYTHON_IO_SIDECAR_SUFFIX, COMPARISON_RECORDS_SIDECAR_SUFFIX)
    others = ("config.json", COMPARISON_RECORDS_FALLBACK_NAME)
    return sorted(p for p in report_path.glob("*.json") if p.name not in others and not p.name.endswith(beside))


def read_report(path: Path) -> Report:
    """A capture, with what was written beside it."""
    report = json.loads(path.read_text())
    if not isinstance(report, dict):
        raise ValueError(f"Graph report must be a JSON object: {path}")
    if not isinstance(report.get("metadata"), dict):
        raise ValueError(f"Graph report missing metadata object: {path}")
    if report["metadata"].get("rank") is None:
        raise ValueError(f"Graph report metadata missing required field rank: {path}")
    if report.get("python_io") is None:
        report["python_io"] = _read_first(path.with_suffix(PYTHON_IO_SIDECAR_SUFFIX))
    if report.get("comparison_records") is None:
        by_name = path.with_suffix(COMPARISON_RECORDS_SIDECAR_SUFFIX)
        report["comparison_records"] = _read_first(by_name, path.parent / COMPARISON_RECORDS_FALLBACK_NAME)
    return report


def number_devices(report: Report) -> Callable[[int], int]:
    """Number the devices of a report from 0, as ttnn-visualizer expects them; the new number of an old one."""
    devices = report.get("devices", [])
    numbers = {old: new for new, old in enumerate(sorted({device.get("device_id", 0) for device in devices}))}
    holders = [node.get("params") or {} for node in report.get("graph", [])]
    holders += [b for buffers in report.get("per_operation_buffers", {}).values() for b in buffers]

    def number(old: int) -> int:
        return numbers.get(old, old)

    for device in devices:
        device["device_id"] = number(device.get("device_id", 0))
    for holder in holders if numbers else ():
        if "device_id" in holder:
            holder["device_id"] = number(int(holder["device_id"]))
        if "device_tensors" in holder:
            shards = json.loads(holder["device_tensors"])
            for on in shards:
                on.update({key: number(on[key]) for key in ("device_id", "mesh_device_id") if key in on})
            holder["device_tensors"] = json.dumps(shards)
    return number


def remove_older_database(path: Path) -> None:
    """Delete a database of an older schema, or one that cannot be read: rows are never converted."""
    if not path.exists():
        return
    try:
        with sqlite3.connect(path) as database:
            found = database.execute("SELECT value FROM report_metadata WHERE key = 'schema_version'").fetchone()
        database.close()
        older = found is None or _parse_version(found[0]) < _parse_version(DATABASE_SCHEMA_VERSION)
    except sqlite3.Error:
        older = True
    if older:
        path.unlink()


def _parse_version(version: str) -> list[int]:
    numbers = [int(part) for part in str(version).strip().split(".") if part.isdigit()]
    return numbers + [0] * (8 - len(numbers))


def _read_first(*paths: Path) -> Any:
    """The first of these files that exists, None if there is none."""
    return next((json.loads(path.read_text()) for path in paths if path.exists()), None)
