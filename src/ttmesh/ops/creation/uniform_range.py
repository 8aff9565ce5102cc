"""The smallest and largest number of a range [low, high) that a format represents, without subnormals."""

from __future__ import annotations

import math
import struct

from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import require

NORMAL = 0x0080_0000  # the ordinal of the smallest normal float32, which is also bfloat16's
SMALLEST = 2.0**-126
BFLOAT16_STEP = 1 << 16  # float32 numbers from one bfloat16 to the next


def _to_ordinal(value: float) -> int:
    """The ordinal of a float32 among all float32 numbers; 0 for zero."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    magnitude = int(bits & 0x7FFF_FFFF)
    return -magnitude if bits >> 31 else magnitude


def _from_ordinal(ordinal: int) -> float:
    (value,) = struct.unpack("<f", struct.pack("<I", abs(ordinal)))
    return -float(value) if ordinal < 0 else float(value)


def _round_up(ordinal: int, step: int) -> int:
    if -NORMAL < ordinal < NORMAL:
        return NORMAL if ordinal > 0 else 0
    return -(-ordinal // step) * step


def _round_below(ordinal: int, step: int) -> int:
    """The largest ordinal in the format below this one."""
    if -NORMAL < ordinal <= NORMAL:
        return 0 if ordinal > 0 else -NORMAL
    return (ordinal - 1) // step * step


def inclusive_range(low: float, high: float, dtype: DataType) -> tuple[float, float]:
    """The first and the last number of [low, high); formats other than bfloat16 are drawn as float32."""
    span = f"[{low}, {high})"
    finite = math.isfinite(low) and math.isfinite(high)
    require(finite, f"Uniform range endpoints must be finite, got {span}", "two numbers", "Choose other bounds.")
    wrong = f"Uniform range lower bound must be less than upper bound, got {span}"
    require(low < high, wrong, "low < high", "Swap the bounds.")
    step = BFLOAT16_STEP if dtype is DataType.BFLOAT16 else 1
    first, last = _from_ordinal(_round_up(_to_ordinal(low), step)), _from_ordinal(_round_below(_to_ordinal(high), step))
    wrong = f"Requested range {span} contains no value representable in the output dtype without subnormals"
    require(first <= last, wrong, "a wider range", "Choose other bounds.")
    scale = last - first
    wrong = f"Requested range {span} is too wide for a finite FP32 scale"
    require(scale <= 3.4028234663852886e38, wrong, "a narrower range", "Choose other bounds.")
    wrong = f"Requested range {span} requires a subnormal scale unsupported by the SFPU"
    require(scale == 0 or scale >= SMALLEST, wrong, "a wider range", "Choose other bounds.")
    return first, last
