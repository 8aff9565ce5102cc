"""Figures that the vendor and users published from real chips come out of the model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ttmesh.base.dtypes import Arch, MathFidelity, bfloat16, float32
from ttmesh.chip.numerics.exact_matmul import matmul
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.fpu_elementwise import multiply_elements


def _grid(count: int, seed: int) -> torch.Tensor:
    """What std::mt19937 and std::uniform_int_distribution(-64, 63) give, in 64ths."""
    raw = np.frombuffer(np.random.RandomState(seed).bytes(4 * count), dtype="<u4")
    return torch.from_numpy((raw >> 25).astype(np.float32) - 64) / 64


@pytest.mark.parametrize("packer_l1_acc", [False, True])
def test_a_blackhole_card_s_worst_error_and_norm(packer_l1_acc: bool) -> None:
    """tt-metal's gtest on a p100a: worst difference 0.090, relative Frobenius norm 0.0043, PCC above 0.99999."""
    a, b = _grid(64 * 64, 801).view(64, 64), _grid(64 * 64, 802).view(64, 64)
    config = FpuConfig(
        Arch.BLACKHOLE,
        MathFidelity.HiFi3,
        False,
        packer_l1_acc,
        64,
        a_dtype=float32,
        b_dtype=float32,
        out_dtype=float32,
    )
    expected = a.double() @ b.double()

    difference = matmul(a, b, config).double() - expected

    assert float(difference.abs().max()) == pytest.approx(0.090, abs=5e-4)
    assert float(difference.norm() / expected.norm()) == pytest.approx(0.0043, abs=5e-5)
    pair = torch.stack([(expected + difference).flatten(), expected.flatten()])
    assert float(torch.corrcoef(pair)[0, 1]) > 0.99999


@pytest.mark.parametrize(("fp32_dest", "silicon"), [(False, 128.0), (True, 32.0)])
def test_cancelling_pairs_give_128_where_float32_is_cut_to_bfloat16(fp32_dest: bool, silicon: float) -> None:
    a = torch.tensor([1024.0, -1023.0]).repeat(64, 32)
    config = FpuConfig(
        Arch.BLACKHOLE, MathFidelity.HiFi3, fp32_dest, False, 64, a_dtype=float32, b_dtype=float32, out_dtype=float32
    )

    assert torch.equal(matmul(a, torch.ones(64, 64), config), torch.full((64, 64), silicon))


@pytest.mark.parametrize(("fp32_dest", "silicon"), [(False, 8192.0), (True, 6144.0)])
def test_all_ones_over_6144_drift_in_a_16_bit_destination(fp32_dest: bool, silicon: float) -> None:
    """tt-metal #8449."""
    ones = torch.ones(1, 6144, dtype=torch.bfloat16)

    assert matmul(ones, ones.mT, FpuConfig(fp32_dest=fp32_dest, k_block=64)).item() == silicon


@pytest.mark.parametrize(
    ("a", "b", "fidelity", "silicon"),
    [
        (1.3125, 7.96875, MathFidelity.HiFi2, 10.4375),  # tt-metal #12923: the higher fidelity is further off
        (1.3125, 7.96875, MathFidelity.HiFi4, 10.5),
        (-3.640625, 0.298828, MathFidelity.HiFi4, -1.09375),  # #16448
        (-3.640625, 0.300781, MathFidelity.HiFi4, -1.1015625),
        (508.0, 748.0, MathFidelity.HiFi4, 378880.0),  # pull request 35077
    ],
)
def test_products_of_single_numbers(a: float, b: float, fidelity: MathFidelity, silicon: float) -> None:
    left, right = (torch.tensor([value]).bfloat16().float() for value in (a, b))

    assert multiply_elements(left, right, FpuConfig(fidelity=fidelity)).item() == silicon


@pytest.mark.parametrize(("depth", "silicon"), [(512, 0.99), (1024, 0.98), (2048, 0.95)])
def test_uniform_matmuls_lose_correlation_with_depth(depth: int, silicon: float) -> None:
    """tt-metal #32584: bfloat16, default settings; the numbers there were others, so the second digit may round up."""
    generator = torch.Generator().manual_seed(depth)
    a = torch.rand(128, depth, generator=generator).bfloat16()
    b = torch.rand(depth, 256, generator=generator).bfloat16()

    result = matmul(a, b, FpuConfig(packer_l1_acc=True, k_block=64, out_dtype=bfloat16))

    pair = torch.stack([result.double().flatten(), (a.double() @ b.double()).flatten()])
    assert silicon <= float(torch.corrcoef(pair)[0, 1]) < silicon + 0.011
