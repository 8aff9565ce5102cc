"""The FPU's torch and C versions have the bits of its rules in integers, on operands chosen to break them."""

from __future__ import annotations

from collections.abc import Callable

import integer_fpu
import numpy as np
import pytest
import torch

from ttmesh.base.dtypes import Arch, MathFidelity, float32
from ttmesh.chip.numerics import exact_matmul, fpu_reference
from ttmesh.chip.numerics.fpu_config import PHASES, FpuConfig
from ttmesh.chip.numerics.unpacker import unpack

Random = np.random.Generator
SPECIAL = np.array(
    [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF, 1, 0x807FFFFF, 0x00800000, 0x7F7FFFFF], np.uint32
)


def _with_exponents(random: Random, shape: tuple[int, ...], least: int, most: int) -> integer_fpu.Patterns:
    exponents = random.integers(least, most + 1, shape, dtype=np.uint32) << np.uint32(23)
    return random.integers(0, 1 << 32, shape, dtype=np.uint32) & np.uint32(0x807FFFFF) | exponents


def _special(random: Random, shape: tuple[int, ...]) -> integer_fpu.Patterns:
    numbers = _with_exponents(random, shape, 110, 140)
    return np.where(random.random(shape) < 0.1, random.choice(SPECIAL, shape), numbers)


def _ties(random: Random, shape: tuple[int, ...]) -> integer_fpu.Patterns:
    return (random.integers(-9, 10, shape) * 2.0 ** random.integers(-6, 7, shape)).astype(np.float32).view(np.uint32)


OPERANDS: dict[str, Callable[[Random, tuple[int, ...]], integer_fpu.Patterns]] = {
    "any bits": lambda random, shape: random.integers(0, 1 << 32, shape, dtype=np.uint32),
    "special numbers": _special,
    "ties": _ties,
    "exponents far apart": lambda random, shape: _with_exponents(random, shape, 80, 175),
    "products around the least normal": lambda random, shape: _with_exponents(random, shape, 58, 74),
    "products around the largest": lambda random, shape: _with_exponents(random, shape, 185, 196),
    "units": lambda random, shape: _with_exponents(random, shape, 124, 130) & np.uint32(0xFFE00000),
}


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("data", OPERANDS)
@pytest.mark.parametrize("fidelity", list(PHASES), ids=lambda fidelity: fidelity.name)
@pytest.mark.parametrize("wide", [False, True], ids=["16 bits", "32 bits"])
def test_products_have_the_bits_of_the_rules(data: str, fidelity: MathFidelity, wide: bool) -> None:
    random = np.random.default_rng(7)
    for arch, held in ((Arch.WORMHOLE_B0, False), (Arch.BLACKHOLE, True)):
        config = FpuConfig(arch=arch, fidelity=fidelity, fp32_dest=wide)
        a, b = (unpack(_floats(OPERANDS[data](random, s)), float32, fp32_dest=wide) for s in ((9, 64), (64, 17)))
        start = unpack(_floats(OPERANDS[data](random, (9, 17))), float32, fp32_dest=wide) * float(held)
        start = torch.where(start.isnan(), 0.0, start)

        expected = integer_fpu.matmul(
            *(_patterns(x) for x in (a, b)),
            phases=config.phases,
            wide=wide,
            fault=config.has_minus_one_fault,
            dest=_patterns(start),
        )

        for multiply in (exact_matmul.multiply_onto, _multiply_by_reference):
            assert np.array_equal(_patterns(multiply(a, b, start, config)), expected)


def test_a_group_of_products_below_the_normals_leaves_nothing_however_large_its_sum() -> None:
    least = torch.full((1, 32), 2.0**-63).float()
    ones = torch.ones(32, 1)
    ones[16:] = 0
    for wide in (False, True):
        config = FpuConfig(fidelity=MathFidelity.LoFi, fp32_dest=wide)

        assert exact_matmul.dest_of_matmul(least, ones * 2.0**-63, config).item() == 16 * 2.0**-126
        assert exact_matmul.dest_of_matmul(least, ones * 2.0**-64, config).item() == 0


def _multiply_by_reference(a: torch.Tensor, b: torch.Tensor, dest: torch.Tensor, config: FpuConfig) -> torch.Tensor:
    return fpu_reference.multiply(a[None], b[None], config, dest[None])[0]


def _floats(patterns: integer_fpu.Patterns) -> torch.Tensor:
    return torch.from_numpy(patterns.view(np.float32).copy())


def _patterns(values: torch.Tensor) -> integer_fpu.Patterns:
    return values.contiguous().numpy().view(np.uint32)
