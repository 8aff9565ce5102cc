"""The compiled FPU equals its torch version; blocks of K, partials and formats are what the chip's are."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttmesh.base import numerics_mode
from ttmesh.base import settings as options
from ttmesh.base.dtypes import Arch, DataType, MathFidelity, bfloat4_b, bfloat8_b, bfloat16, float32
from ttmesh.chip.formats.kernels import fpu_matmul, loader
from ttmesh.chip.formats.storage import to_lane
from ttmesh.chip.numerics import exact_matmul, fpu_reference, realistic_matmul
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.packer import accumulate, pack, to_bfloat16
from ttmesh.chip.numerics.unpacker import unpack

FIDELITIES = [MathFidelity.LoFi, MathFidelity.HiFi2, MathFidelity.HiFi3, MathFidelity.HiFi4]
needs_compiler = pytest.mark.skipif(loader._compiler() is None, reason="no C compiler")


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _patterns(shape: tuple[int, ...], seed: int, spread: int, *, zeros: float = 0.0) -> torch.Tensor:
    """Registers with exponents up to `spread` apart, some of them zero."""
    generator = _generator(seed)
    fraction = torch.randint(0, 1 << 10, shape, generator=generator, dtype=torch.int32) << 13
    exponent = torch.randint(max(0, 128 - spread), min(255, 128 + spread) + 1, shape, generator=generator)
    sign = torch.randint(0, 2, shape, generator=generator, dtype=torch.int32) << 31
    bits = fraction | (exponent.to(torch.int32) << 23) | sign
    return bits.masked_fill(torch.rand(shape, generator=generator) < zeros, 0).view(torch.float32)


@needs_compiler
@pytest.mark.parametrize("spread", [0, 12, 30, 60, 128])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 40, 17), (1, 5, 290, 8), (2, 19, 290, 1)])
def test_the_kernel_has_the_bits_of_torch_for_every_spread_of_exponents(
    spread: int, shape: tuple[int, int, int, int]
) -> None:
    batch, rows, depth, columns = shape
    for seed, (fidelity, fp32_dest) in enumerate(product(FIDELITIES, (False, True))):
        zeros = 0.4 * (seed % 3 == 0)
        config = FpuConfig(fidelity=fidelity, fp32_dest=fp32_dest)
        a = _patterns((batch, rows, depth), seed, spread, zeros=zeros)
        b = _patterns((batch, depth, columns), seed + 100, 128 - spread if seed & 2 else spread, zeros=zeros)
        dest = fpu_reference.multiply(b.mT[:, :1, :32].expand(-1, rows, -1), b[:, :32], config) if seed & 4 else None

        expected = fpu_reference.multiply(a, b, config, dest)
        found = fpu_matmul.multiply(
            a, b, dest, phases=config.phases, fp32_dest=fp32_dest, fault=config.has_minus_one_fault
        )

        assert torch.equal(found.view(torch.int32), expected.view(torch.int32)), (fidelity, fp32_dest)


@needs_compiler
@pytest.mark.parametrize("members", [1, 3])
def test_operands_may_be_repeated_or_transposed_and_threads_change_nothing(members: int) -> None:
    before = torch.get_num_threads()
    a = torch.randn(96, 48, generator=_generator(1)).mT.expand(3, -1, -1)
    b = torch.randn(3, 130, 96, generator=_generator(2)).mT
    config = FpuConfig()
    expected = fpu_reference.multiply(a, b, config)
    try:
        torch.set_num_threads(members)
        found = exact_matmul.dest_of_matmul(a, b, config)
    finally:
        torch.set_num_threads(before)

    assert torch.equal(found, expected)


def test_float32_operands_are_cut_not_rounded() -> None:
    value = torch.tensor([1.0 + 2**-7 + 2**-8 + 2**-11 + 2**-20])

    assert unpack(value, float32, fp32_dest=False).item() == 1.0 + 2**-7
    assert unpack(value, float32, fp32_dest=True).item() == 1.0 + 2**-7 + 2**-8
    assert unpack(value.bfloat16(), bfloat16, fp32_dest=False).item() == value.bfloat16().item()


def test_packing_rounds_ties_away_and_has_no_nan_subnormals_or_minus_zero() -> None:
    dest = torch.tensor([1.0 + 2**-8, -1.0 - 2**-8, torch.nan, -torch.inf, 1e-40, -0.0, 3.4e38, 3.0])

    packed = to_bfloat16(dest)

    expected = torch.tensor([1.0 + 2**-7, -1.0 - 2**-7, torch.inf, -torch.inf, 0.0, 0.0, torch.inf, 3.0])
    assert torch.equal(packed.view(torch.int32), expected.view(torch.int32))


@pytest.mark.usefixtures("served")
def test_l1_accumulation_adds_blocks_and_computes_the_last_one_on_top() -> None:
    a = torch.rand(32, 256, generator=_generator(3)).bfloat16()
    b = torch.rand(256, 32, generator=_generator(4)).bfloat16()
    config = FpuConfig(packer_l1_acc=True, k_block=64)
    whole = replace(config, k_block=None)

    blocks = [
        exact_matmul.dest_of_matmul(a.float()[:, k : k + 64], b.float()[k : k + 64], whole) for k in range(0, 192, 64)
    ]
    held = accumulate(accumulate(blocks[0], blocks[1], bfloat16), blocks[2], bfloat16)
    last = fpu_reference.multiply(a.float()[None, :, 192:], b.float()[None, 192:], whole, held[None])[0]

    assert torch.equal(exact_matmul.matmul(a, b, config), last.bfloat16())
    assert not torch.equal(exact_matmul.matmul(a, b, whole), last.bfloat16())


@pytest.mark.usefixtures("served")
def test_without_l1_accumulation_blocks_matter_only_where_partials_are_block_floats() -> None:
    a = torch.randn(32, 256, generator=_generator(5)).bfloat16()
    b = torch.randn(256, 32, generator=_generator(6)).bfloat16()
    blocks, whole = FpuConfig(k_block=64), FpuConfig()

    assert torch.equal(exact_matmul.matmul(a, b, blocks), exact_matmul.matmul(a, b, whole))
    in_blocks = exact_matmul.matmul(a, b, replace(blocks, out_dtype=bfloat8_b))
    at_once = exact_matmul.matmul(a, b, replace(whole, out_dtype=bfloat8_b))
    assert not torch.equal(in_blocks, at_once)
    assert torch.equal(at_once.float(), pack(exact_matmul.matmul(a, b, whole).float(), bfloat8_b))


@pytest.mark.parametrize("dtype", [bfloat8_b, bfloat4_b])
def test_packed_block_floats_are_on_the_format_s_grid(dtype: DataType) -> None:
    dest = torch.randn(8, 50, generator=_generator(7))

    packed = pack(dest, dtype).bfloat16()

    assert torch.equal(to_lane(packed, dtype), packed)


def test_batches_broadcast_and_meta_tensors_have_shapes_only() -> None:
    a = torch.randn(2, 3, 8, 32, generator=_generator(8)).bfloat16()
    b = torch.randn(1, 1, 32, 5, generator=_generator(9)).bfloat16()

    for module in (exact_matmul, realistic_matmul):
        result = module.matmul(a, b, FpuConfig(fp32_dest=True))
        assert result.shape == (2, 3, 8, 5)
        assert torch.equal(result[1, 2], module.matmul(a[1, 2], b[0, 0], FpuConfig(fp32_dest=True)))
        assert module.matmul(a.to("meta"), b.to("meta"), FpuConfig(out_dtype=float32)).dtype == torch.float32


DTYPES = st.sampled_from([float32, bfloat16, bfloat8_b, bfloat4_b])


@needs_compiler
@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 150), st.integers(1, 40)),
    formats=st.tuples(DTYPES, DTYPES, DTYPES),
    fidelity=st.sampled_from(FIDELITIES),
    destination=st.sampled_from([(True, True), (True, False), (False, True), (False, False)]),
    arch=st.sampled_from([Arch.WORMHOLE_B0, Arch.BLACKHOLE]),
    block=st.sampled_from([None, 32, 64]),
    spread=st.sampled_from([0, 4, 12, 20, 60, 128]),  # the last: subnormals, and infinities whose blocks' sums are NaN
    seed=st.integers(0, 1 << 16),
)
def test_whole_matmuls_have_the_same_bits_with_and_without_kernels(
    shape: tuple[int, int, int, int],
    formats: tuple[DataType, DataType, DataType],
    fidelity: MathFidelity,
    destination: tuple[bool, bool],
    arch: Arch,
    block: int | None,
    spread: int,
    seed: int,
) -> None:
    batch, rows, depth, columns = shape
    a = to_lane(_patterns((batch, rows, depth), seed, spread, zeros=0.1), formats[0])
    b = to_lane(_patterns((batch, depth, columns), seed + 1, spread, zeros=0.1), formats[1])
    config = FpuConfig(arch, fidelity, *destination, block, *formats)

    _assert_same_bits_without_kernels(a, b, config)


@needs_compiler
@pytest.mark.parametrize("fp32_dest", [False, True])
def test_blocks_whose_sums_are_infinite_have_the_same_bits_with_and_without_kernels(fp32_dest: bool) -> None:
    """Infinities of both signs meet in L1."""
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e-40, -0.0, 3.3e38, -3.3e38, 1.0])
    a, b = (special[torch.randint(0, 8, shape, generator=_generator(3))] for shape in ((16, 160), (160, 40)))
    a[:, -32:] = 0.0  # the last block is computed on top of L1 and leaves it

    _assert_same_bits_without_kernels(a, b, FpuConfig(fp32_dest=fp32_dest, packer_l1_acc=True, k_block=32))


def _assert_same_bits_without_kernels(a: torch.Tensor, b: torch.Tensor, config: FpuConfig) -> None:
    compiled = exact_matmul.matmul(a, b, config)
    options.override("TTMESH_KERNELS", False)
    loader.forget()
    try:
        plain = exact_matmul.matmul(a, b, config)
    finally:
        options.override("TTMESH_KERNELS", None)
        loader.forget()

    bits = {2: torch.int16, 4: torch.int32}[compiled.element_size()]
    assert torch.equal(compiled.view(bits), plain.view(bits))


@pytest.mark.parametrize(("follow", "sum_"), [(True, -16.0), (False, -(2.0**-23))], ids=["on", "off"])
def test_a_sum_of_minus_one_unit_is_wrong_on_wormhole_unless_that_is_switched_off(follow, sum_, monkeypatch):
    monkeypatch.setattr(numerics_mode.state, "minus_one_fault", follow)
    config = FpuConfig(
        Arch.WORMHOLE_B0, MathFidelity.HiFi4, fp32_dest=True, a_dtype=float32, b_dtype=float32, out_dtype=float32
    )
    a, b = torch.zeros(32, 32), torch.zeros(32, 32)
    a[0, [0, 8, 16]] = torch.tensor([1.0, 2.0**-12, 1.0])  # -(1 + one unit) in the register, then 1 more
    b[[0, 8, 16], 0] = torch.tensor([-1.0, -(2.0**-11), 1.0])

    assert float(exact_matmul.matmul(a, b, config)[0, 0]) == sum_
