"""Calls that move nothing give the input's own memory, as TT-NN does; and no operation takes a tensor that was freed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn

Move = Callable[[ttnn.Tensor], Any]


@pytest.fixture
def mesh() -> Iterator[ttnn.MeshDevice]:
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    yield opened
    ttnn.close_mesh_device(opened)


def on(mesh: ttnn.MeshDevice, *shape: int, **options: Any) -> ttnn.Tensor:
    return ttnn.from_torch(
        torch.ones(shape), dtype=ttnn.bfloat16, device=mesh, **{"layout": ttnn.TILE_LAYOUT, **options}
    )


# What the real library gave for (1, 2, 33, 40): whether the result lies at the input's address.
SAME: dict[str, Move] = {
    "permute": lambda x: ttnn.permute(x, (0, 1, 2, 3)),
    "permute, from the end": lambda x: ttnn.permute(x, (-4, -3, -2, -1)),
    "permute to its own memory": lambda x: ttnn.permute(x, (0, 1, 2, 3), memory_config=x.memory_config()),
    "transpose": lambda x: ttnn.transpose(x, 1, 1),
    "transpose, from the end": lambda x: ttnn.transpose(x, 1, -3),
    "repeat": lambda x: ttnn.repeat(x, ttnn.Shape([1, 1, 1, 1])),
    "repeat along fewer dims": lambda x: ttnn.repeat(x, [1]),
    "repeat along a new dim": lambda x: ttnn.repeat(x, [1] * 5),
    "expand": lambda x: ttnn.expand(x, [-1] * 4),
    "expand to a new dim": lambda x: ttnn.expand(x, [1, 1, 2, 33, 40]),
    "repeat_interleave": lambda x: ttnn.repeat_interleave(x, 1, 0),
    "concat": lambda x: ttnn.concat([x], 0),
    "stack": lambda x: ttnn.stack([x], 0),
    "roll": lambda x: ttnn.roll(x, 0, 0),
    "roll by a whole turn": lambda x: ttnn.roll(x, 2, 1),
    "roll of a dim of one": lambda x: ttnn.roll(x, 1, 0),
    "narrow": lambda x: ttnn.narrow(x, 0, 0, 1),
    "reshape": lambda x: ttnn.reshape(x, (1, 2, 33, 40)),
    "slice": lambda x: ttnn.slice(x, [0] * 4, [1, 2, 33, 40]),
    "pad": lambda x: ttnn.pad(x, [(0, 0)] * 4, 0.0),
    "to_layout": lambda x: ttnn.to_layout(x, ttnn.TILE_LAYOUT),
    "to_memory_config": lambda x: ttnn.to_memory_config(x, x.memory_config()),
    "unsqueeze": lambda x: ttnn.unsqueeze(x, 0),
    "index": lambda x: x[:],
}
OTHER: dict[str, Move] = {
    "permute to L1": lambda x: ttnn.permute(x, (0, 1, 2, 3), memory_config=ttnn.L1_MEMORY_CONFIG),
    "permute": lambda x: ttnn.permute(x, (1, 0, 2, 3)),
    "repeat to L1": lambda x: ttnn.repeat(x, [1, 1, 1, 1], memory_config=ttnn.L1_MEMORY_CONFIG),
    "clone": lambda x: ttnn.clone(x),
    "roll": lambda x: ttnn.roll(x, 1, 1),
}


@pytest.mark.parametrize("move", SAME)
def test_a_call_that_moves_nothing_gives_the_same_memory_every_time(mesh: ttnn.MeshDevice, move: str) -> None:
    x = on(mesh, 1, 2, 33, 40)
    programs = mesh.num_program_cache_entries()

    results = [SAME[move](x) for _ in range(3)]
    ttnn.add_(x, 1.0)

    assert [result.buffer_address() for result in results] == [x.buffer_address()] * 3
    assert mesh.num_program_cache_entries() == programs + 1  # that of the addition
    assert all(float(ttnn.to_torch(ttnn.get_device_tensors(result)[1]).max()) == 2 for result in results)


@pytest.mark.parametrize("move", OTHER)
def test_a_call_that_moves_something_gives_memory_of_its_own(mesh: ttnn.MeshDevice, move: str) -> None:
    x = on(mesh, 1, 2, 33, 40)

    results = [OTHER[move](x) for _ in range(2)]

    assert all(result.buffer_address() != x.buffer_address() for result in results)


def test_dims_of_one_may_change_places_in_front_of_tiles_and_rows(mesh: ttnn.MeshDevice) -> None:
    tiles, rows = on(mesh, 1, 1, 32, 32), on(mesh, 1, 1, 1, 32, layout=ttnn.ROW_MAJOR_LAYOUT)

    assert ttnn.permute(tiles, (1, 0, 2, 3)).buffer_address() == tiles.buffer_address()
    assert ttnn.permute(rows, (2, 0, 1, 3)).buffer_address() == rows.buffer_address()


USES: dict[str, Move] = {
    **{f"{name}, which moves nothing": move for name, move in SAME.items()},
    **{f"{name}, which moves": move for name, move in OTHER.items()},
    "a view": lambda x: ttnn.reshape(x, (2, 33, 40)),
    "squeeze": lambda x: ttnn.squeeze(x, 0),
    "unsqueeze_to_4D": ttnn.unsqueeze_to_4D,
    "split": lambda x: ttnn.split(x, 2, 1),
    "chunk": lambda x: ttnn.chunk(x, 1, 0),
    "view": lambda x: ttnn.experimental.view(x, [1, 2, 33, 40]),
    "zeros_like": ttnn.zeros_like,
    "add": lambda x: ttnn.add(x, 1.0),
    "add_": lambda x: ttnn.add_(x, 1.0),
    "output": lambda x: ttnn.add(ttnn.zeros_like(x), 1.0, output_tensor=x),
    "matmul": lambda x: ttnn.matmul(x, ttnn.transpose(x, -1, -2)),
    "sum": ttnn.sum,
    "typecast": lambda x: ttnn.typecast(x, ttnn.float32),
}


@pytest.mark.parametrize("seen", [False, True], ids=["first", "repeated"])
@pytest.mark.parametrize("use", USES)
def test_a_freed_tensor_is_refused_whether_the_call_is_new_or_known(
    mesh: ttnn.MeshDevice, use: str, seen: bool
) -> None:
    if seen:
        other = on(mesh, 1, 2, 33, 40)
        for _ in range(2):
            USES[use](other)
    x = on(mesh, 1, 2, 33, 40)
    ttnn.deallocate(x)

    for _ in range(2):
        with pytest.raises(RuntimeError, match="Tensor is not allocated"):
            USES[use](x)


@pytest.mark.parametrize("make", ["zeros_like", "ones_like"])
def test_a_number_is_no_dtype(mesh: ttnn.MeshDevice, make: str) -> None:
    x = on(mesh, 1, 1, 32, 32)

    with pytest.raises(TypeError, match="incompatible function arguments"):
        getattr(ttnn, make)(x, 2.0)


@pytest.mark.parametrize("reduce", ["moreh_sum", "moreh_mean", "moreh_norm"])
@pytest.mark.parametrize(
    ("dim", "shape"),
    [(0, [3, 64, 32]), (1, [2, 64, 32]), (2, [2, 3, 1, 32]), (3, [2, 3, 64, 1]), ([1, 2], [2, 1, 32]), (None, [1, 1])],
)
def test_moreh_reductions_keep_height_and_width(mesh: ttnn.MeshDevice, reduce: str, dim: Any, shape: list[int]) -> None:
    options = {"p": 2.0} if reduce == "moreh_norm" else {}

    result = getattr(ttnn, reduce)(on(mesh, 2, 3, 64, 32), dim=dim, **options)

    assert list(result.shape) == shape
