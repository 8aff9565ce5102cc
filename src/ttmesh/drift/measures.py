"""How far two tensors are apart: correlation, relative error, units in the last place."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType

_FRACTION_BITS = {DataType.FLOAT32: 23, DataType.BFLOAT16: 7, DataType.BFLOAT8_B: 6, DataType.BFLOAT4_B: 2}
_SAMPLE = 1 << 22  # values that are looked at; more are sampled evenly


class Distance(NamedTuple):
    """Of a result from its reference. PCC 1 and errors 0 mean equal."""

    pcc: float
    relative_error: float  # norm of the difference over the reference's
    ulp: float  # in units of the format's last place at the reference: 99 of 100 values differ by less

    @property
    def lost(self) -> float:
        """1 - PCC: what errors of several operations add up in."""
        return 1.0 - self.pcc


EQUAL = Distance(1.0, 0.0, 0.0)


def measure(found: torch.Tensor, reference: torch.Tensor, dtype: DataType) -> Distance:
    """How far lanes of a format are from float32 ones."""
    if found.is_meta or found.numel() == 0:
        return EQUAL
    shape = torch.broadcast_shapes(found.shape, reference.shape)  # type: ignore[no-untyped-call]
    mine, wanted = _flat(found, shape), _flat(reference, shape)
    if torch.equal(mine, wanted):
        return EQUAL
    finite = mine.isfinite() & wanted.isfinite()
    if not bool(finite.all()):
        alike = torch.equal(mine.isnan() | mine.isinf(), wanted.isnan() | wanted.isinf())
        mine, wanted = mine[finite], wanted[finite]
        if not alike or mine.numel() == 0:
            return Distance(0.0, float("inf"), float("inf"))
    difference = (mine - wanted).abs()
    norm = float(wanted.norm())
    relative = float(difference.norm()) / norm if norm else float(difference.norm())
    return Distance(_pcc(mine, wanted), relative, _ulp(difference, wanted, dtype))


def _flat(values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    flat = values.expand(shape).reshape(-1)
    step = -(-flat.numel() // _SAMPLE)
    return flat[::step].double()


def _pcc(mine: torch.Tensor, wanted: torch.Tensor) -> float:
    """Pearson's; of constants 1 where they are equal to a thousandth, else 0."""
    a, b = mine - mine.mean(), wanted - wanted.mean()
    scale = float(a.norm() * b.norm())
    if scale == 0.0:
        return float(torch.allclose(mine, wanted, rtol=1e-3, atol=1e-6))
    return max(-1.0, min(1.0, float(a @ b) / scale))


def _ulp(difference: torch.Tensor, wanted: torch.Tensor, dtype: DataType) -> float:
    bits = _FRACTION_BITS.get(dtype)
    if bits is None:
        return float(difference.max())  # integers
    # Block floats share an exponent: their last place is the largest value's.
    size = wanted.abs().max().expand_as(wanted) if dtype in BLOCK_FLOATS else wanted.abs()
    _, exponent = torch.frexp(size.clamp(min=2.0**-126))
    units = difference / torch.ldexp(torch.ones_like(size), exponent - 1 - bits)
    return float(units.kthvalue(max(1, math.ceil(0.99 * units.numel()))).values)
