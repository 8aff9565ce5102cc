"""DeepSeek's matmuls with weights in the order of DRAM banks: the output projection of attention and the expert gate."""

from __future__ import annotations

import torch
from torch import Tensor as Lanes

from ttmesh.base.errors import require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.lane_functions.expert_groups import mask_other_groups
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
DEEPSEEK = "ttnn.experimental.deepseek"

# Tiles of 16384 rows that each of twelve banks holds, and how the columns are divided (tt-metal e4f9f0b, matmul_wo).
WO_BANK_TILES = (44, 44, 42, 42, 42, 42, 42, 42, 44, 44, 42, 42)
WO_BLOCK_TILES = 7  # tiles of columns in a block of the weights, and collector cores: one tile of a block each

# The gate's 224 tiles of rows: two of three cores have the first 152 for one tile of columns, with the bias; every third
# core has the last 72 for its two neighbours (tt-metal e4f9f0b, moe_gate_mm).
GATE_FIRST, GATE_LAST, GATE_STEP = 152, 72, 3
GATE_GROUPS, GATE_BEST_GROUPS, GATE_BEST = 8, 4, 8
INDEX_SHIFT = 7  # indices are the upper bits of a bfloat16


def _like_output(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [call["output_tensor"].spec]


def _check_wo(call: Call) -> None:
    rank = len(call["input_tensor"].shape)
    require(
        rank >= 2,
        f"Input tensor must be at least rank 2, got {rank}",
        "[.., rows, columns]",
        "Give it these dims with ttnn.reshape.",
    )
    _check_layer(call, call["w_tensor"].shape[0])


def _check_gate(call: Call) -> None:
    _check_layer(call, call["w_tensor"].shape[1])


def _check_layer(call: Call, layers: int) -> None:
    layer = call["layer_id"]
    wrong = f"layer_id {layer} is not one of the {layers} layers of w_tensor"
    require(0 <= layer < layers, wrong, f"0 to {layers - 1}", "Choose a layer of the weights.")


@op(f"{DEEPSEEK}.mla.matmul_wo", check=_check_wo, out=_like_output, writes="output_tensor", outputs=())
def matmul_wo(input_tensor: Lanes, w_tensor: Lanes, output_tensor: Lanes, layer_id: int, lane_axes: int) -> Lanes:
    """x @ w into a given tensor; tile `c` of every block of seven is stored by core `c`."""
    rows, weights = align_mesh_dims([input_tensor, w_tensor], lane_axes)
    x = rows.flatten(lane_axes, -3)[..., 0, :, :] if rows.dim() > lane_axes + 2 else rows  # a copy per bank
    banks = weights.select(lane_axes, layer_id)  # [*mesh, banks, rows, 224]
    blocks = output_tensor.shape[-1] // (WO_BLOCK_TILES * TILE)
    matrices = []
    for bank, tiles in enumerate(WO_BANK_TILES):
        stored = banks.select(lane_axes, bank)[..., : blocks * tiles * TILE, :]
        matrices.append(torch.unflatten(stored, -2, (blocks, tiles * TILE)).transpose(-3, -2).flatten(-2))
    result = fpu.matmul(x.float(), torch.cat(matrices, -2).float())
    per_core = torch.unflatten(result, -1, (blocks, WO_BLOCK_TILES, TILE)).transpose(-3, -2).flatten(-3)
    return per_core.to(output_tensor.dtype).reshape(*per_core.shape[:lane_axes], *output_tensor.shape[lane_axes:])


@op(f"{DEEPSEEK}.moe.moe_gate_mm", check=_check_gate, out=_like_output, writes="output_tensor", outputs=())
def moe_gate_mm(input_tensor: Lanes, w_tensor: Lanes, output_tensor: Lanes, layer_id: int, lane_axes: int) -> Lanes:
    """Every token's best experts, transposed into the last core's tile: eight rows of scores, eight of indices."""
    rows, weights = align_mesh_dims([input_tensor, w_tensor], lane_axes)
    x = rows.flatten(lane_axes, -3)[..., 0, :, :] if rows.dim() > lane_axes + 2 else rows
    matrix, bias = _unpack_gate(weights.select(lane_axes + 1, layer_id), lane_axes)
    scores = torch.sigmoid(fpu.matmul(x.float(), matrix)) + bias
    values, indices = mask_other_groups(scores, GATE_GROUPS, 2, GATE_BEST_GROUPS).topk(GATE_BEST, -1)
    tokens = values.shape[-2]
    out = torch.zeros(*values.shape[:-2], *output_tensor.shape[lane_axes:], device=x.device, dtype=torch.bfloat16)
    last = out[..., -TILE:]
    last[..., :GATE_BEST, :tokens] = values.transpose(-1, -2).bfloat16()
    bits = (indices.transpose(-1, -2) << INDEX_SHIFT).to(torch.int16).view(torch.bfloat16)
    last[..., GATE_BEST : 2 * GATE_BEST, :tokens] = bits
    return out.to(output_tensor.dtype)


def _unpack_gate(cores: Lanes, lane_axes: int) -> tuple[Lanes, Lanes]:
    """[*mesh, cores, 77 · 32 rows, 64] → the matrix [*mesh, rows, columns] and the bias [*mesh, 1, columns]."""
    columns, biases, shared = [], [], None
    for core in range(cores.shape[lane_axes]):
        tiles = torch.unflatten(cores.select(lane_axes, core).flatten(lane_axes, -2), -2, (-1, TILE))
        pairs = torch.unflatten(tiles, -1, (2, TILE))  # [*mesh, tiles, 32, two, 32]
        if core % GATE_STEP == 0:
            shared = pairs[..., :GATE_LAST, :, :, :].movedim(-2, -4)  # [*mesh, two, tiles, 32, 32]
            continue
        assert shared is not None, "a core with the last rows comes first"
        first = pairs[..., : GATE_FIRST // 2, :, :, :].movedim(-2, -3).flatten(-4, -2)  # even and odd tiles in turn
        last = shared.select(-4, core % GATE_STEP - 1).flatten(-3, -2)
        columns.append(torch.cat([first, last], -2))
        biases.append(pairs[..., GATE_FIRST // 2, :1, 0, :])
    return torch.cat(columns, -1).float(), torch.cat(biases, -1).float()
