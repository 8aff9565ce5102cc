"""The passes of TT-NN's Fourier transforms: transforms of short rows, twiddles, products, transposes of rows."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import ROW_MAJOR_LAYOUT, DataType, bfloat16, float32
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import like_first
from ttmesh.ops.goldens import linear_algebra as goldens
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.tensor import Tensor

Lanes = torch.Tensor
Pair = tuple[Lanes, Lanes]
LONGEST_ROW = 1024  # numbers that a pass holds per row; longer transforms take several passes
# How TT-NN's texts print a format.
FORMAT_NUMBERS = {name: i for i, name in enumerate(("BFLOAT16", "FLOAT32", "UINT32", "BFLOAT8_B", "BFLOAT4_B"))}
FORMAT_NUMBERS |= {"UINT8": 5, "UINT16": 6, "INT32": 7}


def is_power_of_two(number: int) -> bool:
    """Whether it is 1, 2, 4, 8 …"""
    return number >= 1 and number & (number - 1) == 0


def check_rows(call: Call, name: str, supported: str) -> None:
    """Refuse a first tensor that is not float rows; `supported` is the middle of TT-NN's text."""
    spec = call.specs[0]
    number = FORMAT_NUMBERS.get(spec.dtype.name, spec.dtype.name)
    wrong = f"{name}: only Float32 and BFloat16 {supported} (got {number})."
    require(is_float(spec.dtype), wrong, "float32 or bfloat16", "Convert it with ttnn.typecast.")


def check_layout(call: Call, wrong: str) -> None:
    """Refuse tensors in tiles, in these words."""
    in_rows = all(spec.layout is ROW_MAJOR_LAYOUT for spec in call.specs)
    require(in_rows, wrong, "row-major tensors", "Use ttnn.to_layout.")


def is_float(dtype: DataType) -> bool:
    """Whether transforms take the format."""
    return dtype in (float32, bfloat16)


def join(real: Lanes, imag: Lanes | None) -> Lanes:
    """Complex lanes of the two parts."""
    return torch.complex(real.float(), torch.zeros_like(real, dtype=torch.float32) if imag is None else imag.float())


def split(values: Lanes) -> Pair:
    """The two parts of complex lanes."""
    return values.real.contiguous(), values.imag.contiguous()


def turn_rows(values: Lanes, modulus: int, steps: int, lane_axes: int, stride: int = 1) -> Lanes:
    """Multiply number k of row r by exp(-2πi · (r // stride % modulus) · k / steps)."""
    length = values.shape[-1]
    flat = values.reshape(*values.shape[:lane_axes], -1, length)
    rows = torch.arange(flat.shape[-2], device=values.device) // stride % modulus
    columns = torch.arange(length, device=values.device)
    turns = torch.outer(rows, columns) % steps  # exact: an angle of many turns has few bits left
    angles = (-2 * torch.pi / steps) * turns.double()
    return (flat * torch.polar(torch.ones_like(angles), angles).to(values.dtype)).reshape(values.shape)


def count_rows(call: Call) -> int:
    """The product of all dims but the last."""
    spec = call.specs[0]
    return int(spec.shape.volume()) // max(int(spec.shape[-1]), 1)


def _check_radix(call: Call) -> None:
    check_rows(call, "fft_radix_pass", "inputs supported")
    check_layout(call, "fft_radix_pass: only ROW_MAJOR layout supported.")
    length, rows, name = int(call.specs[0].shape[-1]), count_rows(call), "fft_radix_pass"
    row, modulus, stride = call["P"], call["twiddle_N2"], call["stride"]
    wrong = f"{name}: input last dim ({length}) must equal params.P ({row})."
    require(length == row, wrong, f"P={length}", "Pass the length of the rows as P.")
    fits = is_power_of_two(length) and 2 <= length <= LONGEST_ROW
    require(
        fits, f"{name}: P must be pow-2 in [2, 1024] (got {length}).", "a power of two", "Use ttnn.experimental.fft."
    )
    wrong = f"{name}: total batch (product of leading dims) must be pow-2 and >=1 (got {rows})."
    require(is_power_of_two(rows), wrong, "a power of two", "Pad the leading dims with ttnn.pad.")
    if modulus:
        fits = is_power_of_two(modulus) and modulus <= LONGEST_ROW
        wrong = f"{name}: twiddle_N2 must be pow-2 in [1, 1024] (got {modulus})."
        require(fits, wrong, "a power of two", "Pass another twiddle_N2.")
        fits = is_power_of_two(stride) and stride <= rows
        wrong = f"{name}: stride must be pow-2 in [1, M={rows}] (got {stride})."
        require(fits, wrong, "a power of two", "Pass another stride.")
        wrong = f"{name}: (M={rows} / stride={stride}) must be a multiple of twiddle_N2 {modulus}."
        require(rows // stride % modulus == 0, wrong, "a divisor of the rows", "Change twiddle_N2 or stride.")


@device_operation("ttnn.experimental.fft_radix_pass", check=_check_radix, out=like_first)
def _transform_rows(
    input_real: Lanes,
    input_imag: Lanes | None,
    P: int,
    twiddle_N2: int,
    stride: int,
    output_scale: float,
    lane_axes: int,
) -> Pair:
    values = torch.fft.fft(join(input_real, input_imag))
    if twiddle_N2:
        values = turn_rows(values, twiddle_N2, P * twiddle_N2, lane_axes, stride)
    return split(values * output_scale)


@composite("ttnn.experimental.fft_radix_pass")
def fft_radix_pass(
    input_real: Tensor,
    P: int,
    twiddle_N2: int,
    stride: int,
    output_scale: float,
    input_imag: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The transform of every row of length P, times its row's twiddles and output_scale."""
    options = {"P": P, "twiddle_N2": twiddle_N2, "stride": stride, "output_scale": output_scale}
    real, imag = _transform_rows(input_real=input_real, input_imag=input_imag, **options)
    return real, imag


def _check_twiddles(call: Call) -> None:
    name, outer, inner = "apply_twiddles", call["N1"], call["N2"]
    check_rows(call, name, "inputs are supported")
    check_layout(call, f"{name}: only ROW_MAJOR layout is supported.")
    length, rows, fix = int(call.specs[0].shape[-1]), count_rows(call), "Pass another number for this parameter."
    fits = is_power_of_two(outer) and 2 <= outer <= LONGEST_ROW
    require(fits, f"{name}: N1 must be pow-2 in [2, 1024] (got {outer}).", "a power of two", fix)
    fits = is_power_of_two(inner) and inner <= LONGEST_ROW
    require(fits, f"{name}: N2 must be pow-2 in [1, 1024] (got {inner}).", "a power of two", fix)
    require(length == outer, f"{name}: input last dim ({length}) must equal N1 ({outer}).", f"N1={length}", fix)
    wrong = f"{name}: total row count M={rows} must be a positive multiple of N2={inner}."
    require(rows % inner == 0, wrong, f"a multiple of {inner}", fix)


@op("ttnn.experimental.apply_twiddles", golden=goldens.apply_twiddles, check=_check_twiddles)
def apply_twiddles(input_real: Lanes, input_imag: Lanes, N1: int, N2: int, lane_axes: int) -> Pair:
    """Row r times exp(-2πi · (r % N2) · k / (N1 · N2)): what stands between two passes."""
    return split(turn_rows(join(input_real, input_imag), N2, N1 * N2, lane_axes))


def _check_large_twiddles(call: Call) -> None:
    name, row, modulus, full = "apply_twiddles_xl", call["P"], call["big_modulus"], call["full_N"]
    check_rows(call, name, "inputs are supported")
    check_layout(call, f"{name}: only ROW_MAJOR layout is supported.")
    length, rows, fix = int(call.specs[0].shape[-1]), count_rows(call), "Pass another number for this parameter."
    fits = is_power_of_two(modulus) and modulus <= 2**20
    require(fits, f"{name}: big_modulus must be pow-2 in [1, 1048576] (got {modulus}).", "a power of two", fix)
    wrong = f"{name}: full_N must be pow-2 and >= big_modulus (got full_N={full} big_modulus={modulus})."
    require(is_power_of_two(full) and full >= modulus, wrong, "a power of two", fix)
    require(length == row, f"{name}: input last dim ({length}) must equal P ({row}).", f"P={length}", fix)
    wrong = f"{name}: total row count M={rows} must be a positive multiple of big_modulus={modulus}."
    require(rows % modulus == 0, wrong, f"a multiple of {modulus}", fix)


@op("ttnn.experimental.apply_twiddles_xl", golden=goldens.apply_twiddles_xl, check=_check_large_twiddles)
def apply_twiddles_xl(
    input_real: Lanes, input_imag: Lanes, P: int, big_modulus: int, full_N: int, lane_axes: int
) -> Pair:
    """Row r times exp(-2πi · (r % big_modulus) · k / full_N)."""
    return split(turn_rows(join(input_real, input_imag), big_modulus, full_N, lane_axes))


def _check_product(call: Call) -> None:
    name = "complex_mul"
    check_rows(call, name, "inputs are supported")
    check_layout(call, f"{name}: only ROW_MAJOR layout is supported.")
    alike = len({tuple(spec.shape) for spec in call.specs}) == 1
    require(alike, f"{name}: all four input tensors must share the same shape.", "equal shapes", "Repeat one.")
    length = int(call.specs[0].shape[-1])
    wrong = f"{name}: last-dim row length must be in [1, 1024] (got {length})."
    require(length <= LONGEST_ROW, wrong, "at most 1024", "Reshape the tensors to shorter rows.")


@op("ttnn.experimental.complex_mul", golden=goldens.complex_mul, check=_check_product)
def complex_mul(a_real: Lanes, a_imag: Lanes, b_real: Lanes, b_imag: Lanes) -> Pair:
    """The complex product of two tensors that are given as parts."""
    return split(join(a_real, a_imag) * join(b_real, b_imag))


def _check_transpose(call: Call) -> None:
    name, shape = "transpose_rm", call.specs[0].shape
    check_rows(call, name, "supported")
    check_layout(call, f"{name}: only ROW_MAJOR layout supported.")
    require(len(shape) >= 2, f"{name}: input must have >=2 dims (got {len(shape)}).", "two dims", "Use ttnn.unsqueeze.")
    for extent, which in ((int(shape[-2]), "A (second-to-last dim)"), (int(shape[-1]), "C (last dim)")):
        wrong = f"{name}: {which} must be a multiple of 32 and >=32 (got {extent})."
        require(extent % 32 == 0 and extent > 0, wrong, "a multiple of 32", "Pad it with ttnn.pad.")


@op("ttnn.experimental.transpose_rm", golden=goldens.transpose_rm, check=_check_transpose)
def transpose_rm(input: Lanes) -> torch.Tensor:
    """The last two dims of row-major rows exchanged."""
    return input.transpose(-1, -2).contiguous()
