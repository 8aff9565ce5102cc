"""Ideal matmuls: one rounding, by a route that the processor has."""

from __future__ import annotations

import pytest
import torch

from ttmesh.chip.numerics import fpu, ideal_matmul
from ttmesh.ops.lane_functions.gemm import matmul_lanes

SHAPES = {
    "own weights on every chip": ((2, 4, 1, 32, 64), (2, 4, 1, 64, 96)),
    "the same weights": ((2, 4, 1, 32, 64), (1, 1, 1, 64, 96)),
    "weights of a row of chips": ((2, 4, 1, 32, 64), (2, 1, 1, 64, 96)),
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("multiply", [lambda a, b: matmul_lanes(a, b, 2), fpu.matmul], ids=["lanes", "fpu"])
def test_a_cpu_without_bfloat16_multiplies_in_float32(shapes, multiply, monkeypatch):
    dtypes = []

    def record(name):
        real = getattr(torch, name)
        return lambda a, b: dtypes.append(a.dtype) or real(a, b)

    for name in ("matmul", "mm"):
        monkeypatch.setattr(torch, name, record(name))
    monkeypatch.setattr(ideal_matmul.matmul, "__kwdefaults__", {"gemm": torch.matmul})
    monkeypatch.setattr(ideal_matmul, "FAST_BFLOAT16", False)
    a, b = (torch.randn(shape).bfloat16() for shape in shapes)

    result = multiply(a, b)

    assert dtypes == [torch.float32]
    assert result.dtype is torch.bfloat16
    torch.testing.assert_close(result.double(), a.double() @ b.double(), rtol=2**-8, atol=2**-16)  # one rounding
