"""Which shapes the operands, the result and the bias of moreh's matmul may have, in the order of TT-NN's checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ttmesh.base.errors import require
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.tensor import Tensor

RANKS = 8
FIX = "Reshape one of the tensors."


def _batches(shape: Sequence[int]) -> list[int]:
    """The lengths of the dims from the last on, filled up with ones."""
    return [*reversed(tuple(shape)), *[1] * (RANKS - len(shape))]


def check_matmul_shapes(
    input: Tensor,
    other: Tensor,
    output: Tensor | None,
    bias: Tensor | None,
    transpose_input: bool = False,
    transpose_other: bool = False,
) -> None:
    """Raise for operands whose shapes do not fit, a result of another shape, or a bias that is no row."""
    if min(len(input.shape), len(other.shape)) < 2:
        return
    (m, k), (other_k, n) = input.shape[-2:], other.shape[-2:]
    m, k = (k, m) if transpose_input else (m, k)
    other_k, n = (n, other_k) if transpose_other else (other_k, n)
    require(k == other_k, f"k must be the same. input_k {k}, other_k {other_k}", "equal inner lengths", FIX)
    a, b = _batches(input.shape), _batches(other.shape)
    for i in range(2, RANKS):
        wrong = f"one of dim must be one. {i}th dim input_dim {a[i]}, other_dim {b[i]}"
        require(a[i] == b[i] or 1 in (a[i], b[i]), wrong, "batches that broadcast", FIX)
    if output is not None:
        _check_output(output, m, n, [max(pair) for pair in zip(a, b, strict=True)])
    if bias is not None:
        rank, width = len(bias.shape), bias.shape[-1]
        require(rank == 2, f"bias rank {rank} must be 2 (tilized).", "a bias of two dims", FIX)
        wrong = f"bias_w must be one or the same as other_n. bias_w {width}, other_n {n}"
        require(width in (1, n), wrong, f"1 or {n} columns", FIX)


def _check_output(output: Tensor, m: int, n: int, batches: Sequence[int]) -> None:
    rows, columns = output.shape[-2:]
    require(m == rows, f"m must be the same. input_m {m}, output_m {rows}", f"{m} rows", FIX)
    require(n == columns, f"n must be the same. other_n {n}, output_n {columns}", f"{n} columns", FIX)
    found = _batches(output.shape)
    for i in range(2, RANKS):
        wrong = f"{i}th max(input_dim[i], other_dim[i]) {batches[i]} must be the same as output_dim[i] {found[i]}"
        require(batches[i] == found[i], wrong, f"length {batches[i]}", FIX)


def operands_are(
    input: str, other: str, *, transpose_input: bool = False, transpose_other: bool = False
) -> Callable[[Call], None]:
    """The check of an operation that multiplies these two of its arguments, transposed or as its arguments say."""

    def check(call: Call) -> None:
        check_matmul_shapes(
            call[input], call[other], call["output"], call["bias"],
            transpose_input or bool(call["transpose_input"]), transpose_other or bool(call["transpose_other"]),
        )  # fmt: skip

    return check


def gradient_of(key: str) -> Callable[[Call], None]:
    """The check of one operand's gradient: a matmul, whose batches are summed if the operand has fewer."""
    input, other, first, second = {
        "left": ("grad", "other", False, True),
        "right": ("other", "grad", True, False),
        "weight": ("grad", "other", True, False),
    }[key]

    def check(call: Call) -> None:
        like = call["output"]
        same = like is None or _batches(call["grad"].shape)[2:] == _batches(like.shape)[2:]
        check_matmul_shapes(call[input], call[other], like if same else None, None, first, second)
        if not same:
            _check_sum(call[input], call[other], like, first, second)

    return check


def _check_sum(input: Tensor, other: Tensor, output: Tensor, transpose_input: bool, transpose_other: bool) -> None:
    """The sum over the batches keeps height and width: padded lengths first, then those without padding."""
    m, n = input.shape[-1 if transpose_input else -2], other.shape[-2 if transpose_other else -1]
    rank = max(len(input.shape), len(other.shape))
    found = [*[1] * (rank - len(output.shape)), *output.shape]
    for i, (length, given) in enumerate(zip((m, n), found[-2:], strict=True)):
        padded, padded_given = (-(-one // 32) * 32 for one in (length, given))
        wrong = f"Input dimension[{1 - i}] ({padded}) must equal output dimension[{1 - i}] ({padded_given})"
        require(padded == padded_given, wrong, f"length {length}", FIX)
