"""Who coordinates the mesh of a test: the first answer wins."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ttmesh.base.errors import CoordinatorError, one_of


def choose(
    *, parameter: int | None, option: str | None, variable: int | None, available: Sequence[int], seed: str
) -> int | None:
    """The test's own parameter, else --coordinator, else TT_COORDINATOR_DEVICE_ID, else nobody in particular."""
    chosen = parameter
    if chosen is None and option not in (None, "all"):
        chosen = random.Random(seed).choice(list(available)) if option == "random" else _number(str(option), available)
    if chosen is None:
        chosen = variable
    if chosen is not None and chosen not in available:
        raise _unknown(chosen, available)
    return chosen


def arranged(size: int, coordinator: int | None, available: Sequence[int]) -> list[int]:
    """Physical ids in ascending order, the coordinator first; without one device 0 leads, as seed 000 says."""
    ids = sorted(available)[:size]
    if coordinator is None:
        return ids
    return [coordinator, *[i for i in ids if i != coordinator][: size - 1]]


def _number(option: str, available: Sequence[int]) -> int:
    try:
        return int(option)
    except ValueError:
        raise _unknown(option, available) from None


def _unknown(value: object, available: Sequence[int]) -> CoordinatorError:
    return CoordinatorError(
        f"coordinator {value!r} names no visible device",
        expected=one_of(available),
        fix="Choose one of them, or `all` or `random` with --coordinator.",
    )
