"""Watch what every chip and process holds, live (also `allocation_monitor_client`)."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time

from ttmesh import cli
from ttmesh.base.errors import MeshError
from ttmesh.cli._arguments import device, milliseconds, number
from ttmesh.monitor.plain import page
from ttmesh.monitor.source import Source
from ttmesh.monitor.view import SORTS, Choice
from ttmesh.tracking.address import choose_address
from ttmesh.tracking.query import UnreachableError

MAX_PICTURES = 10**9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """-a, -d, -r, -n, --plain, --sort, --socket."""
    parser.add_argument("-a", "--all", action="store_true", help="every device (what you get without -d, too)")
    parser.add_argument(
        "-d", "--device", type=device, action="append", default=[], metavar="N", help="only this device"
    )
    parser.add_argument(
        "-r", "--refresh", type=milliseconds, default=1000, metavar="MS", help="milliseconds between updates"
    )
    parser.add_argument(
        "-n", "--pictures", type=number(0, MAX_PICTURES), metavar="N",
        help="draw N times and stop, 0: until interrupted (default: 1 where there is no terminal)",
    )  # fmt: skip
    parser.add_argument("--plain", action="store_true", help="lines of text even on a terminal (also with TERM=dumb)")
    parser.add_argument("--sort", choices=SORTS, default="memory", help="order of the processes")
    parser.add_argument("--socket", default="", metavar="P", help="the server's socket or HOST:PORT")


def run(args: argparse.Namespace) -> int:
    """The live terminal, or lines of text when there is none."""
    devices = frozenset() if args.all else frozenset(args.device)
    source = Source(choose_address(args.socket))
    choice = Choice(devices=devices, sort=args.sort)
    try:
        terminal = sys.stdout.isatty()
        if terminal and not args.plain and os.environ.get("TERM") != "dumb":
            _live(source, choice, args.refresh)
        else:
            endless = terminal or args.plain
            pictures = args.pictures if args.pictures is not None else 0 if endless else 1
            _print(source, choice, args.refresh, pictures)
    except KeyboardInterrupt:
        return 0
    finally:
        source.close()
    return 0


def _live(source: Source, choice: Choice, refresh_ms: int) -> None:
    if importlib.util.find_spec("textual") is None:
        raise MeshError(
            "the live terminal needs textual, which is not installed",
            expected="pip install 'ttmesh[monitor]'",
            fix="Install it, or use --plain or `ttmesh smi -w`.",
        )
    app = importlib.import_module("ttmesh.monitor.app")  # takes 0.3 s, so only when it is wanted
    app.MonitorApp(source, choice, refresh_ms=refresh_ms).run()


def _print(source: Source, choice: Choice, refresh_ms: int, pictures: int) -> None:
    shown = 0
    while True:
        try:
            print(page(source.view(choice), refresh_ms=refresh_ms), flush=True)
        except UnreachableError as error:
            if pictures:
                raise
            print(f"{error}\n", flush=True)
        shown += 1
        if shown == pictures:
            return
        time.sleep(refresh_ms / 1000)


def main() -> int:
    """The entry point of `allocation_monitor_client`."""
    return cli.main(["monitor", *sys.argv[1:]])
