"""Modules whose names are looked up in a table: what `ttnn` and its submodules are made of."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from ttmesh.base.errors import suggest_names
from ttmesh.base.ttnn_config import CONFIG, replace_config
from ttmesh.ttnn import not_emulated

Lookup = Callable[[str], Any]
Names = Callable[[], Iterable[str]]


class NotHereError(AttributeError):
    """TT-NN may have the name, ttmesh does not."""


class Namespace(ModuleType):
    """A module that finds its names in a table, in the catalogue of operations, then (unless strict) in the root."""

    def __init__(
        self,
        name: str,
        doc: str,
        table: Mapping[str, str],
        operations: Lookup,
        names: Names,
        root: ModuleType | None = None,
    ) -> None:
        super().__init__(name, doc)
        self.__dict__["_table"] = table
        self.__dict__["_operations"] = operations
        self.__dict__["_names"] = names
        self.__dict__["_root"] = root
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self._find(name)
        self.__dict__[name] = value
        return value

    def _find(self, name: str) -> Any:
        where = self._table.get(name)
        if where is not None:
            module, _, attribute = where.partition(":")
            return getattr(importlib.import_module(module), attribute)
        found = self._operations(f"{_public(self.__name__)}.{name}")
        if found is not None:
            return found
        named = not_emulated.find(_public(self.__name__), name)
        if named is not None:
            return named
        if self._root is not None:
            return getattr(self._root, name)
        module = _public(self.__name__)
        prefix, names = f"{module}.", self._names()
        operations = (key.removeprefix(prefix) for key in names if key.startswith(prefix))
        known = [*self._table, *(key for key in self.__dict__ if not key.startswith("_")), *operations]
        elsewhere = [key for key in names if key.endswith(f".{name}")]
        hint = f"Did you mean {' or '.join(elsewhere)}?" if elsewhere else suggest_names(name, known)
        raise NotHereError(
            f"module {module!r} has no attribute {name!r}: {prefix}{name} is no name of TT-NN 0.81; expected one that "
            f"`ttmesh ops` lists. {hint}"
        )

    def __dir__(self) -> list[str]:
        return sorted({*self._table, *(key for key in self.__dict__ if not key.startswith("_"))})


class CompiledModule(Namespace):
    """A module that is compiled in TT-NN: it shows names of public modules, and `add_t`, the type of the operation `add`."""

    def __init__(self, name: str, table: Mapping[str, str], shown: Sequence[ModuleType]) -> None:
        super().__init__(name, _public(name), table, _find_nothing, tuple)
        self.__dict__["_shown"] = shown

    def _find(self, name: str) -> Any:
        if name not in self._table:
            for module in self._shown:
                if hasattr(module, name):
                    return getattr(module, name)
                if name.endswith("_t") and hasattr(module, name.removesuffix("_t")):
                    return type(getattr(module, name.removesuffix("_t")))
        return super()._find(name)


def _find_nothing(name: str) -> Any:
    """Finds no operations."""
    return None


class ForwardingModule(ModuleType):
    """A module whose attributes are read from and written to an object elsewhere, imported at the first use."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(name, name)
        self.__dict__["_where"] = where

    def _target(self) -> Any:
        module, _, attribute = self._where.partition(":")
        return getattr(importlib.import_module(module), attribute)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._target(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            setattr(self._target(), name, value)


class RootModule(ModuleType):
    """The class of the module `ttnn`: a program that replaces CONFIG changes its values for all of ttmesh."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "CONFIG" and value is not CONFIG:
            replace_config(value)
        else:
            super().__setattr__(name, value)


def _public(name: str) -> str:
    return name.removeprefix("ttmesh.")


def load_folder(package: str) -> None:
    """Import every module of a package, so that what they register is there."""
    folder = importlib.import_module(package)
    for module in pkgutil.walk_packages(folder.__path__, f"{package}."):
        importlib.import_module(module.name)


def install(module: ModuleType) -> None:
    """Make a module importable under its own name."""
    sys.modules[module.__name__] = module
    parent, _, child = module.__name__.rpartition(".")
    if parent in sys.modules:
        sys.modules[parent].__dict__[child] = module
