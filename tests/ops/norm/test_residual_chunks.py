"""A layer norm with a residual is computed a few rows at a time, with the bits of the whole at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.ops.norm import layer_norm


@pytest.mark.parametrize("shape", [(1, 8, 1, 384, 1024), (2, 4, 3, 100, 96), (1, 1, 7, 300_000)])
def test_chunks_of_rows_have_the_bits_of_all_rows(shape: tuple[int, ...]) -> None:
    width = shape[-1]
    x, residual = (torch.randn(shape).bfloat16() for _ in range(2))
    for scale, shift in itertools.product((None, torch.randn(width)), repeat=2):
        found = layer_norm._normalize_sums(x, residual, scale, shift, 1e-5)
        assert torch.equal(found, F.layer_norm(x.float() + residual, (width,), scale, shift, 1e-5).bfloat16())
    rows = x.mT.contiguous().mT  # not contiguous
    assert torch.equal(
        layer_norm._normalize_sums(rows, residual, None, None, 1e-5),
        layer_norm._normalize_sums(x, residual, None, None, 1e-5),
    )


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[ttnn.MeshDevice]:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3000")
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 8))
    yield opened
    ttnn.close_mesh_device(opened)


def test_a_call_with_many_rows_gives_what_calls_with_few_give(mesh: ttnn.MeshDevice) -> None:
    x, residual = (torch.randn(8, 1, 1024, 64).bfloat16() for _ in range(2))

    def normalize(rows: slice) -> torch.Tensor:
        a, b = (
            ttnn.from_torch(
                v[:, :, rows], layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0)
            )
            for v in (x, residual)
        )
        result = ttnn.layer_norm(a, residual_input_tensor=b, epsilon=1e-5)
        return ttnn.to_torch(result, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=0))

    with ttmesh.numerics("ideal"):
        parts = [normalize(slice(start, start + 32)) for start in (0, 992)]
        whole = normalize(slice(None))

    assert torch.equal(torch.cat(parts, 2), torch.cat([whole[:, :, :32], whole[:, :, 992:]], 2))
