"""Tensors without elements: operations give results without elements, or zeros, whatever the arithmetic, as TT-NN does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from ttmesh import ttnn
from ttmesh.base.numerics_mode import numerics


@pytest.fixture(scope="module")
def mesh() -> Iterator[ttnn.MeshDevice]:
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    yield mesh
    ttnn.close_mesh_device(mesh)


def _attend(q: ttnn.Tensor, k: ttnn.Tensor, v: ttnn.Tensor) -> Any:
    return ttnn.transformer.scaled_dot_product_attention(q, k, v, is_causal=False)


@pytest.mark.parametrize("mode", ["ideal", "realistic", "exact"])
@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (lambda x: ttnn.softmax(x, dim=-1), [(2, 3, 0)], (2, 3, 0)),
        (lambda x: ttnn.softmax(x, dim=0), [(0, 32, 32)], (0, 32, 32)),
        (ttnn.rms_norm, [(2, 3, 0)], (2, 3, 0)),
        (ttnn.layer_norm, [(2, 3, 0)], (2, 3, 0)),
        (ttnn.moreh_sum, [(0, 32, 32)], (1, 1)),
        (lambda x: ttnn.sum(x, dim=-2), [(1, 0, 64)], (1, 64)),
        (ttnn.matmul, [(0,), (0,)], ()),
        (ttnn.matmul, [(4, 0), (0, 5)], (4, 5)),
        (ttnn.matmul, [(0, 4), (4, 5)], (0, 5)),
        (ttnn.matmul, [(2, 0, 32), (32, 64)], (2, 0, 64)),
        (ttnn.outer, [(1, 1, 0, 32), (1, 1, 0, 32)], (1, 1, 0, 32, 32)),
        (_attend, [(1, 1, 0, 32)] * 3, (1, 1, 0, 32)),
    ],
)
def test_results_have_ttnns_shapes_and_hold_zeros(
    mesh: ttnn.MeshDevice,
    function: Callable[..., Any],
    shapes: Sequence[tuple[int, ...]],
    expected: tuple[int, ...],
    mode: str,
) -> None:
    tensors = [
        ttnn.from_torch(torch.ones(shape), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
        for shape in shapes
    ]

    with numerics(mode):
        result = ttnn.to_torch(function(*tensors))

    assert tuple(result.shape) == expected
    assert torch.equal(result, torch.zeros_like(result))


def test_a_roll_along_no_elements_is_refused(mesh: ttnn.MeshDevice) -> None:
    x = ttnn.from_torch(torch.ones(0, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)

    assert tuple(ttnn.roll(x, 1, 1).shape) == (0, 32)
    with pytest.raises(RuntimeError, match=r"ttnn.roll: dim 0 of \[0, 32\] has no elements"):
        ttnn.roll(x, 1, 0)


@pytest.mark.parametrize("mode", ["ideal", "realistic"])  # exact packs NaN as infinity
@pytest.mark.parametrize("times", [1, 2])  # the second call takes the route of the first
@pytest.mark.parametrize(
    ("shape", "dim", "expected"), [((0, 32, 32), 0, (32, 32)), ((2, 3, 0), -1, (2, 3)), ((2, 0), None, ())]
)
def test_the_mean_of_nothing_is_not_a_number(mesh, shape, dim, expected, mode, times) -> None:
    x = ttnn.from_torch(torch.ones(shape), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)

    with numerics(mode):
        for _ in range(times):
            result = ttnn.to_torch(ttnn.mean(x, dim=dim))

    assert tuple(result.shape) == expected
    assert result.isnan().all()


@pytest.mark.parametrize("pick", [ttnn.max, ttnn.min])
@pytest.mark.parametrize(
    ("shape", "dim", "named"), [((0, 32, 32), 0, 0), ((2, 3, 0), None, 2), ((2, 0, 32, 0), (1, 3), 1), ((0, 32), -2, 0)]
)
def test_there_is_no_largest_value_of_nothing(mesh, pick, shape, dim, named) -> None:
    x = ttnn.from_torch(torch.ones(shape), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)

    with pytest.raises(RuntimeError, match=f"Expected reduction dim {named} to have non-zero size"):
        pick(x, dim=dim)
