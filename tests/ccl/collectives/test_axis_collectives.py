"""Every collective, by every algorithm and mode, in every format, along every axis, agrees with plain torch.

Exact for integers and copies, for two members, and where the sum is one chain in member order rounded once (the default
and `direct`). Elsewhere each of the n-1 additions may round: n half units in the last place of the sum of magnitudes.
"""

from __future__ import annotations

from collections.abc import Iterator

import ccl_references as references
import pytest
import torch
from ccl_meshes import lanes_of, on, opened, random_lanes
from collective_checks import DTYPES, LOCAL, SUMMED_DTYPES, check_sum, list_variants, tensor_on

from ttmesh.base.dtypes import DataType, Layout, bfloat16, float32, int32, uint32
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.ccl.collectives.all_to_all import all_to_all
from ttmesh.ccl.collectives.broadcast import all_broadcast, broadcast, mesh_partition
from ttmesh.ccl.collectives.reduce_gather import all_gather, all_reduce, reduce_scatter
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.ops.creation.full import full

pytestmark = pytest.mark.usefixtures("collectives_on_some_chips")

MESHES = ((1, 2), (1, 8), (2, 4), (8, 4))


@pytest.fixture(params=MESHES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def mesh(request: pytest.FixtureRequest) -> Iterator[MeshDevice]:
    with opened(request.param) as device:
        yield device


def axes(mesh: MeshDevice) -> list[int]:
    return [axis for axis in (0, 1) if mesh.shape[axis] > 1]


@pytest.mark.parametrize("dtype", SUMMED_DTYPES, ids=lambda dtype: dtype.name)
def test_all_reduce(mesh: MeshDevice, dtype: DataType) -> None:
    lanes, tensor = tensor_on(mesh, dtype)
    for axis in axes(mesh):
        exact, magnitudes = references.all_reduce(lanes, axis), references.all_reduce(lanes.abs(), axis)
        for name, mode in list_variants(tensor, mesh, axis):
            result = all_reduce(tensor, cluster_axis=axis, algorithm=name, mode=mode)

            check_sum(result, exact, magnitudes, mesh.shape[axis], name)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_reduce_scatter(mesh: MeshDevice, dtype: DataType) -> None:
    lanes, tensor = tensor_on(mesh, dtype)
    for axis in axes(mesh):
        for dim in (1, 2):
            exact, magnitudes = (references.reduce_scatter(v, axis, dim) for v in (lanes, lanes.abs()))
            for name, mode in list_variants(tensor, mesh, axis):
                result = reduce_scatter(tensor, dim, cluster_axis=axis, algorithm=name, mode=mode)

                check_sum(result, exact, magnitudes, mesh.shape[axis], name)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_all_gather(mesh: MeshDevice, dtype: DataType) -> None:
    lanes, tensor = tensor_on(mesh, dtype)
    for axis in axes(mesh):
        for dim in (0, 1, 2):
            for name, mode in list_variants(tensor, mesh, axis):
                result = all_gather(tensor, dim, cluster_axis=axis, algorithm=name, mode=mode)

                assert torch.equal(lanes_of(result), references.all_gather(lanes, axis, dim))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_broadcast_and_all_broadcast(mesh: MeshDevice, dtype: DataType) -> None:
    lanes, tensor = tensor_on(mesh, dtype)
    for axis in axes(mesh):
        root = mesh.shape[axis] - 1
        coord = MeshCoordinate(root, 0) if axis == 0 else MeshCoordinate(0, root)
        for name, mode in list_variants(tensor, mesh, axis):
            copied = broadcast(tensor, coord, cluster_axis=axis, algorithm=name, mode=mode)
            every = all_broadcast(tensor, cluster_axis=axis, algorithm=name, mode=mode)

            assert torch.equal(lanes_of(copied), references.broadcast(lanes, axis, root))
            assert len(every) == mesh.shape[axis]
            for i, shard in enumerate(every):
                assert torch.equal(lanes_of(shard), references.broadcast(lanes, axis, i))


@pytest.mark.parametrize("dtype", [float32, bfloat16, int32, uint32], ids=lambda dtype: dtype.name)
def test_all_to_all_and_mesh_partition(mesh: MeshDevice, dtype: DataType) -> None:
    lanes, tensor = tensor_on(mesh, dtype)
    for axis in axes(mesh):
        sliced = mesh_partition(tensor, 1, cluster_axis=axis)
        assert torch.equal(lanes_of(sliced), references.partition(lanes, axis, 1))
        for name, mode in list_variants(tensor, mesh, axis):
            result = all_to_all(tensor, 0, 2, cluster_axis=axis, algorithm=name, mode=mode)

            assert torch.equal(lanes_of(result), references.all_to_all(lanes, axis, 0, 2))


def test_where_a_tensor_lies_never_changes_its_sum(mesh: MeshDevice) -> None:
    for dtype in (float32, bfloat16, int32):
        one = random_lanes((1, 1), LOCAL, dtype)
        everywhere = one.expand(*mesh.shape, *LOCAL).contiguous()
        for axis in axes(mesh):
            stored_once, stored_often = (all_reduce(on(mesh, v, dtype), cluster_axis=axis) for v in (one, everywhere))

            assert torch.equal(lanes_of(stored_once), lanes_of(stored_often))


@pytest.mark.parametrize("reduction", ["max", "min", "mean"])
def test_other_reductions(mesh: MeshDevice, reduction: str) -> None:
    lanes, tensor = tensor_on(mesh, float32)
    for axis in axes(mesh):
        exact = {
            "max": lanes.amax(axis, keepdim=True), "min": lanes.amin(axis, keepdim=True),
            "mean": lanes.double().mean(axis, keepdim=True),
        }[reduction].expand(lanes.shape)  # fmt: skip
        for name, mode in list_variants(tensor, mesh, axis):
            result = all_reduce(tensor, cluster_axis=axis, algorithm=name, mode=mode, reduction=reduction)

            assert torch.allclose(lanes_of(result).double(), exact.double(), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "wanted"), [("dtype", (float32, Layout.TILE)), ("layout", (bfloat16, Layout.ROW_MAJOR))]
)
def test_a_given_output_of_another_format_is_refused(name: str, wanted: tuple[DataType, Layout]) -> None:
    with opened((1, 4)) as mesh:
        tensor = full([1, 1, 32, 32], 0, dtype=bfloat16, layout=Layout.TILE, device=mesh)
        output = full([1, 1, 32, 128], 0, dtype=wanted[0], layout=wanted[1], device=mesh)

        with pytest.raises(RuntimeError, match=f"Output tensor {name} .* should be same as input tensor {name}"):
            all_gather(tensor, dim=-1, output_tensor=output)
