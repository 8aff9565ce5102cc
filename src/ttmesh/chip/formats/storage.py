"""How lanes hold the values of each format, and the one rounding when they are written."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from typing import Any

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, FLOATS, INTEGERS, DataType
from ttmesh.base.errors import NotEmulatedError, one_of
from ttmesh.chip.formats.block_float import quantise
from ttmesh.chip.formats.tiles import Tile

# Values of a block float are exactly representable in bfloat16, those of unsigned integers in the next signed type
# (torch computes with those, and hardly at all with uint16 and uint32).
LANE_DTYPES = {
    DataType.FLOAT32: torch.float32,
    DataType.BFLOAT16: torch.bfloat16,
    DataType.BFLOAT8_B: torch.bfloat16,
    DataType.BFLOAT4_B: torch.bfloat16,
    DataType.UINT32: torch.int64,
    DataType.UINT16: torch.int32,
    DataType.UINT8: torch.uint8,
    DataType.INT32: torch.int32,
    DataType.INT8: torch.int8,
    DataType.FP8_E4M3: torch.float8_e4m3fn,
}
# What ttnn.to_torch gives (ttnn/core.py ttnn_dtype_to_torch_dtype).
USER_DTYPES = {
    **LANE_DTYPES,
    DataType.BFLOAT8_B: torch.float32,
    DataType.BFLOAT4_B: torch.float32,
    DataType.UINT32: torch.uint32,
    DataType.UINT16: torch.uint16,
}
# What from_torch makes of a torch dtype when the user names no format (ttnn_dtype_traits.hpp).
INFERRED = {
    torch.float32: DataType.FLOAT32,
    torch.float16: DataType.BFLOAT16,
    torch.bfloat16: DataType.BFLOAT16,
    torch.int64: DataType.UINT32,
    torch.uint32: DataType.UINT32,
    torch.int32: DataType.INT32,
    torch.int16: DataType.UINT16,
    torch.uint16: DataType.UINT16,
    torch.int8: DataType.INT8,
    torch.uint8: DataType.UINT8,
    torch.bool: DataType.UINT8,
}
_MASKS = {DataType.UINT32: 0xFFFFFFFF, DataType.UINT16: 0xFFFF}
_FP8_MAX = 448.0
_FP8_SMALLEST_NORMAL = 2.0**-6


def lane_dtype(dtype: DataType) -> torch.dtype:
    """The torch dtype that lanes of this format have."""
    return _look_up(LANE_DTYPES, dtype)


def torch_dtype(dtype: DataType) -> torch.dtype:
    """The torch dtype that `to_torch` gives users."""
    return _look_up(USER_DTYPES, dtype)


def infer_dtype(torch_type: torch.dtype) -> DataType:
    """The format that `from_torch` chooses when none is named."""
    if torch_type not in INFERRED:
        raise NotEmulatedError(
            f"{torch_type} has no TT-NN format", expected=one_of(INFERRED), fix="Name a dtype or cast the tensor."
        )
    return INFERRED[torch_type]


def to_lane(values: torch.Tensor, dtype: DataType, *, tile: Tile | None = None, pad_value: float = 0.0) -> torch.Tensor:
    """A user's values as lanes, converted as TT-NN's host code converts them; may share storage with the input.

    Args:
        tile: matters to block floats only, when it is transposed: columns share exponents then.
        pad_value: matters to block floats only: padding counts in the exponents of the last columns.
    """
    lane = lane_dtype(dtype)
    if dtype in BLOCK_FLOATS:
        return quantise(_block_float_source(values), dtype, packer="host", tile=tile, pad_value=pad_value)
    if dtype in INTEGERS:
        return _to_integers(values, dtype)
    if dtype == DataType.FP8_E4M3:
        return _to_fp8(values)
    return _to_bfloat16(values) if lane == torch.bfloat16 else values.to(lane)


def finish(values: torch.Tensor, dtype: DataType, *, tile: Tile | None = None) -> torch.Tensor:
    """A result computed in a wider type, rounded once to the format as the chip's packer does."""
    if values.requires_grad and dtype not in INTEGERS:
        return round_through(values, lambda exact: finish(exact, dtype, tile=tile))
    if dtype in BLOCK_FLOATS:
        # The registers that block floats are packed from hold bfloat16, rounded to nearest; the packer then truncates.
        return quantise(values, dtype, packer="device", tile=tile, narrow=True)
    if dtype in INTEGERS:
        return _to_integers(values, dtype)
    return _to_fp8(values) if dtype == DataType.FP8_E4M3 else values.to(lane_dtype(dtype))


def round_through(values: torch.Tensor, round_: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Rounded values, differentiated as torch does a cast: the gradient passes as it is. Packers are no torch functions."""
    if not values.requires_grad:
        return round_(values)
    rounded: torch.Tensor = _Rounded.apply(values, round_)  # type: ignore[no-untyped-call]
    return rounded


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, round_: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        ctx.dtype = values.dtype
        return round_(values.detach())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return grad.to(ctx.dtype), None


def from_lane(values: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Lanes in the torch dtype users see; may share storage with the input."""
    return values.to(torch_dtype(dtype))


def _look_up(table: dict[DataType, torch.dtype], dtype: DataType) -> torch.dtype:
    if dtype not in table:
        raise NotEmulatedError(
            f"Unsupported data type {dtype}", expected=one_of(table), fix="Pass one of these dtypes."
        )
    return table[dtype]


def _block_float_source(values: torch.Tensor) -> torch.Tensor:
    """What TT-NN hands to its packer: the user's type where it has it, else bfloat16 first (two roundings)."""
    if values.dtype in (torch.float32, torch.bfloat16):
        return values
    if values.dtype in (torch.float64, torch.float16, torch.int64):
        return _to_bfloat16(values)
    return values.float()


def _to_bfloat16(values: torch.Tensor) -> torch.Tensor:
    if values.dtype == torch.bfloat16:
        return values
    rounded = values.to(torch.bfloat16)
    # torch's vector code writes 0xffff for a NaN, TT-NN 0x7fc0. A sum is NaN when an element is, and costs one read.
    if values.dtype.is_floating_point and not values.is_meta and isnan(values.sum().item()):
        rounded = torch.where(torch.isnan(rounded), torch.nan, rounded)
    return rounded


def _to_integers(values: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Integers in the lanes' dtype, in one new tensor where torch can."""
    lane, given = lane_dtype(dtype), values.dtype
    if given == lane and dtype not in _MASKS:
        return values
    if given in (torch.uint8, torch.bool, torch_dtype(dtype)):
        return values.to(lane)
    if given.is_floating_point:
        values = _truncate(values, dtype)
    elif given in (torch.uint16, torch.uint32, torch.uint64):
        values = values.to(torch.int64)  # torch masks and narrows only signed types
    values_in_lane = values.to(lane)  # keeps the low bits
    if dtype not in _MASKS:
        return values_in_lane
    mask = _MASKS[dtype]
    return values_in_lane.bitwise_and(mask) if given == lane else values_in_lane.bitwise_and_(mask)


def _truncate(values: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Floats truncated towards zero. Out of range: uint16 clamps, int32 gives its minimum, the others wrap, as in TT-NN."""
    if dtype == DataType.INT32:
        return values.to(torch.int32)
    if dtype == DataType.UINT16:
        return values.to(torch.int32).clamp(0, 0xFFFF)
    return values.to(torch.int64)


def _to_fp8(values: torch.Tensor) -> torch.Tensor:
    if values.dtype == torch.float8_e4m3fn:
        return values
    floats = values.float()
    # The chip has no fp8 subnormals and saturates; torch has them and overflows to NaN.
    normal = torch.where(floats.abs() < _FP8_SMALLEST_NORMAL, torch.copysign(torch.zeros_like(floats), floats), floats)
    return normal.clamp(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn)


assert LANE_DTYPES.keys() == FLOATS | INTEGERS, "a format has no lane dtype"
