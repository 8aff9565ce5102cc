"""Ctrl-C while Python finalizes one of our objects: Python only prints it; here it is sent again."""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
import time

AGAIN_S = 0.001  # long enough for the finalizer to be left


def redeliver_lost_interrupts() -> None:
    """From now on a Ctrl-C inside a `__del__` of ttmesh reaches the program a moment later."""
    previous = sys.unraisablehook
    if getattr(previous, "redelivers_interrupts", False):
        return

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt) or not _is_ours(unraisable.object):
            previous(unraisable)
            return
        with contextlib.suppress(RuntimeError):  # the interpreter ends: there is nothing left to interrupt
            threading.Thread(target=_interrupt, name="ttmesh-interrupt", daemon=True).start()

    hook.redelivers_interrupts = True  # type: ignore[attr-defined]
    sys.unraisablehook = hook


def _is_ours(finalizer: object) -> bool:
    return str(getattr(finalizer, "__module__", "")).partition(".")[0] == "ttmesh"


def _interrupt() -> None:
    time.sleep(AGAIN_S)
    _thread.interrupt_main()
