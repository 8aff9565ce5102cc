"""What the comparisons of collectives with torch share: formats, algorithms and modes, and how near a sum must be."""

from __future__ import annotations

import torch
from ccl_meshes import lanes_of, on, random_lanes

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout, bfloat8_b, bfloat16, float32, int32, uint32
from ttmesh.ccl.planning.algorithm_choice import algorithm, names
from ttmesh.ccl.planning.collective_call import Request
from ttmesh.ccl.planning.group_plan import find_groups
from ttmesh.chip.formats.storage import finish
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.tensor import Tensor

DTYPES = (float32, bfloat16, bfloat8_b, int32, uint32)
SUMMED_DTYPES = DTYPES[:-1]  # TT-NN sums no uint32 where chips cannot share its tiles evenly
LOCAL = (2, 64, 32)
EPSILON = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8}


def list_variants(tensor: Tensor, mesh: MeshDevice, axis: int | None) -> list[tuple[str | None, str]]:
    """The default and every algorithm that can serve the axis, over links and over the host."""
    group = find_groups(Request("test", mesh, (tensor,), (), {}), axis).group
    able = [name for name in names() if algorithm(name).unsupported_reason(group) is None]
    return [(name, mode) for name in (None, *able) for mode in ("fabric", "host")]


def tensor_on(mesh: MeshDevice, dtype: DataType) -> tuple[torch.Tensor, Tensor]:
    lanes = random_lanes(mesh.shape.to_tuple(), LOCAL, dtype)
    layout = Layout.ROW_MAJOR
    if dtype in BLOCK_FLOATS:
        lanes, layout = finish(lanes, dtype), Layout.TILE
    return lanes, on(mesh, lanes, dtype, layout=layout)


def check_sum(result: Tensor, exact: torch.Tensor, magnitudes: torch.Tensor, n: int, name: str | None) -> None:
    got = lanes_of(result)
    if not got.is_floating_point():
        assert torch.equal(got.long(), exact.long())
        return
    if result.dtype is bfloat8_b:  # summed as bfloat16, then a shared exponent of 16 values
        assert torch.allclose(got.double(), exact, atol=float(magnitudes.max()) * 2.0**-6)
        return
    if (name in (None, "direct") or n == 2) and got.dtype == torch.bfloat16:
        assert torch.equal(got, exact.float().bfloat16())
        return
    bound = magnitudes * EPSILON[got.dtype] * n
    assert ((got.double() - exact).abs() <= bound).all()
