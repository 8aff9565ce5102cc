"""Run a program on chips without values: whether it fits, who holds what, what crosses the links."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ttmesh import dropin, shim
from ttmesh.base.atomic_files import write_file
from ttmesh.base.errors import MeshError, OutOfMemoryError, one_of, suggest_names
from ttmesh.chip.catalogue import current_system
from ttmesh.cli._arguments import finite
from ttmesh.cli._program_arguments import add_program, mention_own_options
from ttmesh.cli.run import check_program, run_module, run_script
from ttmesh.dryrun.dry_context import dry_run
from ttmesh.dryrun.report_page import draw_page
from ttmesh.dryrun.report_text import draw_text
from ttmesh.dryrun.run_report import RunReport
from ttmesh.monitor.tables import printer
from ttmesh.testing import stand_ins

REASONS = ("oom",)  # what --fail-on takes
EVERY = 50  # operations between two steps of the progress line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options and, after them, the program with its own arguments."""
    parser.usage = (
        "ttmesh dry-run [OPTIONS] script.py [ARGUMENTS]   or   ttmesh dry-run [OPTIONS] -m MODULE [ARGUMENTS]"
    )
    parser.set_defaults(becomes_program=True)
    parser.add_argument("--system", help="the system to emulate (TTMESH_SYSTEM)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to this file as JSON")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write the report to this file as a page with pictures"
    )
    parser.add_argument("--fail-on", default="oom", metavar="WORDS", help="end with status 1 on these: oom, or none")
    parser.add_argument(
        "--assume", type=finite, metavar="NUMBER", help="what a value that does not exist is where the program reads it"
    )
    parser.add_argument(
        "-m", dest="module", metavar="MODULE", help="run a module instead of a file, for example pytest"
    )
    add_program(parser)


def run(args: argparse.Namespace) -> int:
    """Run the program dry and print the report; its own failure is passed on."""
    reasons = _parse_reasons(args.fail_on)
    if args.module is None and not args.program:
        raise MeshError(
            "no program was named", expected="ttmesh dry-run script.py", fix="Name a Python file, or a module with -m."
        )
    if args.module is None and not check_program(Path(args.program[0])):
        return 1
    mention_own_options(args, args.program[args.module is None :])
    _prepare(args.system)
    name = args.module if args.module is not None else Path(args.program[0]).name
    status = 0
    with _show_progress(name) as progress, dry_run(progress, assume=args.assume) as done:
        try:
            status = _become(args.module, args.program)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    report = done.report
    if report is None or (status and report.fits and not report.shapes):
        return status or 1
    report.finished = report.finished and not status
    _write(report, args.json, args.html)
    printer().print(draw_text(report))
    if status and report.fits:
        print(
            f"ttmesh dry-run: the program ended with status {status}; this is the report of what it did",
            file=sys.stderr,
        )
        return status
    return int(not report.fits and "oom" in reasons)


def _prepare(system: str | None) -> None:
    """Let `import ttnn` mean ttmesh on chips without values, here and in the processes that the program starts."""
    if system is not None:
        current_system(system)
        os.environ["TTMESH_SYSTEM"] = system
    os.environ["TTMESH_BACKEND"] = "meta"
    dropin.install(force=True)
    stand_ins.install()
    folder = str(Path(shim.__path__[0]))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))


def _become(module: str | None, arguments: list[str]) -> int:
    """Run the program as Python would."""
    if module is None:
        return run_script(Path(arguments[0]), arguments[1:], passing=OutOfMemoryError)
    return run_module(module, arguments, passing=OutOfMemoryError)


def _parse_reasons(text: str) -> set[str]:
    words = set() if text == "none" else {word.strip() for word in text.split(",")}
    for word in words - set(REASONS):
        raise MeshError(
            f"--fail-on {word!r} is not known", expected=one_of((*REASONS, "none")), fix=suggest_names(word, REASONS)
        )
    return words


def _write(report: RunReport, json_file: Path | None, page: Path | None) -> None:
    wanted = [(json_file, json.dumps(report.to_json(), indent=2)), (page, draw_page(report))]
    for path, contents in wanted:
        if path is None:
            continue
        try:
            write_file(path, contents)
        except OSError as error:
            raise MeshError(
                f"{path} cannot be written: {error}", expected="a file that can be written", fix="Name another one."
            ) from error


@contextmanager
def _show_progress(name: str) -> Iterator[Callable[[int], None] | None]:
    """A line with the number of operations so far, where somebody looks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = SpinnerColumn(), TextColumn(name), TextColumn("{task.completed} operations"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda count: bar.update(task, completed=count) if count % EVERY == 0 else None
