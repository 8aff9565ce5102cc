"""Know what every process holds on every chip: the allocation server (also `allocation_server_poc`)."""

from __future__ import annotations

import argparse
import errno
import gc
import os
import signal
import stat
import sys
from pathlib import Path

from ttmesh import cli
from ttmesh.base import settings
from ttmesh.base.errors import MeshError
from ttmesh.tracking.address import choose_address, parse_tcp
from ttmesh.tracking.allocation_server import Server
from ttmesh.tracking.server_log import Printer

LONGEST_TOKEN = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ttmesh server`."""
    parser.add_argument("-q", "--quiet", action="store_true", help="no line per buffer; statistics only when asked")
    parser.add_argument("--socket", default="", metavar="P", help="Unix socket (default: TTMESH_SOCKET, else yours)")
    parser.add_argument("--group", action="store_true", help="let the socket's group in too (mode 0660)")
    parser.add_argument("--listen", default="", metavar="HOST:PORT", help="listen on TCP as well; needs a token")
    parser.add_argument("--token-file", type=Path, metavar="F", help="file with the token (default: TTMESH_TOKEN)")


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted; SIGUSR1 prints statistics."""
    token = read_token(args.token_file) if args.token_file else settings.get_str("TTMESH_TOKEN")
    addresses = [choose_address(args.socket), *([parse_tcp(args.listen)] if args.listen else [])]
    printer = Printer(sys.stdout, quiet=args.quiet)
    server = Server(addresses, printer, token=token, mode=0o660 if args.group else 0o600)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.stop())
    signal.signal(signal.SIGUSR1, lambda *_: server.ask_statistics())
    printer.note(f"Allocation server listens at {' and '.join(map(str, server.listening))} (Ctrl-C stops it)")
    printer.flush()
    gc.disable()  # it would pause for 0.1 s with many buffers, and sessions leave no reference cycles
    server.run()
    return 0


def read_token(path: Path) -> str:
    """The token in a file: one line, not empty."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8", errors="surrogateescape") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a pipe could keep us waiting
                raise OSError(errno.EINVAL, "it is not a regular file")
            token = file.read(LONGEST_TOKEN + 1).strip()
    except OSError as error:
        raise MeshError(
            f"--token-file {path} cannot be read: {error.strerror}",
            expected="a file with the token",
            fix="Correct the path or the file's permissions.",
        ) from None
    if not 0 < len(token) <= LONGEST_TOKEN:
        raise MeshError(
            f"--token-file {path} holds {'no token' if not token else 'too much'}",
            expected=f"1 to {LONGEST_TOKEN} characters",
            fix="Write one with `openssl rand -hex 16`.",
        )
    return token


def main() -> int:
    """The entry point of `allocation_server_poc`."""
    return cli.main(["server", *sys.argv[1:]])
