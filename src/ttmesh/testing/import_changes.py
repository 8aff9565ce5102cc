"""Changes of modules that belong to others, made as soon as a program imports them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class ImportChanges(MetaPathFinder, Loader):
    """The first finder: a module named in `changes` is loaded as always, and then given to its change."""

    def __init__(self, changes: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._changes = dict(changes)
        self._loaders: dict[str, Loader] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give, with this loader around its own."""
        if fullname not in self._changes:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None), None)
        if spec is not None and spec.loader is not None:
            self._loaders[fullname], spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the own loader does."""
        return self._loaders[spec.name].create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then change it."""
        own = self._loaders[module.__name__]
        own.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = own
        self._changes[module.__name__](module)

    def start(self) -> None:
        """Change what is imported already, and listen for the rest."""
        for name, change in self._changes.items():
            if name in sys.modules:
                change(sys.modules[name])
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Listen no longer; what was changed stays so."""
        sys.meta_path.remove(self)
