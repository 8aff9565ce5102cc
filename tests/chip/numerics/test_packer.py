"""What the packer writes for numbers that a format cannot hold."""

from __future__ import annotations

import math

import pytest
import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType
from ttmesh.chip.numerics.fpu_pools import max_rows
from ttmesh.chip.numerics.packer import accumulate, add_block, pack_block_floats, pack_codes, to_bfloat16

PAYLOADS = [0x7FC00000, 0x7FFFFFFF, 0x7F800001, 0x7FFF0000, 0x7F800000]


@pytest.mark.parametrize("sign", [0, -0x80000000])
@pytest.mark.parametrize("payload", PAYLOADS, ids=hex)
@pytest.mark.parametrize("dtype", sorted(BLOCK_FLOATS, key=str), ids=str)
def test_block_floats_have_no_finite_value_for_nan_and_infinity(dtype: DataType, payload: int, sign: int) -> None:
    registers = torch.full((32, 32), payload | sign, dtype=torch.int32).view(torch.float32)

    assert not torch.isfinite(pack_block_floats(registers, dtype)).any()
    codes, exponents = pack_codes(registers, dtype)
    assert (exponents == 255).all()
    assert (codes != 0).all()


@pytest.mark.parametrize("payload", PAYLOADS, ids=hex)
@pytest.mark.parametrize("dtype", sorted(BLOCK_FLOATS, key=str), ids=str)
def test_a_nan_in_a_block_is_written_as_the_infinity_of_its_sign(dtype: DataType, payload: int) -> None:
    registers = torch.ones(1, 32)
    registers.view(torch.int32)[0, 3], registers.view(torch.int32)[0, 20] = payload, payload | -0x80000000
    infinities = registers.clone()
    infinities[0, 3], infinities[0, 20] = torch.inf, -torch.inf

    for found, expected in zip(pack_codes(registers, dtype), pack_codes(infinities, dtype), strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(pack_block_floats(registers, dtype), pack_block_floats(infinities, dtype))


# held in L1, packed, the sum in bfloat16 and in float32 (a NaN stands for the pattern 0x7fc00000)
SUMS = [
    (math.inf, -math.inf, math.nan, math.nan),
    (math.nan, 1.0, math.inf, math.nan),
    (-math.nan, 1.0, -math.inf, math.nan),
    (-math.nan, math.inf, math.inf, math.nan),
    (2.0**-126, -(1.5 * 2.0**-126), -0.0, -0.0),
    (2.0**-127, 2.0**-126, 2.0**-126, 2.0**-126),
    (-(2.0**-130), -(2.0**-130), -0.0, -0.0),
    (1.0, -1.0, 0.0, 0.0),
    (1.0, 2.0**-8, 1.0, 1 + 2.0**-8),
    (1 + 2.0**-7, 2.0**-8, 1 + 2.0**-6, 1 + 2.0**-7 + 2.0**-8),
]


@pytest.mark.parametrize(("held", "packed", "half", "whole"), SUMS)
def test_l1_accumulation_of_special_numbers(held: float, packed: float, half: float, whole: float) -> None:
    values = [torch.full((2,), x, dtype=torch.float64).float() for x in (held, packed, half, whole)]
    values[0] = values[0].copysign(torch.tensor(held))

    for dtype, expected in ((DataType.BFLOAT16, values[2]), (DataType.FLOAT32, values[3])):
        found = accumulate(values[0], values[1], dtype)
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32)), dtype


def test_the_compiled_accumulation_has_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(3)
    bits = torch.randint(-(2**31), 2**31 - 1, (2, 4096), generator=generator).to(torch.int32) & ~0xFFFF
    bits[:, :2048] = bits[:, :2048] & ~0x7E000000 | 0x3C000000  # exponents that meet
    held, dest = bits.view(torch.float32)
    held[held.abs() < 2.0**-126] = 0.0  # no packer writes subnormals
    dest[~dest.isfinite()] = torch.inf

    found = add_block(held.clone(), dest, DataType.BFLOAT16)

    expected = accumulate(held, to_bfloat16(dest), DataType.BFLOAT16)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_maxima_compare_patterns_as_sign_and_magnitude() -> None:
    columns = torch.tensor(
        [[1.0, torch.inf, -torch.inf, -1e-40, -0.0], [0.5, torch.nan, -torch.nan, -1.0, 1e-40]], dtype=torch.float32
    )
    columns[1, 2] = columns[1, 2].copysign(torch.tensor(-1.0))

    found = max_rows(columns)

    expected = torch.tensor([[1.0, torch.nan, -torch.inf, 0.0, 0.0]])
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
