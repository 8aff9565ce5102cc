"""The compiled float32 GEMM: within rounding of float64, the same bits for any threads, shapes and strides."""

from __future__ import annotations

import itertools

import pytest
import torch

from ttmesh.base import settings
from ttmesh.chip.formats.kernels import loader, sgemm, threads
from ttmesh.ops.lane_functions import gemm

pytestmark = pytest.mark.skipif(loader._compiler() is None, reason="no C compiler")
DEPTH = 512  # of sgemm_operands.h
SHAPES = [
    (1, 1, 1),
    (3, 5, 7),
    (14, 16, 32),
    (15, 17, 33),
    (29, 513, 65),
    (64, 1030, 48),
    (530, 20, 131),
    (6, 700, 300),
]


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _bound(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of the error: every multiply-add of a chain and every addition of a piece rounds once."""
    roundings = min(DEPTH, a.shape[-1]) + -(-a.shape[-1] // DEPTH)
    return roundings * 2.0**-24 * (a.double().abs() @ b.double().abs())


def _strided(values: torch.Tensor) -> list[torch.Tensor]:
    """The same values as they lie in memory: by rows, by columns, with gaps along both."""
    gaps = torch.zeros(*values.shape[:-2], values.shape[-2] * 2, values.shape[-1] * 3)[..., ::2, ::3]
    return [values, values.mT.contiguous().mT, gaps.copy_(values)]


@pytest.mark.parametrize(("rows", "depth", "columns"), SHAPES)
def test_odd_shapes_and_strides_are_within_rounding_and_equal_to_each_other(
    rows: int, depth: int, columns: int
) -> None:
    a, b = _draw(rows, depth), _draw(depth, columns, seed=1)
    expected, bound = a.double() @ b.double(), _bound(a, b)

    results = [sgemm.multiply(x, w) for x, w in itertools.product(_strided(a), _strided(b))]

    assert ((results[0].double() - expected).abs() <= bound).all()
    assert all(torch.equal(result, results[0]) for result in results)


def test_the_number_and_the_kind_of_threads_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sgemm, "SPLIT_PRODUCTS", 0)
    sgemm._plan.cache_clear()
    a, b = _draw(3, 200, 530), _draw(3, 530, 260, seed=1)
    before = torch.get_num_threads()
    try:
        results = []
        for number in (1, 2, 3, 8):
            torch.set_num_threads(number)
            results.append(sgemm.multiply(a, b))
        monkeypatch.setattr(threads, "parallel", lambda: None)
        results.append(sgemm.multiply(a, b))
    finally:
        torch.set_num_threads(before)
        sgemm._plan.cache_clear()

    assert all(torch.equal(result, results[0]) for result in results)


def test_a_row_and_a_column_have_the_same_bits_alone_and_among_others() -> None:
    a, b = _draw(40, 600), _draw(600, 70, seed=1)
    together = sgemm.multiply(a, b)

    for row, column in ((0, 0), (13, 31), (14, 32), (39, 69)):
        assert torch.equal(sgemm.multiply(a[row : row + 1], b), together[row : row + 1])
        assert torch.equal(sgemm.multiply(a, b[:, column : column + 1]), together[:, column : column + 1])


@pytest.mark.parametrize(
    ("left", "right"),
    [((8,), (8,)), ((1,), (8,)), ((8,), (1,)), ((2, 4), (2, 4)), ((1, 1), (2, 4)), ((2, 4), (1, 1)), ((1, 3), (1, 3))],
)
def test_batches_are_multiplied_one_by_one(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = _draw(*left, 17, 40), _draw(*right, 40, 35, seed=1)

    result = sgemm.multiply(a, b)

    batch = torch.broadcast_shapes(left, right)
    lefts, rights = a.expand(*batch, 17, 40).reshape(-1, 17, 40), b.expand(*batch, 40, 35).reshape(-1, 40, 35)
    alone = [sgemm.multiply(x, w) for x, w in zip(lefts, rights, strict=True)]
    assert torch.equal(result, torch.stack(alone).view(*batch, 17, 35))


def test_what_it_cannot_take_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sgemm, "has_wide_vectors", lambda: True)
    a, b = _draw(2, 3, 8, 8), _draw(2, 3, 8, 8, seed=1)

    assert sgemm.supports(a, b)
    assert not sgemm.supports(a.transpose(0, 1), b.transpose(0, 1))  # batches at unequal distances
    assert not sgemm.supports(a[:, :1], b)
    assert not sgemm.supports(a[:0], b[:0])
    assert not sgemm.supports(a[..., :0], b[..., :0, :])
    assert not sgemm.supports(a.double(), b.double())
    assert not sgemm.supports(a.requires_grad_(), b)


def test_nan_and_infinity_stay_in_their_row_and_column() -> None:
    a, b = _draw(20, 50), _draw(50, 37, seed=1)
    a[3, 7], b[9, 36] = float("nan"), float("inf")

    result = sgemm.multiply(a, b)

    special = torch.zeros(20, 37, dtype=torch.bool)
    special[3], special[:, 36] = True, True
    assert torch.equal(~result.isfinite(), special)
    assert torch.equal(result.isnan(), (a @ b).isnan())


def test_a_result_in_large_pages_is_whole() -> None:
    a, b = _draw(2500, 3), _draw(3, 4100, seed=1)  # 41 MB

    assert ((sgemm.multiply(a, b).double() - a.double() @ b.double()).abs() <= _bound(a, b)).all()


@pytest.mark.parametrize(
    ("left", "right"),
    [((1, 8, 64, 320), (1, 8, 320, 256)), ((1, 1, 32, 512), (1, 1, 512, 512)), ((1, 1, 4100, 64), (1, 1, 64, 2100))],
)
def test_matmuls_by_torch_and_by_the_kernel_differ_by_rounding(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = _draw(*left), _draw(*right, seed=1)
    compiled = gemm.matmul_lanes(a, b, 2)
    settings.override("TTMESH_KERNELS", False)
    loader.forget()
    try:
        by_torch = gemm.matmul_lanes(a, b, 2)
    finally:
        settings.override("TTMESH_KERNELS", None)
        loader.forget()

    assert compiled.shape == by_torch.shape
    assert ((compiled - by_torch).abs() <= 2 * _bound(a, b)).all()
