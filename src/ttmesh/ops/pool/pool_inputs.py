"""Inputs of pools: images of two, three and four dims, and the shards that a pool takes."""

from __future__ import annotations

from collections.abc import Sequence
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


def check_window(
    image: Sequence[int], window: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> None:
    """Raise TT-NN's errors for windows that are empty, mostly padding or larger than the image [height, width]."""
    for name, values in (("Kernel size", window), ("Stride", stride), ("Dilation", dilation)):
        wrong = f"Pool2D: {name} must be greater than 0 in both dimensions, got ({values[0]}, {values[1]})"
        require(min(values) > 0, wrong, "numbers of at least 1", "Pass [1, 1] for the smallest.")
    top, bottom, left, right = padding
    half = window[0] // 2, window[1] // 2
    wrong = (
        f"Pool2D: Padding ({top}, {bottom}, {left}) should not exceed half of kernel size ({window[0]}, {window[1]})"
    )
    fits = max(top, bottom) <= half[0] and left <= half[1]
    require(fits, wrong, f"at most {list(half)}", "Pad the image with ttnn.pad, or choose a larger kernel.")
    reach = [step * (taps - 1) + 1 for step, taps in zip(dilation, window, strict=True)]
    padded = image[0] + top + bottom, image[1] + left + right
    wrong = (
        f"Pool2D: Effective kernel size ({reach[0]}, {reach[1]}) cannot exceed padded input size "
        f"({padded[0]}, {padded[1]})"
    )
    fits = reach[0] <= padded[0] and reach[1] <= padded[1]
    require(fits, wrong, "a window inside the padded image", "Choose a smaller kernel or dilation.")
