"""Small stand-ins for modules that TT-NN test suites import and that are not installed here."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from ttmesh.testing.import_changes import ImportChanges

try:  # pytest and transformers bring it
    from packaging.requirements import Requirement
except ImportError:
    Requirement = None  # type: ignore[assignment, misc]

# Imported by tt-metal's conftest files for few tests: importing works, using a name raises and says what is missing.
NEEDED_BY_NAME = (
    "torchvision", "torchvision.transforms", "torchvision.models", "torchvision.ops", "PIL", "PIL.Image",
    "IPython", "IPython.display", "seaborn",
)  # fmt: skip

# How transformers asks what is installed: from release 5 on some answers come from an import, which a stand-in passes.
ASKED_BY_TRANSFORMERS = {"is_vision_available": "PIL", "is_torchvision_available": "torchvision"}


def install() -> None:
    """Provide missing modules: `tracy` without effect, a checkout's modules around it, and stand-ins that raise."""
    if "tracy" not in sys.modules and importlib.util.find_spec("tracy") is None:
        sys.modules["tracy"] = _tracy()
    if not any(isinstance(finder, MissingFinder) for finder in sys.meta_path):
        sys.meta_path.append(MissingFinder())
        packages = {name.split(".")[0] for name in NEEDED_BY_NAME}
        if any(package not in sys.modules and not fits_torch(package) for package in packages):
            sys.meta_path.insert(0, MissingFinder(misfits_only=True))
        missing = [name for name, package in ASKED_BY_TRANSFORMERS.items() if not _is_usable(package)]
        ImportChanges({"transformers.utils.import_utils": partial(_answer_no, missing)}).start()


def fits_torch(package: str) -> bool:
    """Whether the installed torch is one that a package was built for; True too where that cannot be found out."""
    if Requirement is None:
        return True
    try:
        torch = importlib.metadata.version("torch")
        requirements = map(Requirement, importlib.metadata.requires(package) or ())
    except importlib.metadata.PackageNotFoundError:
        return True
    return all(need.specifier.contains(torch, prereleases=True) for need in requirements if need.name == "torch")


def _is_usable(package: str) -> bool:
    return importlib.util.find_spec(package) is not None and fits_torch(package)


class MissingFinder(MetaPathFinder, Loader):
    """The last finder: imports of missing modules give a stand-in, but importlib.util.find_spec finds none.

    Args:
        misfits_only: the first finder instead, for modules that are installed for another torch and fail to import.
    """

    def __init__(self, *, misfits_only: bool = False) -> None:
        self._misfits_only = misfits_only

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for import statements, None for importlib.util.find_spec, with which libraries check what is installed."""
        asking = sys._getframe(2).f_code
        tool = fullname.startswith("tracy.")  # around the profiler; the markers themselves are below
        if not (tool or fullname in NEEDED_BY_NAME) or asking is importlib.util.find_spec.__code__:
            return None
        if self._misfits_only and fits_torch(fullname.split(".")[0]):
            return None
        return (_find_tool(fullname) if tool else None) or ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the stand-in module."""
        return Missing(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stand-in has no code."""


class Missing(ModuleType):
    """A module that can be imported, also names from it, but not used."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"A stand-in: {name} is not installed.")
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        return importlib.import_module(full) if full in NEEDED_BY_NAME else Absent(full, (), {})


class Absent(type):
    """A name of a missing module, as a type: good in annotations and isinstance, but not to be made or read from."""

    def _refuse(cls) -> ModuleNotFoundError:
        name = next(base.__name__ for base in reversed(cls.__mro__) if isinstance(base, Absent))
        package = name.split(".")[0]
        return ModuleNotFoundError(
            f"{name} was used, but {package} is not installed{'' if fits_torch(package) else ' for this torch'}; expected "
            f"a test without it. Install {package}."
        )

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise cls._refuse()

    def __call__(cls, *args: object, **options: object) -> Any:
        """Raise, because the module is not installed."""
        raise cls._refuse()


def _answer_no(questions: Sequence[str], module: ModuleType) -> None:
    """Let these functions of a module say that what they ask for is not installed."""
    for name in questions:
        if hasattr(module, name):
            setattr(module, name, cache(lambda: False))


def _find_tool(fullname: str) -> ModuleSpec | None:
    """The module around the profiler that a checkout on the path has: tt-metal installs its tools/tracy as `tracy`."""
    inside = Path("tools", *fullname.split("."))
    files = (Path(entry or ".") / inside.with_suffix(".py") for entry in sys.path)
    found = next((file for file in files if file.is_file()), None)
    return None if found is None else importlib.util.spec_from_file_location(fullname, found)


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

    def profile(function: Callable[..., Any]) -> Callable[..., Any]:
        """Profile a function."""
        return function

    module.__path__ = []  # its tools are MissingFinder's
    names: dict[str, Any] = {"signpost": signpost, "Profiler": Profiler, "runtime_profile": profile}
    module.__dict__.update(names)
    return module
