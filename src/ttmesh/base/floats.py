"""Floating-point numbers as dictionary keys."""

from __future__ import annotations

from struct import Struct

_pack = Struct("<d").pack


def float_key(value: float) -> float | bytes:
    """The number as a key by its bits: -0.0 is not 0.0, and a NaN equals itself."""
    return value if value < 0 or value > 0 else _pack(value)
