"""Serve a live page of what every chip and process holds (read-only, on this machine unless --host says otherwise)."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import secrets
import socket
import sys
from pathlib import Path
from urllib.parse import quote

from ttmesh.base.errors import MeshError
from ttmesh.cli._arguments import milliseconds, port
from ttmesh.cli.server import read_token
from ttmesh.monitor.source import Source
from ttmesh.tracking.address import choose_address
from ttmesh.tracking.query import UnreachableError

NEEDED = ("starlette", "uvicorn", "prometheus_client")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to listen, who may look, which server to ask."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 lets other machines look")
    parser.add_argument("--port", type=port, default=8790, help="0 takes a free one")
    parser.add_argument(
        "-r", "--refresh", type=milliseconds, default=1000, metavar="MS", help="milliseconds between updates"
    )
    parser.add_argument("--name", action="append", default=[], help="a name of this machine that browsers may use")
    parser.add_argument("--token-file", type=Path, metavar="F", help="file with the page's token (default: a new one)")
    parser.add_argument("--public", action="store_true", help="no token: every user who reaches the address may look")
    parser.add_argument("--socket", default="", metavar="P", help="the allocation server's socket or HOST:PORT")


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MeshError(
            f"the page needs {', '.join(missing)}",
            expected="pip install 'ttmesh[web]'",
            fix="Install it, or use `ttmesh monitor`.",
        )
    web = importlib.import_module("ttmesh.monitor.web_server")
    connection = importlib.import_module("ttmesh.monitor.web_connection").DeadlineConnection
    uvicorn = importlib.import_module("uvicorn")
    token = "" if args.public else read_token(args.token_file) if args.token_file else secrets.token_urlsafe(16)
    _ask_for_port(args.host, args.port)
    source = Source(choose_address(args.socket))
    names = ["localhost", "127.0.0.1", "[::1]", args.host, *args.name]
    app = web.web_app(source, refresh_ms=args.refresh, hosts=names, token=token)
    config = uvicorn.Config(
        app, host=args.host, port=args.port, log_level="warning", timeout_graceful_shutdown=1, http=connection
    )
    listener = config.bind_socket()
    shown = f"?token={quote(token)}" if token and not args.token_file else ""  # a token of one's own is not shown
    print(f"Open http://{args.host}:{listener.getsockname()[1]}/{shown} (Ctrl-C stops it)", flush=True)
    if problem := _find_problem(source):
        print(f"ttmesh web: {problem} The page shows what is held as soon as one runs.", file=sys.stderr, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
    source.close()
    return 0


def _find_problem(source: Source) -> str:
    """Why nothing can be shown yet."""
    try:
        source.state()
    except UnreachableError as error:
        return str(error)
    return source.problem


def _ask_for_port(host: str, number: int) -> None:
    """Refuse before the address is printed; the server itself says it in its log only."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        raise MeshError(
            f"http://{host}:{number}/ cannot be served: {getattr(error, 'strerror', None) or error}",
            expected="an address of this machine and a port that is free",
            fix="Choose others with --host and --port, or stop the program that uses this port.",
        ) from None
