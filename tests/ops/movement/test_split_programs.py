"""Splits take as many programs as TT-NN 0.81.1's: one where its kernel for tiles makes all pieces, else a slice each."""

from __future__ import annotations

import pytest
import torch

import ttmesh.ttnn as ttnn


@pytest.mark.parametrize(
    ("shape", "size", "programs"),
    [
        ((1, 1, 64, 128), 32, 1),
        ((2, 1, 64, 128), 64, 1),
        ((1, 1, 64, 64), 32, 1),
        ((64, 128), 64, 1),
        ((1, 64, 256), 128, 1),
        ((1, 2, 64, 192), 64, 1),
        ((1, 1, 32, 256), 128, 2),
        ((1, 1, 40, 128), 64, 2),
        ((2, 1, 64, 192), 64, 3),
        ((1, 1, 64, 256), [64, 192], 2),
    ],
)
def test_a_split_along_the_last_dim_takes_as_many_programs_as_in_tt_nn(
    shape: tuple[int, ...], size: int | list[int], programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "n150")
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    values = torch.arange(torch.Size(shape).numel()).reshape(shape).remainder(251).bfloat16()
    tensor = ttnn.from_torch(values, layout=ttnn.TILE_LAYOUT, device=mesh)
    before = mesh.num_program_cache_entries()

    pieces = ttnn.split(tensor, size, len(shape) - 1)

    assert mesh.num_program_cache_entries() - before == programs
    for piece, expected in zip(pieces, torch.split(values, size, -1), strict=True):
        assert torch.equal(ttnn.to_torch(piece), expected)
    ttnn.close_mesh_device(mesh)
