"""Write what is held in a form that other programs read: json, csv, prometheus, torch, report, shm."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ttmesh.base.atomic_files import write_file
from ttmesh.base.errors import MeshError
from ttmesh.chip.catalogue import load_system
from ttmesh.chip.cluster_descriptor import describe_cluster
from ttmesh.cli._arguments import milliseconds
from ttmesh.monitor.exports import shared_memory
from ttmesh.monitor.exports.json_csv import to_csv, to_json
from ttmesh.monitor.exports.torch_snapshot import to_torch_snapshot
from ttmesh.monitor.exports.visualizer import write_live_report
from ttmesh.monitor.view import build, format_count
from ttmesh.tracking.address import choose_address
from ttmesh.tracking.query import Monitor
from ttmesh.tracking.state import Buffers, DeviceState, State

FORMS = ("json", "csv", "prometheus", "torch", "report", "shm")
BUFFERS = 20_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FORM, -o, -w, -r, --clean, --socket."""
    parser.add_argument("form", choices=FORMS, help="torch: a memory-snapshot pickle; report: for ttnn-visualizer; "
                        "shm: tt-metal's shared-memory statistics")  # fmt: skip
    parser.add_argument("-o", "--output", default="", metavar="PATH", help="file, or folder for report and shm")
    parser.add_argument("-w", "--watch", action="store_true", help="shm: write again and again until interrupted")
    parser.add_argument(
        "-r", "--refresh", type=milliseconds, default=1000, metavar="MS", help="shm: milliseconds between"
    )
    parser.add_argument(
        "--clean", action="store_true", help="shm: remove the files that were written, and nothing else"
    )
    parser.add_argument("--socket", default="", metavar="P", help="the server's socket or HOST:PORT")


def run(args: argparse.Namespace) -> int:
    """Write it."""
    if args.form in ("torch", "report") and not args.output:
        raise MeshError(
            f"{args.form} is not for a terminal", expected="-o PATH", fix="Name the file or folder to write with -o."
        )
    if args.watch and args.form != "shm":
        raise MeshError(f"-w does not go with {args.form}", expected="shm with -w", fix="Leave -w out.")
    if args.clean:
        if args.form != "shm" or args.watch:
            raise MeshError(
                "--clean removes files", expected="ttmesh export shm --clean", fix="Leave the other options out."
            )
        gone = shared_memory.clean(Path(args.output or shared_memory.default_directory()))
        print("\n".join(map(str, gone)) if gone else "There were none.")
        return 0
    with Monitor(choose_address(args.socket)) as monitor:
        if args.form == "shm":
            with refuse_unwritable(args.output):
                return _export_shared_memory(
                    monitor, Path(args.output or shared_memory.default_directory()), args.watch, args.refresh / 1000
                )

        def buffers_of(device: DeviceState) -> Buffers:
            return monitor.buffers(device.key, limit=BUFFERS)

        state = monitor.state()
        with refuse_unwritable(args.output):
            if args.form == "report":
                write_live_report(Path(args.output), state.devices, buffers_of, _describe_cluster(state))
            elif args.form == "torch":
                write_file(args.output, to_torch_snapshot(state.devices, buffers_of))
            elif args.output:
                write_file(args.output, _text(args.form, state))
            else:
                sys.stdout.write(_text(args.form, state))
    if args.output:
        print(
            f"{args.output}: {format_count(len(state.devices), 'device')}, {format_count(build(state).buffers, 'buffer')}"
        )
    return 0


def _describe_cluster(state: State) -> Mapping[str, object]:
    """The files of the system that the devices are of; none where they are of several, or of one that is not known here."""
    names = {device.system for device in state.devices}
    try:
        return describe_cluster(load_system(names.pop())) if len(names) == 1 else {}
    except MeshError:
        return {}


def _text(form: str, state: State) -> str:
    view = build(state)
    if form == "prometheus":
        return str(importlib.import_module("ttmesh.monitor.exports.prometheus").to_prometheus(view))
    return to_csv(view) if form == "csv" else to_json(view) + "\n"


@contextmanager
def refuse_unwritable(output: str) -> Iterator[None]:
    """A place that cannot be written to is an error of the call, not of ttmesh."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MeshError(
            f"{output or 'the output'} cannot be written: {error.strerror}",
            expected="a path in a folder that exists and may be written to",
            fix="Choose another with -o.",
        ) from None


def _export_shared_memory(monitor: Monitor, folder: Path, watch: bool, refresh_s: float) -> int:
    if not watch:
        print("\n".join(map(str, shared_memory.write(monitor.state(), folder))))
        print("They stay as they are until `ttmesh export shm --clean`.", file=sys.stderr)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # or the files would stay
    stops = {signal.SIGTERM, signal.SIGINT}
    paths: set[Path] = set()
    try:
        while True:
            state = monitor.state()
            signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # until it is noted which files there are
            paths.update(shared_memory.write(state, folder))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
            time.sleep(refresh_s)
    except KeyboardInterrupt:
        return 0
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
