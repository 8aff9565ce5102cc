"""Run a program on chips without values: whether it fits, who holds what, what crosses the links."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ttmesh import dropin, shim
from ttmesh.base import settings
from ttmesh.base.atomic_files import write_file
from ttmesh.base.directories import scratch_folder
from ttmesh.base.errors import MeshError, OutOfMemoryError, one_of, suggest_names
from ttmesh.chip.catalogue import current_system
from ttmesh.cli._arguments import finite, module_name, number, variable_value
from ttmesh.cli._program_arguments import add_program, mention_own_options
from ttmesh.cli.run import check_program, run_module, run_script
from ttmesh.dryrun.dry_context import dry_run
from ttmesh.dryrun.empty_checkpoint import empty_checkpoint
from ttmesh.dryrun.rank_reports import merge_reports, read_report
from ttmesh.dryrun.report_page import draw_page
from ttmesh.dryrun.report_text import draw_text
from ttmesh.dryrun.run_report import RunReport
from ttmesh.launch.bindings import MAX_RANKS, one_mesh
from ttmesh.launch.commands import LaunchPlan, commands, default_engine
from ttmesh.launch.watch import run as watch_to_the_end
from ttmesh.monitor.tables import printer
from ttmesh.testing import stand_ins

REASONS = ("oom", "nothing")  # what --fail-on takes
REPORTS = "--rank-reports"  # the option that says to a rank where its report goes
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
        "--html", type=Path, metavar="FILE", help="write the report to this file as a page with drawings"
    )
    parser.add_argument(
        "--fail-on",
        default="oom,nothing",
        metavar="WORDS",
        help="end with status 1 if it does not fit (oom), or if nothing ran (nothing): oom,nothing unless given; or none",
    )
    parser.add_argument(
        "--assume", type=finite, metavar="NUMBER", help="what a value that does not exist is where the program reads it"
    )
    parser.add_argument(
        "--ranks", type=number(1, MAX_RANKS), metavar="N", help="run the program as N ranks that present one mesh"
    )
    parser.add_argument(REPORTS, type=Path, dest="rank_reports", help=argparse.SUPPRESS)
    parser.add_argument(
        "--weights",
        type=variable_value,
        metavar="VARIABLE=FOLDER",
        help="let this environment variable, and {VARIABLE} in the program's arguments, name a checkpoint without "
        "contents of the model configured in FOLDER",
    )
    parser.add_argument(
        "--configs",
        type=Path,
        metavar="FOLDER",
        help="where the configurations of models are whose files are not on this machine: FOLDER/NAME/config.json",
    )
    parser.add_argument(
        "-m",
        dest="module",
        type=module_name,
        metavar="MODULE",
        help="run a module instead of a file, for example pytest",
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
    with _provide_weights(args.weights) as places:
        args.program = [_fill_in(word, places) for word in args.program]
        status, report = _run_here(args) if args.ranks is None else _run_ranks(args.ranks, _list_rank_arguments(args))
    if report is None or (status and report.fits is not False and not report.shapes):
        return status or 1
    report.finished = report.finished and not status
    if args.rank_reports is not None:
        (args.rank_reports / f"{os.getpid()}.json").write_text(json.dumps(report.to_json()))
        return status or int(report.fits is False)
    _write(report, args.json, args.html)
    printer().print(draw_text(report))
    if status and report.fits is not False:
        print(
            f"ttmesh dry-run: the program ended with status {status}; this is the report of what it did",
            file=sys.stderr,
        )
        return status
    reason = {True: "fits", False: "oom", None: "nothing"}[report.fits]
    return int(reason in reasons)


def _run_here(args: argparse.Namespace) -> tuple[int, RunReport | None]:
    """Run the program in this process; its status and the report."""
    name = args.module or Path(args.program[0]).name
    status = 0
    with _show_progress(name) as progress, dry_run(progress, assume=args.assume, configurations=args.configs) as done:
        try:
            status = _become(args.module, args.program)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return status, done.report


def _run_ranks(ranks: int, arguments: Sequence[str]) -> tuple[int, RunReport | None]:
    """Run the program as several processes, each with these arguments; the first failing status and one report of all."""
    with scratch_folder("ttmesh-reports-") as folder:
        program = (sys.executable, "-m", "ttmesh", "dry-run", REPORTS, str(folder), *arguments)
        engine = settings.get_str("TTMESH_ENGINE") or default_engine()
        status = watch_to_the_end(commands(LaunchPlan(bindings=one_mesh(ranks), program=program, engine=engine)))
        found = [read_report(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    return status, merge_reports(found, ranks) if found else None


def _list_rank_arguments(args: argparse.Namespace) -> list[str]:
    """What every rank gets of this command line."""
    assume = [] if args.assume is None else ["--assume", str(args.assume)]
    configs = [] if args.configs is None else ["--configs", str(args.configs)]
    return [*assume, *configs, *([] if args.module is None else ["-m", args.module]), *args.program]


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


@contextmanager
def _provide_weights(wanted: tuple[str, str] | None) -> Iterator[dict[str, str]]:
    """A checkpoint without contents that the program finds through an environment variable: the variable's value."""
    if wanted is None:
        yield {}
        return
    variable, configuration = wanted
    with empty_checkpoint(Path(configuration)) as folder:
        before = os.environ.get(variable)
        os.environ[variable] = str(folder)
        try:
            yield {variable: str(folder)}
        finally:
            os.environ.pop(variable)
            if before is not None:
                os.environ[variable] = before


def _fill_in(word: str, places: dict[str, str]) -> str:
    """An argument of the program with {VARIABLE} replaced."""
    for variable, value in places.items():
        word = word.replace(f"{{{variable}}}", value)
    return word


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
    wanted: list[tuple[Path | None, Callable[[], str]]]
    wanted = [(json_file, lambda: json.dumps(report.to_json(), indent=2)), (page, lambda: draw_page(report))]
    for path, draw in wanted:
        if path is None:
            continue
        try:
            write_file(path, draw())
        except OSError as error:
            raise MeshError(
                f"{path} cannot be written: {error}", expected="a file that can be written", fix="Choose another path."
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
