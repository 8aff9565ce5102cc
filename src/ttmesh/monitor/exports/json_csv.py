"""JSON and CSV: the view as other programs and spreadsheets read it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict

from ttmesh.monitor.view import View

CSV_COLUMNS = (
    "time_s", "host", "physical_id", "logical_id", "coord", "arch", "is_coordinator", "pool", "memory_class",
    "used_bytes", "buffers", "peak_bytes", "pool_used_bytes", "pool_peak_bytes", "pool_capacity_bytes", "largest_free_bytes",
    "fragmentation", "system",
)  # fmt: skip


def to_json(view: View, *, indent: int | None = 2) -> str:
    """The full view as one object."""
    return json.dumps(asdict(view), indent=indent)


def to_csv(view: View) -> str:
    """One line per device and class of memory."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for device in view.devices:
        for bar in device.bars:
            for segment in bar.segments:
                writer.writerow(
                    [
                        f"{view.time_s:.3f}", device.host, device.physical_id, device.logical_id,
                        "x".join(map(str, device.coord)), device.arch, int(device.is_coordinator), bar.pool,
                        segment.memory_class, segment.used_bytes, segment.buffers, segment.peak_bytes, bar.used_bytes,
                        bar.peak_bytes, bar.capacity_bytes, bar.largest_free_bytes, f"{bar.fragmentation:.6f}",
                        device.system,
                    ]
                )  # fmt: skip
    return out.getvalue()
