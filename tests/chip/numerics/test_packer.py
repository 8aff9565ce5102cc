"""What the packer writes for numbers that a format cannot hold."""

from __future__ import annotations

import pytest
import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType
from ttmesh.chip.numerics.packer import pack_block_floats, pack_codes

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
