"""Sums over outer dims add tiles element by element: no fidelity cuts them, and their formats in between are TT-NN's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import ttmesh
from ttmesh import ttnn

moreh = ttnn.operations.moreh
LOFI = ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.LoFi)
WIDE = ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.LoFi, fp32_dest_acc_en=True)
WHOLE = torch.randint(
    -30, 31, (2, 4, 32, 64), generator=torch.Generator().manual_seed(3)
).float()  # sums stay below 256


@pytest.fixture(scope="module")
def mesh() -> Iterator[ttnn.MeshDevice]:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        yield mesh


def on(mesh: ttnn.MeshDevice, values: torch.Tensor, layout: object = ttnn.TILE_LAYOUT) -> ttnn.Tensor:
    return ttnn.from_torch(values, dtype=ttnn.bfloat16, layout=layout, device=mesh)


def sum_fast(mesh: ttnn.MeshDevice, x: torch.Tensor) -> ttnn.Tensor:
    return ttnn.experimental.fast_reduce_nc(on(mesh, x), dims=[0, 1], compute_kernel_config=LOFI)


def sum_moreh(mesh: ttnn.MeshDevice, x: torch.Tensor) -> ttnn.Tensor:
    return moreh.sum(on(mesh, x), dim=[0, 1], keepdim=True, compute_kernel_config=LOFI)


def norm_moreh(mesh: ttnn.MeshDevice, x: torch.Tensor) -> ttnn.Tensor:
    return moreh.norm(on(mesh, x.abs()), 1.0, dim=[0, 1], keepdim=True, compute_kernel_config=LOFI)


def combine_experts(mesh: ttnn.MeshDevice, x: torch.Tensor) -> ttnn.Tensor:
    rows = on(mesh, x.flatten(0, 1).movedim(0, 1)[None], ttnn.ROW_MAJOR_LAYOUT)  # [1, tokens, experts, width]
    ones = on(mesh, torch.ones(1, 32, 8, 1), ttnn.ROW_MAJOR_LAYOUT)
    return ttnn.experimental.deepseek_prefill.post_combine_reduce(rows, ones, expert_dim=2)


def take_gradient(mesh: ttnn.MeshDevice, x: torch.Tensor) -> ttnn.Tensor:
    """Of an identity that all batches share: the sum of the gradients of the products."""
    shared = on(mesh, torch.eye(64))
    into = on(mesh, torch.zeros(32, 64))
    return moreh.matmul_backward(
        on(mesh, x), into, shared, are_required_outputs=(True, False), input_a_grad=into, compute_kernel_config=WIDE
    )[0]


@pytest.mark.parametrize("mode", ["realistic", "exact"])
@pytest.mark.parametrize("compute", [sum_fast, sum_moreh, norm_moreh, combine_experts])
def test_whole_numbers_are_added_exactly_whatever_the_fidelity(
    mesh: ttnn.MeshDevice, compute: Callable[[ttnn.MeshDevice, torch.Tensor], ttnn.Tensor], mode: str
) -> None:
    with ttmesh.numerics("ideal"):
        expected = ttnn.to_torch(compute(mesh, WHOLE))
    with ttmesh.numerics(mode):
        found = ttnn.to_torch(compute(mesh, WHOLE))

    assert torch.equal(found, expected)


@pytest.mark.parametrize("mode", ["realistic", "exact"])
def test_a_gradient_summed_over_batches_keeps_whole_numbers(mesh: ttnn.MeshDevice, mode: str) -> None:
    few = WHOLE.clamp(-15, 15)  # what the first phase multiplies of the gradient and of ones

    with ttmesh.numerics(mode):
        found = ttnn.to_torch(take_gradient(mesh, few))

    assert torch.equal(found.float(), few.sum((0, 1)))


@pytest.mark.parametrize("mode", ["realistic", "exact"])
def test_a_32_bit_destination_keeps_small_terms_that_a_16_bit_one_loses(mesh: ttnn.MeshDevice, mode: str) -> None:
    values = torch.full((129, 1, 32, 32), 1 / 128)
    values[0] = 16.0

    with ttmesh.numerics(mode):
        narrow, wide = (
            ttnn.to_torch(ttnn.experimental.fast_reduce_nc(on(mesh, values), dims=[0], compute_kernel_config=config))
            for config in (LOFI, WIDE)
        )

    assert torch.equal(wide, torch.full_like(wide, 17.0))
    assert torch.equal(narrow, torch.full_like(narrow, 16.0))


def test_experts_are_added_by_the_packer_and_batches_by_the_fpu(mesh: ttnn.MeshDevice) -> None:
    """128 + 0.5 is a tie between 128 and 129: the FPU rounds away from zero, L1 to the even one."""
    halves = torch.full((1, 32, 8, 32), 0.5)
    halves[:, :, 0] = 128.0
    ones = on(mesh, torch.ones(1, 32, 8, 1), ttnn.ROW_MAJOR_LAYOUT)

    with ttmesh.numerics("exact"):
        packed = ttnn.experimental.deepseek_prefill.post_combine_reduce(
            on(mesh, halves, ttnn.ROW_MAJOR_LAYOUT), ones, expert_dim=2
        )
        added = moreh.sum(on(mesh, halves.movedim(2, 0)), dim=0, compute_kernel_config=LOFI)

    assert set(ttnn.to_torch(packed).flatten().tolist()) == {128.0}
    assert set(ttnn.to_torch(added).flatten().tolist()) == {135.0}
