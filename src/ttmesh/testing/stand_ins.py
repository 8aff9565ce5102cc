"""Small stand-ins for modules that TT-NN test suites import and that are not installed here."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def install() -> None:
    """Provide `tracy` (the profiler's markers) where it is missing: markers do nothing, as without a profiler attached."""
    if importlib.util.find_spec("tracy") is None:
        sys.modules["tracy"] = _tracy()


def _tracy() -> ModuleType:
    module = ModuleType("tracy", "Profiler markers that mark nothing: no profiler is attached to an emulated chip.")

    def signpost(header: str, message: str | None = None) -> None:
        """Mark a moment for the profiler."""

    class Profiler:
        """A profiler that records nothing."""

        def enable(self) -> None:
            """Start."""

        def disable(self) -> None:
            """Stop."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        """Profile a function."""
        return function

    names: dict[str, Any] = {"signpost": signpost, "Profiler": Profiler, "runtime_profile": decorated}
    module.__dict__.update(names)
    return module
