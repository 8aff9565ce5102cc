"""Look at this machine: versions, compiler, GPU, MPI, browser; what is missing, and what it is needed for."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from typing import NamedTuple

import torch
from rich.table import Table

from ttmesh import __version__
from ttmesh.base import settings
from ttmesh.base.errors import MeshError
from ttmesh.chip.formats.kernels.loader import FOLDER, library
from ttmesh.monitor.tables import PlainConsole

GOOD, MISSING, BROKEN = "ok", "missing", "broken"
KERNELS = tuple(sorted(path.stem for path in FOLDER.glob("*.c")))
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Finding(NamedTuple):
    """One finding: its state, what was found, what it is for and how to install it."""

    name: str
    state: str
    found: str
    needed_for: str
    remedy: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print one JSON array")


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 when something that every program needs is broken."""
    findings = examine_machine()
    if args.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        console = PlainConsole()
        table = Table("", "what", "found", "needed for", box=None)
        for finding in findings:
            table.add_row(finding.state, finding.name, finding.found, finding.needed_for)
        console.print(table)
        for finding in findings:
            if finding.remedy:
                console.print(f"{finding.name}: {finding.remedy}")
    return int(any(finding.state == BROKEN for finding in findings))


def examine_machine() -> list[Finding]:
    """Everything that ttmesh can use, in the order of importance."""
    packages = (
        ("textual", "ttmesh monitor", "monitor"),
        ("starlette", "ttmesh web", "web"),
        ("uvicorn", "ttmesh web", "web"),
        ("mpi4py", "ttmesh launch with MPI", "mpi"),
        ("matplotlib", "plots of loss curves; without it they are drawn in characters", "plots"),
        ("pytest", "test suites with ttmesh's fixtures", "conformance"),
    )
    return [
        Finding("ttmesh", GOOD, f"{__version__} on Python {platform.python_version()}", "everything"),
        Finding("torch", GOOD, torch.__version__, "everything"),
        _examine_settings(),
        _examine_ttnn(),
        _examine_kernels(),
        _examine_gpu(),
        *(_examine_package(*package) for package in packages),
        _examine_command("mpirun", ("mpirun",), "ttmesh launch with MPI", 'pip install "ttmesh[mpi]"'),
        _examine_command("browser", BROWSERS, "the page of ttmesh web", "install Chromium, or open the page elsewhere"),
    ]


def _examine_settings() -> Finding:
    chosen = [setting.variable for setting in settings.SETTINGS if setting.variable in os.environ]
    try:
        settings.check_environment()
    except MeshError as error:
        return Finding("settings", BROKEN, ", ".join(chosen), "every command", " ".join(str(error).split()))
    return Finding("settings", GOOD, ", ".join(chosen) or "all at their defaults", "every command")


def _examine_ttnn() -> Finding:
    purpose = "`import ttnn` in programs of your own"
    version = _find_version("ttnn")
    if version is None:
        return Finding("real ttnn", GOOD, "not installed: `ttmesh run` stands in for it", purpose)
    return Finding("real ttnn", GOOD, version, purpose, "it is installed: `ttmesh run --force` uses ttmesh instead")


def _examine_kernels() -> Finding:
    purpose = "speed; torch gives the same bits without it"
    try:
        wanted = settings.get_bool("TTMESH_KERNELS")
    except MeshError:
        return Finding("compiled kernels", MISSING, "not looked at", purpose, "correct TTMESH_KERNELS")
    if not wanted:
        return Finding("compiled kernels", MISSING, "switched off", purpose, "unset TTMESH_KERNELS")
    built = [name for name in KERNELS if library(name) is not None]
    if len(built) == len(KERNELS):
        return Finding("compiled kernels", GOOD, f"{len(built)} kernels", purpose)
    compilers = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
    remedy = (
        "install a C compiler (gcc or clang)"
        if not compilers
        else "Python's logging says why they do not compile (logger ttmesh.chip.formats.kernels.loader)"
    )
    return Finding("compiled kernels", MISSING, f"{len(built)} of {len(KERNELS)} kernels", purpose, remedy)


def _examine_gpu() -> Finding:
    purpose = "TTMESH_BACKEND=cuda"
    if not torch.cuda.is_available():
        built = "torch is a CPU build" if torch.version.cuda is None else "torch sees none"
        return Finding("GPU", MISSING, built, purpose)
    triton = _find_version("triton")
    remedy = "" if triton else 'pip install "ttmesh[cuda]" for kernels that run at the speed of memory'
    return Finding("GPU", GOOD, f"{torch.cuda.get_device_name()}, triton {triton or 'missing'}", purpose, remedy)


def _examine_package(name: str, purpose: str, extra: str) -> Finding:
    version = _find_version(name)
    if version is None:
        return Finding(name, MISSING, "", purpose, f'pip install "ttmesh[{extra}]"')
    return Finding(name, GOOD, version, purpose)


def _examine_command(name: str, commands: tuple[str, ...], purpose: str, remedy: str) -> Finding:
    places = os.pathsep.join([os.environ.get("PATH", ""), os.path.dirname(sys.executable)])
    found = next((path for command in commands if (path := shutil.which(command, path=places))), None)
    return Finding(name, GOOD, found, purpose) if found else Finding(name, MISSING, "", purpose, remedy)


def _find_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
