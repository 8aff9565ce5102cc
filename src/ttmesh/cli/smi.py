"""Show what every chip and process holds, once (or again and again with -w); also `tt-smi` where that is not installed."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

from rich.live import Live

from ttmesh import cli
from ttmesh.base import settings
from ttmesh.cli._arguments import device, milliseconds
from ttmesh.monitor.source import Source
from ttmesh.monitor.tables import printer, smi
from ttmesh.monitor.view import Choice
from ttmesh.tracking.address import choose_address

REAL_TOOL = "tt-smi"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """-w, -r, -d, --json, --socket."""
    parser.add_argument("-w", "--watch", action="store_true", help="show it again and again until interrupted")
    parser.add_argument(
        "-r", "--refresh", type=milliseconds, default=500, metavar="MS", help="milliseconds between updates"
    )
    parser.add_argument(
        "-d", "--device", type=device, action="append", default=[], metavar="N", help="only this device"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object (one per line with -w)")
    parser.add_argument("--socket", default="", metavar="P", help="the server's socket or HOST:PORT")


def run(args: argparse.Namespace) -> int:
    """Print the tables; status 2 when a server that was named, or that has a socket, does not answer."""
    address = choose_address(args.socket)
    is_expected = bool(args.socket or settings.get_str("TTMESH_SOCKET") or Path(address.path or ".").exists())
    source = Source(address)
    choice = Choice(devices=frozenset(args.device))
    console = printer()
    try:
        if args.json:
            while True:
                print(json.dumps(asdict(source.view(choice)), indent=None if args.watch else 2), flush=True)
                if not args.watch:
                    break
                time.sleep(args.refresh / 1000)
        elif args.watch:
            with Live(smi(source.view(choice), console.width), console=console, auto_refresh=False) as live:
                while True:
                    time.sleep(args.refresh / 1000)
                    live.update(smi(source.view(choice), console.width), refresh=True)
        else:
            console.print(smi(source.view(choice), console.width))
    except KeyboardInterrupt:
        pass
    finally:
        source.close()
    return 2 if source.problem and is_expected else 0


def main() -> int:
    """The entry point of `tt-smi`: Tenstorrent's own tool where it is installed, otherwise this command."""
    if (package := _find_package()) is not None:
        return int(package.load()() or 0)
    if (program := find_program()) is not None:
        os.execv(program, [program, *sys.argv[1:]])
    print("tt-smi: no chips of Tenstorrent's tools here; this is `ttmesh smi`, the emulated ones.", file=sys.stderr)
    return cli.main(["smi", *sys.argv[1:]])


def _find_package() -> importlib.metadata.EntryPoint | None:
    """The entry point of the tool's own package, if it is installed beside ttmesh: both have a script of this name."""
    for point in importlib.metadata.entry_points(group="console_scripts", name=REAL_TOOL):
        if not point.value.startswith("ttmesh."):
            return point
    return None


def find_program() -> str | None:
    """Another program of this name on the path, but not this one."""
    own = Path(sys.argv[0]).resolve()
    for folder in os.get_exec_path():
        found = shutil.which(REAL_TOOL, path=folder)
        if found and Path(found).resolve() != own and "ttmesh" not in _read_start(found):
            return found
    return None


def _read_start(program: str) -> str:
    """The first lines of a script, which name the package that it starts."""
    with open(program, "rb") as file:
        return file.read(1000).decode("utf-8", "replace")
