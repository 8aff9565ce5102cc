"""Gates of DeepSeek's prefill: which experts a token goes to, and how many tokens an expert gets."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import one_of, require
from ttmesh.ops.catalogue.checks import require_dtype, require_interleaved, require_layout
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.device_programs import like_written, no_programs
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import mixture_of_experts as goldens
from ttmesh.ops.lane_functions.expert_groups import mask_other_groups
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

TILE, COUNTING_CORES = 32, 64  # cores over which masked_bincount splits the tokens
SCORE_FORMATS = {DataType.FLOAT32, DataType.BFLOAT16}
AFFINITIES: dict[str, Callable[[Lanes], Lanes]] = {
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": lambda x: torch.sqrt(F.softplus(x)),
}


def _check_common(call: Call) -> None:
    experts, activated, func = call.specs[0].shape[-1], call["n_activated_experts"], call["score_func"]
    wrong = f"Unsupported score_func '{func}'. Expected 'sigmoid' or 'sqrtsoftplus'."
    require(func in AFFINITIES, wrong, one_of(AFFINITIES), "Pass one of these names.")
    wrong = f"Number of experts must be a multiple of the tile width (32). Got {experts}"
    require(experts % TILE == 0, wrong, f"a multiple of {TILE}", "Pad the experts with ttnn.pad.")
    require(activated > 0, "n_activated_experts must be > 0", "a number of experts", "Pass 1 or more.")
    wrong = f"n_activated_experts ({activated}) must be <= experts ({experts})"
    require(activated <= experts, wrong, f"at most {experts}", "Lower n_activated_experts.")
    padding = call["padding_config"]
    if padding is not None:
        require_dtype(padding, DataType.UINT32, "Padding config tensor must be UINT32")
        row_major = padding.layout is Layout.ROW_MAJOR
        wrong = "Padding config tensor must be ROW_MAJOR layout"
        require(row_major, wrong, "ROW_MAJOR_LAYOUT", "Convert it with ttnn.to_layout.")
        wrong = "Padding config tensor must contain at least [num_real_tokens, pad_side]"
        require(padding.shape.volume() >= 2, wrong, "two numbers", "Pass [num_real_tokens, pad_side].")


def _check_topk(call: Call) -> None:
    scores, bias = call["scores"].spec, call["bias"].spec
    for name, spec in (("Scores", scores), ("Bias", bias)):
        wrong = f"{name} tensor must be FLOAT32 or BFLOAT16"
        require(spec.dtype in SCORE_FORMATS, wrong, "float32 or bfloat16", "Convert it with ttnn.typecast.")
        require_layout(spec, Layout.TILE, f"{name} tensor must be TILE layout")
    wrong = "Scores and bias must have the same shape"
    require(tuple(scores.shape) == tuple(bias.shape), wrong, "equal shapes", "Reshape one with ttnn.reshape.")
    _check_common(call)
    experts, activated, groups = scores.shape[-1], call["n_activated_experts"], call["n_groups"]
    wrong = f"n_activated_experts must be <= 64 (topk limit). Got {activated}"
    require(activated <= 2 * TILE, wrong, f"at most {2 * TILE}", "Lower n_activated_experts.")
    if groups != 1:
        summed, top_groups = call["summed_experts_per_group"], call["topk_groups"]
        wrong = f"summed_experts_per_group must be 2 at the moment. Got {summed}"
        require(summed == 2, wrong, "2", "Pass summed_experts_per_group=2.")
        require(
            groups == 8, f"n_groups must be 8 at the moment. Got {groups}", "8 or 1", "Pass n_groups=8 or n_groups=1."
        )
        require(top_groups == 4, f"topk_groups must be 4 at the moment. Got {top_groups}", "4", "Pass topk_groups=4.")
        require(experts == 256, f"Experts must be 256. Got {experts}", "256 experts", "Use 256 experts, or n_groups=1.")
        wrong = f"n_activated_experts must be 8 at the moment. Got {activated}"
        require(activated == 8, wrong, "8", "Pass n_activated_experts=8.")


def _gate_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    formats = (DataType.BFLOAT16, DataType.UINT16)
    return [
        make_output_spec(call, shape, dtype=t, result=i)
        for i, ((shape, _), t) in enumerate(zip(inferred, formats, strict=True))
    ]


def _normalize_weights(weights: Lanes, scale: float, epsilon: float) -> Lanes:
    return weights / (weights.sum(-1, keepdim=True) + epsilon) * scale


def _mask_padding(
    weights: Lanes, experts: Lanes, padding: Lanes | None, count: int, lane_axes: int
) -> tuple[Lanes, Lanes]:
    """Give padding rows the index after the last expert and weight 0, so that no expert gets them."""
    if padding is None:
        return weights, experts
    real, side = padding.flatten(lane_axes)[..., :2].long().unbind(-1)
    shape = weights.shape[lane_axes:-1]
    total = torch.Size(shape).numel()
    row = torch.arange(total, device=weights.device)
    real, side = real[..., None], side[..., None]
    padded = torch.where(side == 0, row >= real, row < total - real)
    padded = padded.reshape(*padded.shape[:-1], *shape, 1)
    return weights.masked_fill(padded, 0.0), experts.masked_fill(padded, count)


@device_operation("ttnn.experimental.deepseek_prefill.moe_grouped_topk", check=_check_topk, out=_gate_spec)
def _topk(
    scores: Lanes,
    bias: Lanes,
    padding_config: Lanes | None,
    n_groups: int,
    summed_experts_per_group: int,
    topk_groups: int,
    n_activated_experts: int,
    route_scale: float,
    epsilon: float,
    score_func: str,
    lane_axes: int,
) -> tuple[Lanes, Lanes]:
    affinities = AFFINITIES[score_func](scores.float())
    affinities, biased = align_mesh_dims([affinities, affinities + bias.float()], lane_axes)
    if n_groups > 1:
        biased = mask_other_groups(biased, n_groups, summed_experts_per_group, topk_groups)
    experts = torch.topk(biased, n_activated_experts, dim=-1).indices
    weights = _normalize_weights(affinities.gather(-1, experts), route_scale, epsilon)
    return _mask_padding(weights, experts, padding_config, scores.shape[-1], lane_axes)


@device_operation(
    "ttnn.experimental.deepseek_prefill.moe_grouped_topk biased scores",
    out=like_written,
    programs=no_programs,
    writes="biased_scores",
)
def _add_bias(biased_scores: Lanes, scores: Lanes, bias: Lanes, score_func: str) -> Lanes:
    return AFFINITIES[score_func](scores.float()) + bias.float()


@composite("ttnn.experimental.deepseek_prefill.moe_grouped_topk", golden=goldens.grouped_topk)
def moe_grouped_topk(
    scores: Tensor,
    bias: Tensor,
    n_groups: int,
    summed_experts_per_group: int,
    topk_groups: int,
    n_activated_experts: int,
    route_scale: float,
    epsilon: float,
    score_func: str,
    memory_config: MemoryConfig | None,
    padding_config: Tensor | None,
    biased_scores: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Weights and experts of every token: the top experts of the top groups; padding goes to no expert."""
    result: tuple[Tensor, Tensor] = _topk(
        scores=scores, bias=bias, padding_config=padding_config, n_groups=n_groups,
        summed_experts_per_group=summed_experts_per_group, topk_groups=topk_groups,
        n_activated_experts=n_activated_experts, route_scale=route_scale, epsilon=epsilon, score_func=score_func,
        memory_config=memory_config,
    )  # fmt: skip
    if biased_scores is not None:
        _add_bias(biased_scores=biased_scores, scores=scores, bias=bias, score_func=score_func)
    return result


def _check_hash(call: Call) -> None:
    scores, ids, table = call.specs[:3]
    require_dtype(scores, DataType.FLOAT32, "Scores tensor must be FLOAT32")
    require_layout(scores, Layout.TILE, "Scores tensor must be TILE layout")
    require_dtype(ids, DataType.UINT32, "input_ids tensor must be UINT32")
    require_layout(ids, Layout.ROW_MAJOR, "input_ids tensor must be ROW_MAJOR layout")
    require_dtype(table, DataType.UINT16, "tid2eid tensor must be UINT16")
    require_layout(table, Layout.ROW_MAJOR, "tid2eid tensor must be ROW_MAJOR layout")
    _check_common(call)
    activated, rows = call["n_activated_experts"], scores.shape.volume() // scores.shape[-1]
    wrong = f"n_activated_experts must be <= 32 (single index tile). Got {activated}"
    require(activated <= TILE, wrong, f"at most {TILE}", "Lower n_activated_experts.")
    wrong = f"tid2eid last dim ({table.shape[-1]}) must be >= n_activated_experts ({activated})"
    require(
        table.shape[-1] >= activated,
        wrong,
        f"{activated} columns or more",
        "Widen the table, or lower n_activated_experts.",
    )
    wrong = f"input_ids ({ids.shape.volume()} ids) must supply at least one id per score token row ({rows})"
    require(ids.shape.volume() >= rows, wrong, f"{rows} ids or more", "Pass one id per row of scores.")


@op("ttnn.experimental.deepseek_prefill.moe_hash_gate", golden=goldens.hash_gate, check=_check_hash, out=_gate_spec)
def moe_hash_gate(
    scores: Lanes,
    input_ids: Lanes,
    tid2eid: Lanes,
    n_activated_experts: int,
    route_scale: float,
    epsilon: float,
    score_func: str,
    padding_config: Lanes | None,
    lane_axes: int,
) -> tuple[Lanes, Lanes]:
    """Weights of the experts that a table assigns to every token's id."""
    affinities = AFFINITIES[score_func](scores.float())
    shape = affinities.shape[lane_axes:-1]
    ids = input_ids.flatten(lane_axes)[..., : torch.Size(shape).numel()].long()
    ids, table, affinities = align_mesh_dims([ids, tid2eid[..., :n_activated_experts].long(), affinities], lane_axes)
    experts = torch.take_along_dim(table, ids[..., None], dim=-2)
    experts = experts.reshape(*experts.shape[:lane_axes], *shape, n_activated_experts)
    weights = _normalize_weights(affinities.gather(-1, experts), route_scale, epsilon)
    return _mask_padding(weights, experts, padding_config, scores.shape[-1], lane_axes)


def _check_count(call: Call) -> None:
    x, mask = call.specs[:2]
    experts, per_token = call["n_routed_experts"], call["num_experts_per_token"]
    require_dtype(x, DataType.UINT16, "Only UINT16 is supported for input!")
    require_layout(x, Layout.TILE, "Only TILE layout is supported for input!")
    wrong = f"Input tensor must be 2D [sp_dim, topk_dim], got {len(x.shape)} dimensions"
    require(len(x.shape) == 2, wrong, "two dims", "Reshape it to two dims.")
    require_interleaved(x, "Input tensor must be interleaved!")
    wrong = f"Token count ({x.shape[0]}) must be divisible by the {COUNTING_CORES}-core grid used by masked_bincount"
    require(x.shape[0] % COUNTING_CORES == 0, wrong, f"a multiple of {COUNTING_CORES}", "Pad the tokens with ttnn.pad.")
    require(experts > 0, "n_routed_experts must be > 0", "a number of experts", "Pass 1 or more.")
    wrong = f"num_experts_per_token must be in (0, {x.shape[1]}], got {per_token}"
    require(0 < per_token <= x.shape[1], wrong, f"1 to {x.shape[1]}", "Pass how many columns of the input are used.")
    require_dtype(mask, DataType.INT32, "Expert dispatch table must be INT32!")
    require_layout(mask, Layout.ROW_MAJOR, "Expert dispatch table must be ROW_MAJOR!")
    rank, last = len(mask.shape), mask.shape[-1]
    expected_shape = f"[>={experts}] or [1, >={experts}]"
    wrong = f"Expert dispatch table must have shape {expected_shape}, got {rank}D tensor with last dim {last}"
    require(
        last >= experts and mask.shape.volume() == last and rank <= 2,
        wrong,
        "one number per expert",
        "Reshape the table to one row.",
    )


def _count_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [TensorSpec(inferred[0][0], DataType.UINT32, Layout.ROW_MAJOR, memory_config=DRAM_MEMORY_CONFIG)]


@op(
    "ttnn.experimental.deepseek_prefill.masked_bincount",
    golden=goldens.masked_bincount,
    check=_check_count,
    out=_count_spec,
)
def masked_bincount(
    input_tensor: Lanes, expert_mask: Lanes, n_routed_experts: int, num_experts_per_token: int, lane_axes: int
) -> Lanes:
    """How many tokens chose each expert of the dispatch table."""
    expert_ids = input_tensor[..., :num_experts_per_token].flatten(lane_axes).long()
    zeros = torch.zeros(
        *expert_ids.shape[:lane_axes], n_routed_experts + 1, dtype=torch.int64, device=expert_ids.device
    )
    counts = zeros.scatter_add(-1, expert_ids.clamp(max=n_routed_experts), torch.ones_like(expert_ids))[..., :-1]
    return counts * (expert_mask.flatten(lane_axes)[..., :n_routed_experts] >= 0)
