"""Show what every chip and process holds, once (or again and again with -w)."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from rich.live import Live

from ttmesh.base import settings
from ttmesh.cli._arguments import device, milliseconds
from ttmesh.monitor.source import Source
from ttmesh.monitor.tables import printer, smi
from ttmesh.monitor.view import Choice
from ttmesh.tracking.address import choose_address


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
