"""Which numbers a range [low, high) of random numbers holds in a format: the smallest and the largest, no subnormals."""

from __future__ import annotations

import math
import struct

from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import require

NORMAL = 0x0080_0000  # place of the smallest normal float32 among all of them; bfloat16 has the same
SMALLEST = 2.0**-126
BFLOAT16_STEP = 1 << 16  # so many float32 from one bfloat16 to the next


def _place(value: float) -> int:
    """The position of a float32 in the order of all float32 numbers; 0 for zero."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    size = int(bits & 0x7FFF_FFFF)
    return -size if bits >> 31 else size


def _at(place: int) -> float:
    (value,) = struct.unpack("<f", struct.pack("<I", abs(place)))
    return -float(value) if place < 0 else float(value)


def _first(place: int, step: int) -> int:
    if -NORMAL < place < NORMAL:
        return NORMAL if place > 0 else 0
    return -(-place // step) * step


def _last(place: int, step: int) -> int:
    """The last one before a place."""
    if -NORMAL < place <= NORMAL:
        return 0 if place > 0 else -NORMAL
    return (place - 1) // step * step


def inclusive_range(low: float, high: float, dtype: DataType) -> tuple[float, float]:
    """The first and the last number of [low, high); formats other than bfloat16 are drawn as float32."""
    span = f"[{low}, {high})"
    finite = math.isfinite(low) and math.isfinite(high)
    require(finite, f"Uniform range endpoints must be finite, got {span}", "two numbers", "Choose other bounds.")
    wrong = f"Uniform range lower bound must be less than upper bound, got {span}"
    require(low < high, wrong, "low < high", "Swap them.")
    step = BFLOAT16_STEP if dtype is DataType.BFLOAT16 else 1
    first, last = _at(_first(_place(low), step)), _at(_last(_place(high), step))
    wrong = f"Requested range {span} contains no value representable in the output dtype without subnormals"
    require(first <= last, wrong, "a wider range", "Choose other bounds.")
    scale = last - first
    wrong = f"Requested range {span} is too wide for a finite FP32 scale"
    require(scale <= 3.4028234663852886e38, wrong, "a narrower range", "Choose other bounds.")
    wrong = f"Requested range {span} requires a subnormal scale unsupported by the SFPU"
    require(scale == 0 or scale >= SMALLEST, wrong, "a wider range", "Choose other bounds.")
    return first, last
