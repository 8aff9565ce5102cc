"""Rules that device operations share."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from ttmesh.tensor.calls.operation import Call


def like_written(call: Call, inferred: object) -> list[Any]:
    """The spec of the tensor that is written into, which comes first."""
    return [call.specs[0]]


def no_programs(call: Call) -> tuple[Hashable, ...]:
    """No separate program: TT-NN does this work inside another one."""
    return ()
