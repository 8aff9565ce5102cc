"""Show what programs lost at their end, and what they held when meshes were closed, by the place that allocated it."""

from __future__ import annotations

import argparse

import msgspec

from ttmesh.cli._arguments import MAX_ID, number
from ttmesh.monitor.leak_groups import group_leaks
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
    report = group_leaks(found, pid=args.pid)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        printer().print(leaks(report))
    return int(bool(report.left_out or report.lost or report.at_close))
