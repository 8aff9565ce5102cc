"""Every call of a named operation as a pair of records, with its arguments: for reports of what a program did."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ttmesh.base.records import Called, Returned
from ttmesh.base.signals import signals
from ttmesh.tensor.observer import Watcher, observer
from ttmesh.tensor.tensor import Tensor

if TYPE_CHECKING:
    from ttmesh.tensor.calls.gate import Gate

LONGEST = 500  # characters of an argument


class CallReporter(Watcher):
    """Emits the records."""

    def before_operation(self, operation: Gate, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The call with its arguments."""
        names = list(inspect.signature(operation).parameters)
        given = [*zip(names, args, strict=False), *kwargs.items()]
        arguments = tuple((name, _describe(value)) for name, value in given)
        signals.emit_command(Called(_name_of(operation), arguments))

    def after_operation(self, operation: Gate, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Its end."""
        signals.emit_command(Returned(_name_of(operation)))

    def after_failure(self, operation: Gate, error: BaseException) -> None:
        """Its end, by an error."""
        signals.emit_command(Returned(_name_of(operation)))


def report_calls() -> Callable[[], None]:
    """Emit records of calls from now on; returns a function that stops it."""
    reporter = CallReporter()
    observer.add(reporter)
    return lambda: observer.remove(reporter)


def _name_of(operation: Gate) -> str:
    return str(
        getattr(operation, "python_fully_qualified_name", None) or getattr(operation, "__name__", "an operation")
    )


def _describe(value: Any) -> str:
    """A tensor by its shape and format, anything else as it prints."""
    if isinstance(value, Tensor):
        return f"ttnn.Tensor(shape={value.shape}, dtype={value.dtype}, layout={value.layout})"
    if isinstance(value, (list, tuple)) and any(isinstance(part, Tensor) for part in value):
        return f"[{', '.join(map(_describe, value))}]"
    return str(value)[:LONGEST]
