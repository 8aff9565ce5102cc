"""Plain `import ttnn` means ttmesh: one finder that returns ttmesh's modules under TT-NN's names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType

from ttmesh.base.errors import MeshError


class _Alias(Loader):
    """Gives an existing module under another name."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """It ran already; take back the spec that the import system put on it."""
        module.__spec__ = self._spec

    def get_code(self, name: str) -> CodeType:
        """What `python -m` runs of a module that is not a file: its main()."""
        return compile(f"import {name}\n{name}.main()\n", f"<{name}>", "exec")


class TtnnFinder(MetaPathFinder):
    """`ttnn` and `ttnn.x` are the same module objects as `ttmesh.ttnn` and `ttmesh.ttnn.x`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for ttnn's names, None for all others."""
        if fullname != "ttnn" and not fullname.startswith("ttnn."):
            return None
        try:
            module = importlib.import_module(f"ttmesh.{fullname}")
        except ModuleNotFoundError:
            return None
        inside = f"{module.__name__}."
        is_package = hasattr(module, "__path__") and any(name.startswith(inside) for name in sys.modules)
        return ModuleSpec(fullname, _Alias(module), is_package=is_package)


# Modules of tt-metal's models/ tree that ttmesh has its own version of, and the packages that lead there.
MODELS = {"models.tt_cnn.tt.pipeline": "ttmesh.nn.pipelines"}
PACKAGES = {name.rsplit(".", depth)[0] for name in MODELS for depth in range(1, name.count(".") + 1)}


class ModelsFinder(MetaPathFinder):
    """Asked last: where no tt-metal checkout is on the path, its helper modules mean ttmesh's."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for the modules we have, None for all others."""
        if fullname in PACKAGES:
            return ModuleSpec(fullname, None, is_package=True)
        if fullname in MODELS:
            return ModuleSpec(fullname, _Alias(importlib.import_module(MODELS[fullname])))
        return None


# Written in Python and next to the compiled ttnn in a checkout; import name -> path in ttnn/.
FROM_CHECKOUT = {
    "tt_lib": "tt_lib/__init__.py",
    "ttnn.experimental.moe_compute_utils": "ttnn/_experimental/moe_compute_utils.py",
}


class CheckoutFinder(MetaPathFinder):
    """Asked last: Python modules beside the compiled ttnn are loaded from a checkout on the path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The file in ttnn/ of a checkout on the path; that folder itself must not be on it, it has a ttnn."""
        if fullname not in FROM_CHECKOUT:
            return None
        files = (Path(entry or ".", "ttnn", FROM_CHECKOUT[fullname]) for entry in sys.path)
        found = next((file for file in files if file.is_file()), None)
        return None if found is None else importlib.util.spec_from_file_location(fullname, found)


def real_ttnn() -> str | None:
    """Where the real ttnn is installed, or None."""
    spec = PathFinder.find_spec("ttnn")
    return None if spec is None or spec.origin is None else spec.origin


def install(*, force: bool = False) -> None:
    """Let `import ttnn` mean ttmesh in this process; refuse when the real one is installed, unless forced."""
    origin = real_ttnn()
    if origin is not None and not force:
        raise MeshError(
            f"the real ttnn is installed at {origin}",
            expected="an environment without it, or --force",
            fix="Pass --force to let `import ttnn` mean ttmesh all the same.",
        )
    if not any(isinstance(finder, TtnnFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TtnnFinder())
        sys.meta_path += [ModelsFinder(), CheckoutFinder()]
