"""A BERT-style encoder: attention with a mask, layer norms and a feed-forward net. python examples/models/bert_encoder.py"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

import ttmesh.ttnn as ttnn
from ttmesh.showcase import model_placement

LAYERS, BATCH, ROWS, WIDTH, HEADS = 2, 8, 64, 256, 8
SIZE = WIDTH // HEADS
HELD: list[ttnn.Tensor] = []
Weights = dict[str, torch.Tensor]


def layer_weights(draw: torch.Generator) -> Weights:
    """Weights of one layer, as [in, out]."""
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    weights = {name: torch.randn(*shape, generator=draw) * shape[0] ** -0.5 for name, shape in shapes.items()}
    biases = {f"{name}_bias": torch.randn(1, shape[1], generator=draw) * 0.1 for name, shape in shapes.items()}
    norms = {f"{name}{suffix}": torch.randn(1, WIDTH, generator=draw) * 0.1 + (suffix == "_scale")
             for name in ("norm1", "norm2") for suffix in ("_scale", "_shift")}  # fmt: skip
    return {**weights, **biases, **norms}


def expected_layer(x: torch.Tensor, mask: torch.Tensor, w: Weights) -> torch.Tensor:
    """The layer in torch."""
    q, k, v = (p.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for p in (x @ w["qkv"] + w["qkv_bias"]).chunk(3, -1))
    scores = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(SIZE) + mask, -1) @ v
    attended = scores.transpose(1, 2).flatten(-2) @ w["out"] + w["out_bias"]
    x = F.layer_norm(x + attended, (WIDTH,), w["norm1_scale"][0], w["norm1_shift"][0], 1e-5)
    hidden = F.gelu(x @ w["up"] + w["up_bias"]) @ w["down"] + w["down_bias"]
    return F.layer_norm(x + hidden, (WIDTH,), w["norm2_scale"][0], w["norm2_shift"][0], 1e-5)


def group_by_chip(fused: torch.Tensor, chips: int) -> torch.Tensor:
    """Q | K | V columns reordered so that sharding them over `chips` gives every chip whole heads of all three."""
    return fused.unflatten(-1, (3, chips, -1)).transpose(-3, -2).flatten(-3)


class Layer:
    """One encoder layer on a mesh; heads and hidden units are divided over the chips that share the model."""

    def __init__(self, at: model_placement.Placement, w: Weights) -> None:
        self.at = at
        self.heads = HEADS // at.weight_shards
        split = {"qkv": 1, "qkv_bias": 1, "out": 0, "up": 1, "up_bias": 1, "down": 0}
        w = {
            **w,
            "qkv": group_by_chip(w["qkv"], at.weight_shards),
            "qkv_bias": group_by_chip(w["qkv_bias"], at.weight_shards),
        }
        small = {name: ttnn.bfloat16 for name in w if name.startswith("norm")}
        self.w = {name: at.weight(value, split.get(name), small.get(name)) for name, value in w.items()}
        HELD.extend(self.w.values())

    def __call__(self, x: ttnn.Tensor, mask: ttnn.Tensor) -> ttnn.Tensor:
        w = self.w
        fused = ttnn.linear(x, w["qkv"], bias=w["qkv_bias"])
        q, k, v = ttnn.transformer.split_query_key_value_and_split_heads(fused, num_heads=self.heads)
        scores = ttnn.transformer.attention_softmax_(ttnn.matmul(q, k), head_size=SIZE, attention_mask=mask)
        context = ttnn.transformer.concatenate_heads(ttnn.matmul(scores, v))
        attended = ttnn.add(self.at.total(ttnn.linear(context, w["out"])), w["out_bias"])
        x = ttnn.layer_norm(
            x, epsilon=1e-5, weight=w["norm1_scale"], bias=w["norm1_shift"], residual_input_tensor=attended
        )
        hidden = ttnn.linear(x, w["up"], bias=w["up_bias"], activation="gelu")
        down = ttnn.add(self.at.total(ttnn.linear(hidden, w["down"])), w["down_bias"])
        return ttnn.layer_norm(
            x, epsilon=1e-5, weight=w["norm2_scale"], bias=w["norm2_shift"], residual_input_tensor=down
        )


def encoder(at: model_placement.Placement) -> tuple[torch.Tensor, torch.Tensor]:
    """The result on the mesh, and torch's."""
    HELD.clear()
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, ROWS, WIDTH, generator=draw)
    lengths = torch.randint(ROWS // 2, ROWS + 1, (BATCH, 1, 1, 1), generator=draw)
    mask = torch.where(torch.arange(ROWS) < lengths, 0.0, -1e9).expand(BATCH, 1, 1, ROWS).contiguous()
    weights = [layer_weights(draw) for _ in range(LAYERS)]

    layers = [Layer(at, w) for w in weights]
    tensor, seen = at.activation(x), at.activation(mask)
    for layer in layers:
        tensor = layer(tensor, seen)

    HELD.extend([tensor, seen])
    expected = x
    for w in weights:
        expected = expected_layer(expected, mask, w)
    return at.whole(tensor), expected


if __name__ == "__main__":
    model_placement.main("BERT encoder", encoder)
