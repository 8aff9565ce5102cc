"""Hooks before and after every operation, and TT-NN's functions for tracing and comparison modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ttmesh.base.errors import NotEmulatedError
from ttmesh.base.ttnn_config import CONFIG
from ttmesh.tensor.calls.gate import Gate
from ttmesh.tensor.observer import Watcher, observer

PreHook = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
PostHook = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], Any]


class _PreHook(Watcher):
    def __init__(self, hook: PreHook) -> None:
        self._hook = hook

    def before_operation(self, operation: Gate, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._hook(operation, args, kwargs)


class _PostHook(Watcher):
    def __init__(self, hook: PostHook) -> None:
        self._hook = hook

    def after_operation(self, operation: Gate, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._hook(operation, args, kwargs, result)


@contextmanager
def _watch(watcher: Watcher) -> Iterator[None]:
    observer.add(watcher)
    try:
        yield
    finally:
        observer.remove(watcher)


def register_pre_operation_hook(hook: PreHook) -> AbstractContextManager[None]:
    """Call `hook(operation, args, kwargs)` before every operation inside the `with` block."""
    return _watch(_PreHook(hook))


def register_post_operation_hook(hook: PostHook) -> AbstractContextManager[None]:
    """Call `hook(operation, args, kwargs, output)` after every operation inside the `with` block."""
    return _watch(_PostHook(hook))


def enable_tracing() -> None:
    """TT-NN's graph tracer (not device traces): refused in fast runtime mode as there, and not emulated in slow mode."""
    if CONFIG.enable_fast_runtime_mode:
        raise ValueError(
            "Tracing is not supported in fast runtime mode. ttmesh does not emulate ttnn.tracer in slow mode either; "
            "use operation hooks instead."
        )
    raise NotEmulatedError(
        "ttnn.tracer is not emulated",
        expected="programs that do not draw their graph",
        fix="Use operation hooks instead.",
    )


def trace() -> None:
    """Record the graph of what runs inside the `with` block: not emulated."""
    enable_tracing()


def get_graph(outputs: object, *, flatten: bool = False) -> None:
    """The recorded graph of tensors: not emulated."""
    enable_tracing()


def visualize(outputs: object) -> None:
    """Draw the recorded graph of tensors: not emulated."""
    enable_tracing()


def codegen(outputs: object) -> None:
    """Write the recorded graph of tensors as a program: not emulated."""
    enable_tracing()


def disable_tracing() -> None:
    """Does nothing: tracing is never enabled."""


def is_tracing_enabled() -> bool:
    """Whether the graph tracer records."""
    return False


def reset_comparison_records_data() -> None:
    """Comparison mode keeps no records, so there is never one to forget."""
