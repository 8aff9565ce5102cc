"""The TT-NN namespace: `import ttmesh.ttnn as ttnn`, or plain `import ttnn` under `ttmesh run`."""

from __future__ import annotations

import atexit
import gc
import sys
from typing import Any

_collects = gc.isenabled()
gc.disable()  # nothing becomes garbage here, and looking for it in all of torch takes a third of the time

# ruff: noqa: E402  (these are what is loaded)
from ttmesh.base import settings, tracebacks, ttnn_config
from ttmesh.drift import comparison
from ttmesh.ops.catalogue.definition import catalogue
from ttmesh.tracking import client
from ttmesh.ttnn import not_emulated
from ttmesh.ttnn.compiled_modules import COMPILED_MODULES
from ttmesh.ttnn.names import FORWARDED, NAMES, OPERATION_MODULES, OWN_NAMES, SUBMODULES
from ttmesh.ttnn.namespace import CompiledModule, ForwardingModule, Namespace, RootModule, install, load_folder

settings.check_environment()
tracebacks.install()
ttnn_config.load_environment()
comparison.follow_config()
if settings.get_bool("TT_ALLOC_TRACKING_ENABLED"):
    client.start()
load_folder("ttmesh.tensor.calls")  # conversions fill the operators table
load_folder("ttmesh.ops")
load_folder("ttmesh.ccl")
if _collects:
    gc.freeze()  # modules live as long as the process: the searches while it runs pass them by
    atexit.register(gc.unfreeze)  # at its end they are taken down as always: files are flushed, __del__ is called
    gc.enable()


def _operation(name: str) -> Any:
    entry = catalogue.get(name)
    return None if entry is None else entry.function


_root = sys.modules[__name__]
_root.__class__ = RootModule
_inner = Namespace(__name__, __doc__ or "", NAMES, _operation, catalogue.keys)

for _name in OPERATION_MODULES:
    install(Namespace(f"{__name__}.{_name}", f"ttnn.{_name}", OWN_NAMES.get(_name, {}), _operation, catalogue.keys))
for _name in SUBMODULES:
    if _name not in COMPILED_MODULES:
        _names = OWN_NAMES.get(_name, {})
        install(Namespace(f"{__name__}.{_name}", f"ttnn.{_name}", _names, _operation, catalogue.keys, _root))
for _name, _places in COMPILED_MODULES.items():
    _shown = [sys.modules[f"{__name__}.{place}".removesuffix(".")] for place in _places]
    install(CompiledModule(f"{__name__}.{_name}", OWN_NAMES.get(_name, {}), _shown))

for _name in (module.removeprefix("ttnn.") for module in not_emulated.list_modules() if module != "ttnn"):
    if f"{__name__}.{_name}" not in sys.modules:
        _names = OWN_NAMES.get(_name, {})
        install(Namespace(f"{__name__}.{_name}", f"ttnn.{_name}", _names, _operation, catalogue.keys))
for _name, _where in FORWARDED.items():
    install(ForwardingModule(f"{__name__}.{_name}", _where))
if "--trace-params" in sys.argv:
    sys.modules[f"{__name__}.operation_tracer"].enable_tracing(True)

TILE_SIZE = 32


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    value = _inner._find(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    public = (key for key in globals() if not key.startswith("_"))
    return sorted({*NAMES, *public, *(n.split(".")[1] for n in catalogue if n.startswith("ttnn."))})
