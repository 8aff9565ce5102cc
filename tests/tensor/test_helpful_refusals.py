"""Refusals that say which number or which word is wrong."""

from __future__ import annotations

import pytest

import ttmesh
import ttmesh.ttnn as ttnn


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch):
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    yield opened
    ttnn.close_mesh_device(opened)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda x: ttnn.softmax(x, axis=-1), "unexpected keyword argument 'axis'. Did you mean dim?"),
        (lambda x: ttnn.matmul(x, x, mem_config=None), "'mem_config'. Did you mean memory_config?"),
        (lambda x: ttnn.sum(x, keepdims=True), "'keepdims'. Did you mean keepdim?"),
        (lambda x: ttnn.layer_norm(x, eps=1e-5), "'eps'. Did you mean epsilon?"),
        (lambda x: ttnn.relu(x, memory_confg=None), "'memory_confg'. Did you mean memory_config?"),
    ],
)
def test_a_wrong_keyword_names_the_right_one(mesh, call, hint) -> None:
    x = ttnn.rand((32, 32), device=mesh, layout=ttnn.TILE_LAYOUT)

    with pytest.raises(TypeError, match="incompatible function arguments") as caught:
        call(x)

    assert hint in str(caught.value)


def sharded(shape: tuple[int, int], grid: ttnn.CoreGrid, strategy: ttnn.ShardStrategy) -> ttnn.MemoryConfig:
    return ttnn.create_sharded_memory_config(
        shape, core_grid=grid, strategy=strategy, use_height_and_width_as_shard_shape=True
    )


@pytest.mark.parametrize(
    ("shape", "grid", "strategy", "expected"),
    [
        ((64, 64), (2, 2), ttnn.ShardStrategy.HEIGHT, "expected shards of 64x512"),
        (
            (64, 512),
            (2, 2),
            ttnn.ShardStrategy.HEIGHT,
            "so a shard height of 128 or more. Enlarge the shard, or give it 8",
        ),
        ((64, 64), (2, 2), ttnn.ShardStrategy.WIDTH, "expected shards of 512x64"),
        (
            (64, 64),
            (2, 2),
            ttnn.ShardStrategy.BLOCK,
            "Expected at most 2 shards along height, so a shard height of 256",
        ),
    ],
)
def test_a_shard_that_does_not_fit_says_which_number_would(mesh, shape, grid, strategy, expected) -> None:
    config = sharded(shape, ttnn.CoreGrid(y=grid[0], x=grid[1]), strategy)

    with pytest.raises(RuntimeError) as caught:
        ttnn.rand((512, 512), device=mesh, layout=ttnn.TILE_LAYOUT, memory_config=config)

    assert expected in str(caught.value)


def test_a_cpp_kernel_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(
        NotImplementedError, match="kernels written in C\\+\\+ do not run here; expected a Python function"
    ):
        ttmesh.Program().create_kernel("reader.cpp", ttmesh.CoreCoord(0, 0), ttmesh.DataMovementConfig())
