"""Collectives over a full grid, by every algorithm and mode, in every format, agree with plain torch."""

from __future__ import annotations

from collections.abc import Iterator

import ccl_references as references
import pytest
import torch
from ccl_meshes import lanes_of, opened
from collective_checks import DTYPES, SUMMED_DTYPES, check_sum, list_variants, tensor_on

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.ccl.collectives.all_to_all import all_to_all
from ttmesh.ccl.collectives.broadcast import all_broadcast, broadcast, mesh_partition
from ttmesh.ccl.collectives.reduce_gather import all_gather, all_reduce, reduce_scatter
from ttmesh.ccl.planning.algorithm_choice import algorithm
from ttmesh.fabric.fabric_config import FabricConfig
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.tensor import Tensor

pytestmark = pytest.mark.usefixtures("collectives_on_some_chips")


@pytest.fixture(params=[(2, 4), (8, 4)], ids=["2x4", "8x4"])
def mesh(request: pytest.FixtureRequest) -> Iterator[MeshDevice]:
    with opened(request.param, config=FabricConfig.FABRIC_2D) as device:
        yield device


def list_grid_variants(tensor: Tensor, mesh: MeshDevice) -> list[tuple[str, str]]:
    """Every algorithm that treats a grid as one group, over links and over the host."""
    found = [(name, mode) for name, mode in list_variants(tensor, mesh, None) if name and not algorithm(name).LINE_ONLY]
    assert ("mesh2d", "fabric") in found
    return found


def as_line(lanes: torch.Tensor) -> torch.Tensor:
    return lanes.flatten(0, 1)[None]


def as_grid(line: torch.Tensor, mesh: MeshDevice) -> torch.Tensor:
    return line.reshape(*mesh.shape, *line.shape[2:])


@pytest.mark.parametrize("dtype", SUMMED_DTYPES, ids=lambda dtype: dtype.name)
def test_sums(mesh: MeshDevice, dtype: DataType) -> None:
    lanes, tensor = tensor_on(mesh, dtype)
    n, line = mesh.get_num_devices(), as_line(lanes)
    total, magnitudes = (as_grid(references.all_reduce(v, 1), mesh) for v in (line, line.abs()))
    shard, shard_magnitudes = (as_grid(references.reduce_scatter(v, 1, 1), mesh) for v in (line, line.abs()))
    for name, mode in list_grid_variants(tensor, mesh):
        check_sum(all_reduce(tensor, algorithm=name, mode=mode), total, magnitudes, n, name)
        check_sum(reduce_scatter(tensor, 1, algorithm=name, mode=mode), shard, shard_magnitudes, n, name)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_copies(mesh: MeshDevice, dtype: DataType) -> None:
    lanes, tensor = tensor_on(mesh, dtype)
    line, last = as_line(lanes), mesh.get_num_devices() - 1
    gathered, root = (
        as_grid(references.all_gather(line, 1, 0), mesh),
        as_grid(references.broadcast(line, 1, last), mesh),
    )
    corner = MeshCoordinate(*(n - 1 for n in mesh.shape.to_tuple()))
    for name, mode in list_grid_variants(tensor, mesh):
        assert torch.equal(lanes_of(all_gather(tensor, 0, algorithm=name, mode=mode)), gathered)
        assert torch.equal(lanes_of(broadcast(tensor, corner, algorithm=name, mode=mode)), root)
        every = all_broadcast(tensor, algorithm=name, mode=mode)
        assert torch.equal(lanes_of(every[last]), root)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_exchanges(mesh: MeshDevice, dtype: DataType) -> None:
    lanes, tensor = tensor_on(mesh, dtype)
    line = as_line(lanes)
    if tensor.layout is Layout.ROW_MAJOR:  # tiles are not partitioned inside a tile
        assert torch.equal(lanes_of(mesh_partition(tensor, 1)), as_grid(references.partition(line, 1, 1), mesh))
    exchanged = as_grid(references.all_to_all(line, 1, 0, 1), mesh)
    for name, mode in list_grid_variants(tensor, mesh):
        assert torch.equal(lanes_of(all_to_all(tensor, 0, 1, algorithm=name, mode=mode)), exchanged)
