"""Small stand-ins for modules that TT-NN test suites import and that are not installed here."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

# Imported by tt-metal's conftest files for the sake of few tests: importing works, using a name says what is missing.
NEEDED_BY_NAME = {
    "torchvision": ("torchvision", "torchvision.transforms", "torchvision.models", "torchvision.ops"),
    "PIL": ("PIL", "PIL.Image"),
}


def install() -> None:
    """Provide what is missing: `tracy`'s markers, which mark nothing, and modules that only say that they are missing."""
    if importlib.util.find_spec("tracy") is None:
        sys.modules["tracy"] = _tracy()
    for package, names in NEEDED_BY_NAME.items():
        if package not in sys.modules and importlib.util.find_spec(package) is None:
            sys.modules.update({name: Missing(name) for name in names})


class Missing(ModuleType):
    """A module that can be imported but not used."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"A stand-in: {name} is not installed.")
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        child = sys.modules.get(f"{self.__name__}.{name}")
        if child is not None:
            return child
        package = self.__name__.split(".")[0]
        raise AttributeError(
            f"{self.__name__}.{name} was used, but {package} is not installed; expected a test without it. "
            f"Install {package}."
        )


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
