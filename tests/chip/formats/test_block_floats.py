"""Block floats are rounded bit for bit as TT-NN's host code and as the chip's packer round them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttmesh.base.dtypes import DataType, bfloat4_b, bfloat8_b, bfloat16
from ttmesh.chip.formats.block_float import decode, encode, quantise
from ttmesh.chip.formats.kernels import block_tiles
from ttmesh.chip.formats.tiles import Tile

FORMATS = {"bfloat8_b": bfloat8_b, "bfloat4_b": bfloat4_b}
PACKERS = {"host": "", "device": "_device"}
ROWS = [
    "ones",
    "ramp_0_15",
    "neg_ramp",
    "upstream_64p75_65p25_64p5_65p5",
    "saturate_no_exp_bump",
    "mixed_exponents",
    "neg_zero_denormal",
    "inf_kills_row",
    "nan_row",
    "sticky_loss",
    "zeros",
]


def _fields(mantissa_bytes: str, dtype: DataType) -> torch.Tensor:
    packed = torch.tensor(list(bytes.fromhex(mantissa_bytes)), dtype=torch.uint8)
    return packed if dtype == bfloat8_b else torch.stack([packed & 0xF, packed >> 4], -1).flatten()


def _input(row: dict[str, Any]) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(row["input_f32_hex"]), dtype=torch.float32)


def _bits(values: torch.Tensor) -> list[int]:
    return values.contiguous().view(torch.int16).flatten().tolist()


def _any_floats(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Random bit patterns: every exponent, denormals, infinities, NaNs."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32)
    near = torch.randn(shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < 0.5, bits.view(torch.float32), near)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("packer", PACKERS)
def test_golden_rows_encode(golden: dict[str, Any], name: str, format_name: str, packer: str) -> None:
    row = golden["row_vectors"][name]
    expected = row[format_name + PACKERS[packer]]

    exponents, fields = encode(_input(row)[None], FORMATS[format_name], packer)

    assert exponents.item() == expected["exp"]
    assert fields[0].tolist() == _fields(expected["mantissa_bytes"], FORMATS[format_name]).tolist()


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("packer", PACKERS)
def test_golden_rows_quantise(golden: dict[str, Any], name: str, format_name: str, packer: str) -> None:
    row, dtype = golden["row_vectors"][name], FORMATS[format_name]
    expected = row[format_name + PACKERS[packer]]
    exponent = torch.tensor([[expected["exp"]]], dtype=torch.uint8)

    lanes = quantise(_input(row)[None], dtype, packer=packer)

    assert _bits(lanes) == _bits(decode(exponent, _fields(expected["mantissa_bytes"], dtype)[None], dtype))


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("dtype", FORMATS.values())
@pytest.mark.parametrize("packer", PACKERS)
@settings(deadline=None, max_examples=25, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), shape=st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple))
def test_quantise_is_idempotent(dtype: DataType, packer: str, seed: int, shape: tuple[int, ...]) -> None:
    once = quantise(_any_floats(seed, shape), dtype, packer=packer)

    again = quantise(once, dtype, packer=packer)

    assert torch.equal(once.nan_to_num(7.0), again.nan_to_num(7.0))  # as values: the chip's second pass drops -0's sign
    assert torch.equal(once.isnan(), again.isnan())


@pytest.mark.skipif(not block_tiles.supports(torch.zeros(1)), reason="no C compiler")
@pytest.mark.parametrize("dtype", FORMATS.values())
@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@settings(deadline=None, max_examples=40, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), shape=st.lists(st.integers(1, 70), min_size=1, max_size=3).map(tuple))
def test_kernel_and_torch_give_the_same_bits(
    dtype: DataType, packer: str, source: torch.dtype, seed: int, shape: tuple[int, ...]
) -> None:
    values = _any_floats(seed, shape).to(source)
    padded = torch.nn.functional.pad(values, (0, -shape[-1] % 16)).reshape(-1, 16)
    by_torch = decode(*encode(padded, dtype, packer), dtype).view(*shape[:-1], -1)[..., : shape[-1]]

    by_kernel = block_tiles.quantise(values, dtype, packer, 0.0)

    assert _bits(by_kernel) == _bits(by_torch)


@pytest.mark.usefixtures("served")
def test_neighbours_share_an_exponent_along_rows() -> None:
    values = torch.ones(1, 40)
    values[0, 0] = 1000.0

    lanes = quantise(values, bfloat8_b)

    assert lanes[0, 1].item() == 0.0  # 1 is less than half of 1000's last place, 8
    assert lanes[0, 16:].tolist() == [1.0] * 24


@pytest.mark.usefixtures("served")
def test_columns_share_an_exponent_in_a_transposed_tile() -> None:
    values = torch.randn(33, 20, generator=torch.Generator().manual_seed(1))

    lanes = quantise(values, bfloat4_b, tile=Tile(transpose_tile=True))

    assert torch.equal(lanes, quantise(values.T.contiguous(), bfloat4_b).T)


@pytest.mark.usefixtures("served")
def test_padding_counts_in_the_shared_exponent() -> None:
    values = torch.ones(2, 20)

    lanes = quantise(values, bfloat8_b, pad_value=1000.0)

    assert lanes[:, :16].eq(1).all()
    assert lanes[:, 16:].eq(0).all()


@pytest.mark.usefixtures("served")
def test_zeros_of_any_rank_pass() -> None:
    for shape in ((), (3,), (0, 5), (5, 0), (2, 3, 4, 5)):
        assert quantise(torch.zeros(shape), bfloat8_b).shape == shape


def test_meta_values_give_meta_lanes() -> None:
    lanes = quantise(torch.empty(4, 5, device="meta"), bfloat8_b)

    assert (lanes.device.type, lanes.dtype, lanes.shape) == ("meta", torch.bfloat16, (4, 5))


def test_other_formats_have_no_packer() -> None:
    with pytest.raises(RuntimeError, match=r"no 'host' packer for DataType\.BFLOAT16"):
        quantise(torch.zeros(1), bfloat16)
