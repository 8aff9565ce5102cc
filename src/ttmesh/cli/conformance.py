"""Run test files of a tt-metal checkout on ttmesh and print what passes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.table import Column, Table

from ttmesh.base.atomic_files import write_file
from ttmesh.cli._arguments import seconds
from ttmesh.monitor.tables import PlainConsole
from ttmesh.testing.conformance_runs import PROMISED, FileResult, check_checkout, run_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The checkout, the files, and how long one may take."""
    parser.add_argument("checkout", type=Path, metavar="PATH_TO_TT_METAL", help="the root of a tt-metal checkout")
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="files or node ids inside it (default: those that ttmesh promises to pass)",
    )
    parser.add_argument("--timeout", type=seconds(), default=900.0, metavar="S", help="seconds per file (default 900)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to a file, - for stdout")
    parser.add_argument("-k", dest="select", metavar="EXPRESSION", help="only tests that match, as in pytest")


def run(args: argparse.Namespace) -> int:
    """Status 0 when nothing failed."""
    root = args.checkout.resolve()
    check_checkout(root)
    console = PlainConsole(stderr=True)
    options = ["-k", args.select] if args.select else []
    with console.status("starting") as status:
        results = run_files(
            root, args.files or PROMISED, timeout_s=args.timeout, options=options, on_start=status.update
        )
    _print(results)
    if args.json is not None:
        text = json.dumps([result.as_dict() for result in results], indent=2)
        if str(args.json) == "-":
            print(text)
        else:
            write_file(args.json, text)
    return 0 if all(result.has_passed for result in results) else 1


def _print(results: list[FileResult]) -> None:
    table = Table(
        Column("file", no_wrap=True),
        "passed",
        "failed",
        "errors",
        "skipped",
        "s",
        "commonest reasons",
        title="tt-metal on ttmesh",
    )
    for result in results:
        reasons = [result.trouble] if result.trouble else []
        reasons += [f"{count} x {reason}" for reason, count in result.reasons.most_common(3)]
        reasons += [f"{count} skipped: {reason}" for reason, count in result.skip_reasons.most_common(1)]
        numbers = (result.passed, result.failed, result.errors, result.skipped)
        table.add_row(result.file, *map(str, numbers), f"{result.seconds:.0f}", "\n".join(reasons))
    complete = sum(result.has_passed for result in results)
    passed, failed = sum(r.passed for r in results), sum(r.failed + r.errors for r in results)
    console = PlainConsole(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    console.print(f"{complete} of {len(results)} files whole, {passed} tests passed, {failed} failed")
