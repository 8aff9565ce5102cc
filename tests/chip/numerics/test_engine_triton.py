"""The Triton kernels of the matrix engine have the bits of the torch form; realistic's GEMM differs by the order of sums."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from ttmesh.base.dtypes import Arch, MathFidelity, float32
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.numerics import exact_matmul, matrix_engine, realistic_matmul
from ttmesh.chip.numerics.engine_config import EngineConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

FIDELITIES = [MathFidelity.LoFi, MathFidelity.HiFi2, MathFidelity.HiFi3, MathFidelity.HiFi4]


def _registers(shape: tuple[int, ...], seed: int, spread: int) -> torch.Tensor:
    """Values of 10 fraction bits with exponents up to `spread` apart; a tenth is zero."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * 2.0 ** torch.randint(
        -spread, spread + 1, shape, generator=generator
    )
    values = (values.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return values.masked_fill(torch.rand(shape, generator=generator) < 0.1, 0.0).cuda()


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("arch", [Arch.WORMHOLE_B0, Arch.BLACKHOLE])
@pytest.mark.parametrize(("shape", "spread"), [((1, 40, 96, 70), 0), ((2, 33, 130, 65), 12), ((1, 1, 31, 1), 4)])
def test_triton_has_the_bits_of_torch(
    fidelity: MathFidelity, arch: Arch, shape: tuple[int, int, int, int], spread: int
) -> None:
    kernels = find_gpu_kernels("gpu_engine_matmul")
    assert kernels is not None
    batch, rows, depth, columns = shape
    for fp32_dest, keep in product((False, True), (False, True)):
        a, b = _registers((batch, rows, depth), 1, spread), _registers((batch, depth, columns), 2, spread)
        a[:, :, 8:24] = 0.0  # a step without products
        config = EngineConfig(arch, fidelity, fp32_dest)
        dest = matrix_engine.multiply(a, b, config) if keep else None

        expected = matrix_engine.multiply(a, b, config, dest)
        assert kernels.supports(a, b)
        options = {"phases": config.phases, "fp32_dest": fp32_dest, "fault": config.has_minus_one_fault}
        found = kernels.multiply(a, b, dest, **options)

        assert torch.equal(found.contiguous().view(torch.int32), expected.contiguous().view(torch.int32))


@pytest.mark.parametrize("fp32_dest", [False, True])
@pytest.mark.parametrize("wide_exponents", [False, True])
def test_whole_matmuls_have_the_cpu_s_bits(fp32_dest: bool, wide_exponents: bool) -> None:
    a, b = torch.randn(3, 50, 256).bfloat16(), torch.randn(1, 256, 70).bfloat16()
    if wide_exponents:
        a[0, 0, 0] = 2.0**100  # outside the kernel's range: torch's form serves
    for block in (None, 64):
        config = EngineConfig(fp32_dest=fp32_dest, packer_l1_acc=block is not None, k_block=block, out_dtype=float32)
        assert torch.equal(exact_matmul.matmul(a.cuda(), b.cuda(), config).cpu(), exact_matmul.matmul(a, b, config))


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize(("fp32_dest", "block"), [(True, None), (False, None), (False, 64), (False, 512)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_realistic_on_a_gpu_is_the_cpu_s_but_for_the_order_of_additions(
    fidelity: MathFidelity, fp32_dest: bool, block: int | None, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(5)
    a = torch.randn(1, 100, 2048, generator=generator).to(dtype)
    b = torch.randn(1, 2048, 150, generator=generator).to(dtype)
    config = EngineConfig(fidelity=fidelity, fp32_dest=fp32_dest, packer_l1_acc=block is not None, k_block=block)

    found = realistic_matmul.matmul(a.cuda(), b.cuda(), config).cpu()
    expected = realistic_matmul.matmul(a, b, config)

    close = (found.double() - expected.double()).abs() <= 0.02 * expected.double().abs() + 0.5
    assert float((found == expected).double().mean()) > 0.95
    assert bool(close.all())
