"""Attention by the chip's arithmetic takes keys chunk by chunk."""

from __future__ import annotations

import pytest
import torch

from ttmesh.chip.numerics import fpu
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.ops.attention.fpu_attention import attend_on_fpu

ROWS, DIM = 32, 32


@pytest.mark.parametrize("exact", [False, True], ids=["realistic", "exact"])
@pytest.mark.parametrize("chunk", [32, 64])
def test_keys_that_no_row_sees_leave_every_bit_alone(exact: bool, chunk: int) -> None:
    torch.manual_seed(3)
    keys = 5 * chunk
    q, k, v = (torch.randn(1, 2, rows, DIM).bfloat16().float() for rows in (ROWS, keys, keys))
    start = 3 * chunk - ROWS  # two chunks of keys lie behind these rows
    later = torch.arange(keys) > torch.arange(ROWS)[:, None] + start
    mask = torch.zeros(later.shape).masked_fill_(later, float("-inf"))
    attend = fpu.run_in(fpu.Fpu(FpuConfig(k_block=chunk), exact), attend_on_fpu)
    seen = start + ROWS

    whole = attend(q, k, v, scale=DIM**-0.5, mask=mask, causal=False, sink=None)
    own = attend(q, k[:, :, :seen], v[:, :, :seen], scale=DIM**-0.5, mask=mask[:, :seen], causal=False, sink=None)

    assert torch.equal(whole, own)
