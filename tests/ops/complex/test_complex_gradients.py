"""Gradients of complex tensors agree with torch's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import ttmesh.ttnn as ttnn


@pytest.fixture
def mesh() -> Iterator[ttnn.MeshDevice]:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        yield mesh


def drawn(seed: int) -> torch.Tensor:
    components = torch.rand(2, 4, 40, generator=torch.Generator().manual_seed(seed)) + 0.5
    return torch.complex(components[0], components[1])


def on(mesh: ttnn.MeshDevice, z: torch.Tensor) -> ttnn.ComplexTensor:
    components = [
        ttnn.from_torch(component.contiguous(), layout=ttnn.TILE_LAYOUT, device=mesh) for component in (z.real, z.imag)
    ]
    return ttnn.complex_tensor(*components)


@pytest.mark.parametrize(
    ("name", "operands", "options"),
    [("add", 2, (1.5,)), ("sub", 2, (1.5,)), ("mul", 2, ()), ("div", 2, ()), ("reciprocal", 1, ()), ("conj", 1, ())],
)
def test_gradients_of_complex_operands(
    mesh: ttnn.MeshDevice, name: str, operands: int, options: tuple[float, ...]
) -> None:
    operation = getattr(ttnn, f"{name}_bw")
    values = [drawn(seed) for seed in range(1 + operands)]
    named = {"alpha": options[0]} if options else {}

    found = operation(*(on(mesh, z) for z in values), *options, memory_config=ttnn.DRAM_MEMORY_CONFIG)

    expected = ttnn.get_golden_function(operation)(*values, **named)
    for got, want in zip(found, expected, strict=True):
        both = torch.cat((ttnn.to_torch(got.real), ttnn.to_torch(got.imag)), -1)
        assert torch.allclose(both, want, rtol=1e-4, atol=1e-4)
