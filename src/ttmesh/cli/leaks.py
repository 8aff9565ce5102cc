"""Show what programs still held when they, or their meshes, ended, by the place that allocated it."""

from __future__ import annotations

import argparse

import msgspec

from ttmesh.cli._arguments import MAX_ID, number
from ttmesh.monitor.tables import leaks, printer
from ttmesh.tracking.address import choose_address
from ttmesh.tracking.query import Monitor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--pid, --json, --socket."""
    parser.add_argument("--pid", type=number(1, MAX_ID), metavar="N", help="only this process")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--socket", default="", metavar="P", help="the server's socket or HOST:PORT")


def run(args: argparse.Namespace) -> int:
    """Print the report; status 1 when something was left, or may have been."""
    with Monitor(choose_address(args.socket)) as monitor:
        found = monitor.leaks()
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        printer().print(leaks(found, pid=args.pid))
    ends = [*found.ended, *found.living]
    return int(found.left_out > 0 or any(args.pid in (None, e.who.pid) and (e.held or e.at_close) for e in ends))
