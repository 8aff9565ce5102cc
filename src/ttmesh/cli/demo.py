"""A first look: a 2x4 mesh, tensors on all eight chips, and what each chip holds at every step."""

from __future__ import annotations

import argparse

from ttmesh.cli import run as run_command
from ttmesh.cli._arguments import number
from ttmesh.showcase.example_files import find_example


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The size of its tensors."""
    parser.add_argument(
        "--megabytes", type=number(1, 1000), default=20, metavar="N", help="a tensor's size on each chip (default 20)"
    )


def run(args: argparse.Namespace) -> int:
    """Become the example that shows what a mesh is."""
    return run_command.run_script(find_example("mesh_allocation").path, ["--megabytes", str(args.megabytes)])
