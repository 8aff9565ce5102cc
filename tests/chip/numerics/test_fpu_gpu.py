"""The GPU's kernels of the FPU have the bits of the torch form; realistic's GEMM is close to the CPU's."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from ttmesh.base.dtypes import Arch, MathFidelity, bfloat8_b, bfloat16, float32
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.numerics import exact_matmul, fpu_elementwise, fpu_reference, packer, realistic_matmul
from ttmesh.chip.numerics.fpu_config import FpuConfig

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


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    width = torch.int16 if a.dtype is torch.bfloat16 else torch.int32
    return torch.equal(a.contiguous().view(width), b.contiguous().view(width))


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize(("shape", "spread"), [((1, 40, 96, 70), 0), ((2, 33, 130, 65), 12), ((1, 1, 31, 1), 4)])
def test_the_kernel_has_the_bits_of_torch(
    fidelity: MathFidelity, shape: tuple[int, int, int, int], spread: int
) -> None:
    kernels = find_gpu_kernels("gpu_fpu_matmul")
    assert kernels is not None
    batch, rows, depth, columns = shape
    for arch, fp32_dest, keep in product((Arch.WORMHOLE_B0, Arch.BLACKHOLE), (False, True), (False, True)):
        a, b = _registers((batch, rows, depth), 1, spread), _registers((batch, depth, columns), 2, spread)
        a[:, :, 8:24] = 0.0  # a step without products
        config = FpuConfig(arch, fidelity, fp32_dest)
        dest = fpu_reference.multiply(a, b, config) if keep else None

        expected = fpu_reference.multiply(a, b, config, dest)
        assert kernels.supports(a, b)
        options = {"phases": config.phases, "fp32_dest": fp32_dest, "fault": config.has_minus_one_fault}
        found = kernels.multiply(a, b, dest, **options)

        assert _same_bits(found, expected)


@pytest.mark.parametrize("fp32_dest", [False, True])
@pytest.mark.parametrize("wide_exponents", [False, True])
def test_whole_matmuls_have_the_cpu_s_bits(fp32_dest: bool, wide_exponents: bool) -> None:
    a, b = torch.randn(3, 50, 256).bfloat16(), torch.randn(1, 256, 70).bfloat16()
    if wide_exponents:
        a[0, 0, 0] = 2.0**100  # outside the kernel's range: torch's form serves
    for block in (None, 64):
        config = FpuConfig(fp32_dest=fp32_dest, packer_l1_acc=block is not None, k_block=block, out_dtype=float32)
        assert torch.equal(exact_matmul.matmul(a.cuda(), b.cuda(), config).cpu(), exact_matmul.matmul(a, b, config))


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize(("fp32_dest", "block"), [(True, None), (False, None), (False, 512), (False, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [20, 50, 100])
def test_realistic_on_a_gpu_is_the_cpu_s_but_for_the_order_of_additions(
    fidelity: MathFidelity, fp32_dest: bool, block: int | None, dtype: torch.dtype, rows: int
) -> None:
    generator = torch.Generator().manual_seed(5)
    a = torch.randn(1, rows, 2048, generator=generator).to(dtype)
    b = torch.randn(1, 2048, 150, generator=generator).to(dtype)
    for out in (bfloat16, float32):
        config = FpuConfig(
            fidelity=fidelity, fp32_dest=fp32_dest, packer_l1_acc=block is not None, k_block=block, out_dtype=out
        )
        found = realistic_matmul.matmul(a.cuda(), b.cuda(), config).cpu()
        expected = realistic_matmul.matmul(a, b, config)

        close = (found.double() - expected.double()).abs() <= 0.02 * expected.double().abs() + 0.5
        equal = found.bfloat16() == expected.bfloat16()
        assert found.dtype is expected.dtype
        assert float(equal.double().mean()) > 0.95
        assert bool(close.all())


def count_all_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_gpu_kernels("gpu_fpu_gemm"), "STEP_PRODUCTS", 0)


def lose(result: torch.Tensor, expected: torch.Tensor) -> float:
    """1 - PCC."""
    return 1 - float(torch.corrcoef(torch.stack([result.double().flatten(), expected.flatten()]))[0, 1])


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("block", [64, 256, 512, None])
@pytest.mark.parametrize("rows", [32, 128])
def test_large_matmuls_with_long_blocks_lose_as_much_as_the_chip(
    fidelity: MathFidelity, block: int | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_all_as_large(monkeypatch)
    config = FpuConfig(fidelity=fidelity, packer_l1_acc=block is not None, k_block=block)
    for draw, least, most in ((torch.randn, 0.6, 1.5), (torch.rand, 0.8, 4.0)):
        generator = torch.Generator().manual_seed(8)
        a, b = (draw(shape, generator=generator).bfloat16() for shape in ((rows, 4096), (4096, 128)))
        expected = a.double() @ b.double()

        found = lose(realistic_matmul.matmul(a.cuda(), b.cuda(), config).cpu(), expected)

        assert least < found / lose(exact_matmul.matmul(a, b, config), expected) < most, (draw, found)


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize(("rows", "depth", "block"), [(100, 2048, 64), (70, 1000, 32), (129, 96, 32)])
def test_with_short_blocks_a_gpu_rounds_the_sum_in_l1(
    fidelity: MathFidelity, rows: int, depth: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_all_as_large(monkeypatch)
    generator = torch.Generator().manual_seed(6)
    a = torch.randn(1, rows, depth, generator=generator).bfloat16()
    b = torch.randn(1, depth, 150, generator=generator).bfloat16()
    config = FpuConfig(fidelity=fidelity, packer_l1_acc=True, k_block=block)
    masks = realistic_matmul.choose_masks(config)

    found = realistic_matmul.matmul(a.cuda(), b.cuda(), config).cpu()

    x = (a.float().view(torch.int32) & masks.x_mask).view(torch.float32)[0]
    w = (b.float().view(torch.int32) & masks.w_mask).view(torch.float32)[0]
    held = torch.zeros(rows, 150)
    for k in range(0, depth, block):
        held = (x[:, k : k + block] @ w[k : k + block] + held).bfloat16().float()
    assert float((found[0] == held.bfloat16()).double().mean()) > 0.97
    exact = exact_matmul.matmul(a, b, config).double()
    assert float(torch.corrcoef(torch.stack([found.double().flatten(), exact.flatten()]))[0, 1]) > 0.9995


@pytest.mark.parametrize("large", [False, True])
def test_small_whole_numbers_stay_exact_on_a_gpu(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        count_all_as_large(monkeypatch)
    a, b = torch.ones(1, 100, 256).bfloat16().cuda(), torch.ones(1, 256, 150).bfloat16().cuda()
    for fidelity, block, fp32_dest in product(FIDELITIES, (64, None), (False, True)):
        config = FpuConfig(fidelity=fidelity, packer_l1_acc=block is not None, k_block=block, fp32_dest=fp32_dest)
        assert bool((realistic_matmul.matmul(a, b, config) == 256).all())


def test_sums_and_packing_on_a_gpu_have_the_cpu_s_bits() -> None:
    generator = torch.Generator().manual_seed(7)
    bits = torch.randint(-(2**31), 2**31, (2, 64, 4096), generator=generator).to(torch.int32)
    plain = torch.randn(2, 64, 4096, generator=generator)
    values = torch.where(torch.rand(plain.shape, generator=generator) < 0.2, bits.view(torch.float32), plain)
    for dtype, out, negate in product((torch.bfloat16, torch.float32), (bfloat16, float32, bfloat8_b), (False, True)):
        a, b = values.to(dtype)
        kind = bfloat16 if dtype is torch.bfloat16 else float32
        config = FpuConfig(fp32_dest=dtype is torch.float32, a_dtype=kind, b_dtype=kind, out_dtype=out)
        found = fpu_elementwise.add_lanes(a.cuda(), b.cuda(), config, negate=negate)
        assert _same_bits(found.cpu(), fpu_elementwise.add_lanes(a, b, config, negate=negate))
    assert _same_bits(packer.pack_lanes(values.cuda(), bfloat16).cpu(), packer.pack_lanes(values, bfloat16))
