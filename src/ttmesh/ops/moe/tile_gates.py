"""Gates that route one token per core: 256 experts in a 16 x 16 face, the best eight in the first row of a tile."""

from __future__ import annotations

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import one_of, require
from ttmesh.ops.catalogue.checks import require_dtype
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.goldens import mixture_of_experts as goldens
from ttmesh.ops.lane_functions.expert_groups import mask_other_groups
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.tensor.calls.gate import DeviceOperation
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

NAME, GENERAL = (
    "ttnn.experimental.deepseek.moe.deepseek_moe_gate",
    "ttnn.experimental.deepseek.moe.generalized_moe_gate",
)
TILE, BLOCK, FACE = 32, 256, (16, 16)
GROUPS, SUMMED_EXPERTS, TOP_GROUPS, SLOTS = 8, 2, 4, 8
TOP_EXPERTS = (4, 6, 8)
TENSORS = ("input_tensor", "bias_tensor", "input_indices_tensor", "output_tensor", "output_indices_tensor")
SHARD_FIX = "Give the tensors shards of one shape on the same cores."


def _shards(call: Call) -> dict[str, ShardSpec]:
    """The shard specs by tensor, after the checks that all tensors share."""
    shards = {}
    for name in TENSORS:
        integers = name.endswith("indices_tensor")
        kind = DataType.UINT16 if integers else DataType.BFLOAT16
        require_dtype(call[name], kind, f"{name} must be {kind.name}")
    for name in TENSORS:
        shard = call[name].spec.memory_config.shard_spec
        require(shard is not None, f"{name} must be sharded", "a sharded tensor", "Move it with ttnn.to_memory_config.")
        shards[name] = shard
    return shards


def _require_shards(holds: bool, wrong: str) -> None:
    require(holds, wrong, "tensors sharded alike", SHARD_FIX)


def _check_shards(shards: dict[str, ShardSpec], indices_shape: str) -> None:
    """The rules on shards; `indices_shape` is the text where the indices have shards of another shape."""
    x, bias, ids, y, chosen = (shards[name] for name in TENSORS)
    _require_shards(x.shape == bias.shape, "Input and bias shard shapes must match")
    _require_shards(x.orientation is bias.orientation, "Input and bias shard orientations must match")
    _require_shards(bias.grid.contains(x.grid), "Bias shard grid must contain input shard grid")
    _require_shards(x.shape == ids.shape, indices_shape)
    _require_shards(x.orientation is ids.orientation, "Input and input-indices orientations must match")
    _require_shards(ids.grid.contains(x.grid), "Input-indices shard grid must contain input shard grid")
    _require_shards(y.grid == chosen.grid, "Output and output-indices shard grids must match")
    _require_shards(y.shape == chosen.shape, "Output and output-indices shard shapes must match")
    _require_shards(y.orientation is chosen.orientation, "Output orientations must match")
    _require_shards(y.grid.contains(x.grid), "Output shard grid must contain input compute grid")


def _check_tiles(call: Call) -> None:
    x, bias, ids, y, chosen = (call[name].spec.tile for name in TENSORS)
    fix = "Make the tensors with ttnn.Tile((32, 32))."
    for holds, wrong in (
        (x == bias, "Input and bias tiles must match"),
        (x == ids, "Input and input-indices tiles must match"),
        (y == chosen, "Output tiles must match"),
        (tuple(x.tile_shape) == (TILE, TILE), "Input tile must be 32x32"),
        (tuple(y.tile_shape) == (TILE, TILE), "Output tile must be 32x32"),
    ):
        require(holds, wrong, "tiles of 32 x 32", fix)


def _check_shapes(call: Call, block: str, same_indices: bool) -> None:
    x, bias, ids, y, chosen = (tuple(call[name].shape) for name in TENSORS)
    fix = "Reshape each token's scores to 16 x 16."
    require(bias == x, "Bias and input tensors must have the same shape", f"shape {list(x)}", fix)
    if same_indices:
        require(ids == x, "Input indices and input tensors must have the same shape", f"shape {list(x)}", fix)
    wrong = "Output indices and output tensors must have the same shape"
    require(chosen == y, wrong, f"shape {list(y)}", "Allocate both outputs with this shape.")
    require(len(x) >= 2, "input_tensor must have rank >= 2", "two dims or more", fix)
    require(x[-2] * x[-1] == BLOCK, f"Input tensor must have 256 elements per {block}", "16 x 16", fix)
    if not same_indices:
        wrong = "input_indices must have 256 elements (one block, last two dims)"
        require(ids[-2] * ids[-1] == BLOCK, wrong, "16 x 16", fix)


def _check_gate(call: Call) -> None:
    shards = _shards(call)
    _check_shapes(call, "shard (last two dims)", same_indices=True)
    _check_shards(shards, "Input and input-indices shard shapes must match")
    _check_tiles(call)
    for side, name in (("Input", "input_tensor"), ("Output", "output_tensor")):
        wrong = f"{side} shard shape must be 32x32"
        require(tuple(shards[name].shape) == (TILE, TILE), wrong, "one tile per core", SHARD_FIX)


def _check_general(call: Call) -> None:
    top, grouped = call["topk"], call["grouped"]
    wrong = f"topk must be one of {{4, 6, 8}} (the kernel rank-mask + op tests cover only these), got {top}"
    require(top in TOP_EXPERTS, wrong, one_of(TOP_EXPERTS), "Pass one of these.")
    if grouped:
        wrong = f"grouped mode (DeepSeek gate) is hardwired to top-8; got topk={top}"
        require(top == SLOTS, wrong, "8", "Leave topk out.")
        wrong = "grouped mode (DeepSeek gate) normalizes linearly (score/Σ); output_softmax must be false"
        require(not call["output_softmax"], wrong, "output_softmax=False", "Leave output_softmax out.")
    shards = _shards(call)
    _check_shapes(call, "block (last two dims = one 256-block)", same_indices=False)
    _check_shards(shards, "Input-indices shard shape must equal input shard shape")
    _check_tiles(call)
    x, y = shards["input_tensor"].shape, shards["output_tensor"].shape
    wrong = "Input shard must be 32x32 tile-aligned (num_blocks tiles per core)"
    require(x[0] % TILE == 0 and x[1] % TILE == 0, wrong, "multiples of 32", SHARD_FIX)
    require(tuple(y) == (TILE, TILE), "Output shard shape must be 32x32", "one tile per core", SHARD_FIX)
    blocks = _count_blocks(shards["input_tensor"])
    wrong = f"generalized_moe_gate supports up to 2 blocks (<=512 experts), got {blocks}"
    require(blocks <= 2, wrong, "1 or 2 tiles per core", SHARD_FIX)
    wrong = f"grouped mode (DeepSeek gate) is single-256-block only; got num_blocks={blocks}"
    require(not grouped or blocks == 1, wrong, "one tile per core", SHARD_FIX)


def _count_blocks(shard: ShardSpec) -> int:
    """Tiles per core, each with the scores of 256 experts."""
    return shard.shape[0] // TILE * (shard.shape[1] // TILE)


def _output_specs(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [call[name].spec for name in TENSORS[3:]]


def _route(
    input_tensor: Lanes,
    bias_tensor: Lanes,
    input_indices_tensor: Lanes,
    eps: float,
    scaling_factor: float,
    enable_sigmoid: bool,
    topk: int,
    output_softmax: bool,
    grouped: bool,
    blocks: int,
    result_shape: tuple[int, ...],
    lane_axes: int,
) -> tuple[Lanes, Lanes]:
    """Weights and numbers of the best experts of every token, in the first row of its tile; the rest is zero."""
    rows = [
        _list_experts(lanes, blocks, lane_axes)
        for lanes in (input_tensor.float(), bias_tensor.float().mT, input_indices_tensor.mT)
    ]
    scores, bias, ids = align_mesh_dims(rows, lane_axes)
    scores = torch.sigmoid(scores) if enable_sigmoid else scores
    ranking = scores + bias
    if grouped:
        ranking = mask_other_groups(ranking, GROUPS, SUMMED_EXPERTS, TOP_GROUPS)
    order = torch.topk(ranking, topk, dim=-1).indices
    weights = scores.expand(order.shape[:-1] + scores.shape[-1:]).gather(-1, order)
    if output_softmax:
        weights = torch.exp(weights - weights.max(-1, keepdim=True).values)
    weights = weights / (weights.sum(-1, keepdim=True) + eps) * scaling_factor
    chosen = ids.expand(order.shape[:-1] + ids.shape[-1:]).gather(-1, order)
    return tuple(_fill_first_rows(values, result_shape, lane_axes) for values in (weights, chosen))  # type: ignore[return-value]


def _list_experts(lanes: Lanes, blocks: int, lane_axes: int) -> Lanes:
    """One row of scores per token."""
    return torch.unflatten(lanes.flatten(lane_axes), -1, (-1, blocks * BLOCK))


def _fill_first_rows(values: Lanes, shape: tuple[int, ...], lane_axes: int) -> Lanes:
    """Tiles with the values in their first rows."""
    tiles = torch.Size(shape[:-2]).numel()
    values = F.pad(values, (0, shape[-1] - values.shape[-1], 0, tiles - values.shape[-2]))[..., None, :]
    return F.pad(values, (0, 0, 0, shape[-2] - 1)).reshape(*values.shape[:lane_axes], *shape)


_GATE = device_operation(NAME, check=_check_gate, out=_output_specs, outputs=TENSORS[3:])(_route)
_GENERAL = device_operation(GENERAL, check=_check_general, out=_output_specs, outputs=TENSORS[3:])(_route)


def _call_gate(gate: DeviceOperation, tensors: tuple[Tensor, ...], **options: object) -> tuple[Tensor, Tensor]:
    """Run a gate on its five tensors; the results are the last two."""
    by_name = dict(zip(TENSORS, tensors, strict=True))
    result: tuple[Tensor, Tensor] = gate(**by_name, result_shape=tuple(by_name["output_tensor"].shape), **options)
    return result


@composite(NAME, golden=goldens.tile_gate, direct=True)
def deepseek_moe_gate(
    input_tensor: Tensor,
    bias_tensor: Tensor,
    input_indices_tensor: Tensor,
    output_tensor: Tensor,
    output_indices_tensor: Tensor,
    eps: float,
    scaling_factor: float,
    enable_sigmoid: bool,
) -> tuple[Tensor, Tensor]:
    """DeepSeek's grouped gate, one token per core; bias and indices are transposed."""
    return _call_gate(
        _GATE, (input_tensor, bias_tensor, input_indices_tensor, output_tensor, output_indices_tensor), blocks=1, eps=eps,
        scaling_factor=scaling_factor, enable_sigmoid=enable_sigmoid, topk=SLOTS, output_softmax=False, grouped=True,
    )  # fmt: skip


@composite(GENERAL, golden=goldens.tile_gate, direct=True)
def generalized_moe_gate(
    input_tensor: Tensor,
    bias_tensor: Tensor,
    input_indices_tensor: Tensor,
    output_tensor: Tensor,
    output_indices_tensor: Tensor,
    eps: float,
    scaling_factor: float,
    enable_sigmoid: bool,
    topk: int,
    output_softmax: bool,
    grouped: bool,
) -> tuple[Tensor, Tensor]:
    """The best of 256 or 512 experts, one token per core; bias and indices are transposed."""
    shard = input_tensor.memory_config().shard_spec
    return _call_gate(
        _GENERAL, (input_tensor, bias_tensor, input_indices_tensor, output_tensor, output_indices_tensor), eps=eps,
        scaling_factor=scaling_factor, enable_sigmoid=enable_sigmoid, topk=topk, output_softmax=output_softmax,
        grouped=grouped, blocks=1 if shard is None else _count_blocks(shard),
    )  # fmt: skip
