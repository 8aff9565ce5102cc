"""Serve a live page of what every chip and process holds (read-only, on this machine unless told otherwise)."""

from __future__ import annotations

import argparse
import importlib
import importlib.util

from ttmesh.base.errors import MeshError
from ttmesh.monitor.source import Source
from ttmesh.tracking.address import chosen

NEEDED = ("starlette", "uvicorn", "plotly", "prometheus_client")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--host, --port, -r, --socket."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 lets other machines look")
    parser.add_argument("--port", type=int, default=8790)
    parser.add_argument("-r", "--refresh", type=int, default=1000, metavar="MS", help="milliseconds between pictures")
    parser.add_argument("--name", action="append", default=[], help="a name of this machine that browsers may use")
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
    web = importlib.import_module("ttmesh.monitor.web")
    uvicorn = importlib.import_module("uvicorn")
    source = Source(chosen(args.socket))
    names = ["localhost", "127.0.0.1", "[::1]", args.host, *args.name]
    app = web.web_app(source, refresh_ms=max(50, args.refresh), hosts=names)
    print(f"Open http://{args.host}:{args.port}/ (Ctrl-C stops it)", flush=True)
    uvicorn.run(app, host=args.host, port=args.port, log_level="warning", timeout_graceful_shutdown=1)
    source.close()
    return 0
