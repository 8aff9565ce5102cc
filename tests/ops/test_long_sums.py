"""Sums over very long rows keep their size in a 16-bit destination: tiles are added first, then the elements of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import ttmesh
from ttmesh import ttnn

moreh = ttnn.operations.moreh


@pytest.fixture(scope="module")
def mesh() -> Iterator[ttnn.MeshDevice]:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        yield mesh


def on(mesh: ttnn.MeshDevice, values: torch.Tensor, dtype: object = ttnn.bfloat16) -> ttnn.Tensor:
    return ttnn.from_torch(values, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=mesh)


def clip(mesh: ttnn.MeshDevice, values: torch.Tensor) -> ttnn.Tensor:
    return moreh.clip_grad_norm([on(mesh, values)], 1.0, 2.0)


def normalize(mesh: ttnn.MeshDevice, values: torch.Tensor) -> ttnn.Tensor:
    return moreh.layer_norm(on(mesh, values), 4, 1e-5)[0]


def sum_losses(mesh: ttnn.MeshDevice, values: torch.Tensor) -> ttnn.Tensor:
    targets = torch.zeros(values.shape[0], *values.shape[2:], dtype=torch.int32)
    return moreh.nll_loss(
        on(mesh, values), on(mesh, targets, ttnn.int32), "sum", output_tensor=on(mesh, torch.zeros(1))
    )


@pytest.mark.parametrize("mode", ["realistic", "exact"])
@pytest.mark.parametrize("compute", [clip, normalize, sum_losses])
def test_a_sum_of_a_hundred_thousand_elements_is_within_a_tenth(
    mesh: ttnn.MeshDevice, compute: Callable[[ttnn.MeshDevice, torch.Tensor], ttnn.Tensor], mode: str
) -> None:
    values = torch.rand(8, 2, 64, 96, generator=torch.Generator().manual_seed(1)) + 0.5

    with ttmesh.numerics("ideal"):
        expected = ttnn.to_torch(compute(mesh, values)).float()
    with ttmesh.numerics(mode):
        found = ttnn.to_torch(compute(mesh, values)).float()

    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=0.1, atol=0.1)


def test_losses_without_reduction_have_two_dims(mesh: ttnn.MeshDevice) -> None:
    losses = moreh.nll_loss(
        on(mesh, torch.rand(5, 10)), on(mesh, torch.zeros(5, dtype=torch.int32), ttnn.int32), "none"
    )

    assert list(losses.shape) == [1, 5]


@pytest.mark.parametrize("shape", [(1, 1), (1,), (1, 1, 1, 1)])
def test_a_total_norm_has_the_shape_that_is_given_or_1x1(mesh: ttnn.MeshDevice, shape: tuple[int, ...]) -> None:
    gradients = torch.full((1, 2, 32, 32), 0.5)
    given = on(mesh, torch.zeros(shape))

    total = moreh.clip_grad_norm([on(mesh, gradients)], 1.0, 2.0, False, total_norm=given)

    assert tuple(total.shape) == shape
    assert ttnn.to_torch(given).float().item() == pytest.approx(gradients.norm().item(), rel=0.01)
    assert tuple(moreh.clip_grad_norm([on(mesh, gradients)], 1.0, 2.0).shape) == (1, 1)
