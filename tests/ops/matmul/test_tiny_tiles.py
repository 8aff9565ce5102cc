"""Matmuls of tiles that TT-NN's kernels do not take are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn

ROWS, DEPTH = 32, 64


@pytest.fixture
def mesh() -> Iterator[ttnn.MeshDevice]:
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    yield opened
    ttnn.close_mesh_device(opened)


def multiply(mesh: ttnn.MeshDevice, a: dict[str, Any], b: dict[str, Any], tile_rows: int) -> ttnn.Tensor:
    config = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=(2, 2), in0_block_w=1, out_subblock_h=1, out_subblock_w=1,
        per_core_M=ROWS // tile_rows // 2 or 1, per_core_N=1, transpose_mcast=False, fused_activation=None,
    )  # fmt: skip
    left, right = (
        ttnn.from_torch(torch.ones(1, 1, *shape), layout=ttnn.TILE_LAYOUT, device=mesh, **options)
        for shape, options in (((ROWS, DEPTH), a), ((DEPTH, 64), b))
    )
    return ttnn.matmul(left, right, program_config=config)


def test_block_floats_are_multiplied_by_tiles_of_16_rows_or_more(mesh: ttnn.MeshDevice) -> None:
    weights = {"dtype": ttnn.bfloat8_b}
    low, enough = ({"dtype": ttnn.bfloat16, "tile": ttnn.Tile((rows, 32))} for rows in (8, 16))

    with pytest.raises(RuntimeError, match=r"tile_h 8 is not currently supported on the mcast program config path"):
        multiply(mesh, low, weights, 8)

    assert ttnn.to_torch(multiply(mesh, enough, weights, 16)).eq(DEPTH).all()


def test_tiles_of_bfloat4_have_four_rows_or_more(mesh: ttnn.MeshDevice) -> None:
    with pytest.raises(RuntimeError, match=r"BFLOAT4_B matmul requires in0 tile height >= 4 \(got 2\)"):
        multiply(mesh, {"dtype": ttnn.bfloat4_b, "tile": ttnn.Tile((2, 32))}, {"dtype": ttnn.bfloat16}, 2)


def test_transposed_weights_have_tiles_of_32_columns(mesh: ttnn.MeshDevice) -> None:
    narrow = {"dtype": ttnn.bfloat16, "tile": ttnn.Tile((32, 16), transpose_tile=True)}

    with pytest.raises(RuntimeError, match="does not support transposed in1 with tile width 16"):
        multiply(mesh, {"dtype": ttnn.bfloat16}, narrow, 32)
