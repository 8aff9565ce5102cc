"""The gated delta rule token by token (`fused_recurrent_gated_delta_rule`): decoding and speculative verification."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import NotEmulatedError, require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.goldens import model_blocks as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_and_flatten, unflatten_lanes
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

RULE = "fused_recurrent_gated_delta_rule"
# Programs of a call on an empty cache, counted: the kernel with the reshapes and permutes around it.
OF_ROWS, MORE_OF_TILES, LESS_OF_ONE_TOKEN = 13, 2, 3


def _check(call: Call) -> None:
    q, _, v, g, beta = call.specs[:5]
    rank = len(q.shape)
    wrong = f"ShapeBase[] index out of range. 3 not in [-4, {rank})"
    require(rank == len(v.shape) == 4, wrong, "[B, T, H, K]", "Reshape the queries and keys.")
    heads, value_heads, key_dim = int(q.shape[-2]), int(v.shape[-2]), int(q.shape[-1])
    wrong = f"HV ({value_heads}) must be divisible by H ({heads})"
    require(value_heads % heads == 0, wrong, f"a multiple of {heads}", "Choose value heads that the key heads divide.")
    for name, extent in (("key_dim", key_dim), ("val_dim", int(v.shape[-1]))):
        wrong = f"{RULE}: {name} must be a non-zero multiple of 32, got {extent}"
        require(extent > 0 and extent % 32 == 0, wrong, "a multiple of 32", "Pad it with ttnn.pad.")
    gates = tuple(v.shape[:3])
    same = tuple(g.shape) == gates == tuple(beta.shape)
    wrong = "Attempting to reshape between two shapes with different volumes"
    require(same, wrong, f"g and beta of shape {list(gates)}", "Pass one gate per token and value head.")


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory_config = call["memory_config"] or DRAM_MEMORY_CONFIG
    return [TensorSpec(shape, DataType.FLOAT32, Layout.TILE, memory_config=memory_config) for shape, _ in inferred]


def _programs(call: Call) -> tuple[Hashable, ...]:
    q, key = call.specs[0], (tuple(call.specs), call["per_token"])
    number = OF_ROWS if q.layout is Layout.ROW_MAJOR else OF_ROWS + MORE_OF_TILES
    number -= LESS_OF_ONE_TOKEN if q.shape[1] == 1 else 0
    casts = {tuple(spec.shape) for spec in call.specs[:5] if spec.dtype is not DataType.FLOAT32}
    return tuple((RULE, i, key if i == 0 else key[0]) for i in range(number + len(casts)))


@device_operation(f"ttnn.transformer.{RULE}", check=_check, out=_spec, programs=_programs)
def _run(
    q: Lanes,
    k: Lanes,
    v: Lanes,
    g: Lanes,
    beta: Lanes,
    initial_state: Lanes | None,
    scale: float | None,
    per_token: bool,
    lane_axes: int,
) -> tuple[Lanes, Lanes]:
    operands = [q, k, v, g, beta, *([] if initial_state is None else [initial_state])]
    lanes, dims = align_and_flatten(operands, lane_axes)
    queries, keys, values, gates, rates = (x.float() for x in lanes[:5])
    group, key_dim = values.shape[-2] // queries.shape[-2], queries.shape[-1]
    queries, keys = (x.repeat_interleave(group, -2) for x in (queries, keys))
    shape = (*values.shape[:2], values.shape[-2], key_dim, values.shape[-1])
    state = values.new_zeros(shape) if initial_state is None else lanes[5].float().reshape(shape)
    outputs, states = [], []
    for t in range(values.shape[2]):
        state = state * gates[:, :, t].exp()[..., None, None]
        key = keys[:, :, t].unsqueeze(-1)
        error = values[:, :, t].unsqueeze(-1) - fpu.matmul(state.mT, key)
        state = state + key * (error * rates[:, :, t, :, None, None]).mT
        outputs.append(fpu.matmul(state.mT, queries[:, :, t].unsqueeze(-1)).squeeze(-1))
        states.append(state)
    out = torch.stack(outputs, 2) * (key_dim**-0.5 if scale is None else scale)
    kept = torch.stack(states, 2) if per_token else state
    return unflatten_lanes(out, dims), unflatten_lanes(kept, dims)


@composite(f"ttnn.transformer.{RULE}", golden=goldens.recurrent_delta_rule)
def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None,
    initial_state: Tensor | None,
    initial_state_block_idx: Tensor | None,
    output_final_state: bool,
    output_per_token_state: bool,
    use_qk_l2norm: bool,
    memory_config: MemoryConfig | None,
    compute_kernel_config: Any,
) -> tuple[Tensor, Tensor | None]:
    """Outputs [B, T, HV, V] of queries and keys that are normalized, and the last state or that after every token."""
    wrong = f"{RULE}: use_qk_l2norm not done here; L2-normalize q/k on host"
    require(not use_qk_l2norm, wrong, "use_qk_l2norm=False", "Normalise q and k before the call.")
    if initial_state_block_idx is not None:
        raise NotEmulatedError(
            f"{RULE}(initial_state_block_idx=...) is not emulated",
            expected="states in the order of the heads",
            fix="Gather the states with ttnn.embedding or ttnn.slice and pass initial_state.",
        )
    found, state = _run(
        q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state, scale=scale,
        per_token=bool(output_per_token_state), memory_config=memory_config, compute_kernel_config=compute_kernel_config,
    )  # fmt: skip
    if output_final_state or output_per_token_state:
        return found, state
    state.deallocate(force=True)
    return found, None
