"""Mixtures of experts: routing, gates, and the experts' feed-forward networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

TILE = 32
MOE_EXPERTS = 32  # that TT-NN's moe kernel selects, independent of k
NO_INDEX = 2**32 - 1
ALIGNMENT = 8  # rows of the fused router are padded to a multiple


def moe(
    input_tensor: Tensor, expert_mask_tensor: Tensor, topk_mask_tensor: Tensor, k: int = MOE_EXPERTS, **_: Any
) -> Tensor:
    expert_weights = []
    for row in (input_tensor + expert_mask_tensor).flatten(0, -2):
        order = sorted(range(len(row)), key=lambda expert: -float(row[expert]))[:MOE_EXPERTS]
        weights = torch.exp(row[order] + topk_mask_tensor.flatten()[:MOE_EXPERTS])
        expert_weights.append(weights[order.index(0)] / weights.sum() if 0 in order else torch.zeros(()))
    return torch.stack(expert_weights).reshape(*input_tensor.shape[:-1], 1)


def grouped_gate(
    scores: Tensor,
    bias: Tensor,
    *,
    n_groups: int = 8,
    summed_experts_per_group: int = 2,
    topk_groups: int = 4,
    n_activated_experts: int = 8,
    route_scale: float = 1.0,
    epsilon: float = 1e-20,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    weights, chosen_experts = [], []
    size = scores.shape[-1] // n_groups
    for row, offset in zip(scores.flatten(0, -2), bias.expand_as(scores).flatten(0, -2), strict=True):
        probabilities = [1 / (1 + math.exp(-float(score))) for score in row]
        biased = [probability + float(extra) for probability, extra in zip(probabilities, offset, strict=True)]
        groups = [range(start, start + size) for start in range(0, len(probabilities), size)]
        best = sorted(
            groups, key=lambda g: -sum(sorted((biased[e] for e in g), reverse=True)[:summed_experts_per_group])
        )
        allowed = sorted(expert for group in best[:topk_groups] for expert in group)
        experts = sorted(allowed, key=lambda expert: -biased[expert])[:n_activated_experts]
        total = sum(probabilities[expert] for expert in experts) + epsilon
        weights.append(torch.tensor([probabilities[expert] / total * route_scale for expert in experts]))
        chosen_experts.append(torch.tensor(experts))
    shape = (*scores.shape[:-1], n_activated_experts)
    return torch.stack(weights).reshape(shape), torch.stack(chosen_experts).reshape(shape)


def tile_gate(
    input_tensor: Tensor,
    *,
    bias_tensor: Tensor,
    input_indices_tensor: Tensor,
    output_tensor: Tensor,
    eps: float = 1e-20,
    scaling_factor: float = 2.5,
    enable_sigmoid: bool = False,
    topk: int = 8,
    output_softmax: bool = False,
    grouped: bool = True,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    shape = output_tensor.shape
    tokens = math.prod(shape[:-2])
    scores, bias, numbers = (
        values.float().reshape(tokens, -1)
        for values in (input_tensor, bias_tensor.transpose(-1, -2), input_indices_tensor.transpose(-1, -2))
    )
    weights, chosen_experts = torch.zeros(tokens, *shape[-2:]), torch.zeros(tokens, *shape[-2:], dtype=torch.int64)
    for token in range(tokens):
        values = [1 / (1 + math.exp(-float(x))) if enable_sigmoid else float(x) for x in scores[token]]
        ranking = [value + float(extra) for value, extra in zip(values, bias[token], strict=True)]
        experts = list(range(len(values)))
        if grouped:
            groups = [experts[start : start + TILE] for start in range(0, len(experts), TILE)]
            groups.sort(key=lambda g: -sum(sorted((ranking[e] for e in g), reverse=True)[:2]))
            experts = [expert for group in groups[:4] for expert in group]
        best = sorted(experts, key=lambda expert: -ranking[expert])[:topk]
        parts = [math.exp(values[e] - max(values[b] for b in best)) if output_softmax else values[e] for e in best]
        weights[token, 0, :topk] = torch.tensor([part / (sum(parts) + eps) * scaling_factor for part in parts])
        chosen_experts[token, 0, :topk] = numbers[token, best].long()
    return weights.reshape(shape), chosen_experts.reshape(shape)


def topk_large_indices(input_tensor: Tensor, *, k: int, valid_length: int | None = None) -> Tensor:
    rows = []
    for row in input_tensor[..., :valid_length].flatten(0, -2).tolist():
        best = sorted(range(len(row)), key=lambda i: -row[i])[:k]
        rows.append([NO_INDEX if row[i] == float("-inf") else i for i in best])
    return torch.tensor(rows).reshape(*input_tensor.shape[:-1], k)


def topk_router(
    input_tensor: Tensor, *, weight_tensor: Tensor, bias_tensor: Tensor, k: int = 4, **_: Any
) -> tuple[Tensor, Tensor]:
    logits = torch.addmm(bias_tensor.float(), input_tensor.float(), weight_tensor.float()).bfloat16().float()
    experts = torch.argsort(logits, dim=-1, descending=True, stable=True)[:, :k]
    weights = torch.exp(logits.gather(1, experts) - logits.max(1, keepdim=True).values)
    return experts, weights / weights.sum(1, keepdim=True)


def _round_to_tiles(counts: Tensor, expert: int) -> int:
    """Rows of an expert, rounded up to tiles."""
    return -(-int(counts.flatten()[expert]) // TILE) * TILE


def extract(
    global_tensor: Tensor,
    start: Tensor,
    counts: Tensor,
    global_expert_idx_table: Tensor,
    *,
    local_expert_id: int,
    max_dispatched_tokens_per_expert: int,
) -> Tensor:
    expert = int(global_expert_idx_table.flatten()[local_expert_id])
    first, rows = int(start.flatten()[expert]), _round_to_tiles(counts, expert)
    result = torch.zeros(max_dispatched_tokens_per_expert, global_tensor.shape[1])
    result[:rows] = global_tensor[first : first + rows]
    return result


def insert(
    global_tensor: Tensor,
    local_tensor: Tensor,
    start: Tensor,
    counts: Tensor,
    global_expert_idx_table: Tensor,
    *,
    local_expert_id: int,
) -> Tensor:
    expert = int(global_expert_idx_table.flatten()[local_expert_id])
    first, rows = int(start.flatten()[expert]), _round_to_tiles(counts, expert)
    result = global_tensor.clone()
    result[first : first + rows] = local_tensor[:rows]
    return result


def expert_ffn(x: Tensor, gate_proj: Tensor, up_proj: Tensor, down_proj: Tensor, **_: Any) -> Tensor:
    gate = x @ gate_proj
    return (gate / (1 + torch.exp(-gate)) * (x @ up_proj)) @ down_proj


def unified_expert_moe(
    dispatched_buffer: Tensor,
    expert_region_offsets: Tensor,
    expert_token_counts: Tensor,
    global_expert_idx_table: Tensor,
    gate_projs: Sequence[Tensor],
    up_projs: Sequence[Tensor],
    down_projs: Sequence[Tensor],
    max_dispatched_tokens_per_expert: int,
    **_: Any,
) -> Tensor:
    result = torch.zeros_like(dispatched_buffer)
    for i, matrices in enumerate(zip(gate_projs, up_projs, down_projs, strict=True)):
        expert = int(global_expert_idx_table.flatten()[i])
        first = int(expert_region_offsets.flatten()[expert])
        rows = slice(first, first + _round_to_tiles(expert_token_counts, expert))
        result[rows] = expert_ffn(dispatched_buffer[rows], *matrices)
    return result


def post_combine_reduce(
    combine_output: Tensor,
    weights: Tensor,
    indices: Tensor | None = None,
    expert_dispatch_table: Tensor | None = None,
    *,
    expert_dim: int = 3,
    **_: Any,
) -> Tensor:
    total: Tensor = torch.zeros(())
    for i in range(combine_output.shape[expert_dim]):
        weight = weights.select(expert_dim, i)
        if indices is not None and expert_dispatch_table is not None:
            expert_ids = indices.reshape(weights.shape).select(expert_dim, i).long()
            weight = weight * (expert_dispatch_table.flatten()[expert_ids] != -1)
        total = total + torch.where(weight != 0, combine_output.select(expert_dim, i) * weight, 0.0)
    return total


def post_combine_tilize(input_tensor: Tensor, **_: Any) -> Tensor:
    return input_tensor


def _affinity(x: Tensor, name: str) -> Tensor:
    return 1 / (1 + torch.exp(-x)) if name == "sigmoid" else torch.log1p(torch.exp(x)) ** 0.5


def _normalize_rows(
    weights: Tensor, scale: float, epsilon: float, padding: Tensor | None, expert_ids: Tensor, count: int
) -> Any:
    weights = scale * weights / (weights.sum(-1, keepdim=True) + epsilon)
    if padding is not None:
        real, side = (int(n) for n in padding.flatten()[:2])
        flat, experts = weights.flatten(0, -2).clone(), expert_ids.flatten(0, -2).clone()
        rows = slice(real, None) if side == 0 else slice(0, len(flat) - real)
        flat[rows], experts[rows] = 0, count
        return flat.reshape(weights.shape), experts.reshape(expert_ids.shape)
    return weights, expert_ids


def grouped_topk(
    scores: Tensor,
    bias: Tensor,
    *,
    n_groups: int = 8,
    summed_experts_per_group: int = 2,
    topk_groups: int = 4,
    n_activated_experts: int = 8,
    route_scale: float = 1.0,
    epsilon: float = 1e-20,
    score_func: str = "sigmoid",
    padding_config: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    affinities = _affinity(scores, score_func)
    size = scores.shape[-1] // n_groups
    expert_rows = []
    for row in (affinities + bias).flatten(0, -2).tolist():
        groups = [range(start, start + size) for start in range(0, len(row), size)]
        if n_groups > 1:
            groups.sort(key=lambda g: -sum(sorted((row[e] for e in g), reverse=True)[:summed_experts_per_group]))
            groups = groups[:topk_groups]
        experts = sorted((e for group in groups for e in group), key=lambda e: (-row[e], e))
        expert_rows.append(experts[:n_activated_experts])
    expert_ids = torch.tensor(expert_rows).reshape(*scores.shape[:-1], n_activated_experts)
    weights = torch.take_along_dim(affinities, expert_ids, -1)
    result: tuple[Tensor, Tensor] = _normalize_rows(
        weights, route_scale, epsilon, padding_config, expert_ids, scores.shape[-1]
    )
    return result


def hash_gate(
    scores: Tensor,
    input_ids: Tensor,
    tid2eid: Tensor,
    *,
    n_activated_experts: int,
    route_scale: float = 1.0,
    epsilon: float = 1e-20,
    score_func: str = "sqrtsoftplus",
    padding_config: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    affinities = _affinity(scores, score_func).flatten(0, -2)
    expert_ids = torch.stack(
        [tid2eid[int(t), :n_activated_experts].long() for t in input_ids.flatten()[: len(affinities)]]
    )
    weights = torch.stack([row[experts] for row, experts in zip(affinities, expert_ids, strict=True)])
    shape = (*scores.shape[:-1], n_activated_experts)
    result: tuple[Tensor, Tensor] = _normalize_rows(
        weights.reshape(shape), route_scale, epsilon, padding_config, expert_ids.reshape(shape), scores.shape[-1]
    )
    return result


def masked_bincount(
    input_tensor: Tensor, expert_mask: Tensor, n_routed_experts: int, num_experts_per_token: int
) -> Tensor:
    expert_ids = [int(e) for e in input_tensor[:, :num_experts_per_token].flatten()]
    return torch.tensor([expert_ids.count(e) if expert_mask.flatten()[e] >= 0 else 0 for e in range(n_routed_experts)])


def offset_cumsum(
    input_tensor: Tensor, cluster_axis: int, num_links: int, experts_per_chip: int, *_: Any, **__: Any
) -> tuple[Tensor, ...]:
    """The histograms of all devices, [devices, experts] → their offsets, totals, regions, and the offsets again."""
    totals = input_tensor.sum(0, keepdim=True)
    regions = torch.zeros_like(totals)
    for expert in range(totals.shape[1]):
        if expert % experts_per_chip:
            regions[0, expert] = regions[0, expert - 1] + math.ceil(int(totals[0, expert - 1]) / TILE) * TILE
    offsets = torch.stack([input_tensor[:device].sum(0) for device in range(len(input_tensor))]) + regions
    return offsets, totals, regions, offsets
