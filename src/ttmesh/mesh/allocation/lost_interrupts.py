"""Ctrl-C while Python finalizes one of our objects: Python only prints it; here it is sent again."""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
import time
from types import CodeType, FrameType

PAUSE_S = 0.001  # between two looks whether the program has left the hook


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
            threading.Thread(
                target=_interrupt_after, args=(hook.__code__,), name="ttmesh-interrupt", daemon=True
            ).start()

    hook.redelivers_interrupts = True  # type: ignore[attr-defined]
    sys.unraisablehook = hook


def _is_ours(finalizer: object) -> bool:
    return str(getattr(finalizer, "__module__", "")).partition(".")[0] == "ttmesh"


def _interrupt_after(hook: CodeType) -> None:
    """Interrupt the program once it has left the hook: inside it, Python would only print the interrupt again."""
    main = threading.main_thread().ident
    while _is_running(hook, sys._current_frames().get(main or 0)):
        time.sleep(PAUSE_S)
    _thread.interrupt_main()


def _is_running(code: CodeType, frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
