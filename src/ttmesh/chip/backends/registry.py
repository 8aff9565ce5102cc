"""Backends by name: the name is the file's."""

from __future__ import annotations

import functools
import importlib
import pkgutil

import ttmesh.chip.backends as folder
from ttmesh.base.errors import SettingError, one_of, suggest_names
from ttmesh.chip.backends.backend_protocol import Backend

_NOT_BACKENDS = {"backend_protocol", "cuda_graphs", "idle_threads", "index_guard", "plain_dispatch_mode", "registry"}


@functools.cache
def backend_names() -> tuple[str, ...]:
    """Every file of the folder that holds a backend, available here or not."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(folder.__path__) if m.name not in _NOT_BACKENDS))


@functools.cache
def load_backend(name: str) -> Backend:
    """The backend of this name, even if it cannot be used on this machine."""
    if name not in backend_names():
        raise SettingError(
            f"no backend named {name!r}", expected=one_of(backend_names()), fix=suggest_names(name, backend_names())
        )
    found = importlib.import_module(f"{folder.__name__}.{name}").BACKEND
    assert isinstance(found, Backend), f"{name}.py holds no Backend as BACKEND"
    return found


def find_usable_backend(name: str) -> Backend:
    """The backend of this name, ready to be started."""
    found = load_backend(name)
    reason = found.unavailable()
    if reason is not None:
        usable = [other for other in backend_names() if load_backend(other).unavailable() is None]
        raise SettingError(
            f"backend {name!r} cannot be used here: {reason}", expected=one_of(usable), fix="Set TTMESH_BACKEND."
        )
    return found
