"""The compiled attention of few rows gives what softmax and two matmuls give in float64, and NaN where they do."""

from __future__ import annotations

import pytest
import torch

from ttmesh.chip.formats.kernels import attention, loader

pytestmark = pytest.mark.skipif(loader._compiler() is None, reason="no C compiler")
NEVER = float("-inf")


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, mask: torch.Tensor | None) -> torch.Tensor:
    scores = q.double() @ k.double().mT * scale
    return torch.softmax(scores if mask is None else scores + mask, -1) @ v.double()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("rows", "keys", "width"), [(1, 1, 16), (3, 129, 64), (4, 300, 48), (6, 128, 256), (16, 77, 128)]
)
def test_it_is_softmax_and_two_matmuls(dtype: torch.dtype, rows: int, keys: int, width: int) -> None:
    draw = torch.Generator().manual_seed(rows * keys)
    q, k, v = (torch.randn(2, 3, n, width, generator=draw).to(dtype) for n in (rows, keys, keys))
    masks = [None, torch.randn(1, 1, 1, keys, generator=draw), torch.randn(2, 3, rows, keys, generator=draw)]
    tolerance = 2**-8 if dtype is torch.bfloat16 else 2e-6  # rounded once to bfloat16; sums of float32

    for mask in masks:
        assert attention.supports(q, k, v)
        result = attention.attend(q, k, v, scale=0.2, mask=mask)
        expected = _attend(q, k, v, 0.2, mask)
        assert result.dtype is dtype
        assert (result.double() - expected).abs().max() <= tolerance * expected.abs().max()


def test_views_of_longer_caches_and_shared_heads_are_read_where_they_lie() -> None:
    cache = torch.randn(2, 4, 500, 64).bfloat16()
    q, k, v = torch.randn(2, 4, 2, 64), cache[:, :, :100], cache[:, :1, 300:400].expand(2, 4, 100, 64)

    together = attention.attend(q, k, v, scale=0.1, mask=None)

    torch.testing.assert_close(together.double(), _attend(q, k, v, 0.1, None), rtol=1e-5, atol=1e-5)


def test_masked_keys_do_not_count_and_a_row_that_sees_none_has_zeros() -> None:
    q, k, v = torch.randn(1, 1, 2, 64), torch.randn(1, 1, 200, 64), torch.randn(1, 1, 200, 64)
    mask = torch.zeros(1, 1, 2, 200)
    mask[..., 0, 70:] = NEVER
    mask[..., 1, :] = NEVER

    result = attention.attend(q, k, v, scale=1.0, mask=mask)

    expected = _attend(q[..., :1, :], k[..., :70, :], v[..., :70, :], 1.0, None)
    torch.testing.assert_close(result[..., :1, :].double(), expected, rtol=1e-5, atol=1e-5)
    assert not result[..., 1, :].any()


def test_large_scores_do_not_overflow_and_nan_stays() -> None:
    q, k, v = torch.full((1, 1, 1, 64), 30.0), torch.randn(1, 1, 400, 64), torch.randn(1, 1, 400, 64)
    k[..., 250, :] = 20.0
    broken = k.clone()
    broken[..., 7, 3] = float("nan")

    torch.testing.assert_close(attention.attend(q, k, v, scale=1.0, mask=None)[0, 0, 0], v[0, 0, 250])
    assert attention.attend(q, broken, v, scale=1.0, mask=None).isnan().all()


def test_the_number_of_threads_changes_nothing() -> None:
    q, k, v = torch.randn(8, 8, 4, 64), torch.randn(8, 8, 160, 64), torch.randn(8, 8, 160, 64)
    before = torch.get_num_threads()
    results = []

    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(attention.attend(q, k, v, scale=0.125, mask=None))
    torch.set_num_threads(before)

    assert torch.equal(*results)
