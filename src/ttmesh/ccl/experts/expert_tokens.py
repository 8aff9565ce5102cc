"""Which tokens a chip's experts get: the tables that moe_compute and moe_gpt write and selective_reduce_combine reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.ccl.experts.expert_modes import MoEActivationFunction
from ttmesh.ccl.experts.moe_weights import ExpertWeights, run_expert
from ttmesh.tensor.spec.memory_config import L1_MEMORY_CONFIG, MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec

NOBODY = 0xFFFFFFFF  # -1 in 32 bits: ends a list of tokens
WORDS = 4  # 32-bit words of an entry: L1 is read in 16 bytes
BUFFERS, CHUNK = 2, 32  # a core's output holds two buffers of 32 tokens


class ExpertTokens(NamedTuple):
    """For every token and local expert of one chip, which of the token's choices the expert is; `missing` if none."""

    choice: torch.Tensor  # [tokens, experts]
    score: torch.Tensor  # [tokens, experts]
    missing: int

    @property
    def selected(self) -> torch.Tensor:
        """[tokens, experts]: whether the token goes to the expert."""
        return self.choice != self.missing

    @property
    def counts(self) -> torch.Tensor:
        """The number of tokens of every expert."""
        return self.selected.sum(0)


def find_expert_tokens(
    indices: torch.Tensor,
    scores: torch.Tensor,
    mapping: torch.Tensor,
    device_id: int,
    sources: torch.Tensor,
    experts: int,
) -> ExpertTokens:
    """Tokens whose source maps a chosen expert to this device.

    Args:
        indices: [tokens, k] chosen experts; `scores` likewise.
        mapping: [devices, all experts]: the device that runs an expert, as each device sees it.
        sources: the device that each token comes from.
    """
    tokens, k = indices.shape
    chosen, table = indices.long(), mapping.long()
    local = torch.full((table.shape[1],), -1, dtype=torch.long, device=table.device)
    own = (table[device_id] == device_id).nonzero()[:experts, 0]
    local[own] = torch.arange(len(own), device=table.device)
    slot = local[chosen]
    here = (table[sources[:, None], chosen] == device_id) & (slot >= 0)
    missing = k + 1
    choice = torch.full((tokens, experts), missing, dtype=torch.long, device=table.device)
    score = torch.zeros((tokens, experts), dtype=scores.dtype, device=table.device)
    for i in range(k):
        rows = here[:, i].nonzero()[:, 0]
        choice[rows, slot[rows, i]] = i
        score[rows, slot[rows, i]] = scores[rows, i]
    return ExpertTokens(choice, score, missing)


def align_words(count: int) -> int:
    """A number of 32-bit words, rounded up to what L1 is read in."""
    return -(-count // WORDS) * WORDS


def write_activations(found: ExpertTokens, rows: int) -> torch.Tensor:
    """[1, rows · stride]: for every token with an expert here its number, the choices and the scores' bits."""
    experts = found.choice.shape[1]
    stride = align_words(2 * experts + 1)
    table = torch.zeros((rows, stride), dtype=torch.long, device=found.choice.device)
    table[:, 0], table[:, 1 : experts + 1] = NOBODY, found.missing
    active = found.selected.any(1).nonzero()[:, 0]
    bits = found.score.bfloat16().view(torch.int16).long() & 0xFFFF
    table[: len(active), 0] = active
    table[: len(active), 1 : experts + 1] = found.choice[active]
    table[: len(active), experts + 1 : 2 * experts + 1] = bits[active]
    return table.reshape(1, -1)


def write_token_lists(found: ExpertTokens) -> torch.Tensor:
    """[experts, (tokens + 1) · 4]: every expert's tokens in order, then the end mark, each in 16 bytes."""
    tokens, experts = found.choice.shape
    lists = torch.zeros((experts, tokens + 1, WORDS), dtype=torch.long, device=found.choice.device)
    for expert in range(experts):
        active = found.selected[:, expert].nonzero()[:, 0]
        lists[expert, : len(active), 0] = active
        lists[expert, len(active), 0] = NOBODY
    return lists.flatten(1)


def run_experts(
    tokens: torch.Tensor, found: ExpertTokens, weights: ExpertWeights, activation: MoEActivationFunction
) -> list[torch.Tensor]:
    """Every local expert's results, [its tokens, hidden]."""
    chosen = (tokens[found.selected[:, expert]] for expert in range(found.choice.shape[1]))
    return [run_expert(rows, weights, expert, activation) for expert, rows in enumerate(chosen)]


def locate_rows(count: int, height: int) -> list[tuple[int, int]]:
    """(core, row) of every token of an expert: the first cores get one more if they do not divide evenly."""
    share, extra = divmod(count, height)
    return [(core, row) for core in range(height) for row in range(share + (core < extra))]


def fill_core_outputs(
    results: Sequence[tuple[int, torch.Tensor]], cores: Sequence[int], core_count: int, width: int, buffer_rows: int
) -> torch.Tensor:
    """[all cores, 2, 32, hidden] with the results of experts in the memory of the combine cores.

    Args:
        results: (number of the buffer, [tokens, hidden]) of each expert.
        cores: where the combine cores are among all cores; `width` of them share a row.
        buffer_rows: the rows of one buffer in each core.
    """
    hidden = results[0][1].shape[-1]
    memory = results[0][1].new_zeros(core_count, BUFFERS * CHUNK * hidden)
    columns, height = hidden // width, len(cores) // width
    for buffer, rows in results:
        for token, (core, row) in enumerate(locate_rows(len(rows), height)):
            start = (buffer * buffer_rows + row) * columns
            for part in range(width):
                piece = rows[token, part * columns : (part + 1) * columns]
                memory[cores[core * width + part], start : start + columns] = piece
    return memory.reshape(core_count, BUFFERS, CHUNK, hidden)


def make_l1_spec(*shape: int) -> TensorSpec:
    """An interleaved table of 32-bit numbers in L1."""
    return TensorSpec(shape, DataType.UINT32, Layout.ROW_MAJOR, memory_config=L1_MEMORY_CONFIG)


def make_all_cores_spec(grid: CoreCoord, rows: Sequence[int], dtype: DataType, layout: Layout) -> TensorSpec:
    """A spec with the same rows in every core of the grid; a shard has all rows of its core."""
    cores = CoreRangeSet({CoreRange(CoreCoord(0, 0), CoreCoord(grid.x - 1, grid.y - 1))})
    *leading, columns = rows
    height = 1
    for extent in leading:
        height *= extent
    shard = ShardSpec(cores, [height, columns], ShardOrientation.ROW_MAJOR)
    config = MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, BufferType.L1, shard)
    return TensorSpec((grid.x * grid.y, *rows), dtype, layout, memory_config=config)
