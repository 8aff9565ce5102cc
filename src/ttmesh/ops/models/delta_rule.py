"""The gated delta rule: linear attention whose state decays and replaces the value stored for each key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.checks import require_dtype, require_layout
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.goldens import model_blocks as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims, common_mesh_dims, flatten_lanes, unflatten_lanes
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
RULE = "chunk_gated_delta_rule"
TINY = 1e-6  # avoids a division by zero when keys are normalized
OutputAndState = tuple[Lanes, Lanes]


def _scan(q: Lanes, k: Lanes, v: Lanes, g: Lanes, beta: Lanes, state: Lanes, chunk: int) -> OutputAndState:
    """Outputs [N, T, V] and the last state [N, K, V]; T is a multiple of the chunk."""
    q, k, v, g, beta = (torch.unflatten(x, 1, (-1, chunk)) for x in (q, k, v, g, beta))
    log_decay = g.cumsum(-1)  # logarithm of the decay since the start of the chunk
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    decay = (log_decay[..., :, None] - log_decay[..., None, :]).masked_fill(~causal, float("-inf")).exp()
    identity = torch.eye(chunk, device=q.device, dtype=torch.float32)
    mixing = identity + (fpu.matmul(k, k.mT) * decay * beta[..., None]).tril(-1)
    scaled = torch.cat([v, k * log_decay.exp()[..., None]], -1) * beta[..., None]
    values, keys = torch.split(
        torch.linalg.solve_triangular(mixing, scaled, upper=False, unitriangular=True),
        [v.shape[-1], k.shape[-1]],
        dim=-1,
    )
    scores = fpu.matmul(q, k.mT) * decay
    decayed_q = q * log_decay.exp()[..., None]
    chunk_decay = log_decay[..., -1:]
    decayed_k = k * (chunk_decay - log_decay).exp()[..., None]
    outputs = []
    for i in range(q.shape[1]):
        new_values = values[:, i] - fpu.matmul(keys[:, i], state)
        outputs.append(fpu.matmul(decayed_q[:, i], state) + fpu.matmul(scores[:, i], new_values))
        state = state * chunk_decay[:, i, :, None].exp() + fpu.matmul(decayed_k[:, i].mT, new_values)
    return torch.cat(outputs, 1), state


def _split_by_head(x: Lanes, heads: int) -> Lanes:
    """[L, B, T, heads, D] or [L, B, T, heads · D] → [L, B, heads, T, D]."""
    x = x if x.dim() == 5 else torch.unflatten(x, -1, (heads, -1))
    return x.transpose(-3, -2)


def _read_dims(q: Any, v: Any, beta: Any) -> tuple[int, int, int, int]:
    """The number of key and value heads and their dims; flat inputs have equal key and value dims."""
    value_heads = beta[-1] if len(v) == 3 else v[-2]
    value_dim = v[-1] // value_heads if len(v) == 3 else v[-1]
    key_dim = value_dim if len(q) == 3 else q[-1]
    return (q[-1] // key_dim if len(q) == 3 else q[-2]), value_heads, key_dim, value_dim


def _check(call: Call) -> None:
    q, _, v, _, beta = call.specs[:5]
    heads, value_heads, key_dim, value_dim = _read_dims(q.shape, v.shape, beta.shape)
    chunk, rows = call["chunk_size"], q.shape[1]

    wrong = f"{RULE}: use_qk_l2norm not yet supported; pre-normalize q/k on host"
    require(not call["use_qk_l2norm"], wrong, "use_qk_l2norm=False", "Normalise q and k before the call.")
    for name, spec in zip(("q", "k", "v", "g", "beta"), call.specs, strict=False):
        require_layout(spec, Layout.TILE, f"{RULE}: {name} must be TILE layout")
    wrong = f"HV ({value_heads}) must be divisible by H ({heads})"
    require(value_heads % heads == 0, wrong, f"a multiple of {heads}", "Choose value heads that the key heads divide.")
    wrong = "chunk_size must be a multiple of 32"
    require(chunk % TILE == 0, wrong, "a multiple of 32", "Round chunk_size up to whole tiles.")
    require(key_dim % TILE == 0, "key_dim must be a multiple of 32", "a multiple of 32", "Pad the keys with ttnn.pad.")
    require(
        value_dim % TILE == 0, "val_dim must be a multiple of 32", "a multiple of 32", "Pad the values with ttnn.pad."
    )
    if len(v.shape) == 3:
        wrong = f"OPT-A flat v requires T ({rows}) to be a multiple of chunk_size ({chunk})"
        require(rows % chunk == 0, wrong, f"a multiple of {chunk}", "Pad the sequence with ttnn.pad.")
    if len(q.shape) == 3:
        wrong = f"flat q width {q.shape[2]} != H*K ({heads}*{key_dim}); flat q/k path assumes K==V"
        require(q.shape[2] == heads * key_dim, wrong, f"{heads * key_dim} columns", "Pass q and k with four dims.")
        wrong = "OPT-A flat q/k needs the phased path + in-kernel norm (Ct==1)"
        require(chunk == TILE, wrong, "chunk_size=32", "Pass chunk_size=32, or q and k with four dims.")
        wrong = f"OPT-A flat q/k requires T ({rows}) to be a multiple of chunk_size ({chunk})"
        require(rows % chunk == 0, wrong, f"a multiple of {chunk}", "Pad the sequence with ttnn.pad.")


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory_config = call["memory_config"] or DRAM_MEMORY_CONFIG
    output_layout = Layout.TILE if call["output_head_major"] else Layout.ROW_MAJOR
    formats = ((DataType.FLOAT32, output_layout), (DataType.FLOAT32, Layout.TILE))
    return [
        TensorSpec(shape, dtype, layout, memory_config=memory_config)
        for (shape, _), (dtype, layout) in zip(inferred, formats, strict=False)
    ]


@op(f"ttnn.transformer.{RULE}", golden=goldens.gated_delta_rule, check=_check, out=_spec)
def chunk_gated_delta_rule(
    q: Lanes,
    k: Lanes,
    v: Lanes,
    g: Lanes,
    beta: Lanes,
    scale: float | None,
    initial_state: Lanes | None,
    output_final_state: bool,
    chunk_size: int,
    output_head_major: bool,
    lane_axes: int,
) -> tuple[Lanes, Lanes | None]:
    """Outputs of every row, computed chunk by chunk, and with output_final_state the last state."""
    operands = [q, k, v, g, beta] if initial_state is None else [q, k, v, g, beta, initial_state]
    dims = common_mesh_dims(operands, lane_axes)
    local = [tuple(x.shape[lane_axes:]) for x in (q, v, beta)]
    heads, value_heads, key_dim, value_dim = _read_dims(*local)
    lanes = [flatten_lanes(x, lane_axes).float() for x in align_mesh_dims(operands, lane_axes)]
    flat_inputs = len(local[0]) == 3
    q, k, v = _split_by_head(lanes[0], heads), _split_by_head(lanes[1], heads), _split_by_head(lanes[2], value_heads)
    if flat_inputs:
        q, k = (x * torch.rsqrt(fpu.total(x.square(), (-1,), keepdim=True) + TINY) for x in (q, k))
    group = value_heads // heads
    q, k = (x.repeat_interleave(group, 2) for x in (q * (key_dim**-0.5 if scale is None else scale), k))
    g, beta = lanes[3].transpose(-2, -1), lanes[4].transpose(-2, -1)
    rows, batch_dims = q.shape[-2], q.shape[:3]
    padding = -rows % chunk_size
    padded = [F.pad(x, (0, 0, 0, padding)).flatten(0, 2) for x in (q, k, v)]
    gates = [F.pad(x, (0, padding)).flatten(0, 2) for x in (g, beta)]
    state = (
        padded[0].new_zeros(padded[0].shape[0], key_dim, value_dim)
        if initial_state is None
        else lanes[5].reshape(-1, key_dim, value_dim)
    )
    out, last = _scan(padded[0], padded[1], padded[2], gates[0], gates[1], state, chunk_size)
    out = torch.unflatten(out[:, :rows], 0, batch_dims)
    out = out.flatten(1, 2) if output_head_major else out.transpose(2, 3)
    return unflatten_lanes(out, dims), unflatten_lanes(
        torch.unflatten(last, 0, batch_dims), dims
    ) if output_final_state else None


# -- the scan over prepared chunks -------------------------------------------------------------------------------------


def _solve_lower(lower: Lanes, inverse: Lanes, right: Lanes) -> Lanes:
    """Solve lower · x = right tile by tile, with the inverses of the diagonal tiles."""
    solved: list[Lanes] = []
    for i in range(lower.shape[-1] // TILE):
        rows = slice(i * TILE, (i + 1) * TILE)
        remainder = right[..., rows, :]
        for j, x in enumerate(solved):
            remainder = remainder - fpu.matmul(lower[..., rows, j * TILE : (j + 1) * TILE], x)
        solved.append(fpu.matmul(inverse[..., rows, :], remainder))
    return torch.cat(solved, dim=-2)


CHUNK = 128  # rows of a chunk and lengths of keys and values that TT-NN's kernel takes


def _check_scan(call: Call) -> None:
    names = ("L_unit", "v_beta_sc", "k_bd_sc", "intra_attn", "q_decay", "k_decay_t", "dl_exp", "L_inv")
    for name, spec in zip(names, call.specs, strict=False):
        require_layout(spec, Layout.TILE, f"{name} must be tiled")
        wrong = f"{name} must be in DRAM"
        require(spec.memory_config.is_dram(), wrong, "DRAM", "Move it with ttnn.to_memory_config.")
        wrong = f"{name} must be float32, got {spec.dtype}"
        require_dtype(spec, DataType.FLOAT32, wrong)
        wrong = f"{name} rank mismatch: {len(spec.shape)} vs 4"
        require(len(spec.shape) == 4, wrong, "[heads, chunks, .., ..]", "Reshape it to four dims.")
    batch_dims, values, keys = tuple(call.specs[0].shape[:2]), call.specs[1].shape[-1], call.specs[2].shape[-1]
    for name, length in (("chunk_size", call.specs[0].shape[-1]), ("key_dim", keys), ("val_dim", values)):
        wrong = f"{name} must be exactly {CHUNK}, got {length}"
        require(length == CHUNK, wrong, str(CHUNK), "Use ttnn.transformer.chunk_gated_delta_rule.")
    square = (CHUNK, CHUNK)
    matrix_shapes = (square, square, square, square, square, square, (1, 1), (CHUNK, TILE))
    for name, spec, matrix_shape in zip(names, call.specs, matrix_shapes, strict=False):
        for i, (length, expected_length) in enumerate(zip(spec.shape, (*batch_dims, *matrix_shape), strict=True)):
            wrong = f"{name} dim[{i}] expected {expected_length} got {length}"
            require(length == expected_length, wrong, str(expected_length), "Reshape it to that length.")


def _scan_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory_config = call["memory_config"] or DRAM_MEMORY_CONFIG
    return [TensorSpec(shape, DataType.FLOAT32, Layout.TILE, memory_config=memory_config) for shape, _ in inferred]


@op("ttnn.transformer.gated_delta_attn_seq", golden=goldens.gated_delta_scan, check=_check_scan, out=_scan_spec)
def gated_delta_attn_seq(
    L_unit: Lanes,
    v_beta_sc: Lanes,
    k_bd_sc: Lanes,
    intra_attn: Lanes,
    q_decay: Lanes,
    k_decay_t: Lanes,
    dl_exp: Lanes,
    L_inv: Lanes,
    initial_state: Lanes | None,
    lane_axes: int,
) -> OutputAndState:
    """The scan of the rule over prepared chunks: outputs and the last state."""
    operands = [L_unit, v_beta_sc, k_bd_sc, intra_attn, q_decay, k_decay_t, dl_exp, L_inv]
    lower, values, keys, scores, decayed_q, decayed_k, chunk_decay, inverse = (
        x.float() for x in align_mesh_dims(operands, lane_axes)
    )
    shape = (*values.shape[:-3], keys.shape[-1], values.shape[-1])
    state = values.new_zeros(shape) if initial_state is None else initial_state.float()
    outputs = []
    for i in range(lower.shape[-3]):
        right = values[..., i, :, :] - fpu.matmul(keys[..., i, :, :], state)
        new_values = _solve_lower(lower[..., i, :, :], inverse[..., i, :, :], right)
        outputs.append(fpu.matmul(decayed_q[..., i, :, :], state) + fpu.matmul(scores[..., i, :, :], new_values))
        state = state * chunk_decay[..., i, :, :] + fpu.matmul(decayed_k[..., i, :, :], new_values)
    return torch.stack(outputs, dim=-3), state.expand(shape)
