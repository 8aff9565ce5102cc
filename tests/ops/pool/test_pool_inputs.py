"""Images of two, three and four dims go into pools; other shapes and shards of images are refused as in TT-NN 0.81.1."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from ttmesh import ttnn

POOLS = {
    "max": lambda x, *size, **k: ttnn.max_pool2d(x, *size, [3, 3], [2, 2], [0, 0], [1, 1], **k),
    "avg": lambda x, *size, **k: ttnn.avg_pool2d(x, *size, [3, 3], [2, 2], [0, 0], **k),
}
Pool = Callable[..., ttnn.Tensor]


@pytest.fixture(scope="module")
def mesh() -> Iterator[ttnn.MeshDevice]:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1), l1_small_size=24576) as mesh:
        yield mesh


@pytest.fixture(params=POOLS)
def pool(request: pytest.FixtureRequest) -> Pool:
    return POOLS[request.param]


def on(mesh: ttnn.MeshDevice, *shape: int, memory_config: object = ttnn.DRAM_MEMORY_CONFIG) -> ttnn.Tensor:
    values = torch.arange(float(torch.Size(shape).numel())).remainder(97).reshape(shape)
    return ttnn.from_torch(values, dtype=ttnn.bfloat16, device=mesh, memory_config=memory_config)


@pytest.mark.parametrize("shape", [(1, 1, 144, 1), (12, 12, 1), (12, 12)], ids=["rows", "three dims", "two dims"])
def test_an_image_of_one_channel_may_lack_dims(mesh: ttnn.MeshDevice, pool: Pool, shape: tuple[int, ...]) -> None:
    expected = ttnn.to_torch(pool(on(mesh, 1, 12, 12, 1), 1, 12, 12, 1))

    assert torch.equal(ttnn.to_torch(pool(on(mesh, *shape), 1, 12, 12, 1)), expected)


@pytest.mark.parametrize(
    ("shape", "size", "wrong"),
    [
        ((144,), (1, 12, 12, 1), "Input tensor must be rank 2, 3, or 4, got rank 1"),
        ((144, 1), (1, 12, 12, 1), r"For rank-2 input .H, W., dimensions must match: input_h=12, input_w=12, but got"),
        ((144, 32), (1, 12, 12, 32), "batch_size and channels must be 1, got batch_size=1, channels=32"),
        ((1, 144, 32), (1, 12, 12, 32), r"For rank-3 input .H, W, C., dimensions must match: input_h=12, input_w=12"),
        ((2, 144, 32), (2, 12, 12, 32), r"For rank-3 input .H, W, C., batch_size must be 1, got 2"),
    ],
    ids=["one dim", "rows of one channel", "rows", "a batch of rows", "batches of rows"],
)
def test_other_shapes_are_refused(
    mesh: ttnn.MeshDevice, pool: Pool, shape: tuple[int, ...], size: tuple[int, ...], wrong: str
) -> None:
    with pytest.raises(RuntimeError, match=f"Pool2D: .*{wrong}"):
        pool(on(mesh, *shape), *size)


@pytest.mark.parametrize(
    ("strategy", "shard", "wrong"),
    [
        (ttnn.ShardStrategy.HEIGHT, (256, 64), "Number of shards along height 128 must not exceed number of cores 4"),
        (
            ttnn.ShardStrategy.BLOCK,
            (512, 32),
            "Number of shards along height 64 must not exceed number of rows 2 for row",
        ),
    ],
    ids=["height", "block"],
)
def test_shards_hold_rows(
    mesh: ttnn.MeshDevice, pool: Pool, strategy: object, shard: tuple[int, int], wrong: str
) -> None:
    config = ttnn.create_sharded_memory_config(
        shard, ttnn.CoreGrid(y=2, x=2), strategy, use_height_and_width_as_shard_shape=True
    )
    assert pool(on(mesh, 1, 1, 1024, 64, memory_config=config), 1, 32, 32, 64).shape[-2] == 225
    for shape in ((1, 32, 32, 64), (32, 32, 64)):
        with pytest.raises(RuntimeError, match=wrong):
            pool(on(mesh, *shape, memory_config=config), 1, 32, 32, 64)


def test_only_sharded_inputs_are_freed(mesh: ttnn.MeshDevice, pool: Pool) -> None:
    shards = ttnn.create_sharded_memory_config(
        (256, 64), ttnn.CoreGrid(y=2, x=2), ttnn.ShardStrategy.HEIGHT, use_height_and_width_as_shard_shape=True
    )
    for config, stays in ((ttnn.DRAM_MEMORY_CONFIG, True), (ttnn.L1_MEMORY_CONFIG, True), (shards, False)):
        x = on(mesh, 1, 1, 1024, 64, memory_config=config)
        pool(x, 1, 32, 32, 64, deallocate_input=True)
        assert x.is_allocated() is stays


@pytest.mark.parametrize(
    ("window", "stride", "padding", "dilation", "text"),
    [
        (
            [0, 3],
            [1, 1],
            [0, 0],
            [1, 1],
            r"Pool2D: Kernel size must be greater than 0 in both dimensions, got \(0, 3\)",
        ),
        ([3, 3], [1, 0], [0, 0], [1, 1], r"Pool2D: Stride must be greater than 0 in both dimensions, got \(1, 0\)"),
        ([3, 3], [1, 1], [0, 0], [0, 1], r"Pool2D: Dilation must be greater than 0 in both dimensions, got \(0, 1\)"),
        ([3, 3], [2, 2], [9, 9], [1, 1], r"Pool2D: Padding \(9, 9, 9\) should not exceed half of kernel size \(3, 3\)"),
        (
            [9, 3],
            [1, 1],
            [0, 0],
            [1, 1],
            r"Pool2D: Effective kernel size \(9, 3\) cannot exceed padded input size \(8, 8\)",
        ),
    ],
)
def test_windows_are_refused_in_ttnns_words(
    mesh: ttnn.MeshDevice, window: list[int], stride: list[int], padding: list[int], dilation: list[int], text: str
) -> None:
    image = ttnn.from_torch(torch.zeros(1, 1, 64, 32), dtype=ttnn.bfloat16, device=mesh)

    with pytest.raises(RuntimeError, match=text):
        ttnn.max_pool2d(image, 1, 8, 8, 32, window, stride, padding, dilation)
