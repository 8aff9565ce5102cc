"""Embedding lookup in a table that is cut by vocabulary, with its gradient."""

from __future__ import annotations

import torch

from ttmesh.nn.autograd.local_ops import local, same_as
from ttmesh.nn.tape import note
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.tensor.calls.launch_op import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def vocabulary_lookup(tokens: Tensor, table: Tensor, starts: Tensor) -> Tensor:
    """Rows of this chip's part of the table, zeros for tokens that another chip holds; [batch, 1, tokens, size]."""
    rows: Tensor = _lookup(tokens=tokens, table=table, starts=starts)
    given = {"table": table, "tokens": tokens, "starts": starts}
    note("lookup", [*given.values()], rows, lambda grad: [_spread(**given, grad=grad), None, None])
    return rows


def _places(
    tokens: torch.Tensor, table: torch.Tensor, starts: torch.Tensor, lane_axes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers in all chips' tables stacked, and which tokens this chip holds."""
    lanes = table.shape[:lane_axes]
    index = tokens.long().flatten(lane_axes) - starts.long().flatten(lane_axes)[..., :1]
    held = (index >= 0) & (index < table.shape[-2])
    count = lanes.numel()
    chip = torch.arange(count, device=index.device).reshape(*lanes, 1) * table.shape[-2]
    return torch.where(held, index, 0) + chip, held


def _lookup_lane(tokens: torch.Tensor, table: torch.Tensor, starts: torch.Tensor, lane_axes: int) -> torch.Tensor:
    shape = tokens.shape[lane_axes:]
    tokens, table, starts = align_mesh_dims([tokens, table, starts], lane_axes)
    places, held = _places(tokens, table, starts, lane_axes)
    rows = table.reshape(-1, table.shape[-1])[places] * held.unsqueeze(-1)
    return rows.reshape(*table.shape[:lane_axes], shape[0], 1, shape[-1], table.shape[-1])


def _spread_lane(
    table: torch.Tensor, tokens: torch.Tensor, starts: torch.Tensor, grad: torch.Tensor, lane_axes: int
) -> torch.Tensor:
    """Gradients of rows added up in the table's shape."""
    tokens, table, starts, grad = align_mesh_dims([tokens, table, starts, grad], lane_axes)
    places, held = _places(tokens, table, starts, lane_axes)
    flat = torch.zeros(table.shape, dtype=torch.float32, device=table.device).reshape(-1, table.shape[-1])
    values = grad.float().reshape(*places.shape, grad.shape[-1]) * held.unsqueeze(-1)
    flat.index_add_(0, places.flatten(), values.reshape(-1, grad.shape[-1]))
    return flat.reshape(table.shape)


def _rows(call: Call, inferred: Inferred) -> list[TensorSpec]:
    ((shape, _),) = inferred
    table = call.specs[1]
    return [TensorSpec(shape, table.dtype, table.layout, memory_config=DRAM_MEMORY_CONFIG)]


_lookup = local("lookup", _lookup_lane, _rows)
_spread = local("lookup_grad", _spread_lane, same_as(0))
