"""Hooks before and after every operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

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


def run_hooked(operation: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a function of the program as an operation: with the hooks around it."""
    hooks = observer.watchers
    for hook in hooks:
        if isinstance(hook, _PreHook):
            hook.before_operation(operation, args, kwargs)
    result = function(*args, **kwargs)
    for hook in hooks:
        if isinstance(hook, _PostHook):
            hook.after_operation(operation, args, kwargs, result)
    return result


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
