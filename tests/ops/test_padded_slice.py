"""padded_slice gives rows as long as its shards, slice_write takes them back; both refuse what TT-NN refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ttmesh import ttnn

IMAGES = torch.arange(2 * 8 * 8 * 60, dtype=torch.float32).reshape(2, 8, 8, 60) % 251


def shards(layout: str, shape: tuple[int, int], x: int, y: int = 1) -> ttnn.MemoryConfig:
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(x - 1, y - 1))})
    spec = ttnn.ShardSpec(cores, shape, ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(getattr(ttnn.TensorMemoryLayout, f"{layout}_SHARDED"), ttnn.BufferType.L1, spec)


HEIGHT = shards("HEIGHT", (8, 64), 8)


@pytest.mark.parametrize("layout", [ttnn.ROW_MAJOR_LAYOUT, ttnn.TILE_LAYOUT])
@pytest.mark.parametrize(
    ("memory", "rows", "columns"),
    [(HEIGHT, 64, 64), (shards("WIDTH", (80, 16), 4), 80, 60), (shards("BLOCK", (32, 16), 4, 2), 64, 60)],
)
def test_a_slice_is_rows_padded_to_the_shards(layout: ttnn.Layout, memory: Any, rows: int, columns: int) -> None:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        images = ttnn.from_torch(IMAGES, dtype=ttnn.bfloat16, layout=layout, device=mesh)
        part = ttnn.experimental.padded_slice(images, [0, -6, 0, 0], [2, 6, 8, 60], memory_config=memory)

        expected = torch.zeros(rows, columns)
        expected[:64, :60] = IMAGES[:, 2:6].reshape(64, 60)
        assert part.layout is ttnn.ROW_MAJOR_LAYOUT
        assert torch.equal(ttnn.to_torch(part).float(), expected[None, None])


def test_rows_of_block_floats_are_bfloat16() -> None:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        images = ttnn.from_torch(IMAGES, dtype=ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT, device=mesh)
        part = ttnn.experimental.padded_slice(images, [0, 0, 0, 0], [2, 4, 8, 60], memory_config=HEIGHT)

        assert (part.dtype, part.layout) == (ttnn.bfloat16, ttnn.ROW_MAJOR_LAYOUT)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"padded_slice_step": [1, 2, 1, 1]}, "Steps != 1 are not supported for padded_slice"),
        ({"memory_config": ttnn.L1_MEMORY_CONFIG}, "Output Memory Config must be sharded"),
        ({"memory_config": ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG}, "bad optional access"),
        ({"padded_slice_start": [0, 5, 0, 0]}, "End 4 must be greater than or equal to start 5"),
        ({"padded_slice_start": [0, 0, 0]}, "Input rank 4 and begins 3 must have the same size"),
    ],
)
def test_a_slice_that_is_none_is_refused(changed: dict[str, Any], text: str) -> None:
    arguments = {"padded_slice_start": [0, 0, 0, 0], "padded_slice_end": [2, 4, 8, 60], "memory_config": HEIGHT}
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        images = ttnn.from_torch(IMAGES, dtype=ttnn.bfloat16, layout=ttnn.ROW_MAJOR_LAYOUT, device=mesh)

        with pytest.raises(RuntimeError, match=text):
            ttnn.experimental.padded_slice(images, **(arguments | changed))


@pytest.mark.parametrize("layout", [ttnn.ROW_MAJOR_LAYOUT, ttnn.TILE_LAYOUT])
def test_rows_in_shards_are_written_into_images(layout: ttnn.Layout) -> None:
    height = 32 if layout is ttnn.TILE_LAYOUT else 5  # rows of an image are padded to tiles
    rows = torch.zeros(2, 4, height, 64)
    rows[:, :, :5] = torch.rand(2, 4, 5, 64).bfloat16().float()
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        given = ttnn.from_torch(rows.reshape(1, 1, -1, 64), dtype=ttnn.bfloat16, layout=layout, device=mesh)
        given = ttnn.to_memory_config(given, shards("HEIGHT", (height, 64), 8))
        images = ttnn.from_torch(torch.ones(2, 8, 5, 60), dtype=ttnn.bfloat16, device=mesh)
        ttnn.experimental.slice_write(given, images, [0, 2, 0, 0], [2, 6, 5, 60], [1, 1, 1, 1])
        written = ttnn.to_torch(images).float()

        assert torch.equal(written[:, 2:6], rows[:, :, :5, :60])
        assert bool((written[:, :2] == 1).all() and (written[:, 6:] == 1).all())
        with pytest.raises(RuntimeError, match="Step is not supported for sharded slice_write operation"):
            ttnn.experimental.slice_write(given, images, [0, 2, 0, 0], [2, 6, 5, 60], [1, 2, 1, 1])
        with pytest.raises(RuntimeError, match=r"rows of 64 values are less than the slice has, \d+ rows of 60"):
            ttnn.experimental.slice_write(given, images, [0, 2, 0, 0], [2, 7, 5, 60], [1, 1, 1, 1])
        with pytest.raises(RuntimeError, match="Slice Write currently doesn't support sharded output tensors"):
            ttnn.experimental.slice_write(images, given, [0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1])
