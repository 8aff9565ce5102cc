"""The `ttmesh` command: every file of this folder is a subcommand with `add_arguments(parser)` and `run(args) -> int`.

Only the chosen file is imported, so a subcommand that needs no torch starts without it. Files that begin with an
underscore are no subcommands.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import pkgutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ttmesh import __version__
from ttmesh.base.errors import MeshError, near, one_of

HELP = ("-h", "--help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; an error of ttmesh is one line on stderr and status 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in HELP:
        print(overview())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"ttmesh {__version__}")
        return 0
    name = arguments[0]
    if name not in subcommands():
        print(
            f"ttmesh: no subcommand {name!r}; expected {one_of(subcommands())}. {near(name, subcommands())}",
            file=sys.stderr,
        )
        return 2
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    parser = argparse.ArgumentParser(prog=f"ttmesh {name}", description=subcommands()[name])
    module.add_arguments(parser)
    try:
        code = int(module.run(parser.parse_args(arguments[1:])))
        sys.stdout.flush()
        return code
    except MeshError as error:
        print(f"ttmesh {name}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return unread()


def unread() -> int:
    """The exit code when nobody reads our output any more, as in `ttmesh smi --json | head`; not an error worth words."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what the interpreter flushes at its end
    return 128 + signal.SIGPIPE


def subcommands() -> dict[str, str]:
    """Name and first docstring line of every subcommand, read without importing it."""
    folder = Path(__file__).parent
    names = sorted(m.name for m in pkgutil.iter_modules([str(folder)]) if not m.name.startswith("_"))
    return {name.replace("_", "-"): _summary(folder / f"{name}.py") for name in names}


def _summary(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def overview() -> str:
    """What `ttmesh --help` prints."""
    known = subcommands()
    width = max(map(len, known))
    lines = [f"  {name.ljust(width)}  {summary}" for name, summary in known.items()]
    usage = "usage: ttmesh SUBCOMMAND [OPTIONS]   (ttmesh SUBCOMMAND --help says more)"
    return "\n".join([usage, "", "subcommands:", *lines, "", "  --version, --help"])
