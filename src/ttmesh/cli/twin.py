"""Run a program under ttmesh and under an installed TT-NN, and compare the two call by call."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from rich.table import Column, Table

from ttmesh.base.atomic_files import write_file
from ttmesh.base.directories import scratch_folder
from ttmesh.base.errors import MeshError
from ttmesh.cli._arguments import correlation, seconds
from ttmesh.cli._program_arguments import add_program, mention_own_options
from ttmesh.dropin import real_ttnn
from ttmesh.monitor.tables import PlainConsole
from ttmesh.testing.twin_comparison import GROUPS, ComparedCall, TwinReport, compare_recordings, read_recording
from ttmesh.testing.twin_runs import FinishedRun, TwinProgram, check_script, find_python, record_ours, record_theirs

SHOWN = 20  # differing calls that are listed; JSON has all of them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which environment or recording to compare with, what to look at, and the program."""
    parser.usage = "ttmesh twin [OPTIONS] script.py [ARGUMENTS]"
    parser.add_argument("--python", metavar="PATH", help="the python of an environment in which TT-NN is installed")
    parser.add_argument("--record", type=Path, metavar="FILE", help="run under TT-NN only, and keep the recording")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with a recording instead of a run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report to a file, - for stdout")
    parser.add_argument("--system", help="the system that ttmesh emulates (TTMESH_SYSTEM)")
    parser.add_argument("--values", action="store_true", help="read back and compare the values of every result")
    parser.add_argument(
        "--graph", action="store_true", help="capture the graph of every call: circular buffers, L1 peak"
    )
    parser.add_argument(
        "--pcc", type=correlation, default=0.99, metavar="R", help="correlation below which values differ"
    )
    parser.add_argument("--timeout", type=seconds(), default=3600.0, metavar="S", help="seconds per run (default 3600)")
    add_program(parser)


def run(args: argparse.Namespace) -> int:
    """Status 0 when nothing differs, 1 when something does."""
    if not args.program:
        raise MeshError("no program was named", expected="ttmesh twin script.py", fix="Name a Python file.")
    script, *arguments = args.program
    check_script(Path(script))
    mention_own_options(args, arguments)
    if args.record is not None and args.against is not None:
        raise MeshError(
            "--record and --against were given", expected="either of the two", fix="Leave one of the two out."
        )
    options = {"values": args.values, "graph": args.graph}
    program = TwinProgram(Path(script), tuple(arguments), options, args.timeout)
    theirs = None if args.against is None else read_recording(args.against)
    python = find_python(args.python or (sys.executable if real_ttnn() else None)) if theirs is None else ""
    with scratch_folder("ttmesh-twin-") as folder:
        if theirs is None:
            ended = record_theirs(python, program, folder / "theirs.jsonl")
            _mention_end("TT-NN", ended)
            if args.record is not None:
                return _keep(folder / "theirs.jsonl", args.record)
            theirs = read_recording(folder / "theirs.jsonl")
        ended = record_ours(program, folder / "ours.jsonl", args.system)
        _mention_end("ttmesh", ended)
        if not (folder / "ours.jsonl").is_file():
            raise MeshError(
                f"ttmesh ended before it recorded anything ({ended.describe()})",
                expected="a program that starts",
                fix="Run it with `ttmesh run` first.",
            )
        report = compare_recordings(read_recording(folder / "ours.jsonl"), theirs, pcc=args.pcc)
    _print(report)
    if args.json is not None:
        text = json.dumps(report.as_dict(), indent=2)
        if str(args.json) == "-":
            print(text)
        else:
            write_file(args.json, text)
    return 0 if report.has_agreed else 1


def _keep(recording: Path, target: Path) -> int:
    """Copy a recording to its place."""
    recorded = read_recording(recording)
    try:
        with recording.open("rb") as source:
            write_file(target, source.read())
    except OSError as problem:
        raise MeshError(
            f"{target} cannot be written ({problem.strerror})", expected="a file", fix="Choose another path."
        ) from None
    print(f"{len(recorded.calls)} calls of {recorded.library} {recorded.version} recorded in {target}")
    return 0


def _mention_end(library: str, ended: FinishedRun) -> None:
    if ended.status:
        print(
            f"ttmesh twin: the program ended with {ended.describe()} under {library}; it printed last:", file=sys.stderr
        )
        print("\n".join(f"    {line}" for line in ended.output.splitlines()), file=sys.stderr)


def _print(report: TwinReport) -> None:
    width = None if sys.stdout.isatty() else max(160, shutil.get_terminal_size().columns)
    console = PlainConsole(width=width)
    differing = report.differing
    if differing:
        console.print("First difference:")
        _print_call(console, differing[0], report)
        if len(differing) > 1:
            console.print(f"\nThen {min(len(differing) - 1, SHOWN)} of {len(differing) - 1} more:")
        for compared in differing[1 : SHOWN + 1]:
            what = ", ".join(dict.fromkeys(difference.what for difference in compared.differences))
            console.print(f"  {compared.call.file}:{compared.call.line}  {compared.call.name}: {what}", soft_wrap=True)
    columns = [group for group in GROUPS if any(row[group] for row in report.count_by_name().values())]
    table = Table(Column("operation", no_wrap=True), "calls", "agree", *columns, title="calls that differ in …")
    for name, row in sorted(
        report.count_by_name().items(), key=lambda item: (item[1]["agree"] - item[1]["calls"], item[0])
    ):
        table.add_row(name, str(row["calls"]), str(row["agree"]), *(str(row[group] or "") for group in columns))
    console.print(table)
    if report.one_sided:
        console.print(f"not compared, for one side only records them: {', '.join(report.one_sided)}", soft_wrap=True)
    values = [pair for call in report.calls for pair in call.closeness]
    if values:
        console.print(f"values of {len(values)} results: lowest PCC {min(p for p, _ in values):.6f}, "
                      f"largest error {max(e for _, e in values):.6g}")  # fmt: skip
    elif not report.theirs.has_values:
        console.print("values were not compared: the other side has none (a mock cluster)")
    ours, theirs = report.ours, report.theirs
    console.print(
        f"{len(report.calls) - len(differing)} of {len(report.calls)} calls agree: "
        f"ttmesh {ours.version} and {theirs.library} {theirs.version}"
    )


def _print_call(console: PlainConsole, compared: ComparedCall, report: TwinReport) -> None:
    console.print(f"  {compared.call}", soft_wrap=True, markup=False)
    table = Table("", "ttmesh", report.theirs.library, box=None, padding=(0, 2))
    for difference in compared.differences:
        table.add_row(f"    {difference.what}", str(difference.ours)[:200], str(difference.theirs)[:200])
    console.print(table)
