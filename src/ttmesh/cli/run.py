"""Run a Python program written for TT-NN: `import ttnn` means ttmesh in it and in the processes it starts."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from pathlib import Path

from ttmesh import dropin, shim
from ttmesh.base.errors import MeshError
from ttmesh.chip.catalogue import current_system
from ttmesh.cli.info import chosen_backend
from ttmesh.mesh.system.coordinator import place_mesh


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options and, after them, the program with its own arguments."""
    parser.add_argument("--system", help="the system to emulate (TTMESH_SYSTEM)")
    parser.add_argument("--backend", help="the torch device that holds the lanes (TTMESH_BACKEND)")
    parser.add_argument("--coordinator", type=int, metavar="N", help="the physical device that leads every mesh")
    parser.add_argument("--track", action="store_true", help="report allocations to the allocation server")
    parser.add_argument("--force", action="store_true", help="also when the real ttnn is installed")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module instead of a file")
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="script.py ...", help="the program and its arguments"
    )


def _check(args: argparse.Namespace) -> None:
    """Refuse options now that the program would stumble over later, or never look at."""
    if args.backend is not None:
        chosen_backend()
    if args.system is not None or args.coordinator is not None:
        place_mesh(current_system(), None, coordinator=args.coordinator)


def run(args: argparse.Namespace) -> int:
    """Set the environment, install the drop-in, become the program."""
    arguments = list(args.program)
    if args.module is None and not arguments:
        raise MeshError(
            "no program was named", expected="ttmesh run script.py", fix="Name a Python file, or a module with -m."
        )
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
    script = None if args.module is not None else Path(arguments[0])
    if script is not None and not script.is_file():
        raise MeshError(f"no file {script}", expected="a Python file", fix="Check the path.")
    sys.argv = arguments if script is not None else [args.module, *arguments]
    sys.path.insert(0, str(script.resolve().parent) if script is not None else os.getcwd())
    try:
        if script is not None:
            runpy.run_path(str(script), run_name="__main__")
        else:
            runpy.run_module(args.module, run_name="__main__", alter_sys=True)
    except MeshError:  # the program's own: it wants its traceback, not one line
        traceback.print_exc()
        return 1
    return 0
