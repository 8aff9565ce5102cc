"""Run a Python program written for TT-NN: `import ttnn` means ttmesh in it and in the processes it starts."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
import traceback
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ttmesh import dropin, shim
from ttmesh.base.errors import MeshError
from ttmesh.base.tracebacks import HINT, shorten_traceback
from ttmesh.chip.catalogue import current_system
from ttmesh.cli._arguments import device
from ttmesh.cli._program_arguments import add_program, mention_own_options
from ttmesh.cli.info import chosen_backend
from ttmesh.mesh.system.coordinator import locate_mesh

MAX_SOURCE = 64 << 20  # bytes of a program; what is longer is a device without end, or data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options and, after them, the program with its own arguments."""
    parser.usage = "ttmesh run [OPTIONS] script.py [ARGUMENTS]   or   ttmesh run [OPTIONS] -m MODULE [ARGUMENTS]"
    parser.set_defaults(becomes_program=True)
    parser.add_argument("--system", help="the system to emulate (TTMESH_SYSTEM)")
    parser.add_argument("--backend", help="the torch device that holds the lanes (TTMESH_BACKEND)")
    parser.add_argument("--coordinator", type=device, metavar="N", help="the physical device that leads every mesh")
    parser.add_argument("--track", action="store_true", help="report allocations to the allocation server")
    parser.add_argument("--force", action="store_true", help="also when the real ttnn is installed")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module instead of a file")
    add_program(parser)


def _check(args: argparse.Namespace) -> None:
    """Refuse now the options that would make the program fail later, or that it would never read."""
    if args.backend is not None:
        chosen_backend()
    if args.system is not None or args.coordinator is not None:
        locate_mesh(current_system(), None, coordinator=args.coordinator)


def run(args: argparse.Namespace) -> int:
    """Set the environment, install the drop-in, become the program."""
    arguments = list(args.program)
    if args.module is None and not arguments:
        raise MeshError(
            "no program was named", expected="ttmesh run script.py", fix="Name a Python file, or a module with -m."
        )
    script = None if args.module is not None else Path(arguments[0])
    if script is not None and not check_program(script):
        return 1
    dropin.install(force=args.force)
    chosen = {
        "TTMESH_SYSTEM": args.system,
        "TTMESH_BACKEND": args.backend,
        "TT_COORDINATOR_DEVICE_ID": args.coordinator,
        "TT_ALLOC_TRACKING_ENABLED": 1 if args.track else None,
    }
    os.environ.update({name: str(value) for name, value in chosen.items() if value is not None})
    _check(args)
    folder = str(Path(shim.__path__[0]))
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder if not inherited else folder + os.pathsep + inherited
    mention_own_options(args, arguments if script is None else arguments[1:])
    if script is not None:
        return run_script(script, arguments[1:])
    return run_module(args.module, arguments)


def run_script(script: Path, arguments: Sequence[str], *, passing: type[MeshError] | None = None) -> int:
    """Become a script with these arguments; errors of the type `passing` are the caller's."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    return _print_own_errors(lambda: runpy.run_path(str(script), run_name="__main__"), passing)


def run_module(module: str, arguments: Sequence[str], *, passing: type[MeshError] | None = None) -> int:
    """Become a module with these arguments; errors of the type `passing` are the caller's."""
    sys.argv = [module, *arguments]
    sys.path.insert(0, os.getcwd())
    _check_module(module)
    return _print_own_errors(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True), passing)


def _print_own_errors(program: Callable[[], object], passing: type[MeshError] | None = None) -> int:
    """Run a program; an error of ttmesh is the program's own here: it gets its traceback, not one line."""
    try:
        program()
    except MeshError as error:
        if passing is not None and isinstance(error, passing):
            raise
        if shorten_traceback(error):
            print(HINT, file=sys.stderr)
        traceback.print_exception(error)
        return 1
    return 0


def check_program(script: Path) -> bool:
    """Whether it is a program; a syntax error is printed as Python prints it."""
    try:
        if script.is_file() and zipfile.is_zipfile(script):
            return True
        with script.open("rb") as file:
            source = file.read(MAX_SOURCE)
    except (OSError, ValueError) as error:
        why = "" if isinstance(error, FileNotFoundError) else f" ({getattr(error, 'strerror', None) or error})"
        raise MeshError(f"no file {script}{why}", expected="a Python file", fix="Check the path.") from None
    if b"\0" in source or len(source) == MAX_SOURCE:
        raise MeshError(
            f"{script} is not a Python program",
            expected="a text file with Python code",
            fix="Pass the path of a program.",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are shown when it runs
            compile(source, str(script), "exec", dont_inherit=True)
    except SyntaxError as error:
        print("".join(traceback.format_exception_only(error)), end="", file=sys.stderr)
        return False
    return True


def _check_module(name: str) -> None:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise MeshError(
            f"module {name!r} cannot be found: {error}",
            expected="a module that Python can import",
            fix="Correct the name, or set PYTHONPATH.",
        ) from None
    if found is None:
        raise MeshError(f"no module named {name!r}", expected="a module on the path", fix="Check the spelling.")
