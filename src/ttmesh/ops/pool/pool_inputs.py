"""Inputs of pools: images of two, three and four dims, and the shards that a pool takes."""

from __future__ import annotations

from math import prod

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import require
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

Size = tuple[int, int, int, int]


def as_images(tensor: Tensor, size: Size) -> Tensor:
    """The tensor as [batch, height, width, channels] or its rows; [height, width] has one channel."""
    batch, height, width, channels = size
    shape = tuple(tensor.shape)
    if len(shape) == 3:
        wrong = f"Pool2D: For rank-3 input [H, W, C], batch_size must be 1, got {batch}"
        require(batch == 1, wrong, "one image", "Pass a batch as [N, H, W, C] or [1, 1, N*H*W, C].")
        wrong = (
            f"Pool2D: For rank-3 input [H, W, C], dimensions must match: input_h={height}, input_w={width}, "
            f"channels={channels}, but got shape {tensor.shape}"
        )
        require(shape == (height, width, channels), wrong, str(list(size[1:])), "Pass rows as [1, 1, N*H*W, C].")
        return tensor
    if len(shape) == 2:
        wrong = "Pool2D: For rank-2 input [H, W], batch_size and channels must be 1"
        got = f"got batch_size={batch}, channels={channels}"
        require(batch == channels == 1, f"{wrong}, {got}", "one image of one channel", "Use [1, 1, N*H*W, C].")
        wrong = f"dimensions must match: input_h={height}, input_w={width}, but got shape {tensor.shape}"
        require(
            shape == (height, width),
            f"Pool2D: For rank-2 input [H, W], {wrong}",
            str([height, width]),
            "Reshape it with ttnn.reshape.",
        )
        return tensor.reshape((1, height, width, 1))
    wrong = f"Pool2D: Input tensor must be rank 2, 3, or 4, got rank {len(shape)}"
    require(len(shape) == 4, wrong, "[1, 1, N*H*W, C]", "Use ttnn.reshape.")
    return tensor


def check_shards(x: TensorSpec) -> None:
    """Refuse shards of images: a pool gathers the rows around every shard, which fits rows of [1, 1, N*H*W, C] alone."""
    config = x.memory_config
    if config.shard_spec is None or len(x.shape) < 3 or x.shape[-3] == 1:
        return
    shards = prod(x.padded_shape[:-1]) // config.shard_spec.shape[0]
    gathered = (1, x.shape[-3], shards * config.shard_spec.shape[0], x.shape[-1])
    TensorSpec(gathered, x.dtype, Layout.ROW_MAJOR, memory_config=config)
