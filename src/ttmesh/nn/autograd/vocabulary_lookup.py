"""Embedding lookup in a table that is sharded by vocabulary, with its gradient."""

from __future__ import annotations

import torch

from ttmesh.nn.autograd.local_ops import define_local_op, keep_specs
from ttmesh.nn.tape import note
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def vocabulary_lookup(tokens: Tensor, table: Tensor, starts: Tensor) -> Tensor:
    """Rows of this chip's shard of the table, zeros for tokens of other chips' shards; [batch, 1, tokens, size]."""
    rows: Tensor = _lookup(tokens=tokens, table=table, starts=starts)
    given = {"table": table, "tokens": tokens, "starts": starts}
    note("lookup", [*given.values()], rows, lambda grad: [_spread(**given, grad=grad), None, None])
    return rows


def _find_rows(
    tokens: torch.Tensor, table: torch.Tensor, starts: torch.Tensor, lane_axes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers in all chips' shards stacked, and which tokens are in this chip's shard."""
    lanes = table.shape[:lane_axes]
    index = tokens.long().flatten(lane_axes) - starts.long().flatten(lane_axes)[..., :1]
    held = (index >= 0) & (index < table.shape[-2])
    count = lanes.numel()
    chip = torch.arange(count, device=index.device).reshape(*lanes, 1) * table.shape[-2]
    return torch.where(held, index, 0) + chip, held


def _lookup_lane(tokens: torch.Tensor, table: torch.Tensor, starts: torch.Tensor, lane_axes: int) -> torch.Tensor:
    shape = tokens.shape[lane_axes:]
    tokens, table, starts = align_mesh_dims([tokens, table, starts], lane_axes)
    numbers, held = _find_rows(tokens, table, starts, lane_axes)
    rows = table.reshape(-1, table.shape[-1])[numbers] * held.unsqueeze(-1)
    return rows.reshape(*table.shape[:lane_axes], shape[0], 1, shape[-1], table.shape[-1])


def _table_gradient_lane(
    table: torch.Tensor, tokens: torch.Tensor, starts: torch.Tensor, grad: torch.Tensor, lane_axes: int
) -> torch.Tensor:
    """Gradients of the looked-up rows added up per row of the table."""
    tokens, table, starts, grad = align_mesh_dims([tokens, table, starts, grad], lane_axes)
    numbers, held = _find_rows(tokens, table, starts, lane_axes)
    flat = torch.zeros(table.shape, dtype=torch.float32, device=table.device).reshape(-1, table.shape[-1])
    values = grad.float().reshape(*numbers.shape, grad.shape[-1]) * held.unsqueeze(-1)
    flat.index_add_(0, numbers.flatten(), values.reshape(-1, grad.shape[-1]))
    return flat.reshape(table.shape)


def _lookup_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    ((shape, _),) = inferred
    table = call.specs[1]
    return [TensorSpec(shape, table.dtype, table.layout, memory_config=DRAM_MEMORY_CONFIG)]


_lookup = define_local_op("lookup", _lookup_lane, _lookup_spec)
_spread = define_local_op("lookup_grad", _table_gradient_lane, keep_specs(0))
