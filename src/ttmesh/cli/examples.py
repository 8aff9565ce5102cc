"""List the examples that come with ttmesh, run one, or copy them all to a folder of your own."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.table import Table

from ttmesh.base.errors import MeshError
from ttmesh.cli import run as run_command
from ttmesh.monitor.tables import PlainConsole
from ttmesh.showcase.example_files import copy_examples, find_example, list_examples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An example's name with its own arguments, or --copy."""
    parser.usage = "ttmesh examples   or   ttmesh examples NAME [ARGUMENTS]   or   ttmesh examples --copy DIR"
    parser.add_argument("--copy", metavar="DIR", type=Path, help="copy all examples to this new folder")
    parser.add_argument("example", nargs=argparse.REMAINDER, metavar="NAME ...", help="run this example")


def run(args: argparse.Namespace) -> int:
    """List, copy or become the example."""
    console = PlainConsole()
    if args.copy is not None:
        if args.example:
            raise MeshError(
                f"--copy takes all examples, not only {args.example[0]!r}",
                expected="ttmesh examples --copy DIR",
                fix="Leave the name out.",
            )
        console.print(
            f"{copy_examples(args.copy)} files in {args.copy}; run one with `python {args.copy}/mesh_allocation.py`"
        )
        return 0
    if not args.example:
        table = Table("example", "what it shows", box=None)
        for example in list_examples():
            table.add_row(example.name, example.summary)
        console.print(table)
        console.print("`ttmesh examples NAME` runs one, `ttmesh examples --copy DIR` gives you the files.")
        return 0
    name, *arguments = args.example
    return run_command.run_script(find_example(name).path, arguments)
