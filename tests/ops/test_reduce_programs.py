"""Reductions follow TT-NN's programs: adding tiles loses no bits, the FPU cuts float32, maxima compare patterns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ttmesh
from ttmesh import ttnn

FINE = 1.0 + 2.0**-9 + 2.0**-12  # bfloat16 keeps 1, TF32 1 + 2^-9
INFINITY = float("inf")


@pytest.fixture(scope="module")
def mesh() -> Iterator[ttnn.MeshDevice]:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        yield mesh


def on(mesh: ttnn.MeshDevice, values: torch.Tensor, dtype: object = ttnn.float32) -> ttnn.Tensor:
    return ttnn.from_torch(values, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=mesh)


def config(*, wide: bool) -> ttnn.WormholeComputeKernelConfig:
    return ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.LoFi, fp32_dest_acc_en=wide)


@pytest.mark.parametrize("mode", ["realistic", "exact"])
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
def test_sums_over_batches_add_whole_tiles_and_no_fidelity_cuts_them(
    mesh: ttnn.MeshDevice, mode: str, dims: tuple[int, ...]
) -> None:
    values = torch.randint(0, 5, (2, 3, 32, 64), generator=torch.Generator().manual_seed(3)) * 2.0 + 33.0

    with ttmesh.numerics(mode):
        found = ttnn.sum(on(mesh, values, ttnn.bfloat16), dim=dims, compute_kernel_config=config(wide=True))

    assert torch.equal(ttnn.to_torch(found), values.sum(dims).bfloat16())  # 5 bits of 33 would be 32


def test_a_sum_over_a_batch_and_rows_keeps_float32_between_its_programs(mesh: ttnn.MeshDevice) -> None:
    values = torch.full((3, 2, 32, 32), 1.0)
    values[1:] = 2.0**-7
    with ttmesh.numerics("exact"):
        part = ttnn.sum(on(mesh, values, ttnn.bfloat16), dim=(0, 2))
        every = ttnn.sum(on(mesh, values, ttnn.bfloat16), dim=(0, 1, 2, 3))

    assert ttnn.to_torch(part).unique().tolist() == [32.5]  # 32 * (1 + 2^-6)
    assert ttnn.to_torch(every).item() == 2080.0  # 2048 * (1 + 2^-6), which is packed to bfloat16 after every batch


@pytest.mark.parametrize("mode", ["realistic", "exact"])
@pytest.mark.parametrize(
    ("dims", "kept"), [((-1,), FINE), ((-2,), FINE), ((-2, -1), FINE), ((0,), 1 + 2.0**-9), ((0, -1), 1 + 2.0**-9)]
)
def test_means_of_float32_are_cut_where_they_take_several_programs(
    mesh: ttnn.MeshDevice, mode: str, dims: tuple[int, ...], kept: float
) -> None:
    with ttmesh.numerics(mode):
        found = ttnn.mean(on(mesh, torch.full((2, 1, 32, 32), FINE)), dim=dims)

    assert ttnn.to_torch(found).unique().tolist() == [kept]


@pytest.mark.parametrize("mode", ["realistic", "exact"])
@pytest.mark.parametrize(
    ("name", "options", "kept"),
    [
        ("max", {}, FINE),
        ("max", {"fast_and_approximate_mode": True}, 1 + 2.0**-9),
        ("max", {"compute_kernel_config": config(wide=True)}, FINE),
        ("max", {"compute_kernel_config": config(wide=False)}, 1.0),
        ("max", {"scalar": -1.0}, -1 - 2.0**-9),
        ("min", {}, 1 + 2.0**-9),
        ("min", {"compute_kernel_config": config(wide=False)}, 1.0),
        ("min", {"scalar": -1.0}, -FINE),
    ],
)
def test_extremes_of_float32_are_cut_unless_the_vector_unit_compares_them(
    mesh: ttnn.MeshDevice, mode: str, name: str, options: dict[str, Any], kept: float
) -> None:
    with ttmesh.numerics(mode):
        found = getattr(ttnn, name)(on(mesh, torch.full((1, 2, 32, 32), FINE)), dim=(1, -1), **options)

    assert ttnn.to_torch(found).unique().tolist() == [kept]


@pytest.mark.parametrize("dim", [0, -2, -1])
@pytest.mark.parametrize(
    ("special", "most", "least"),
    [(0x7FC0, INFINITY, 1.0), (-0x0040, 1.0, -INFINITY), (0x7F80, INFINITY, 1.0), (0x0001, 1.0, 0.0)],
    ids=["NaN", "-NaN", "infinity", "subnormal"],
)
def test_exact_extremes_compare_patterns_and_pack_a_nan_as_an_infinity(
    mesh: ttnn.MeshDevice, dim: int, special: int, most: float, least: float
) -> None:
    values = torch.ones(32, 32, 32).bfloat16()
    values.view(torch.int16).select(dim, 5).fill_(special)

    with ttmesh.numerics("exact"):
        x = on(mesh, values, ttnn.bfloat16)
        found = [ttnn.to_torch(extreme(x, dim=dim)).float() for extreme in (ttnn.max, ttnn.min)]

    assert [one.unique().tolist() for one in found] == [[most], [least]]
