"""The weights of moe_compute and moe_gpt: tiles in the order of a ring of cores, one DRAM bank each, and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch.nn import functional as F

from ttmesh.ccl.experts.expert_modes import MoEActivationFunction
from ttmesh.chip.numerics import fpu

TILE = 32
GROUP_TILES = 4  # width of a block: two pairs of gate and up tiles, or four tiles of the output
BLOCK_ROWS = 7  # tiles of rows that are read at once
LIMIT, STEEPNESS = 7.0, 1.702  # constants of gpt-oss's clamped activation


def shard_tiles(tiles: int, position: int, ring: int) -> int:
    """How many of some tiles a position of the ring owns: the remainder is spread evenly over it."""
    small, extra = divmod(tiles, ring)
    return small + (extra > 0 and position * extra % ring < extra)


def shard_output_tiles(hidden_tiles: int, position: int, intermediate_tiles: int, ring: int) -> int:
    """The same for the output's tiles; where it evens out, positions with fewer of the others get more of these."""
    if intermediate_tiles % ring + hidden_tiles % ring == ring:
        small = hidden_tiles // ring
        has_more = shard_tiles(intermediate_tiles, position, ring) > intermediate_tiles // ring
        return small if has_more else small + 1
    return shard_tiles(hidden_tiles, position, ring)


class RingShards(NamedTuple):
    """How many tiles of the intermediate dim and of the output every position of the ring owns."""

    columns: tuple[int, ...]
    outputs: tuple[int, ...]


def make_ring_shards(hidden_size: int, intermediate_size: int, ring: int) -> RingShards:
    """moe_compute's shards."""
    hidden, inner = hidden_size // TILE, intermediate_size // TILE
    return RingShards(
        tuple(shard_tiles(inner, i, ring) for i in range(ring)),
        tuple(shard_output_tiles(hidden, i, inner, ring) for i in range(ring)),
    )


class ExpertWeights(NamedTuple):
    """The matrices of a chip's experts, [experts, rows, columns], and their biases, [experts, 1, columns]."""

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    biases: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None


def unpack_weights(
    w0_w1: torch.Tensor, w2: torch.Tensor, layer: int, hidden_size: int, shards: RingShards, *, has_bias: bool
) -> ExpertWeights:
    """The weights of one layer out of [ring, layers, experts, groups, rows, 128] tensors."""
    pairs = _unpack_columns(w0_w1[:, layer], shards.columns)
    inner = sum(shards.columns) * TILE
    down, down_bias = _unpack_rows(w2[:, layer], shards, inner)
    gate, up = pairs[:, 0], pairs[:, 1]
    biases = None
    if has_bias:
        row = slice(hidden_size, hidden_size + 1)
        biases = (gate[:, row].float(), up[:, row].float(), down_bias.float())
    return ExpertWeights(gate[:, :hidden_size].float(), up[:, :hidden_size].float(), down.float(), biases)


def _unpack_columns(blocks: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """[ring, experts, groups, rows, 128] → [experts, gate or up, rows, columns]."""
    ring, experts, groups, rows, _ = blocks.shape
    tiles = blocks.reshape(ring, experts, groups, rows, 2, 2, TILE).permute(1, 5, 3, 0, 2, 4, 6)
    tiles = tiles.reshape(experts, 2, rows, ring * groups * 2, TILE)
    kept = [position * groups * 2 + i for position, count in enumerate(counts) for i in range(count)]
    return tiles[:, :, :, kept].flatten(3)


def _unpack_rows(blocks: torch.Tensor, shards: RingShards, inner: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[ring, experts, groups, rows, 128] → [experts, inner, outputs] and the row behind, [experts, 1, outputs]."""
    ring, experts, groups, rows, _ = blocks.shape
    columns = blocks.permute(0, 1, 3, 2, 4).reshape(ring, experts, rows, groups * GROUP_TILES, TILE)
    starts = list(accumulate(shards.columns, initial=0))
    matrices, biases = [], []
    for position in range(ring):
        count = shards.outputs[position]
        stored = columns[position, :, :, :count].flatten(2)  # [experts, rows, outputs of this core]
        sources = [(position - step) % ring for step in range(ring)]  # the order in which the ring brings the rows
        order = [tile for source in sources for tile in range(starts[source], starts[source + 1])]
        tiles = (experts, inner // TILE, TILE, count * TILE)
        natural = stored.new_empty(tiles)
        natural[:, order] = stored[:, :inner].reshape(tiles)
        matrices.append(natural.flatten(1, 2))
        biases.append(stored[:, inner : inner + 1])
    return torch.cat(matrices, -1), torch.cat(biases, -1)


def run_expert(
    tokens: torch.Tensor, weights: ExpertWeights, expert: int, activation: MoEActivationFunction
) -> torch.Tensor:
    """An expert's feed-forward network on [tokens, hidden]."""
    rows = tokens.float()
    gate, up = fpu.matmul(rows, weights.gate[expert]), fpu.matmul(rows, weights.up[expert])
    if weights.biases is not None:
        gate, up = gate + weights.biases[0][expert], up + weights.biases[1][expert]
    if activation is MoEActivationFunction.SWIGLU:
        gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
        inner = (up + 1) * gate * torch.sigmoid(STEEPNESS * gate)
    else:
        curve = F.silu(gate) if activation is MoEActivationFunction.SILU else F.gelu(gate, approximate="tanh")
        inner = curve * up
    out = fpu.matmul(inner.bfloat16().float(), weights.down[expert])
    return out if weights.biases is None else out + weights.biases[2][expert]
