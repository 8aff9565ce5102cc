"""Run a program and report where its numbers drift from float32, per operation and module, and what would help."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from ttmesh import dropin
from ttmesh.base import numerics_mode
from ttmesh.base.atomic_files import write_file
from ttmesh.base.errors import MeshError
from ttmesh.cli._program_arguments import add_program, mention_own_options
from ttmesh.cli.run import check_program, run_script
from ttmesh.drift.drift_page import draw_pcc, make_page
from ttmesh.drift.recorder import DriftRecorder
from ttmesh.drift.report import DriftReport, format_table, make_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options and, after them, the program with its own arguments."""
    parser.usage = "ttmesh drift [OPTIONS] script.py [ARGUMENTS]"
    parser.set_defaults(becomes_program=True)
    parser.add_argument(
        "--numerics", choices=numerics_mode.MODES, help="whose arithmetic runs (TTMESH_NUMERICS, else realistic)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the picture and the tables")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the picture of PCC along the run as SVG")
    parser.add_argument("--force", action="store_true", help="also when the real ttnn is installed")
    add_program(parser)


def run(args: argparse.Namespace) -> int:
    """Become the program under a recorder, then report; the report comes also where the program fails."""
    if not args.program:
        raise MeshError("no program was named", expected="ttmesh drift script.py", fix="Name a Python file.")
    script = Path(args.program[0])
    if not check_program(script):
        return 1
    mention_own_options(args, args.program[1:])
    dropin.install(force=args.force)
    os.environ[numerics_mode.VARIABLE] = (
        args.numerics or os.environ.get(numerics_mode.VARIABLE) or numerics_mode.REALISTIC
    )
    numerics_mode.refresh()
    recorder, status = DriftRecorder(), 1
    try:
        with recorder:
            status = run_script(script, args.program[1:])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:  # what a program that failed did until then is in the report too
        _report(make_report(recorder), script.name, args)
    return status


def _report(report: DriftReport, name: str, args: argparse.Namespace) -> None:
    """Print the tables and write the files that were asked for."""
    print(f"\nDrift of {name} from float32, numerics {numerics_mode.current()}:\n{format_table(report)}")
    if args.json is not None:
        write_file(args.json, json.dumps(report.to_json(), indent=1))
    if args.html is not None:
        write_file(args.html, make_page(report, f"Drift of {name}"))
    if args.picture is not None:
        write_file(args.picture, draw_pcc(report.records))
