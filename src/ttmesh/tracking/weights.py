"""How many bytes of the server's memory a value takes."""

from __future__ import annotations

from sys import getsizeof

from msgspec import Struct

LARGE_INT_BYTES = 32
SMALL_INTS = range(-5, 257)  # the interpreter stores these once
SHORT = 32  # characters of a label that is not shared between records
# A held buffer besides the table's row: the record, eight numbers, its key, a short label. Chips and long texts are shared.
RECORD_BYTES = 112 + 8 * LARGE_INT_BYTES + 56 + 49 + SHORT
ACCOUNT_BYTES = 96 + 5 * LARGE_INT_BYTES + 64  # of a process: the account, its numbers, its key
ROUTE_BYTES = 256 + 64 + 2 * LARGE_INT_BYTES  # a group of chips besides them: the route, its keys in two tables
CHIP_BYTES = 2 * (56 + LARGE_INT_BYTES)  # a chip of a process: its keys in two tables
LINK_BYTES = 56 + 3 * LARGE_INT_BYTES  # its counter and its row in a list
PROCESS_BYTES = 4096  # an idle one with its connection


def weigh(value: object) -> int:
    """Bytes of a value and everything it contains."""
    if isinstance(value, bool) or value is None:
        return 0
    if isinstance(value, int):
        return 0 if value in SMALL_INTS else LARGE_INT_BYTES
    if isinstance(value, tuple | list):
        return getsizeof(value) + sum(map(weigh, value))
    if isinstance(value, Struct):
        return getsizeof(value) + sum(weigh(getattr(value, name)) for name in value.__struct_fields__)
    return getsizeof(value)
