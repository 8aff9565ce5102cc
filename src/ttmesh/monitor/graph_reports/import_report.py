"""`ttnn.graph_report.import_report`: reports of graph captures become a folder that ttnn-visualizer opens."""

from __future__ import annotations

import argparse
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ttmesh.base.signals import signals
from ttmesh.monitor.exports.report_schema import (
    DATABASE_NAME,
    create_database_schema,
    insert_rows,
    save_database_schema_version,
)
from ttmesh.monitor.graph_reports.buffer_chunks import list_chunks
from ttmesh.monitor.graph_reports.git_facts import get_tt_metal_git_report_metadata
from ttmesh.monitor.graph_reports.graph_import import (
    COMPARISONS,
    import_devices,
    import_graph,
    import_metadata,
    import_tensor_comparison_records,
)
from ttmesh.monitor.graph_reports.report_files import (
    SUPPORTED_REPORT_VERSION,
    Report,
    list_report_files,
    number_devices,
    read_report,
    remove_older_database,
)

log = logging.getLogger(__name__)
OPERATIONS_PER_FILE = 10_000  # between the operation ids of two captures of one rank
CLUSTER_FILES = {
    "cluster_descriptor": "cluster_descriptor",
    "mesh_coordinate_mapping": "physical_chip_mesh_coordinate_mapping",
}
COUNTED = "operations tensors device_tensors buffers edges errors stack_traces tensor_consumers tensor_producers"


def import_report(
    report_path: str | Path, output_dir: str | Path, db_name: str = DATABASE_NAME, generate_svgs: bool = False
) -> Path:
    """Read a JSON report, or all those in a folder, into a database; its path.

    Args:
        report_path: what `end_graph_capture_to_file` wrote, or a folder of such files, one for each rank
        generate_svgs: draw each graph into the folder `graphs` as well
    """
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / db_name
    remove_older_database(path)
    revision = get_tt_metal_git_report_metadata()
    counts: Counter[str] = Counter()
    files_of_rank: Counter[int] = Counter()
    database = sqlite3.connect(path)
    try:
        cursor = database.cursor()
        create_database_schema(cursor)
        save_database_schema_version(cursor)
        for file in list_report_files(Path(report_path)):
            report = read_report(file)
            if report.get("version", 0) != SUPPORTED_REPORT_VERSION:
                found = report.get("version", 0)
                log.warning("%s has version %s, expected %s; left out", file, found, SUPPORTED_REPORT_VERSION)
                continue
            rank = int(report["metadata"]["rank"])
            base = files_of_rank[rank] * OPERATIONS_PER_FILE
            files_of_rank[rank] += 1
            report["metadata"] = {**revision, **report["metadata"]}
            counts += _import_one(cursor, report, base, folder, file.stem)
            if generate_svgs and "graph" in report:
                (folder / "graphs").mkdir(exist_ok=True)
                counts["svgs"] += generate_svg(report["graph"], folder / "graphs" / f"{file.stem}.svg") is not None
            counts["files"] += 1
        database.commit()
    finally:
        database.close()
    log.info("imported into %s: %s", path, ", ".join(f"{count} {what}" for what, count in counts.items()))
    return path


def generate_svg(graph: Sequence[Any], output_path: str | Path) -> Path | None:
    """Draw a graph as `ttnn.graph.visualize` does; None if TT-NN's graphs are not loaded."""
    draw = signals.ask("graph drawing")
    if not callable(draw):
        log.warning("ttnn.graph is not loaded: no SVG is drawn")
        return None
    draw(graph, file_name=Path(output_path))
    return Path(output_path)


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m ttnn.graph_report REPORT FOLDER`."""
    parser = argparse.ArgumentParser(
        prog="python -m ttnn.graph_report",
        description="Turn reports of graph captures into a folder for ttnn-visualizer.",
    )
    parser.add_argument("report_path", help="a JSON report, or a folder of them")
    parser.add_argument("output_dir", help="the folder of the database")
    parser.add_argument("--db-name", default=DATABASE_NAME, help=f"the name of the database ({DATABASE_NAME})")
    parser.add_argument("--svg", action="store_true", help="draw each graph as well")
    given = parser.parse_args(arguments)
    print(import_report(given.report_path, given.output_dir, given.db_name, generate_svgs=given.svg))


def _import_one(cursor: sqlite3.Cursor, report: Report, base: int, folder: Path, name: str) -> Counter[str]:
    """Write one capture; how many rows of what."""
    rank = int(report["metadata"]["rank"])
    device_of = number_devices(report)
    counts = Counter(devices=len(import_devices(cursor, report.get("devices", ()), rank)))
    stats: dict[str, Any] = {}
    if "graph" in report:
        for node in report["graph"]:
            node["id"] = node.get("counter")
        python_io = report["python_io"] or ()
        stats = import_graph(
            cursor,
            report["graph"],
            base_operation_id=base,
            devices=report.get("devices", []),
            python_io=python_io,
            per_operation_buffers=report.get("per_operation_buffers"),
            rank=rank,
            record_tensor_lifetime=any(record.get("python_stack_trace") for record in python_io),
        )
        counts.update({what: stats[what] for what in COUNTED.split()})
        if stats["tensor_lifetime"]:
            file = folder / f"{name}.tensor_lifetime.json"
            file.write_text(json.dumps(stats["tensor_lifetime"], indent=2))
    found = import_tensor_comparison_records(cursor, report["comparison_records"], rank)
    counts.update(comparison_records=sum(found[table] for table in COMPARISONS), tensors=found["tensors"])
    import_metadata(cursor, report["metadata"])
    _write_cluster(report, folder, rank)
    first = base + 1 if stats.get("operations") else base
    chunks = list_chunks(report, stats.get("graph_counter_to_op_id", {}), first, rank, device_of)
    insert_rows(cursor, "buffer_chunks", chunks)
    counts["buffer_chunks"] += len(chunks)
    return counts


def _write_cluster(report: Report, folder: Path, rank: int) -> None:
    """The files that the Topology page reads, if the report has them; existing files stay."""
    ranks = int(report["metadata"].get("world_size", 1))
    suffix = f"_{rank + 1}_of_{ranks}" if ranks > 1 else ""
    for key, name in CLUSTER_FILES.items():
        file = folder / f"{name}{suffix}.yaml"
        if report.get(key) and not file.exists():
            file.write_text(report[key])
