"""A residual block of two 3x3 convolutions. python examples/models/resnet_block.py"""

from __future__ import annotations

import torch
from torch.nn import functional as F

import ttmesh.ttnn as ttnn
from ttmesh.showcase import model_placement

BATCH, CHANNELS, SIZE = 8, 64, 16
HELD: list[ttnn.Tensor] = []


def conv(
    at: model_placement.Placement,
    x: ttnn.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    split: int,
    activation: str | None,
) -> ttnn.Tensor:
    """A convolution whose output (split 0) or input channels (split 1) are divided over the chips."""
    inner, outer = (1, at.weight_shards) if split == 0 else (at.weight_shards, 1)
    options = {"dtype": ttnn.float32, "mesh_mapper": at.mapper(weight_dim=split)}
    row = None
    if bias is not None:
        row = ttnn.from_torch(
            bias.reshape(1, 1, 1, -1), dtype=ttnn.float32, mesh_mapper=at.mapper(weight_dim=3 if split == 0 else None)
        )
    config = ttnn.Conv2dConfig(
        weights_dtype=at.weights,
        activation=None if activation is None else ttnn.UnaryWithParam(getattr(ttnn.UnaryOpType, activation)),
    )
    result, (kept, kept_bias) = ttnn.conv2d(
        input_tensor=x,
        weight_tensor=ttnn.from_torch(weight, **options),
        bias_tensor=row,
        device=at.mesh,
        in_channels=CHANNELS // inner,
        out_channels=CHANNELS // outer,
        batch_size=BATCH // at.batches,
        input_height=SIZE,
        input_width=SIZE,
        kernel_size=(3, 3),
        padding=(1, 1),
        conv_config=config,
        return_weights_and_bias=True,
    )
    HELD.extend(tensor for tensor in (result, kept, kept_bias) if tensor is not None)
    return result


def block(at: model_placement.Placement) -> tuple[torch.Tensor, torch.Tensor]:
    """relu(x + conv(relu(conv(x)))), pooled over the image; batch norms are folded into the convolutions."""
    HELD.clear()
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, CHANNELS, SIZE, SIZE, generator=draw)
    first, second = (torch.randn(CHANNELS, CHANNELS, 3, 3, generator=draw) / 24 for _ in range(2))
    bias_first, bias_second = (torch.randn(CHANNELS, generator=draw) for _ in range(2))

    image = at.activation(x.permute(0, 2, 3, 1).contiguous(), layout=ttnn.ROW_MAJOR_LAYOUT)
    hidden = conv(at, image, first, bias_first, 0, "RELU")
    summed = at.total(conv(at, hidden, second, None, 1, None))
    shift = at.weight(bias_second.reshape(1, 1, 1, -1), dtype=ttnn.bfloat16)
    flat = ttnn.to_layout(ttnn.reshape(image, [1, 1, BATCH // at.batches * SIZE * SIZE, CHANNELS]), ttnn.TILE_LAYOUT)
    result = ttnn.relu(ttnn.add(ttnn.add(summed, shift), flat))
    pooled = ttnn.global_avg_pool2d(ttnn.reshape(result, [BATCH // at.batches, SIZE, SIZE, CHANNELS]))

    HELD.extend([image, summed, shift, flat, result, pooled])
    expected = F.relu(x + F.conv2d(F.relu(F.conv2d(x, first, bias_first, padding=1)), second, bias_second, padding=1))
    return at.whole(pooled), expected.mean((-1, -2)).reshape(BATCH, 1, 1, CHANNELS)


if __name__ == "__main__":
    model_placement.main("ResNet block", block)
