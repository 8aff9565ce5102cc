"""Tracebacks of pytest that end at the test's own line, as those of scripts do."""

from __future__ import annotations

from typing import Any

import pytest

from ttmesh.base.tracebacks import shorten_traceback


def shorten(caught: pytest.ExceptionInfo[Any]) -> None:
    """Hide the frames of ttmesh behind the user's last line; TTMESH_TRACEBACK=full keeps them."""
    error = caught.value
    if shorten_traceback(error) and error.__traceback__ is not None:
        # The new chain: pytest cuts what it shows by walking it, so entries that are only left out would come back.
        caught.traceback = type(caught.traceback)(error.__traceback__)
