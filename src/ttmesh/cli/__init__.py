"""The `ttmesh` command: every file of this folder is a subcommand with `add_arguments(parser)` and `run(args) -> int`.

Only the chosen file is imported, so a subcommand that needs no torch starts without it. Files that begin with an
underscore are no subcommands.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import pkgutil
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from ttmesh import __version__
from ttmesh.base.errors import MeshError, one_of, suggest_names
from ttmesh.cli._program_arguments import describe_unknown, split_at_program
from ttmesh.cli._terminal import discard_output, unwritable, usable_output

USAGE_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT


class Parser(argparse.ArgumentParser):
    """argparse's parser with one line for an error."""

    def error(self, message: str) -> NoReturn:
        """Say what was wrong and where help is, and leave."""
        end = "" if message.endswith("?") else "."
        self.exit(USAGE_ERROR, f"{self.prog}: {message}{end} `{self.prog} --help` lists what it takes.\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write; argparse would pass over a reader that went away."""
        (file or sys.stderr).write(message)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """A lone `--` is not a value; argparse would give the option an empty list."""
        if action.nargs is None and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)


class Subcommand(Parser):
    """The parser of one file of this folder, which is imported when it is the chosen one."""

    run: Callable[[argparse.Namespace], int] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse with the file's own arguments."""
        if self.run is None:
            name = self.prog.rpartition(" ")[2].replace("-", "_")
            module = importlib.import_module(f"{__name__}.{name}")
            module.add_arguments(self)
            self.run = module.run
            self.set_defaults(run=module.run, prog=self.prog)
        given = list(args or ())
        if not self.get_default("ends_with_program"):
            return self._parse_all(given, namespace)
        options, program = split_at_program(self, given)
        parsed = self._parse_all(options, namespace)[0]
        parsed.program, parsed.given, parsed.parser = program, given, self
        return parsed, []

    def _parse_all(self, words: list[str], namespace: Any) -> tuple[Any, list[str]]:
        """Parse; a word that is left over is an error of this subcommand."""
        parsed, left = super().parse_known_args(words, namespace)
        if left:
            self.error(describe_unknown(self, left))
        return parsed, left


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; an error of ttmesh is one line on stderr and status 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guard("ttmesh", lambda: _parse(arguments))


def guard(name: str, parse: Callable[[], argparse.Namespace], *, status: int = USAGE_ERROR) -> int:
    """Parse and run; an error is one line for every input, and a closed pipe is not an error."""
    try:
        with usable_output():
            try:
                args = parse()
                name = args.prog
                if not args.becomes_program:
                    return int(args.run(args))
            except SystemExit as done:  # argparse has printed its help, or what is wrong
                return int(done.code or 0)
            except MeshError as error:
                return _report(name, error, status)
    except BrokenPipeError:
        return discard_output()
    except OSError as error:
        discard_output()
        return _report(name, unwritable(error), status)
    except KeyboardInterrupt:
        return INTERRUPTED
    try:
        return int(args.run(args))  # what the program raises is its own, with its traceback
    except MeshError as error:
        return _report(name, error, status)


def _report(name: str, error: MeshError, status: int) -> int:
    line = f"{name}: {' '.join(str(error).splitlines())}".encode("utf-8", "backslashreplace").decode()
    with contextlib.suppress(OSError):  # stderr is closed too
        print(line, file=sys.stderr)
    return status


def _parse(arguments: list[str]) -> argparse.Namespace:
    known = subcommands()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in known:
        wrong = arguments[0][:80]
        raise MeshError(f"no subcommand {wrong!r}", expected=one_of(known), fix=suggest_names(wrong, known))
    return build_parser(known).parse_args(arguments or ["--help"])


def build_parser(known: dict[str, str]) -> Parser:
    """The parser of the whole command."""
    parser = Parser(prog="ttmesh", description="TT-NN programs for many chips, run on emulated ones.")
    parser.add_argument("-V", "--version", action="version", version=f"ttmesh {__version__}")
    chosen = parser.add_subparsers(
        title="subcommands", metavar="SUBCOMMAND", required=True, parser_class=Subcommand, prog="ttmesh"
    )
    for name, summary in known.items():
        chosen.add_parser(name, help=summary, description=summary).set_defaults(becomes_program=False)
    return parser


@cache
def subcommands() -> dict[str, str]:
    """Name and first docstring line of every subcommand, read without importing it."""
    folder = Path(__file__).parent
    names = sorted(m.name for m in pkgutil.iter_modules([str(folder)]) if not m.name.startswith("_"))
    return {name.replace("_", "-"): _summary(folder / f"{name}.py") for name in names}


def _summary(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]
