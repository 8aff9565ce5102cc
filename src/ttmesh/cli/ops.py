"""List TT-NN's operations: which exist here, what they do, which parameters have no effect."""

from __future__ import annotations

import argparse
import fnmatch
from typing import Any

from rich.table import Table

import ttmesh.ttnn as ttnn
from ttmesh.base.errors import MeshError, suggest_names
from ttmesh.monitor.tables import printer
from ttmesh.ops.catalogue import coverage, parameter_audit
from ttmesh.ops.catalogue.definition import catalogue
from ttmesh.ttnn.not_emulated import is_placeholder

STYLES = {coverage.MISSING: "red", coverage.FUNCTION: "cyan", coverage.ALIAS: "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PATTERN and which page to print."""
    parser.add_argument("pattern", nargs="?", default="*", help="names to list: part of a name, or with * and ?")
    parser.add_argument("--missing", action="store_true", help="only what is not emulated")
    parser.add_argument("--markdown", action="store_true", help="print docs/coverage.md")
    parser.add_argument("--no-effect", action="store_true", help="print docs/no_effect.md")


def run(args: argparse.Namespace) -> int:
    """Print the list or a page."""
    found = coverage.list_rows(catalogue, describe)
    if args.markdown:
        print(coverage.format_coverage_page(found), end="")
        return 0
    if args.no_effect:
        print(parameter_audit.format_no_effect_page(catalogue.values()), end="")
        return 0
    pattern = args.pattern if any(c in args.pattern for c in "*?[") else f"*{args.pattern}*"
    # all_* means ttnn.all_gather, and ttnn.experimental.all_gather_async too
    shown = [row for row in found if any(fnmatch.fnmatch(n, pattern) for n in (row.name, row.name.rpartition(".")[2]))]
    if not shown:
        raise MeshError(
            f"no name matches {args.pattern!r}",
            expected="part of a TT-NN name, or a pattern with * and ?",
            fix=suggest_names(args.pattern, [row.name.rpartition(".")[2] for row in found]),
        )
    if args.missing:
        shown = [row for row in shown if row.status == coverage.MISSING]
        if not shown:
            print(
                f"Nothing that matches {args.pattern!r} is missing." if args.pattern != "*" else "Nothing is missing."
            )
            print(coverage.format_summary(found))
            return 0
    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold")  # a name that is cut off cannot be copied
    table.add_column("status")
    table.add_column("what")
    for row in shown:
        table.add_row(row.name, row.status, row.remark, style=STYLES.get(row.status))
    console = printer()
    console.print(table)
    console.print(coverage.format_summary(found))
    return 0


def describe(name: str) -> str | None:
    """What a function of the namespace does; None if it does not exist, or exists by name only."""
    value: Any = ttnn
    for part in name.split(".")[1:]:
        value = getattr(value, part, None)
    return None if value is None or is_placeholder(value) else coverage.first_line(value)
