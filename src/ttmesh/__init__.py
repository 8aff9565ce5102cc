"""ttmesh: run multi-device Tenstorrent programs anywhere and see what every chip holds.

Names are looked up when they are first used: `import ttmesh` costs nothing, `ttmesh.open_mesh_device` loads the runtime.
"""

from __future__ import annotations

import importlib
from typing import Any

from ttmesh.base import numerics_mode, settings
from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.errors import MeshError

__version__ = "0.2.0"

__all__ = ["MeshError", "configure"]

_SUBMODULES = (  # found without loading the runtime, whose names are asked for everything else
    "base",
    "chip",
    "fabric",
    "mesh",
    "programs",
    "tensor",
    "ops",
    "ccl",
    "nn",
    "tracking",
    "monitor",
    "launch",
    "cli",
    "testing",
    "showcase",
    "shim",
    "dropin",
    "notebook",
)


@name_wrong_types
def configure(
    *,
    system: str | None = None,
    backend: str | None = None,
    schedule: str | None = None,
    seed: int | None = None,
    unwritten: str | None = None,
    numerics: str | None = None,
    minus_one_fault: bool | None = None,
) -> None:
    """Choose for this process what TTMESH_* variables choose, from the next open on (the last two at once); None: as is."""
    chosen = {
        "TTMESH_SYSTEM": system,
        "TTMESH_BACKEND": backend,
        "TTMESH_SCHEDULE": schedule,
        "TTMESH_SEED": seed,
        "TTMESH_UNWRITTEN": unwritten,
    }
    if system is not None:
        importlib.import_module("ttmesh.chip.catalogue").load_system(system)  # refuses an unknown one now
    if backend is not None:
        importlib.import_module("ttmesh.chip.backends.registry").load_backend(backend)
    for variable, value in chosen.items():
        if value is not None:
            settings.override(variable, value)
    if numerics is not None:
        numerics_mode.choose(numerics)
    if minus_one_fault is not None:
        numerics_mode.follow_minus_one_fault(minus_one_fault)


def load_ipython_extension(ipython: Any) -> None:
    """What `%load_ext ttmesh` calls: adds the magic `%%ttmesh track`."""
    importlib.import_module("ttmesh.notebook").register(ipython)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    if name in _SUBMODULES:
        return importlib.import_module(f"ttmesh.{name}")
    where = importlib.import_module("ttmesh.ttnn.names").EXTRA.get(name)
    if where is None:
        value = getattr(importlib.import_module("ttmesh.ttnn"), name)
    else:
        module, _, attribute = where.partition(":")
        value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value
