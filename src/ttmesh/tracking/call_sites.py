"""The line of the user's program that allocated a buffer."""

from __future__ import annotations

import os
import sys
from types import FrameType

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
FRAMES_KEPT = 8
LARGEST = 4000  # characters; wire.Site allows a little more


def call_site() -> str:
    """The caller's frames outside ttmesh, innermost first, one "file:line in function" per line."""
    lines: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(lines) < FRAMES_KEPT:
        code = frame.f_code
        if not code.co_filename.startswith((PACKAGE, "<frozen")):
            lines.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return "\n".join(lines)[:LARGEST]
