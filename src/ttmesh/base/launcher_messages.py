"""The message of a rank to its launcher: a line on stderr that the launcher reads and does not print."""

from __future__ import annotations

import sys

from ttmesh.base import settings

MARK = "\x1ettmesh-rank"  # launch/rank.py has its own copy, because it runs without ttmesh


def report_crash(rank: int, error: BaseException) -> None:
    """Report at once that this rank's program failed, whichever rank's process ends first."""
    if settings.get_bool("TTMESH_LAUNCHED"):
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        print(f"{MARK} {rank} crashed {text}", file=sys.stderr, flush=True)
