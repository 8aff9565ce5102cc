"""The gradient of a weight is a matmul of lanes like any other: the same route, the same bits."""

from __future__ import annotations

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.nn.autograd.local_ops import weight_grad

CHIPS = 4


@pytest.mark.parametrize("dtype", [ttnn.float32, ttnn.bfloat16])
@pytest.mark.parametrize(("rows", "width", "columns"), [(256, 160, 128), (32, 48, 64)])
def test_a_weight_s_gradient_has_the_bits_of_the_matmul_of_its_operands(
    dtype: ttnn.DataType, rows: int, width: int, columns: int
) -> None:
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, CHIPS))
    generator = torch.Generator().manual_seed(3)
    x, grad = (
        ttnn.from_torch(
            torch.randn(CHIPS, 1, rows, extent, generator=generator),
            dtype=dtype,
            layout=ttnn.TILE_LAYOUT,
            device=mesh,
            mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0),
        )
        for extent in (width, columns)
    )

    with ttmesh.numerics("ideal"):
        found, expected = weight_grad(x=x, grad=grad), ttnn.matmul(x, grad, transpose_a=True)

    for one, other in zip(ttnn.get_device_tensors(found), ttnn.get_device_tensors(expected), strict=True):
        assert torch.equal(ttnn.to_torch(one).reshape(width, columns), ttnn.to_torch(other).reshape(width, columns))
    ttnn.close_mesh_device(mesh)
