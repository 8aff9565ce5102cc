"""The command `tt-smi`: Tenstorrent's own where it is installed, `ttmesh smi` where it is not."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

from ttmesh import cli

NAME = "tt-smi"


def main() -> int:
    """Become the real tool; without one, show the emulated chips."""
    if (package := _find_package()) is not None:
        return int(package.load()() or 0)
    if (program := find_program()) is not None:
        os.execv(program, [program, *sys.argv[1:]])
    print("tt-smi: no chips of Tenstorrent's tools here; this is `ttmesh smi`, the emulated ones.", file=sys.stderr)
    return cli.main(["smi", *sys.argv[1:]])


def _find_package() -> importlib.metadata.EntryPoint | None:
    """The entry point of the tool's own package, if it is installed beside ttmesh: both have a script of this name."""
    for point in importlib.metadata.entry_points(group="console_scripts", name=NAME):
        if not point.value.startswith("ttmesh."):
            return point
    return None


def find_program() -> str | None:
    """Another program of this name on the path, but not this one."""
    own = Path(sys.argv[0]).resolve()
    for folder in os.get_exec_path():
        found = shutil.which(NAME, path=folder)
        if found and Path(found).resolve() != own and "ttmesh" not in _read_start(found):
            return found
    return None


def _read_start(program: str) -> str:
    """The first lines of a script, which name the package that it starts."""
    with open(program, "rb") as file:
        return file.read(1000).decode("utf-8", "replace")
