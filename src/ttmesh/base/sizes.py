"""Sizes as people read them: 73 KB, 3.17 MB, 11.97 GB, in steps of 1024."""

from __future__ import annotations

UNITS = ("B", "KB", "MB", "GB", "TB")


def size_text(size_bytes: int) -> str:
    """A size with its unit: no decimals below a megabyte, two from there."""
    value, unit = float(size_bytes), 0
    while abs(value) >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.2f} {UNITS[unit]}" if unit > 1 else f"{value:.0f} {UNITS[unit]}"
