"""Types of option values: each takes what is meant and refuses everything else in one sentence."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable

from ttmesh.base.settings import MAX_SECONDS, parse_integer, parse_seconds

DAY_MS = 24 * 3600 * 1000
MAX_ID = 2**31 - 1
MAX_FLOAT32 = 3.4e38


def number(low: int, high: int) -> Callable[[str], int]:
    """An integer in a range."""

    def parse(text: str) -> int:
        try:
            return parse_integer(text, low, high)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a number from {low} to {high}") from None

    return parse


def seconds(*, zero: bool = False) -> Callable[[str], float]:
    """A time."""

    def parse(text: str) -> float:
        try:
            return parse_seconds(text, zero=zero)
        except ValueError:
            least = "from 0" if zero else "more than 0 and"
            raise argparse.ArgumentTypeError(
                f"{text[:80]!r} is not a number of seconds, {least} at most {MAX_SECONDS:.0f}"
            ) from None

    return parse


def correlation(text: str) -> float:
    """A number from -1 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = 2.0
    if not -1 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a number from -1 to 1")
    return value


def finite(text: str) -> float:
    """A number that float32 holds."""
    try:
        value = float(text)
    except ValueError:
        value = math.inf
    if not abs(value) <= MAX_FLOAT32:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a number of at most {MAX_FLOAT32:.1e}")
    return value


def module_name(text: str) -> str:
    """A module's dotted name."""
    if not all(part.isidentifier() for part in text.split(".")):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not the name of a module, as pytest is")
    return text


def words(text: str) -> tuple[str, ...]:
    """A command line as a shell divides it."""
    try:
        found = tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no command line: {error}") from None
    if not found:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} names no command")
    return found


device = number(0, MAX_ID)
milliseconds = number(50, DAY_MS)
port = number(0, 65535)


def variable_value(text: str) -> tuple[str, str]:
    """The name of an environment variable and a value for it."""
    name, separator, value = text.partition("=")
    if not (separator and name.isidentifier() and value):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not VARIABLE=VALUE")
    return name, value
