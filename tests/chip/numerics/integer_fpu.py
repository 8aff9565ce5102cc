"""The FPU's rules in NumPy's integers, written from their description alone: what the torch and C versions are held to.

Values are float32 patterns (uint32). Sums of a group count units of 2^(exponent - 127 - 10).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Patterns = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]
ABSENT = -(1 << 40)
LEAST_NORMAL, INFINITY = 1, 255


def matmul(a: Patterns, b: Patterns, *, phases: int, wide: bool, fault: bool, dest: Patterns) -> Patterns:
    """The destination after [M, K] @ [K, N] on top of what it held; K in whole tiles."""
    for tile in range(0, a.shape[1], 32):
        for phase in range(phases):
            for k in (tile, tile + 16):
                groups = [_group(a[:, i : i + 8], b[i : i + 8], phase) for i in (k, k + 8)]
                dest = _write(groups, dest, wide=wide, fault=fault)
    return dest


def _fields(patterns: Patterns) -> tuple[Integers, Integers, Integers]:
    bits = patterns.astype(np.int64)
    return bits >> 31, (bits >> 23) & 255, (bits >> 13) & 1023


def _group(a: Patterns, b: Patterns, phase: int) -> tuple[Integers, Integers]:
    a_sign, a_exponent, a_fraction = (field[:, :, None] for field in _fields(a))
    b_sign, b_exponent, b_fraction = (field[None] for field in _fields(b))
    a_part = (a_fraction & 15) << 3 if phase & 2 else 64 + (a_fraction >> 4)
    b_part = (b_fraction >> 1) & 31 if phase & 1 else 16 + (b_fraction >> 6)
    there = (a_exponent > 0) & (b_exponent > 0)
    exponent = np.where(there, a_exponent + b_exponent - 127 - 5 * (phase & 1) - 7 * (phase >> 1), ABSENT)
    largest = exponent.max(1)
    terms = _shift_away(np.where(there, a_part * b_part, 0), largest[:, None] - exponent)
    total = np.where(a_sign ^ b_sign, -terms, terms).sum(1)
    there = largest >= LEAST_NORMAL
    return np.where(there, total, 0), np.where(there, largest, ABSENT)


def _write(groups: list[tuple[Integers, Integers]], dest: Patterns, *, wide: bool, fault: bool) -> Patterns:
    bits = dest.astype(np.int64)
    own = (bits >> 23) & 255
    own = np.where(own == 0, ABSENT, own)
    common = np.maximum(own, np.maximum(groups[0][1], groups[1][1]))
    terms = [_shift_up(total << 13, common - exponent) for total, exponent in groups]
    held = _shift_away(np.where(own == ABSENT, 0, bits & 0x7FFFFF | 0x800000), common - own)
    if not wide:
        terms, held = [_shift_up(term, 13) << 13 for term in terms], _shift_away(held, 13) << 13
    total = terms[0] + terms[1] + np.where(bits >> 31, -held, held)
    lost = fault & wide & (total == -1)
    return _compose(np.where(lost, -(1 << 27), total), common, 24 if wide else 8)


def _compose(total: Integers, common: Integers, precision: int) -> Patterns:
    minus, magnitude = (total < 0).astype(np.int64) << 31, np.abs(total)
    length = sum((magnitude >> place > 0).astype(np.int64) for place in range(40))
    rounded = _shift_away(magnitude, np.maximum(length - precision, 0)) << np.maximum(precision - length, 0)
    carried = rounded >> precision
    exponent = common + length - 24 + carried
    fraction = (rounded >> carried) & ((1 << precision - 1) - 1)
    result = minus | exponent << 23 | fraction << (24 - precision)
    result = np.where(exponent >= INFINITY, minus | 0x7F800000, result)
    return np.where((magnitude == 0) | (exponent < LEAST_NORMAL), 0, result).astype(np.uint32)


def _shift_up(values: Integers, by: Integers | int) -> Integers:
    by = np.minimum(by, 62)
    return (values + (1 << by >> 1)) >> by


def _shift_away(values: Integers, by: Integers | int) -> Integers:
    return np.sign(values) * _shift_up(np.abs(values), by)
