"""What `a + b`, `a[...]` and tensor methods call: a table that the operations fill, because tensors must not import them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ttmesh.base.errors import NotEmulatedError

table: dict[str, Callable[..., Any]] = {}


def fill(**operations: Callable[..., Any]) -> None:
    """Enter operations by name."""
    table.update(operations)


def call(name: str, *args: Any, **given: Any) -> Any:
    """Run the operation of this name."""
    operation = table.get(name)
    if operation is None:
        raise NotEmulatedError(
            f"tensors have no operation {name!r}",
            expected="an operation of ttmesh.ttnn",
            fix="Import ttmesh.ttnn, which brings the operations.",
        )
    return operation(*args, **given)
