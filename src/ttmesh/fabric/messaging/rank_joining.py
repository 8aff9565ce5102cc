"""Waiting for the other ranks before the engine connects them, with a deadline and an error that names missing ranks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from ttmesh.base.atomic_files import write_file
from ttmesh.base.errors import RankError

LOOK_S = 0.02  # between two polls


class Stop:
    """While entered, records SIGTERM instead of ending the process, so that the error can name the missing ranks.

    Only in the main thread, and only if the program has no handler. Without an error the process ends on exit.
    """

    def __init__(self) -> None:
        self.seen = False
        self._installed = False

    def __enter__(self) -> Stop:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._note)
            self._installed = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *problem: object) -> None:
        if self._installed:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if self.seen and kind is None:
                os.kill(os.getpid(), signal.SIGTERM)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = True


class JobFile:
    """A file in a folder that all ranks of a host share, through which rank 0 publishes the address where ranks meet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, text: str) -> None:
        """Publish the text."""
        write_file(self.path, text)

    def read(self) -> str:
        """The published text, or ''."""
        try:
            return self.path.read_text() if self.path.stat().st_uid == os.geteuid() else ""
        except OSError:
            return ""


def wait_for_first(done: Callable[[], bool], where: str, rank: int, limit_s: float) -> None:
    """Wait until rank 0 has published its address; after the deadline a RankError names rank 0."""
    deadline = time.monotonic() + limit_s
    with Stop() as stop:
        while not done():
            if stop.seen or time.monotonic() >= deadline:
                why = "this rank got SIGTERM" if stop.seen else f"not finished after {limit_s:g} s"
                raise RankError(
                    f"rank 0 has not come to join at {where}, seen by rank {rank} ({why})",
                    expected=f"every rank to join within {limit_s:g} s",
                    fix="Look at the output of rank 0; TTMESH_TIMEOUT_S sets the time.",
                    ranks=(0,),
                )
            time.sleep(LOOK_S)


def wait_to_join(done: Callable[[], bool], limit_s: float) -> None:
    """Wait until the engine has connected all ranks, where nothing shows which of them are missing."""
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() >= deadline:
            raise RankError(
                f"not all ranks joined within {limit_s:g} s",
                expected="every rank to join",
                fix="Look for a rank that printed nothing; `ttmesh launch` names it. TTMESH_TIMEOUT_S sets the time.",
            )
