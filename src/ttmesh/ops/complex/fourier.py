"""Fourier transforms of the last dim: any length, in as many device programs as TT-NN's composition takes."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from ttmesh.base.errors import require
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.complex.fourier_passes import (
    LONGEST_ROW,
    Lanes,
    Pair,
    check_layout,
    check_rows,
    count_rows,
    is_float,
    is_power_of_two,
    join,
    split,
)
from ttmesh.ops.goldens import linear_algebra as goldens
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

TWO_PASSES = 2**20  # the longest transform of two passes of 1024
REBANK_BYTES = 65536  # of a row that TT-NN pads to whole rows of 1024
PRECISIONS = ("precise", "fast")


def _check(call: Call) -> None:
    spec, inverse = call.specs[0], call["inverse"]
    length, rows, name = int(spec.shape[-1]), count_rows(call), "ifft" if inverse else "fft"
    precision = call["precision"]
    wrong = (
        f"ttnn.experimental.fft / ttnn.experimental.ifft: precision must be 'precise' or 'fast' (got '{precision}')."
    )
    require(precision in PRECISIONS, wrong, "'precise' or 'fast'", "Pass one of these words as precision.")
    wrong = f"ttnn::experimental::{name}: last-dim length N must be >= 2 (got N={length}). N=0 wraps to M=0"
    require(length >= 2, wrong, "two numbers", "Reshape the tensor.")
    if len(call.specs) > 1:
        _check_parts(call, name)
    if inverse and is_power_of_two(length) and length <= LONGEST_ROW:
        check_rows(call, "fft_radix_pass", "inputs supported")
        check_layout(call, "fft_radix_pass: only ROW_MAJOR layout supported.")
    check_rows(call, "fft", "inputs are supported")
    check_layout(call, f"fft: only ROW_MAJOR layout is supported (got {int(spec.layout.name == 'TILE')}).")
    _check_batch(length, rows, inverse)
    if not is_power_of_two(length):
        _check_padded(length, spec)


def _check_parts(call: Call, name: str) -> None:
    real, imag = call.specs[:2]
    numbers = ", ".join(f"{part}={int(s.dtype.name == 'FLOAT32')}" for part, s in (("real", real), ("imag", imag)))
    wrong = f"ttnn::experimental::{name}: input_real/input_imag dtype mismatch ({numbers})."
    require(real.dtype is imag.dtype, wrong, "one format", "Convert one with ttnn.typecast.")
    same = tuple(real.shape) == tuple(imag.shape)
    wrong = f"ttnn::experimental::{name}: input_real and input_imag must share shape."
    require(same, wrong, "equal shapes", "Reshape one.")


def _check_batch(length: int, rows: int, inverse: bool) -> None:
    if is_power_of_two(rows):
        return
    padded = length if is_power_of_two(length) else _convolution_length(length)
    if padded > LONGEST_ROW:
        wrong = f"prim::fft: N={padded} out of small-N range (2..1024).  Large-N routing should have intercepted this"
    elif inverse and padded == length:
        wrong = f"fft_radix_pass: total batch (product of leading dims) must be pow-2 and >=1 (got {rows})."
    else:
        wrong = f"prim::fft: batch dim B={rows} must be a positive power of two."
    require(False, wrong, "a product of the leading dims that is a power of two", "Pad a leading dim with ttnn.pad.")


def _check_padded(length: int, spec: TensorSpec) -> None:
    size = -(-length // LONGEST_ROW) * LONGEST_ROW * (4 if spec.dtype.name == "FLOAT32" else 2)
    fits = length <= LONGEST_ROW or length % LONGEST_ROW == 0 or size <= REBANK_BYTES
    wrong = f"complex_mul_safe Case B: P_pad×elem_bytes = {size} exceeds L1 rebank threshold {REBANK_BYTES}"
    require(fits, wrong, f"rows of at most {REBANK_BYTES} bytes", "Pad the last dim to a power of two.")


def _convolution_length(length: int) -> int:
    """The power of two in which a transform of another length is computed as a convolution (Bluestein)."""
    return 1 << (2 * length - 2).bit_length()


def _programs(call: Call) -> tuple[Hashable, ...]:
    """The programs of TT-NN's composition, as it counts them on an empty cache."""
    spec, length = call.specs[0], int(call.specs[0].shape[-1])
    key = (count_rows(call), spec.dtype, spec.memory_config, bool(call["inverse"]), len(call.specs))
    if is_power_of_two(length) and not call["N"]:
        names = _list_passes(length)
    else:
        names = _list_convolution(_convolution_length(length))
    return tuple(("ttnn.experimental.fft", name, length, *key) for name in names)


def _list_passes(length: int) -> list[str]:
    if length <= LONGEST_ROW:
        return ["rows"]
    odd = length.bit_length() % 2 == 0  # an odd power of two: the passes have different lengths
    shared = ["first rows", "second rows", "transpose", "to rows", "from rows", *["other transpose"] * odd]
    if length <= TWO_PASSES:
        return shared
    return [*shared, "third rows", "twiddles", *(f"move {i}" for i in range(7))]


def _list_convolution(padded: int) -> list[str]:
    shared = ["multiply", "pad", "multiply padded", "inverse", "cut"]
    inner = _list_passes(padded)
    if padded <= LONGEST_ROW:
        return [*shared, *inner]
    pieces = ["to pieces", "from pieces"] if padded == 2 * LONGEST_ROW else [f"piece {i}" for i in range(6)]
    return [*shared, *inner, *pieces]


@device_operation("ttnn.experimental.fft", check=_check, programs=_programs)
def _transform(input_real: Lanes, input_imag: Lanes | None, inverse: bool, precision: str, N: int) -> Pair:
    transform = torch.fft.ifft if inverse else torch.fft.fft
    return split(transform(join(input_real, input_imag)))


@composite("ttnn.experimental.fft", golden=goldens.fft)
def fft(input_real: Tensor, precision: str, input_imag: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The Fourier transform of the last dim, as a real and an imaginary tensor."""
    real, imag = _transform(input_real=input_real, input_imag=input_imag, inverse=False, precision=precision, N=0)
    return real, imag


@composite("ttnn.experimental.ifft", golden=goldens.ifft)
def ifft(spectrum_real: Tensor, spectrum_imag: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """The inverse Fourier transform of the last dim."""
    options = {"inverse": True, "precision": precision, "N": 0}
    real, imag = _transform(input_real=spectrum_real, input_imag=spectrum_imag, **options)
    return real, imag


@composite("ttnn.experimental.bluestein_fft", golden=goldens.bluestein_fft)
def bluestein_fft(
    input_real: Tensor, N: int, precision: str, input_imag: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The Fourier transform of rows of any length, as a convolution."""
    rank, last = len(input_real.shape), int(input_real.shape[-1])
    wrong = f"bluestein_fft: input must be 2-D (B, N).  Got rank {rank}."
    require(rank == 2, wrong, "a matrix", "Use ttnn.reshape.")
    wrong = f"bluestein_fft: input last-dim must equal N = {N} (got {last})."
    require(last == N, wrong, f"N={last}", "Pass the length of the rows as N.")
    supported = is_float(input_real.dtype)
    wrong = "bluestein_fft: only Float32 / BFloat16 supported."
    require(supported, wrong, "float32 or bfloat16", "Convert it with ttnn.typecast.")
    real, imag = _transform(input_real=input_real, input_imag=input_imag, inverse=False, precision=precision, N=N)
    return real, imag


def _factors(length: int) -> tuple[int, int, int]:
    """The lengths of three passes: the last as long as it can be, the first two equal or the first twice as long."""
    last = min(LONGEST_ROW, length // 1024)
    rest = length // last
    second = 1 << ((rest.bit_length() - 1) // 2)
    return rest // second, second, last


def _check_three(call: Call) -> None:
    length, shape = call["full_N"], call.specs[0].shape
    power = length.bit_length() - 1
    fits = is_power_of_two(length) and 15 <= power <= 30
    wrong = f"fft_three_pass: N must be in [2^15, 2^30] (got 2^{power})."
    require(fits, wrong, "a power of two from 2^15 on", "Use ttnn.experimental.fft.")
    first, second, last = _factors(length)
    found = f"for full_N={length} (N1={first}, N2={second}, N3={last})"
    wrong = f"fft_three_pass: pre-shaped input last dim must be N3={last} {found}; got {shape[-1]}."
    require(shape[-1] == last, wrong, f"rows of {last}", "Use ttnn.reshape, or reshape before from_torch.")
    rows = count_rows(call)
    wrong = f"fft_three_pass: total rows {rows} must be a multiple of N1·N2={first * second} {found}."
    require(rows % (first * second) == 0, wrong, f"a multiple of {first * second} rows", "Pad the batch.")
    check_rows(call, "transpose_rm", "supported")
    check_layout(call, "transpose_rm: only ROW_MAJOR layout supported.")


def _three_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, shape, result=i) for i, (shape, _) in enumerate(inferred)]


def _three_programs(call: Call) -> tuple[Hashable, ...]:
    spec, is_complex = call.specs[0], len(call.specs) > 1
    number = 8 if is_complex and not call["inverse"] else 9  # counted on an empty cache
    key = (tuple(spec.shape), spec.dtype, spec.memory_config, is_complex, bool(call["inverse"]))
    return tuple(("ttnn.experimental.fft_three_pass", i, *key) for i in range(number))


@device_operation("ttnn.experimental.fft_three_pass", check=_check_three, out=_three_spec, programs=_three_programs)
def _transform_in_three(
    input_real: Lanes, input_imag: Lanes | None, full_N: int, inverse: bool, lane_axes: int
) -> Pair:
    values = join(input_real, input_imag)
    values = values.reshape(*values.shape[:lane_axes], -1, full_N)
    found = torch.fft.ifft(values) if inverse else torch.fft.fft(values)
    return split(found.reshape(*found.shape[:-1], *_factors(full_N)))


@composite("ttnn.experimental.fft_three_pass")
def fft_three_pass(
    input_real: Tensor, full_N: int, precision: str, input_imag: Tensor | None = None, inverse: bool = False
) -> tuple[Tensor, Tensor]:
    """The transform of rows that together are full_N numbers, as [batch, N1, N2, N3] in natural order."""
    wrong = f"precision must be 'precise' or 'fast' (got '{precision}')."
    require(precision in PRECISIONS, wrong, "'precise' or 'fast'", "Pass one of these words as precision.")
    options = {"full_N": full_N, "inverse": inverse}
    real, imag = _transform_in_three(input_real=input_real, input_imag=input_imag, **options)
    return real, imag
