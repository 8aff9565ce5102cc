"""Tensors in files keep values, formats, memory and placement."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from ttmesh.base import dtypes as d
from ttmesh.base.dtypes import Layout, ShardStrategy
from ttmesh.tensor.distribution.composers import ConcatMeshToTensor
from ttmesh.tensor.distribution.mappers import ReplicateTensorToMesh, ShardTensorToMesh
from ttmesh.tensor.spec.memory_config import L1_MEMORY_CONFIG
from ttmesh.tensor.spec.shard_config import create_sharded_memory_config
from ttmesh.tensor.transfer.serialization import (
    as_tensor,
    dump_tensor,
    dump_tensor_flatbuffer,
    load_tensor,
    load_tensor_flatbuffer,
)
from ttmesh.tensor.transfer.transfers import from_torch, to_torch

ALL = [d.float32, d.bfloat16, d.bfloat8_b, d.bfloat4_b, d.uint32, d.uint16, d.uint8, d.int32]


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_format_survives_a_file(tmp_path, dtype) -> None:
    values = torch.rand(3, 40, 50) if dtype in d.FLOATS else torch.randint(0, 200, (3, 40, 50))
    tensor = from_torch(values, dtype, layout=Layout.TILE)

    dump_tensor(tmp_path / "t.tensorbin", tensor)

    loaded = load_tensor(tmp_path / "t.tensorbin")
    assert loaded.spec == tensor.spec
    assert torch.equal(to_torch(loaded).to(torch.float64), to_torch(tensor).to(torch.float64))


def test_the_inner_names_take_any_file_name(tmp_path, mesh) -> None:
    tensor = from_torch(torch.rand(64, 32), layout=Layout.TILE)

    dump_tensor_flatbuffer(str(tmp_path / "weights.bin"), tensor)

    loaded = load_tensor_flatbuffer(str(tmp_path / "weights.bin"), device=mesh)
    assert loaded.device() is mesh
    assert torch.equal(to_torch(loaded.cpu(), mesh_composer=ConcatMeshToTensor(mesh, 0))[:64], to_torch(tensor))


def test_placements_and_shards_survive_a_file(tmp_path, mesh) -> None:
    config = create_sharded_memory_config((64, 32), type(mesh.core_grid)(y=2, x=1), ShardStrategy.HEIGHT)
    mapper = ShardTensorToMesh(mesh, 0)
    tensor = from_torch(
        torch.rand(3 * 64, 32), layout=Layout.TILE, device=mesh, memory_config=config, mesh_mapper=mapper
    )

    dump_tensor(tmp_path / "t.tensorbin", tensor)

    loaded = load_tensor(tmp_path / "t.tensorbin", device=mesh)
    assert loaded.kind is tensor.kind
    composer = ConcatMeshToTensor(mesh, 0)
    assert torch.equal(to_torch(loaded, mesh_composer=composer), to_torch(tensor, mesh_composer=composer))


def test_files_of_others_are_refused_clearly(tmp_path) -> None:
    plain = tmp_path / "plain.tensorbin"
    save_file({"x": torch.zeros(1)}, plain)

    with pytest.raises(RuntimeError, match="is neither a file of TT-NN nor one of ttmesh"):
        load_tensor(plain)
    with pytest.raises(RuntimeError, match=r"must have .tensorbin extension"):
        load_tensor(tmp_path / "t.bin")
    with pytest.raises(RuntimeError, match="The file does not exist"):
        load_tensor(tmp_path / "none.tensorbin")


def test_as_tensor_reads_its_cache_file(tmp_path, mesh) -> None:
    made = []

    def preprocess(values):
        made.append(1)
        return values * 2

    def cached(mapper):
        return as_tensor(
            torch.ones(8, 32),
            d.bfloat16,
            layout=Layout.TILE,
            device=mesh,
            memory_config=L1_MEMORY_CONFIG,
            cache_file_name=tmp_path / "sub" / "weight",
            preprocess=preprocess,
            mesh_mapper=mapper,
        )

    first, second = cached(ShardTensorToMesh(mesh, 0)), cached(ShardTensorToMesh(mesh, 0))

    assert made == [1]
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["weight_dtype_BFLOAT16_layout_TILE.tensorbin"]
    for tensor in (first, second):
        assert tensor.memory_config() == L1_MEMORY_CONFIG
        assert (to_torch(tensor, mesh_composer=ConcatMeshToTensor(mesh, 0)) == 2).all()


def test_a_replicated_cache_file_holds_one_copy_for_any_mesh(tmp_path, mesh) -> None:
    name = tmp_path / "w"
    as_tensor(torch.ones(8, 32), cache_file_name=name, mesh_mapper=ReplicateTensorToMesh(mesh))

    loaded = load_tensor(tmp_path / "w_dtype_None_layout_ROW_MAJOR.tensorbin")

    assert loaded.mesh_shape.mesh_size() == 1
    assert loaded.to(mesh).buffer.cell.values.shape == (1, 1, 8, 32)


def test_a_broken_cache_file_is_written_again(tmp_path, caplog) -> None:
    path = tmp_path / "w_dtype_None_layout_ROW_MAJOR.tensorbin"
    path.write_bytes(b"broken")

    tensor = as_tensor(torch.ones(2), cache_file_name=tmp_path / "w")

    assert to_torch(tensor).sum() == 2
    assert "Failed to load cache" in caplog.text
    assert to_torch(load_tensor(path)).sum() == 2


def test_a_device_needs_a_memory_config(mesh) -> None:
    with pytest.raises(RuntimeError, match="memory_config must be specified when device is specified"):
        as_tensor(torch.ones(2), device=mesh)


def test_a_folder_that_is_not_there_is_refused_clearly(tmp_path) -> None:
    tensor = from_torch(torch.ones(32, 32), dtype=d.bfloat16)

    with pytest.raises(RuntimeError, match=r'Cannot open ".*no.x\.tensorbin" for writing: .*No such file or directory'):
        dump_tensor(tmp_path / "no" / "x.tensorbin", tensor)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RuntimeError, match=r"for writing: .*File exists|for writing: .*Not a directory"):
        as_tensor(torch.ones(32, 32), dtype=d.bfloat16, cache_file_name=tmp_path / "file" / "cache")
