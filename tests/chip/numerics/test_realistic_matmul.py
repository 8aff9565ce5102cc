"""Realistic loses what exact loses, at every destination and block of K; sums that need no rounding stay exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ttmesh.base import settings
from ttmesh.base.dtypes import Arch, DataType, MathFidelity, bfloat4_b, bfloat8_b, bfloat16, float32
from ttmesh.chip.formats.kernels import fpu_gemm, loader
from ttmesh.chip.formats.storage import to_lane
from ttmesh.chip.numerics import exact_matmul, realistic_matmul
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.packer import pack, pack_lanes, to_bfloat16

FIDELITIES = [MathFidelity.LoFi, MathFidelity.HiFi2, MathFidelity.HiFi3, MathFidelity.HiFi4]
needs_compiler = pytest.mark.skipif(loader._compiler() is None, reason="no C compiler")
Draw = Callable[..., torch.Tensor]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _lost(result: torch.Tensor, expected: torch.Tensor) -> float:
    """1 - PCC."""
    pair = torch.stack([result.double().flatten(), expected.flatten()])
    return 1 - float(torch.corrcoef(pair)[0, 1])


def _gain(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result.double() * expected).sum() / expected.square().sum()) - 1


@needs_compiler
@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("draw", [torch.randn, torch.rand])
@pytest.mark.parametrize(
    ("fp32_dest", "block", "low"), [(True, None, 0.94), (False, 64, 0.8), (False, 512, 0.65), (False, None, 0.65)]
)
def test_realistic_loses_about_what_exact_loses(
    fidelity: MathFidelity, draw: Draw, fp32_dest: bool, block: int | None, low: float
) -> None:
    a = draw(64, 2048, generator=_generator(10)).bfloat16()
    b = draw(2048, 96, generator=_generator(11)).bfloat16()
    config = FpuConfig(Arch.BLACKHOLE, fidelity, fp32_dest, block is not None, k_block=block)
    reference = a.double() @ b.double()
    assert not realistic_matmul.computes_exactly(a, b, config)

    exact, realistic = exact_matmul.matmul(a, b, config), realistic_matmul.matmul(a, b, config)

    assert low * _lost(exact, reference) <= _lost(realistic, reference) <= 1.15 * _lost(exact, reference)
    assert _gain(realistic, reference) == pytest.approx(_gain(exact, reference), abs=0.008)


@needs_compiler
@pytest.mark.parametrize("weights", [bfloat8_b, bfloat4_b])
def test_block_float_weights_have_fewer_lower_bits(weights: DataType) -> None:
    a = torch.randn(64, 2048, generator=_generator(14)).bfloat16()
    b = to_lane(torch.randn(2048, 96, generator=_generator(15)), weights)
    config = FpuConfig(packer_l1_acc=True, k_block=256, b_dtype=weights)
    reference = a.double() @ b.double()

    exact, realistic = exact_matmul.matmul(a, b, config), realistic_matmul.matmul(a, b, config)

    assert 0.65 <= _lost(realistic, reference) / _lost(exact, reference) <= 1.15


@needs_compiler
@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("fp32_dest", [False, True])
def test_small_matmuls_without_l1_accumulation_are_exact(fidelity: MathFidelity, fp32_dest: bool) -> None:
    a = torch.randn(32, 512, generator=_generator(16)).bfloat16()
    b = torch.randn(512, 64, generator=_generator(17)).bfloat16()
    config = FpuConfig(fidelity=fidelity, fp32_dest=fp32_dest)

    equal = torch.equal(realistic_matmul.matmul(a, b, config), exact_matmul.matmul(a, b, config))

    assert equal is not fp32_dest


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("fidelity", FIDELITIES[1:])
@pytest.mark.parametrize("fp32_dest", [False, True])
def test_the_identity_and_small_integers_stay_exact(fidelity: MathFidelity, fp32_dest: bool) -> None:
    config = FpuConfig(fidelity=fidelity, fp32_dest=fp32_dest, packer_l1_acc=True, k_block=32)
    weights = torch.randn(128, 96, generator=_generator(18)).bfloat16()
    ones = torch.ones(40, 128, dtype=torch.bfloat16)

    assert torch.equal(realistic_matmul.matmul(torch.eye(128).bfloat16(), weights, config), weights)
    assert torch.equal(realistic_matmul.matmul(ones, ones.mT, config), torch.full((40, 40), 128).bfloat16())


@needs_compiler
@pytest.mark.parametrize("block", [None, 64, 96])
@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_realistic_is_the_same_with_and_without_kernels_but_for_the_order_of_additions(
    fidelity: MathFidelity, block: int | None
) -> None:
    a = torch.randn(2, 41, 330, generator=_generator(12)).bfloat16()
    b = torch.randn(2, 75, 330, generator=_generator(13)).bfloat16().mT
    for fp32_dest in (False, True):
        config = FpuConfig(fidelity=fidelity, fp32_dest=fp32_dest, packer_l1_acc=block is not None, k_block=block)
        compiled = realistic_matmul._dest(a, b, config, torch.matmul, False)
        settings.override("TTMESH_KERNELS", False)
        loader.forget()
        try:
            plain = realistic_matmul._dest(a, b, config, torch.matmul, False)
        finally:
            settings.override("TTMESH_KERNELS", None)
            loader.forget()

        if fp32_dest:
            assert torch.allclose(compiled, plain, rtol=1e-5, atol=1e-4)
        else:
            assert float((compiled == plain).float().mean()) > 0.99


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 5, 31, 23), (1, 67, 520, 100), (2, 1, 64, 193), (1, 261, 300, 30)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_shape_layout_and_number_of_threads_gives_the_same(
    shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    batch, rows, depth, columns = shape
    a = torch.randn(batch, depth, rows, generator=_generator(19)).to(dtype).mT
    b = torch.randn(1, columns, depth, generator=_generator(20)).to(dtype).mT.expand(batch, -1, -1)
    masks = realistic_matmul.choose_masks(FpuConfig(fidelity=MathFidelity.HiFi3, fp32_dest=True, out_dtype=float32))
    before = torch.get_num_threads()
    try:
        found = []
        for threads, right in ((1, b), (3, b.contiguous())):
            torch.set_num_threads(threads)
            found.append(fpu_gemm.multiply(a, right, masks, block=None, lower=0.0))
            found.append(fpu_gemm.multiply(a, right, replace(masks, x_full=0), block=32, lower=0.02))
    finally:
        torch.set_num_threads(before)

    assert torch.allclose(found[0], a.float() @ b.float(), rtol=1e-2, atol=0.1)
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


@needs_compiler
@pytest.mark.parametrize("block", [None, 64])
def test_what_the_kernel_packs_is_what_the_packer_makes_of_its_registers(block: int | None) -> None:
    a = torch.randn(2, 37, 320, generator=_generator(21)).bfloat16()
    a[0, :4, 0] = torch.tensor([float("inf"), float("-inf"), float("nan"), 1e-38]).bfloat16()
    a[0, 3, 1:] = 0  # a row whose sums are too small for bfloat16
    a[1, 5] = 0
    b = torch.randn(1, 320, 50, generator=_generator(22)).bfloat16().expand(2, -1, -1)
    masks = realistic_matmul.choose_masks(FpuConfig(fidelity=MathFidelity.HiFi4))

    registers = fpu_gemm.multiply(a, b, masks, block=block, lower=0.02)
    packed = fpu_gemm.multiply(a, b, masks, block=block, lower=0.02, packed=True)

    assert torch.equal(packed, to_bfloat16(registers).bfloat16())
    assert torch.equal(packed, fpu_gemm.pack_bfloat16(registers))


@needs_compiler
def test_the_compiled_packer_to_bfloat16_has_torch_s_bits() -> None:
    bits = torch.randint(-(2**31), 2**31, (100_000,), generator=_generator(21)).to(torch.int32)
    edges = torch.tensor([0, -(2**31), 0x7F7F7FFF, 0x7F7F8000, 0x7F800000, 0x7FC00000, 0x7FFFFF, 0x800000])
    dest = torch.cat([bits, edges.to(torch.int32)]).view(torch.float32)

    packed = pack_lanes(dest, bfloat16)

    assert torch.equal(packed.view(torch.int16), pack(dest, bfloat16).bfloat16().view(torch.int16))


@needs_compiler
@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_bfloat16_operands_give_the_bits_of_the_same_values_in_float32(fidelity: MathFidelity) -> None:
    """Where the processor multiplies pairs of bfloat16, the additions keep their order."""
    a = torch.randn(2, 21, 333, generator=_generator(1)).bfloat16()
    b = torch.randn(2, 333, 70, generator=_generator(2)).bfloat16()
    masks = realistic_matmul.choose_masks(FpuConfig(Arch.WORMHOLE_B0, fidelity, True, out_dtype=float32))

    half = fpu_gemm.multiply(a, b, masks, block=None, lower=0.0)
    whole = fpu_gemm.multiply(a.float(), b.float(), masks, block=None, lower=0.0)

    assert torch.equal(half, whole)


@needs_compiler
@pytest.mark.parametrize("lower", [0.0, 0.02])
@pytest.mark.parametrize("block", [32, 64, 96, 320, 704])
def test_a_row_s_result_does_not_depend_on_the_rows_beside_it(block: int, lower: float) -> None:
    """Full tiles of rows take turns in the multiplier, the last rows of a matrix do not; chunks of K end in between."""
    a = torch.randn(1, 301, 680, generator=_generator(30)).bfloat16()
    a[0, ::7] = a[0, ::7].round()  # some sums need no rounding
    b = torch.randn(1, 680, 100, generator=_generator(31)).bfloat16().round()
    masks = realistic_matmul.choose_masks(FpuConfig(fidelity=MathFidelity.HiFi4))

    together = fpu_gemm.multiply(a, b, masks, block=block, lower=lower)

    for rows in (1, 2, 3, 5, 8, 43):
        alone = torch.cat([fpu_gemm.multiply(part, b, masks, block=block, lower=lower) for part in a.split(rows, 1)], 1)
        assert torch.equal(together, alone), f"{rows} rows at a time"
