"""topk of nothing, and nothing of topk: empty results in the input's format, without a program, as in TT-NN 0.81.1."""

from __future__ import annotations

import pytest

from ttmesh import ttnn


@pytest.mark.parametrize(
    ("shape", "k", "dim", "expected"),
    [((32, 64), 0, -1, [32, 0]), ((2, 32, 64), 0, 1, [2, 0, 64]), ((170,), 0, 0, [0]), ((0, 64), 3, -1, [0, 3])],
)
def test_empty_results_launch_nothing(shape: tuple[int, ...], k: int, dim: int, expected: list[int]) -> None:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        x = ttnn.zeros(shape, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
        before = mesh.num_program_cache_entries()

        values, indices = ttnn.topk(x, k, dim=dim)

        assert list(values.shape) == list(indices.shape) == expected
        assert values.dtype == indices.dtype == ttnn.bfloat16
        assert mesh.num_program_cache_entries() == before


def test_a_negative_count_is_a_type_error() -> None:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        x = ttnn.zeros((32, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
        with pytest.raises(TypeError, match="incompatible function arguments"):
            ttnn.topk(x, -1)
