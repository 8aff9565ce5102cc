"""Programs are counted per chip: how tensors are placed on the mesh makes no new ones, as in TT-NN 0.81.1."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import ttmesh.ttnn as ttnn

LOCAL = (1, 1, 64, 64)


@pytest.fixture
def mesh() -> Iterator[ttnn.MeshDevice]:
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 8))
    yield mesh
    ttnn.close_mesh_device(mesh)


def place(mesh: ttnn.MeshDevice, mapper: object, factor: int = 1) -> ttnn.Tensor:
    values = torch.randn(factor * LOCAL[0], *LOCAL[1:])
    return ttnn.from_torch(
        values, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper
    )  # fmt: skip


CALLS: dict[str, Callable[[ttnn.Tensor], object]] = {
    "relu": ttnn.relu,
    "softmax": lambda x: ttnn.softmax(x, dim=-1),
    "fill_cache": lambda x: ttnn.fill_cache(ttnn.zeros_like(x), x, 0),
    "permute": lambda x: ttnn.permute(x, (0, 1, 3, 2)),
    "clone": ttnn.clone,
    "update_cache": lambda x: ttnn.update_cache(ttnn.zeros_like(x), x[:, :, :32], 0),
    "topk": lambda x: ttnn.topk(x, 32),
    "embedding": lambda x: ttnn.embedding(ttnn.typecast(ttnn.untilize(x[0, 0, :1]), ttnn.uint32), x[0, 0]),
}


@pytest.mark.parametrize("name", CALLS)
def test_another_placement_of_the_same_shards_makes_no_program(mesh: ttnn.MeshDevice, name: str) -> None:
    replicated = place(mesh, ttnn.ReplicateTensorToMesh(mesh))
    sharded = place(mesh, ttnn.ShardTensorToMesh(mesh, dim=0), factor=8)
    assert replicated.spec == sharded.spec
    CALLS[name](replicated)
    before = mesh.num_program_cache_entries()

    CALLS[name](sharded)

    assert mesh.num_program_cache_entries() == before


def test_all_reduce_shares_the_programs_of_its_parts(mesh: ttnn.MeshDevice) -> None:
    x = place(mesh, ttnn.ReplicateTensorToMesh(mesh))
    x = ttnn.concat([x] * 8, dim=3)
    before = mesh.num_program_cache_entries()
    ttnn.all_gather(ttnn.reduce_scatter(x, dim=3, num_links=1), dim=3, num_links=1)
    assert mesh.num_program_cache_entries() == before + 2

    ttnn.all_reduce(x, num_links=1)

    assert mesh.num_program_cache_entries() == before + 2
