"""Reshapes that move nothing share the buffer; the others do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ttmesh import ttnn


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[ttnn.MeshDevice]:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    device = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    yield device
    ttnn.close_mesh_device(device)


def on(mesh: ttnn.MeshDevice, values: torch.Tensor, layout: object = ttnn.TILE_LAYOUT) -> ttnn.Tensor:
    mapper = ttnn.ReplicateTensorToMesh(mesh)
    return ttnn.from_torch(values, dtype=ttnn.bfloat16, layout=layout, device=mesh, mesh_mapper=mapper)


def first(tensor: ttnn.Tensor) -> torch.Tensor:
    return ttnn.to_torch(ttnn.get_device_tensors(tensor)[0])


@pytest.mark.parametrize(
    ("layout", "old", "new", "shared"),
    [
        (ttnn.TILE_LAYOUT, (2, 3, 5, 40), (6, 5, 40), True),  # rows of every matrix stay
        (ttnn.TILE_LAYOUT, (2, 64, 40), (128, 40), True),  # whole tiles
        (ttnn.TILE_LAYOUT, (2, 33, 40), (66, 40), False),  # padding would move
        (ttnn.TILE_LAYOUT, (2, 32, 40), (2, 40, 32), False),  # rows change
        (ttnn.ROW_MAJOR_LAYOUT, (2, 33, 40), (66, 40), True),
        (ttnn.ROW_MAJOR_LAYOUT, (2, 33, 40), (33, 80), False),
    ],
)
def test_a_reshape_is_a_view_when_rows_and_padding_stay(mesh, layout, old, new, shared) -> None:
    values = torch.randn(old).bfloat16()
    tensor = on(mesh, values, layout)

    result = ttnn.reshape(tensor, new)

    assert (result.buffer_address() == tensor.buffer_address()) is shared
    assert torch.equal(first(result), values.reshape(new))


def test_a_view_sees_what_is_written_to_the_tensor(mesh) -> None:
    tensor = on(mesh, torch.zeros(4, 32, 32))
    view = ttnn.reshape(tensor, (128, 32))

    ttnn.copy(on(mesh, torch.ones(4, 32, 32)), tensor)

    assert first(view).eq(1).all()


def used(mesh) -> int:
    return ttnn.get_memory_view(mesh, ttnn.BufferType.DRAM).total_bytes_allocated_per_bank


@pytest.mark.parametrize("freed", [0, 1, 2])
def test_memory_freed_through_one_tensor_is_read_through_its_views(mesh, freed) -> None:
    before, values = used(mesh), torch.randn(4, 32, 32).bfloat16()
    tensor = on(mesh, values)
    tensors = [tensor, ttnn.reshape(tensor, (128, 32))]
    tensors.append(ttnn.reshape(tensors[1], (2, 64, 32)))  # a view of a view

    ttnn.deallocate(tensors[freed])

    readable = {0: [1, 2], 1: [2], 2: [1]}[freed]  # the owner is freed whichever was passed, as in TT-NN
    assert used(mesh) == before
    assert [i for i, held in enumerate(tensors) if held.is_allocated()] == readable
    for i in readable:
        assert torch.equal(first(tensors[i]).reshape(values.shape), values)


def test_a_view_of_freed_memory_is_lost_when_something_else_is_allocated_there(mesh) -> None:
    tensor = on(mesh, torch.zeros(4, 32, 32))
    view = ttnn.reshape(tensor, (128, 32))
    ttnn.deallocate(tensor)

    other = on(mesh, torch.ones(1, 32, 32))

    assert not view.is_allocated()
    with pytest.raises(
        RuntimeError, match="a view of memory that was freed through another tensor, and now belongs to"
    ):
        ttnn.relu(view)
    ttnn.deallocate(view)
    assert other.is_allocated()


@pytest.mark.parametrize("times", [1, 2])  # the second call takes the route of the first
def test_a_freed_tensor_can_be_read_by_the_next_operation_through_its_view(mesh, times) -> None:
    for _ in range(times):
        values = torch.randn(4, 32, 32).bfloat16()
        tensor = on(mesh, values)
        view = ttnn.reshape(tensor, (128, 32))
        ttnn.deallocate(tensor)

        result = ttnn.relu(view, memory_config=ttnn.L1_MEMORY_CONFIG)

        assert torch.equal(first(result), values.relu().reshape(128, 32))


def test_views_that_are_gone_are_forgotten(mesh) -> None:
    tensor = on(mesh, torch.zeros(4, 32, 32))

    for _ in range(1000):
        ttnn.reshape(tensor, (128, 32))

    assert len(tensor.buffer._views) <= 16


def test_memory_stays_while_a_view_of_it_is_held(mesh) -> None:
    before, tensor = used(mesh), on(mesh, torch.ones(4, 32, 32))
    view = ttnn.reshape(tensor, (128, 32))

    ttnn.deallocate(tensor, force=False)
    ttnn.deallocate(view, force=False)
    assert tensor.is_allocated()
    assert view.is_allocated()
    del tensor

    assert first(view).eq(1).all()
    ttnn.deallocate(view, force=False)  # nothing else holds it now
    assert used(mesh) == before


@pytest.mark.parametrize(
    "keep",
    [
        lambda x: ttnn.reshape(x, (4, 32, 32)),
        lambda x: ttnn.slice(x, [0, 0, 0], [4, 32, 32]),
        lambda x: x[:, :, :],
        lambda x: ttnn.permute(x, (0, 1, 2)),
        lambda x: ttnn.to_layout(x, ttnn.TILE_LAYOUT),
        lambda x: ttnn.to_memory_config(x, ttnn.DRAM_MEMORY_CONFIG),
        lambda x: ttnn.to_device(x, x.device()),
        lambda x: ttnn.concat([x], dim=0),
        lambda x: ttnn.repeat(x, (1, 1, 1)),
    ],
)
def test_what_changes_nothing_gives_a_second_tensor_on_the_memory(mesh, keep) -> None:
    tensor = on(mesh, torch.zeros(4, 32, 32))

    for _ in range(2):  # the second call takes the route of the first
        same = keep(tensor)
        ttnn.deallocate(same, force=False)

        assert same is not tensor
        assert same.buffer_address() == tensor.buffer_address()
        assert tensor.is_allocated()
    ttnn.deallocate(same)
    assert not tensor.is_allocated()


def test_host_tensors_keep_to_the_host(mesh) -> None:
    host = ttnn.from_torch(torch.arange(24.0).reshape(2, 3, 4))

    shaped = ttnn.reshape(host, (6, 4))
    concatenated = ttnn.concat([shaped, shaped], dim=0)

    assert shaped.device() is None
    assert concatenated.device() is None
    assert concatenated.shape == [12, 4]
    assert ttnn.to_torch(concatenated)[6:].equal(torch.arange(24.0).reshape(6, 4))


@pytest.mark.parametrize("layout", [ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT])
def test_a_reshape_to_fewer_rows_of_the_same_length_is_a_view_of_the_first(
    mesh: ttnn.MeshDevice, layout: object
) -> None:
    values = torch.arange(64.0 * 32).reshape(1, 1, 64, 32) % 128
    tensor = on(mesh, values, layout)
    padded = ttnn.reshape(tensor, ttnn.Shape([1, 1, 1, 32]), ttnn.Shape([1, 1, 64, 32]))
    cropped = ttnn.reshape(tensor, ttnn.Shape([1, 1, 32, 32]))  # of a tuple TT-NN asks that the volumes are equal

    assert (padded.shape, cropped.shape) == ([1, 1, 1, 32], [1, 1, 32, 32])
    assert padded.buffer_address() == cropped.buffer_address() == tensor.buffer_address()
    assert first(cropped).equal(values[:, :, :32])
    assert first(padded).equal(values[:, :, :1])
    with pytest.raises(RuntimeError, match="MeshBuffer must be large enough to hold the tensor"):
        ttnn.reshape(tensor, ttnn.Shape([1, 1, 128, 32]))
    for numbers in ((1, 1, 32, 32), [1, 1, 128, 32]):
        with pytest.raises(RuntimeError, match="Invalid arguments to reshape"):
            ttnn.reshape(tensor, numbers)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: ttnn.reshape(x, (5, 5)), "Invalid arguments to reshape"),
        (
            lambda x: ttnn.reshape(x, ttnn.Shape([5, 5])),
            "Attempting to reshape between two shapes with different volumes",
        ),
        (
            lambda x: ttnn.reshape(x, (-1, -1)),
            r"Shape cannot have more than 1 elements that is set to -1! Shape used: \(-1,-1,\)",
        ),
        (lambda x: ttnn.view(x, (5, 5)), "Invalid arguments to reshape"),
        (lambda x: x[:, 40:50], r"Slice start\[1\] \(40\) must be less than input tensor shape\[1\] \(32\)"),
        (
            lambda x: ttnn.transpose(x, 0, 9),
            "Index is out of bounds for the rank, should be between 0 and 2 however is 9",
        ),
        (lambda x: ttnn.split(x, 0, 0), "split_size must be greater than 0, but got: 0"),
        (lambda x: ttnn.expand(x, (3, 32)), "Output rank must be >= input rank for expand"),
        (lambda x: ttnn.view(x, (4, 16, 64)), "The last dimension can not change in view"),
        (lambda x: ttnn.view(x, (8, 16, 32)), "Invalid second last dims for TILED reshape, from 32 to 16"),
        (lambda x: ttnn.squeeze(x, 5), r"Dimension out of range \(expected to be in range of \[-3,2\], but got 5\)"),
        (lambda x: ttnn.permute(x, (0, 1)), "does not match the length of the desired ordering"),
        (lambda x: ttnn.concat([], dim=0), "ttnn.concat: expected a non-empty list of Tensors!"),
        (
            lambda x: ttnn.concat([x, x], dim=7),
            "Index is out of bounds for the rank, should be between 0 and 2 however is 7",
        ),
        (
            lambda x: ttnn.concat([x, x], dim=-5),
            "Index is out of bounds for the rank, should be between 0 and 2 however is 18446744073709551614",
        ),
        (lambda x: ttnn.split(x, [1, 2], 0), r"split_sizes must sum exactly to the size of dimension 0 \(4\)"),
        (lambda x: ttnn.pad(x, [(1, 0)], 0.0), "on device tile padding does not support front padding"),
        (lambda x: ttnn.pad(x, [(0, 1)] * 4, 0.0), "padding len can't be larger than input tensor rank"),
        (lambda x: ttnn.slice(x, [0], [1, 2]), "Start 1 and end 2 must have the same size"),
        (lambda x: ttnn.expand(x, (4, 32, 64)), "Only size 1 dimensions can be expanded in the output shape"),
        (lambda x: ttnn.argmax(x), "For inputs with TILE layout, dim parameter must be specified!"),
        (lambda x: ttnn.topk(x, 64), "K cannot be larger than the dimension size! K=64, dimension size=32"),
        (lambda x: ttnn.sort(x, stable=True), "ttnn::sort: stable=True is not yet implemented"),
        (lambda x: ttnn.cumsum(x, dim=4), "The requested accumulation axis is 4, while the input tensor has rank 3"),
        (lambda x: ttnn.sum(x, dim=[0, 0]), "reduce dim list contains a duplicate axis"),
        (lambda x: ttnn.indexed_fill(x, x, x, dim=9), "indexed_fill: dim 9 is out of bounds for rank 3"),
        (lambda x: ttnn.scatter(x, 0, x, x, reduce="max"), "reduce must be either 'add' or 'multiply'"),
    ],
)
def test_refusals_use_the_words_of_ttnn(mesh, call, text) -> None:
    tensor = on(mesh, torch.zeros(4, 32, 32))

    with pytest.raises(RuntimeError, match=text):
        call(tensor)


@pytest.mark.parametrize(
    ("shape", "keepdim", "taken"),
    [
        ([1, 1, 1, 32], False, True),
        ([32], False, True),
        ([1, 1, 32, 1], False, False),
        ([1, 1, 32, 1], True, True),
        ([1, 1, 1, 32], True, False),
        ([1, 1, 64], False, False),
    ],
)
def test_argmax_writes_into_an_output_with_rows_of_the_same_length(
    mesh: ttnn.MeshDevice, shape: list[int], keepdim: bool, taken: bool
) -> None:
    values = torch.randn(1, 1, 32, 64)
    tensor = on(mesh, values, ttnn.ROW_MAJOR_LAYOUT)
    output = ttnn.empty(shape, dtype=ttnn.uint32, layout=ttnn.ROW_MAJOR_LAYOUT, device=mesh)

    if not taken:
        with pytest.raises(RuntimeError, match="Preallocated output tensor is not page-compatible"):
            ttnn.argmax(tensor, dim=-1, keepdim=keepdim, output_tensor=output)
        return
    result = ttnn.argmax(tensor, dim=-1, keepdim=keepdim, output_tensor=output)
    assert list(result.shape) == shape
    assert first(output).flatten().long().equal(values.bfloat16().argmax(-1).flatten())
