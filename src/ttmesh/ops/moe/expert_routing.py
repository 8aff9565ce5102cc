"""Mixture-of-experts routing on one chip: gates, top-k over many columns, and the fused router."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import Arch, DataType, Layout
from ttmesh.base.errors import MeshError, require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.checks import require_dtype, require_layout
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import mixture_of_experts as goldens
from ttmesh.ops.lane_functions.expert_groups import mask_other_groups
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, L1_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec

KERNEL_K = 32  # experts that TT-NN's kernel selects, independent of k


def _compute_weight(x: Lanes, expert_mask: Lanes, topk_mask: Lanes) -> Lanes:
    """The routing weight of expert 0 among the best experts of each row."""
    values, experts = torch.topk(x.float() + expert_mask.float(), KERNEL_K, dim=-1)
    return (torch.softmax(values + topk_mask.float()[..., :KERNEL_K], -1) * (experts == 0)).sum(-1, keepdim=True)


def _check(call: Call) -> None:
    if call["k"] != KERNEL_K:
        raise MeshError(
            f"K must be equal to {KERNEL_K}, pad with -infinity if necessary; got {call['k']}",
            expected=f"k={KERNEL_K}",
            fix="Mask the experts beyond k in topk_mask_tensor.",
        )
    x, expert_mask, topk_mask = (spec.shape for spec in call.specs[:3])
    wrong = (
        f"Topk mask must be row-broadcastable with last dim == k. Got rank={len(topk_mask)} and shape={topk_mask} for "
        f"k={call['k']}"
    )
    require(_is_row(topk_mask, call["k"]), wrong, f"[1, 1, 1, {call['k']}]", "Pass one row.")
    wrong = (
        f"Expert mask must be row-broadcastable with last dim == input_shape[-1]. Got rank={len(expert_mask)} and "
        f"shape={expert_mask} for input_shape[-1]={x[-1]}"
    )
    require(_is_row(expert_mask, x[-1]), wrong, f"[1, 1, 1, {x[-1]}]", "Pass one row.")


def _is_row(shape: Sequence[int], width: int) -> bool:
    return len(shape) > 0 and shape[-1] == width and all(extent == 1 for extent in shape[:-1])


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [
        make_output_spec(
            call, inferred[0][0], dtype=call.specs[0].dtype, layout=Layout.TILE, memory_config=DRAM_MEMORY_CONFIG
        )
    ]


@op("ttnn.moe", golden=goldens.moe, check=_check, out=_spec)
def moe(input_tensor: Lanes, expert_mask_tensor: Lanes, topk_mask_tensor: Lanes) -> Lanes:
    """The routing weight of expert 0, [batch, 1, rows, 1]."""
    return _compute_weight(input_tensor, expert_mask_tensor, topk_mask_tensor)


def _compute_gate(
    scores: Lanes,
    bias: Lanes,
    groups: int,
    summed_experts: int,
    top_groups: int,
    top_experts: int,
    scale: float,
    epsilon: float,
) -> tuple[Lanes, Lanes]:
    """DeepSeek's grouped gate: the best groups by the sum of their best experts, then the best experts in them."""
    probability = torch.sigmoid(scores.float())
    ranking = mask_other_groups(probability + bias.float(), groups, summed_experts, top_groups)
    experts = torch.topk(ranking, top_experts, dim=-1).indices
    weights = probability.expand(*experts.shape[:-1], -1).gather(-1, experts)
    return weights / (weights.sum(-1, keepdim=True) + epsilon) * scale, experts


def _gate_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    weights, experts = inferred
    return [make_output_spec(call, weights[0]), make_output_spec(call, experts[0], dtype=DataType.UINT16, result=1)]


@op("ttnn.experimental.deepseek_grouped_gate", golden=goldens.grouped_gate, out=_gate_spec)
def deepseek_grouped_gate(
    scores: Lanes,
    bias: Lanes,
    n_groups: int,
    summed_experts_per_group: int,
    topk_groups: int,
    n_activated_experts: int,
    route_scale: float,
    epsilon: float,
) -> tuple[Lanes, Lanes]:
    """Routing weights and experts of every row, chosen within the best groups."""
    return _compute_gate(
        scores, bias, n_groups, summed_experts_per_group, topk_groups, n_activated_experts, route_scale, epsilon
    )


NO_INDEX = 0xFFFFFFFF


def _check_top(call: Call) -> None:
    x, k, length = call.specs[0], call["k"], call["valid_length"]
    arch = call.mesh.arch()
    wrong = f"topk_large_indices is only supported on Blackhole architecture, got {arch.name.lower()}"
    require(arch is Arch.BLACKHOLE, wrong, "a Blackhole system", "Use ttnn.topk.")
    require(
        x.layout is Layout.ROW_MAJOR and x.dtype is DataType.BFLOAT16,
        "the input is not ROW_MAJOR BFLOAT16",
        "bfloat16 in ROW_MAJOR layout",
        "Convert with ttnn.to_layout and ttnn.typecast.",
    )
    wrong = f"k must be a multiple of 16 in [16, 2048]; got {k}"
    require(16 <= k <= 2048 and k % 16 == 0, wrong, "16, 32, ... 2048", "Round k up to a multiple of 16.")
    columns = x.shape[-1] if length is None else length
    require(
        k <= columns <= x.shape[-1],
        f"valid_length must be in [k, {x.shape[-1]}]; got {columns}",
        f"{k} to {x.shape[-1]}",
        "Leave valid_length out to search all columns.",
    )


def _top_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, inferred[0][0], dtype=DataType.UINT32, layout=Layout.ROW_MAJOR)]


@op("ttnn.experimental.topk_large_indices", golden=goldens.topk_large_indices, check=_check_top, out=_top_spec)
def topk_large_indices(input_tensor: Lanes, k: int, valid_length: int | None) -> Lanes:
    """Indices of the k largest values of every row, largest first; NO_INDEX for values of -inf."""
    columns = input_tensor[..., :valid_length]
    values, indices = torch.topk(columns, k, dim=-1)
    return indices.masked_fill(values == float("-inf"), NO_INDEX)


ROUTED, ALIGNMENT = 128, 8  # experts that the fused router takes; output columns are a multiple of this


def _check_router(call: Call) -> None:
    k, experts = call["k"], call["num_experts"]
    wrong = f"topk_router_gpt requires k in range [1, 32], got {k}"
    require(1 <= k <= KERNEL_K, wrong, f"1 to {KERNEL_K}", "Choose fewer experts per token.")
    wrong = f"topk_router_gpt only supports num_experts={ROUTED} (hardcoded 4-group architecture), got {experts}"
    require(experts == ROUTED, wrong, f"{ROUTED} experts", "Use ttnn.linear and ttnn.topk.")
    for name, spec in zip(("Input", "Weight", "Bias"), call.specs, strict=True):
        wrong = f"{name} tensor must have TILE layout, got {spec.layout}"
        require_layout(spec, Layout.TILE, wrong)
        wrong = f"{name} tensor must have BFLOAT16 dtype, got {spec.dtype}"
        require_dtype(spec, DataType.BFLOAT16, wrong)
        wrong = f"{name} tensor must be rank 2, got rank {len(spec.shape)}"
        require(len(spec.shape) == 2, wrong, "rank 2", "Reshape it to two dims.")
    x, weight, bias = (spec.shape for spec in call.specs)
    wrong = f"topk_router_gpt only supports batch_size=32 (hardcoded for decode mode), got {x[0]}"
    require(x[0] == KERNEL_K, wrong, "32 rows", "Pad the batch.")
    wrong = f"Input hidden_dim must be divisible by 32 (tile size), got {x[1]}"
    require(x[1] % KERNEL_K == 0, wrong, "a multiple of 32", "Pad the hidden dim with ttnn.pad.")
    wrong = f"Weight tensor dim 0 must match input hidden_dim {x[1]}, got {weight[0]}"
    require(weight[0] == x[1], wrong, f"{x[1]} rows", "Give the weight one row per column of the input.")
    wrong = f"Weight tensor dim 1 must match num_experts {experts}, got {weight[1]}"
    require(weight[1] == experts, wrong, f"{experts} columns", "Give the weight one column per expert.")
    wrong = f"Bias tensor dim 0 must match batch size {x[0]}, got {bias[0]}"
    require(bias[0] == x[0], wrong, f"{x[0]} rows", "Repeat the bias for every token.")
    wrong = f"Bias tensor dim 1 must match num_experts {experts}, got {bias[1]}"
    require(bias[1] == experts, wrong, f"{experts} columns", "Give the bias one column per expert.")


def _router_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    shape = inferred[0][0]
    formats = (DataType.UINT16, DataType.BFLOAT16)
    return [TensorSpec(shape, dtype, Layout.ROW_MAJOR, memory_config=L1_MEMORY_CONFIG) for dtype in formats]


@op("ttnn.experimental.topk_router_gpt", golden=goldens.topk_router, check=_check_router, out=_router_spec)
def topk_router_gpt(input_tensor: Lanes, weight_tensor: Lanes, bias_tensor: Lanes, k: int) -> tuple[Lanes, Lanes]:
    """The k best experts of every row and the softmax of their logits."""
    logits = (fpu.matmul(input_tensor.float(), weight_tensor.float()) + bias_tensor.float()).bfloat16().float()
    values, experts = torch.topk(logits, k, dim=-1)
    return experts, torch.softmax(values, -1)
