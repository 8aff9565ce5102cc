"""What operations compute with: torch outside a call, the chip's FPU inside one, at every width and format."""

from __future__ import annotations

import pytest
import torch

from ttmesh.base.dtypes import MathFidelity, bfloat4_b, bfloat8_b, bfloat16, float32
from ttmesh.chip.numerics import fpu, fpu_sums
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.fpu_pools import sum_columns, sum_rows
from ttmesh.chip.numerics.packer import pack, pack_block_floats, pack_codes
from ttmesh.chip.numerics.unpacker import unpack, unpack_codes

NARROW = FpuConfig(fidelity=MathFidelity.HiFi4)
WIDE = FpuConfig(fidelity=MathFidelity.HiFi4, fp32_dest=True)


def _inside(config: FpuConfig, function, *operands: torch.Tensor, exact: bool = True) -> torch.Tensor:
    return fpu.run_in(fpu.Fpu(config, exact), function)(*operands)


def test_outside_a_call_everything_is_torch_s() -> None:
    a, b = torch.randn(8, 40), torch.randn(40, 8)

    assert torch.equal(fpu.matmul(a, b), a @ b)
    assert torch.equal(fpu.total(a, (-1,)), a.sum(-1))
    assert torch.equal(fpu.multiply(a, a), a * a)
    assert fpu.keep(a) is a


def test_gradients_are_torch_s_inside_a_call_too() -> None:
    a, b = torch.randn(8, 40, requires_grad=True), torch.randn(40, 8)

    result = _inside(NARROW, fpu.matmul, a, b)

    assert torch.equal(result, a @ b)
    assert result.requires_grad


def test_an_fpu_ends_with_its_call_and_after_an_error() -> None:
    def fail() -> None:
        raise ValueError("in the body")

    with pytest.raises(ValueError, match="in the body"):
        _inside(NARROW, fail)

    assert fpu.active_config() is None


@pytest.mark.parametrize("exact", [False, True])
def test_ones_summed_in_16_bits_stop_growing_as_on_the_chip(exact: bool) -> None:
    ones = torch.ones(32, 6144)

    narrow, wide = (_inside(c, lambda x: fpu.total(x, (-1,)), ones, exact=exact) for c in (NARROW, WIDE))

    assert torch.equal(narrow, torch.full((32,), 8192.0))  # tt-metal #8449
    assert torch.equal(wide, torch.full((32,), 6144.0))


def test_exact_sums_are_those_of_pooling_and_of_products_with_ones() -> None:
    values = torch.randn(3, 64, 96).bfloat16().float()

    assert torch.equal(fpu_sums.total(values, (-1,), NARROW, keepdim=True, exact=True), sum_columns(values, NARROW))
    assert torch.equal(fpu_sums.total(values, (-2,), NARROW, keepdim=True, exact=True), sum_rows(values, NARROW))


@pytest.mark.parametrize("dims", [(-1,), (-2,), (-3,), (-1, -2), (-1, -3), (-4, -2, -1), (-4, -3, -2, -1)])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("exact", [False, True])
def test_sums_over_any_dims_are_near_torch_s(dims: tuple[int, ...], keepdim: bool, exact: bool) -> None:
    values = torch.randn(2, 3, 33, 40)

    found = fpu_sums.total(values, dims, WIDE, keepdim=keepdim, exact=exact)

    expected = values.sum(dims, keepdim)
    assert found.shape == expected.shape
    assert bool(
        ((found - expected).abs() <= values.abs().sum(dims, keepdim) * 2**-9).all()
    )  # cut to 10 bits, two times


def test_float32_is_cut_not_rounded_on_its_way_into_a_sum() -> None:
    values = torch.full((32, 32), 1 + 2**-10 + 2**-11)

    assert torch.equal(fpu_sums.total(values, (-1,), WIDE), torch.full((32,), 32 * (1 + 2**-10)))
    assert torch.equal(fpu_sums.total(values, (-1,), NARROW), torch.full((32,), 32.0))


@pytest.mark.parametrize("dtype", [bfloat8_b, bfloat4_b])
def test_block_floats_are_packed_like_the_simulator_s_codes_for_every_pattern(dtype) -> None:
    """Infinities, NaN, subnormals, both zeros and random bit patterns."""
    patterns = torch.randint(-(2**31), 2**31 - 1, (256, 64), generator=torch.Generator().manual_seed(5))
    values = patterns.to(torch.int32).view(torch.float32)
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e-40, -1e-40, 0.0, -0.0, 3.4e38, 2**-126])
    values[:8, : len(special)] = special
    values[8:16] = torch.randn(8, 64) * 1e-38

    found = pack(values, dtype)

    expected = unpack_codes(*pack_codes(values, dtype), dtype)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    assert torch.equal(
        pack_block_floats(found, dtype).float().nan_to_num(), found.nan_to_num()
    )  # a second time: the same


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 50])
def test_block_floats_of_any_width(columns: int) -> None:
    values = torch.randn(40, columns)
    padded = torch.nn.functional.pad(values, (0, -columns % 16))

    expected = unpack_codes(*pack_codes(padded, bfloat8_b), bfloat8_b)[:, :columns]

    assert torch.equal(pack(values, bfloat8_b), expected)


@pytest.mark.parametrize("between", [None, bfloat16, bfloat8_b], ids=str)
def test_a_sum_over_height_and_width_keeps_the_rows_sums_in_the_format_between_two_programs(between) -> None:
    values = torch.randn(64, 96, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    rows = sum_columns(values, WIDE)
    kept = rows if between is None else pack(rows, between)

    found = fpu_sums.total(values, (-2, -1), WIDE, keepdim=True, scaler=0.25, exact=True, between=between)

    assert torch.equal(found, sum_rows(unpack(kept, float32, fp32_dest=True), WIDE, scaler=0.25))
