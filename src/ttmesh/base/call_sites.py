"""Which line of the user's program is being carried out."""

from __future__ import annotations

import os
import sys
from types import FrameType

from ttmesh.base.tracebacks import is_own_file


def find_call_site() -> str:
    """File and line of the innermost frame outside ttmesh, or an empty string."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_own_file(name) and not name.startswith("<frozen"):
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
