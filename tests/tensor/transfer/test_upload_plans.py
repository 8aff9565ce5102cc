"""A repeated upload takes a shorter route and gives what the first one gave."""

from __future__ import annotations

import pytest
import torch

import ttmesh.ttnn as ttnn

SOURCES = {
    "float32": torch.randn(2, 40, 50),
    "NaN": torch.tensor([[1.0, float("nan")], [float("inf"), -0.0]]),
    "bfloat16": torch.randn(33, 64).bfloat16(),
    "float16": torch.randn(5).half(),
    "int32": torch.arange(-8, 8, dtype=torch.int32).reshape(4, 4),
    "uint8": torch.arange(16, dtype=torch.uint8).reshape(4, 4),
    "strided": torch.randn(64, 32).T,
    "empty": torch.empty(0, 32),
}
OPTIONS = {
    "plain": {},
    "bfloat16 tiles": {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT},
    "float32 in L1": {"dtype": ttnn.float32, "memory_config": ttnn.L1_MEMORY_CONFIG},
    "uint32": {"dtype": ttnn.uint32},
    "bfloat8_b": {"dtype": ttnn.bfloat8_b},
}


@pytest.fixture
def mesh():
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    yield mesh
    ttnn.close_mesh_device(mesh)


def read_bits(tensor: ttnn.Tensor) -> list[torch.Tensor]:
    shards = [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(tensor)]
    return [shard.contiguous().view(torch.uint8) if shard.dim() else shard for shard in shards]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_second_upload_equals_the_first(mesh, source, options):
    first = ttnn.from_torch(source, device=mesh, **options)

    second = ttnn.from_torch(source, device=mesh, **options)

    assert second.kind is first.kind
    assert describe_room(second) == describe_room(first)
    assert second.buffer.writes == first.buffer.writes
    assert all(torch.equal(a, b) for a, b in zip(read_bits(first), read_bits(second), strict=True))


def describe_room(tensor):
    room = tensor.buffer.cell.room
    return room.buffer_type, room.size_bytes, room.page_bytes, room.bank_bytes, room.banks


def test_values_are_copied_at_the_second_upload_too(mesh):
    values = torch.ones(32, 32)
    ttnn.from_torch(values, device=mesh)
    second = ttnn.from_torch(values, device=mesh)

    values.zero_()

    assert all(bool((ttnn.to_torch(shard) == 1).all()) for shard in ttnn.get_device_tensors(second))


def test_what_to_torch_gives_is_a_copy(mesh):
    shard = ttnn.get_device_tensors(ttnn.from_torch(torch.ones(32, 32), device=mesh))[0]

    ttnn.to_torch(shard).zero_()

    assert bool((ttnn.to_torch(shard) == 1).all())


def test_a_reshaped_mesh_gets_tensors_of_its_new_shape(mesh):
    values = torch.ones(32, 32)
    ttnn.from_torch(values, device=mesh)
    mesh.reshape(ttnn.MeshShape(1, 8))

    tensor = ttnn.from_torch(values, device=mesh)

    fresh = ttnn.from_torch(values, device=mesh, mesh_mapper=ttnn.ReplicateTensorToMesh(mesh))
    assert tensor.tensor_topology() == fresh.tensor_topology()


@pytest.mark.parametrize("wrong", ["L1", {"buffer": "L1"}, 3])
def test_a_plain_value_for_a_memory_config_is_refused_the_second_time(mesh, wrong):
    values = torch.ones(32, 32)
    ttnn.from_torch(values, device=mesh)

    with pytest.raises(TypeError, match="memory_config="):
        ttnn.from_torch(values, device=mesh, memory_config=wrong)


def test_repeated_uploads_are_refused_while_a_trace_is_captured(mesh):
    values = torch.ones(32, 32)
    ttnn.from_torch(values, device=mesh)
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)

    with pytest.raises(RuntimeError, match="Writes are not supported during trace capture"):
        ttnn.from_torch(values, device=mesh)

    ttnn.end_trace_capture(mesh, trace, cq_id=0)


def test_a_closed_mesh_refuses_a_repeated_upload():
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    values = torch.ones(32, 32)
    ttnn.from_torch(values, device=mesh)
    ttnn.close_mesh_device(mesh)

    with pytest.raises(RuntimeError, match="was closed"):
        ttnn.from_torch(values, device=mesh)


def test_a_default_mapper_is_followed_after_an_upload_without_one(mesh):
    values = torch.arange(8.0).reshape(8, 1)
    ttnn.from_torch(values, device=mesh)

    with ttnn.distribute(ttnn.ShardTensorToMesh(mesh, dim=0)):
        sharded = ttnn.from_torch(values, device=mesh)

    assert sharded.shape == ttnn.Shape([1, 1])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"dtype": [1]}, r"dtype=\[1\] is a list; pass ttnn.bfloat16, say"),
        ({"dtype": torch.bfloat16}, "dtype=torch.bfloat16 is a dtype; pass ttnn.bfloat16, say"),
        ({"layout": {1}}, r"layout=\{1\} is a set; pass ttnn.TILE_LAYOUT or ttnn.ROW_MAJOR_LAYOUT"),
    ],
)
def test_an_argument_of_another_type_is_named(mesh: ttnn.MeshDevice, wrong: dict[str, object], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        ttnn.from_torch(torch.zeros(32, 32), device=mesh, **wrong)


@pytest.mark.parametrize("make", [ttnn.from_torch, ttnn.as_tensor])
@pytest.mark.parametrize("values", [[1.0, 2.0], (1, 2), 3, 2.5, "x", [torch.ones(2)]], ids=repr)
def test_values_that_are_no_tensor_are_refused_as_in_ttnn(make: object, values: object) -> None:
    kind = type(values).__name__
    wrong = rf"ttnn.from_torch\(\): incompatible function arguments.*tensor is a {kind}; pass a torch tensor"
    with pytest.raises(TypeError, match=wrong):
        make(values, dtype=ttnn.float32)  # type: ignore[operator]
