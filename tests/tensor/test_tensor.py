"""What tensors say about themselves, how they share and lose memory, and how they print."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch

from ttmesh.base import dtypes as d
from ttmesh.base.dtypes import Layout, StorageType
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.tensor import operators
from ttmesh.tensor.distribution.composers import ConcatMeshToTensor
from ttmesh.tensor.distribution.mappers import ReplicateTensorToMesh, ShardTensorToMesh
from ttmesh.tensor.spec.tensor_text import set_printoptions
from ttmesh.tensor.transfer.device_tensors import (
    aggregate_tensor,
    combine_device_tensors,
    distribute,
    distribute_tensor,
    from_host_shards,
    get_device_tensors,
)
from ttmesh.tensor.transfer.transfers import copy_host_to_device_tensor, deallocate, from_torch, to_torch
from ttmesh.tensor.visualize import tensor_slices, visualize_mesh_device, visualize_system_mesh, visualize_tensor


@pytest.fixture(autouse=True)
def _default_print_options():
    yield
    set_printoptions(profile="short")


def sharded(mesh, *shape: int, dim: int = 0):
    return from_torch(torch.rand(shape), device=mesh, mesh_mapper=ShardTensorToMesh(mesh, dim))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickle.dumps])
def test_a_tensor_on_chips_is_neither_copied_nor_pickled(mesh, duplicate, recwarn) -> None:
    with pytest.raises(TypeError, match=r"memory on chips cannot be copied or pickled; .* tensor.cpu\(\)"):
        duplicate(sharded(mesh, 8, 4))

    gc.collect()  # and nothing half made complains when it goes
    assert not recwarn.list


def test_use_after_deallocate_says_so(mesh) -> None:
    tensor = sharded(mesh, 8, 4)
    part = get_device_tensors(tensor)[3]

    deallocate(tensor)

    assert not part.is_allocated()
    with pytest.raises(RuntimeError, match="Buffer must be allocated on device: this tensor's memory was freed"):
        to_torch(part)
    host = from_torch(torch.rand(2))
    host.deallocate()
    with pytest.raises(RuntimeError, match="this host tensor was freed"):
        to_torch(host)


def test_only_the_last_tensor_frees_without_force(mesh) -> None:
    tensor = sharded(mesh, 8, 4)
    part = get_device_tensors(tensor)[0]

    tensor.deallocate()
    assert tensor.is_allocated()
    del part
    gc.collect()
    tensor.deallocate()
    assert not tensor.is_allocated()


def test_memory_is_given_back_when_the_last_tensor_goes(mesh) -> None:
    before = len(mesh.heap.cells())
    tensor = sharded(mesh, 8, 4)
    parts = get_device_tensors(tensor)

    del tensor
    assert len(mesh.heap.cells()) == before + 1
    del parts
    gc.collect()
    assert len(mesh.heap.cells()) == before


def test_device_tensors_share_the_buffer(mesh) -> None:
    tensor = sharded(mesh, 8, 4)
    parts = get_device_tensors(tensor)

    copy_host_to_device_tensor(from_torch(torch.full((1, 4), 5.0)), parts[6])

    whole = to_torch(tensor, mesh_composer=ConcatMeshToTensor(dim=0))
    assert (whole[6] == 5).all()
    assert not (whole[5] == 5).any()
    assert parts[6].device_coords() == [MeshCoordinate(1, 2)]
    assert {part.buffer_address() for part in parts} == {tensor.buffer_address()}


def test_device_tensors_combine_again(mesh) -> None:
    tensor = sharded(mesh, 8, 4)
    parts = get_device_tensors(tensor)

    some = combine_device_tensors(tensors=parts[2:5])

    assert some.coords() == [(0, 2), (0, 3), (1, 0)]
    composer = ConcatMeshToTensor(dim=0)
    assert torch.equal(to_torch(some, mesh_composer=composer), to_torch(tensor, mesh_composer=composer)[2:5])
    with pytest.raises(RuntimeError, match="Found a tensor shard at duplicate coordinate"):
        combine_device_tensors(tensors=[parts[0], parts[0]])
    with pytest.raises(RuntimeError, match=r"tensor shards must be allocated on the same mesh buffer."):
        combine_device_tensors(tensors=[parts[0], get_device_tensors(sharded(mesh, 8, 4))[1]])


def test_host_shards_make_a_distributed_tensor(mesh) -> None:
    parts = [from_torch(torch.full((2, 3), float(i))) for i in range(8)]

    tensor = from_host_shards(parts, MeshShape(2, 4))

    assert tensor.mesh_shape == MeshShape(2, 4)
    on_mesh = tensor.to(mesh)
    assert [to_torch(part)[0, 0].item() for part in get_device_tensors(on_mesh)] == list(range(8))
    with pytest.raises(RuntimeError, match="Number of tensor shards must match mesh size"):
        from_host_shards(parts[:3], MeshShape(2, 4))


def test_cutting_and_joining_host_tensors(mesh) -> None:
    host = from_torch(torch.rand(8, 4))

    cut = distribute_tensor(host, ShardTensorToMesh(mesh, 0), mesh)

    assert cut.storage_type() is StorageType.DEVICE
    joined = aggregate_tensor(cut, ConcatMeshToTensor(mesh, 0))
    assert torch.equal(to_torch(joined), to_torch(host))
    with pytest.raises(
        RuntimeError, match=r"TensorToMesh only supports host tensors; got storage type: StorageType.DEVICE"
    ):
        distribute_tensor(cut, ShardTensorToMesh(mesh, 0))


def test_distribute_sets_the_default_inside_the_block_only(mesh) -> None:
    with distribute(ShardTensorToMesh(mesh, 0)), distribute(ConcatMeshToTensor(mesh, 0)):
        tensor = from_torch(torch.arange(8.0).reshape(8, 1), device=mesh)
        assert tensor.shape == (1, 1)
        assert to_torch(tensor).shape == (8, 1)

    assert from_torch(torch.rand(8, 1), device=mesh).shape == (8, 1)
    with (
        pytest.raises(ValueError, match=r"Argument must be an instance of either TensorToMesh or MeshToTensor."),
        distribute(3),
    ):
        pass


def test_indexing_a_host_tensor() -> None:
    tensor = from_torch(torch.arange(24.0).reshape(2, 3, 4))

    assert torch.equal(to_torch(tensor[1, ..., 1:3]), torch.arange(24.0).reshape(2, 3, 4)[1, :, 1:3])
    assert tensor[-1].shape == (3, 4)
    with pytest.raises(IndexError, match=r"Index 5 \(converted to 5\) is out of bounds for dimension 0 of size 2"):
        tensor[5]
    with pytest.raises(IndexError, match="Too many indices for tensor of dimension 3"):
        tensor[0, 0, 0, 0]
    with pytest.raises(RuntimeError, match="Host tensors cannot be accessed with non-unit stride"):
        tensor[::2]


def test_padding_on_the_host_is_a_larger_padded_shape() -> None:
    values = torch.rand(1, 1, 5, 7)

    padded = from_torch(values).pad_to_tile(0.0)

    assert (padded.shape, padded.padded_shape) == ((1, 1, 5, 7), (1, 1, 32, 32))
    assert padded.to_torch_with_padded_shape().shape == (1, 1, 32, 32)
    assert torch.equal(to_torch(padded.to(Layout.TILE).to(Layout.ROW_MAJOR).unpad_from_tile([1, 1, 5, 7])), values)
    assert torch.equal(to_torch(padded.unpad([0, 0, 1, 2], [1, 1, 3, 5])), values[:, :, 1:3, 2:5])


def test_item_wants_one_element(chip) -> None:
    assert from_torch(torch.tensor([3.5]), device=chip).item() == 3.5
    assert from_torch(torch.tensor([[7]], dtype=torch.int32)).item() == 7
    with pytest.raises(RuntimeError, match="requires tensor to have exactly one element, but got 4 elements"):
        from_torch(torch.rand(2, 2)).item()


def test_operators_come_from_the_table(chip, monkeypatch) -> None:
    tensor = from_torch(torch.rand(2, 2), device=chip)
    seen = []
    for name in ("add", "rdiv", "eq", "matmul"):
        monkeypatch.setitem(operators.table, name, lambda *args, name=name: seen.append((name, *args[1:])))

    tensor + 1
    2 + tensor
    3 / tensor
    tensor == 4  # noqa: B015
    tensor @ 5

    assert seen == [("add", 1), ("add", 2), ("rdiv", 3), ("eq", 4), ("matmul", 5)]
    monkeypatch.delitem(operators.table, "add")
    with pytest.raises(NotImplementedError, match="tensors have no operation 'add'"):
        tensor + 1


def test_a_tensor_is_true_and_hashable(chip) -> None:
    tensor = from_torch(torch.zeros(1), device=chip)

    assert tensor
    assert {tensor: 1}[tensor] == 1
    with pytest.raises(TypeError, match="cannot be iterated over"):
        iter(tensor)


def test_prints_as_ttnn_does(chip) -> None:
    tensor = from_torch(torch.arange(16, dtype=torch.bfloat16).reshape(4, 4), layout=Layout.TILE, device=chip)

    assert str(tensor) == (
        "ttnn.Tensor([[ 0.0000,  1.0000,  2.0000,  3.0000],\n"
        "             [ 4.0000,  5.0000,  6.0000,  7.0000],\n"
        "             [ 8.0000,  9.0000, 10.0000, 11.0000],\n"
        "             [12.0000, 13.0000, 14.0000, 15.0000]], shape=Shape([4, 4]), dtype=DataType::BFLOAT16, "
        "layout=Layout::TILE)"
    )
    long = from_torch(torch.arange(6, dtype=torch.int32))
    assert str(long) == (
        "ttnn.Tensor([    0,     1,  ...,     4,     5], shape=Shape([6]), dtype=DataType::INT32, "
        "layout=Layout::ROW_MAJOR)"
    )
    assert str(from_torch(torch.ones(()))).startswith("ttnn.Tensor( 1.0000, shape=Shape([])")
    set_printoptions(profile="empty")
    assert str(tensor) == "ttnn.Tensor(..., shape=Shape([4, 4]), dtype=DataType::BFLOAT16, layout=Layout::TILE)"
    set_printoptions(profile="full", sci_mode=True, precision=2)
    assert " 1.50e+01]]" in str(tensor)
    deallocate(tensor)
    assert str(tensor).startswith("ttnn.Tensor(<buffer is not allocated>, shape=Shape([4, 4])")


def test_prints_every_devices_part(mesh) -> None:
    text = str(sharded(mesh, 8, 4))

    assert text.count("device_id: ") == 8
    assert f"device_id: {mesh.get_device_ids()[5]}, MeshCoordinate([1, 1])\nttnn.Tensor([[" in text


def test_pictures_say_which_slice_lies_where(mesh, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    tensor = sharded(mesh, 1, 1, 32, 256, dim=3)

    assert tensor_slices(tensor)[(1, 2)] == "[:, :, :, 192:224]"
    visualize_tensor(tensor)
    visualize_tensor(tensor.cpu())
    shown = capsys.readouterr().out
    assert shown.count("[:, :, :, 192:224]") == 2
    assert f"Dev. ID: {mesh.get_device_ids()[0]}" in shown
    assert "Placement Configuration" in shown
    visualize_mesh_device(mesh)
    assert "MeshDevice(rows=2, cols=4)" in capsys.readouterr().out
    visualize_system_mesh()
    assert "SystemMesh Global Shape" in capsys.readouterr().out


def test_a_line_over_a_part_of_the_mesh_is_drawn_where_it_lies(mesh) -> None:
    tensor = sharded(mesh, 3, 2)

    assert tensor_slices(tensor) == {(0, 0): "[0:1, :]", (0, 1): "[1:2, :]", (0, 2): "[2:3, :]"}
    assert len(get_device_tensors(tensor)) == 3


def test_sizes_and_addresses(chip) -> None:
    tensor = from_torch(torch.rand(40, 40), d.bfloat8_b, device=chip)

    assert (tensor.volume(), tensor.logical_volume()) == (64 * 64, 1600)
    assert (tensor.buffer_page_size(), tensor.buffer_num_pages()) == (1088, 4)
    assert tensor.buffer_aligned_page_size() % 32 == 0
    assert tensor.element_size() == 1
    assert from_torch(torch.rand(2, 3)).element_size() == 4


def test_replicated_host_tensors_keep_one_copy(mesh) -> None:
    host = from_torch(torch.rand(64, 64), mesh_mapper=ReplicateTensorToMesh(mesh))

    assert host.lanes.shape == (1, 1, 64, 64)
    assert len(get_device_tensors(host)) == 8
    assert host.host_buffer().shape() == MeshShape(2, 4)
    assert torch.equal(host.host_buffer().get_shard(MeshCoordinate(1, 3)), host.lanes[0, 0])
