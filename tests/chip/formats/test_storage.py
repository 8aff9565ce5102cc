"""Values become lanes as TT-NN's host code converts them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ttmesh.base.dtypes import (
    DataType,
    bfloat4_b,
    bfloat8_b,
    bfloat16,
    float32,
    fp8_e4m3,
    int8,
    int32,
    uint8,
    uint16,
    uint32,
)
from ttmesh.chip.formats.storage import finish, from_lane, infer_dtype, lane_dtype, to_lane, torch_dtype
from ttmesh.chip.formats.tiles import Tile

LANES = {
    float32: torch.float32,
    bfloat16: torch.bfloat16,
    bfloat8_b: torch.bfloat16,
    bfloat4_b: torch.bfloat16,
    uint32: torch.int64,
    uint16: torch.int32,
    uint8: torch.uint8,
    int32: torch.int32,
    int8: torch.int8,
    fp8_e4m3: torch.float8_e4m3fn,
}
USERS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.bool,
]


@pytest.mark.parametrize("dtype", LANES)
@pytest.mark.parametrize("user", USERS)
def test_small_whole_numbers_survive_any_conversion(dtype: DataType, user: torch.dtype) -> None:
    values = torch.tensor([[0, 1, 1, 0]]).to(user)

    lanes = to_lane(values, dtype)

    assert lanes.dtype == lane_dtype(dtype) == LANES[dtype]
    assert from_lane(lanes, dtype).dtype == torch_dtype(dtype)
    assert lanes.float().tolist() == [[0, 1, 1, 0]]
    assert finish(values, dtype).dtype == LANES[dtype]


@pytest.mark.parametrize("repeats", [1, 100])  # torch's vector code treats NaN differently
def test_bfloat16_rounds_as_the_golden_vectors(golden: dict[str, Any], repeats: int) -> None:
    inputs = [int(bits, 16) for bits in golden["bf16"]]
    values = torch.tensor(inputs).to(torch.int32).view(torch.float32).repeat(repeats)

    lanes = to_lane(values, bfloat16)

    got = [bits & 0xFFFF for bits in lanes.view(torch.int16).tolist()]
    assert got == [int(bits, 16) for bits in golden["bf16"].values()] * repeats


def test_bfloat16_values_pass_unchanged() -> None:
    odd_nan = torch.tensor([0x7FA1], dtype=torch.int16).view(torch.bfloat16)

    assert to_lane(odd_nan, bfloat16).view(torch.int16).item() == 0x7FA1


FLOATS = [300.7, -1.9, 3e9, float("nan"), -7e4]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (int32, [300, -1, -(2**31), -(2**31), -70000]),
        (uint16, [300, 0, 0, 0, 0]),
        (uint8, [44, 255, 0, 0, 144]),
        (int8, [44, -1, 0, 0, -112]),
    ],
)
def test_floats_are_cut_towards_zero(dtype: DataType, expected: list[int]) -> None:
    """Out of range as upstream's golden function: int32's minimum, uint16 clamped, bytes wrapped."""
    assert to_lane(torch.tensor(FLOATS), dtype).tolist() == expected


def test_floats_in_range_fill_uint32() -> None:
    assert to_lane(torch.tensor([3e9, 70000.5, -1.0]), uint32).tolist() == [3_000_000_000, 70000, 2**32 - 1]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (uint32, [2**32 - 1, 2**31, 5]),
        (uint16, [65535, 0, 5]),
        (uint8, [255, 0, 5]),
        (int32, [-1, -(2**31), 5]),
        (int8, [-1, 0, 5]),
    ],
)
def test_integers_wrap(dtype: DataType, expected: list[int]) -> None:
    values = torch.tensor([-1, 2**31, 2**32 + 5])

    assert to_lane(values, dtype).tolist() == expected
    assert finish(values, dtype).tolist() == expected


def test_block_floats_from_doubles_pass_through_bfloat16() -> None:
    """TT-NN has no float64 on its host side; the 2^-20 that decides the tie is lost in bfloat16, kept in float32."""
    exact = torch.full((1, 16), 1 + 2**-7 + 2**-20, dtype=torch.float64)

    assert to_lane(exact, bfloat8_b)[0, 0] == 1.0
    assert to_lane(exact.float(), bfloat8_b)[0, 0] == 1 + 2**-6


def test_a_transposed_tile_shares_exponents_along_columns() -> None:
    values = torch.ones(16, 16)
    values[0] = 1000.0
    turned = Tile(transpose_tile=True)

    assert to_lane(values, bfloat8_b)[1].eq(1).all()
    assert to_lane(values, bfloat8_b, tile=turned)[1].eq(0).all()
    assert finish(values, bfloat8_b, tile=turned)[1].eq(0).all()


def test_padding_takes_part_in_shared_exponents() -> None:
    assert to_lane(torch.ones(1, 3), bfloat8_b, pad_value=1000.0).eq(0).all()


def test_results_are_rounded_by_the_chips_packer() -> None:
    row = torch.full((1, 16), 65.5)

    assert to_lane(row, bfloat8_b)[0, 0] == 66.0
    assert finish(row, bfloat8_b)[0, 0] == 65.0


@pytest.mark.parametrize(
    ("value", "expected"), [(1e6, 448.0), (float("-inf"), -448.0), (2**-7, 0.0), (2**-6, 2**-6), (17.0, 16.0)]
)
def test_fp8_saturates_and_has_no_subnormals(value: float, expected: float) -> None:
    assert to_lane(torch.tensor([value]), fp8_e4m3).float().item() == expected


def test_fp8_keeps_nan_and_the_sign_of_zero() -> None:
    lanes = to_lane(torch.tensor([float("nan"), -(2.0**-9)]), fp8_e4m3)

    assert lanes.view(torch.uint8).tolist() == [0x7F, 0x80]


def test_users_see_unsigned_and_float_types() -> None:
    lanes = to_lane(torch.tensor([2**32 - 1]), uint32)

    assert from_lane(lanes, uint32).dtype == torch.uint32
    assert from_lane(lanes, uint32).item() == 2**32 - 1
    assert torch_dtype(bfloat4_b) == torch.float32


def test_the_format_is_inferred_from_the_torch_type() -> None:
    assert [infer_dtype(t) for t in (torch.int64, torch.int16, torch.bool, torch.float16)] == [
        uint32,
        uint16,
        uint8,
        bfloat16,
    ]


def test_float64_must_be_named() -> None:
    with pytest.raises(RuntimeError, match=r"torch\.float64 has no TT-NN format"):
        infer_dtype(torch.float64)


def test_an_invalid_format_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"Unsupported data type DataType\.INVALID"):
        to_lane(torch.zeros(1), DataType.INVALID)


@pytest.mark.parametrize("dtype", LANES)
def test_meta_values_stay_meta(dtype: DataType) -> None:
    values = torch.empty(2, 3, device="meta")

    assert to_lane(values, dtype).dtype == finish(values, dtype).dtype == lane_dtype(dtype)


class NewStorages(TorchDispatchMode):
    """Counts results that do not share storage with an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        held = [a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)]
        self.count += result.untyped_storage().data_ptr() not in held
        return result


@pytest.mark.parametrize(
    ("user", "dtype"),
    [
        *((user, uint32) for user in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32)),
        *((user, uint16) for user in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16)),
        (torch.float32, uint32),
    ],
)
def test_unsigned_values_are_copied_once(user: torch.dtype, dtype: DataType) -> None:
    values = torch.tensor([3, 77, 127]).to(user)

    with NewStorages() as storages:
        lanes = to_lane(values, dtype)

    assert storages.count == 1
    assert (lanes.tolist(), values.tolist()) == ([3, 77, 127], [3, 77, 127])
