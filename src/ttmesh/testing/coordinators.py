"""Which device coordinates the mesh of a test."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ttmesh.base.errors import CoordinatorError, one_of


def choose(
    *, parameter: int | None, option: str | None, variable: int | None, available: Sequence[int], seed: str
) -> int | None:
    """The test's parameter, otherwise --coordinator, otherwise TT_COORDINATOR_DEVICE_ID, otherwise None."""
    chosen = parameter
    if chosen is None and option not in (None, "all"):
        chosen = (
            random.Random(seed).choice(list(available)) if option == "random" else _read_number(str(option), available)
        )
    if chosen is None:
        chosen = variable
    if chosen is not None and chosen not in available:
        raise _make_unknown_error(chosen, available)
    return chosen


def order_devices(size: int, coordinator: int, available: Sequence[int]) -> list[int]:
    """The coordinator, then the other physical ids in ascending order."""
    return [coordinator, *[i for i in sorted(available) if i != coordinator][: size - 1]]


def _read_number(option: str, available: Sequence[int]) -> int:
    try:
        return int(option)
    except ValueError:
        raise _make_unknown_error(option, available) from None


def _make_unknown_error(value: object, available: Sequence[int]) -> CoordinatorError:
    return CoordinatorError(
        f"coordinator {value!r} names no visible device",
        expected=one_of(available),
        fix="Choose one of them, or `all` or `random` with --coordinator.",
    )
