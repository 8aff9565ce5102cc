"""embedding and its backward."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import DataType, Layout, PrintedEnum
from ttmesh.base.errors import ShapeError, require
from ttmesh.chip.backends.index_guard import index_error
from ttmesh.ops.catalogue.checks import require_dtype, require_layout
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import gather_scatter as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_and_flatten, unflatten_lanes
from ttmesh.ops.stages.conversion_stages import embedding_stages
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec


class EmbeddingsType(PrintedEnum):
    """Which rows TT-NN's kernel caches; the values do not depend on it."""

    GENERIC = 0
    PADDED = 1
    BINARY = 2


def _check(call: Call) -> None:
    ids, weight = call.specs
    row_major_output = call["layout"] is None and weight.layout is Layout.ROW_MAJOR
    changes_dtype = call["dtype"] not in (None, weight.dtype)
    wrong = "Can only typecast output embeddings when producing TILE_LAYOUT output"
    require(
        not (row_major_output and changes_dtype), wrong, "layout=ttnn.TILE_LAYOUT", "Convert it with ttnn.to_layout."
    )
    require_dtype(ids, (DataType.UINT32, DataType.BFLOAT16), "Input must be UINT32 or BFLOAT16")
    leading = (1,) * (4 - len(weight.padded_shape)) + tuple(weight.padded_shape[:-2])
    wrong = f"First two dimensions for the weights must be 1 but got {leading[0]} and {leading[1]}"
    require(leading[0] == 1 and leading[1] == 1, wrong, "[1, 1, rows, columns]", "Reshape the weights.")


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    ids, weight = call.specs
    layout = call["layout"] or weight.layout
    dtype = _widen_blocks(weight.dtype)
    memory = MemoryConfig(buffer_type=ids.memory_config.buffer_type) if call["memory_config"] is None else None
    return [make_output_spec(call, inferred[0][0], source=1, dtype=dtype, layout=layout, memory_config=memory)]


def _widen_blocks(dtype: DataType) -> DataType:
    return DataType.BFLOAT16 if dtype in (DataType.BFLOAT8_B, DataType.BFLOAT4_B) else dtype


def look_up_rows(ids: torch.Tensor, table: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """Rows [..., E] of each device's table [V, E], by one lookup in the concatenated tables."""
    width, length = table.shape[-1], table.shape[-2]
    mesh = table.shape[:lane_axes]
    tables = table.reshape(-1, width)
    rows = ids.long()
    if tables.shape[0] != length:
        count = tables.shape[0] // length
        rows = rows + torch.arange(count, device=ids.device).reshape(*mesh, *[1] * (ids.dim() - lane_axes)) * length

    def fail(_: int) -> None:  # the chip would read memory past the table
        raise ShapeError(
            f"ttnn.embedding got ids from {ids.min().item():g} to {ids.max().item():g} for a table of {length} rows",
            expected=f"ids from 0 to {length - 1}",
            fix="Check the ids, or the table's first dim.",
        ) from None

    try:
        with index_error(fail):
            return torch.nn.functional.embedding(rows, tables)
    except IndexError:
        fail(0)
        raise


@op("ttnn.embedding", golden=goldens.embedding, check=_check, out=_spec, stages=embedding_stages)
def embedding(input_tensor: torch.Tensor, weight: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The rows of the weight at these ids: [B, S] → [B, S, E], [S] → [S, E]."""
    *mesh, length, width = *weight.shape[:lane_axes], weight.shape[lane_axes:-1].numel(), weight.shape[-1]
    rows = look_up_rows(input_tensor, weight.reshape(*mesh, length, width), lane_axes)
    local = input_tensor.shape[lane_axes:]
    if len(local) <= 2:
        return rows
    return rows.reshape(*rows.shape[:lane_axes], local[0], -1, rows.shape[-1])


# -- backward ------------------------------------------------------------------------------------------------------------


def _grad_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, inferred[0][0], source=2, dtype=call.specs[2].dtype, layout=Layout.TILE)]


def _check_gradient(call: Call) -> None:
    ids, _, grad = call.specs
    require_layout(ids, Layout.ROW_MAJOR, f"Index tensor layout must be ROW_MAJOR but got Layout::{ids.layout.name}")
    require_dtype(ids, (DataType.UINT32, DataType.BFLOAT16), "Index tensor must be UINT32 or BFLOAT16")
    wrong = "Number of columns in the index tensor must be divisible by tile width"
    require(ids.padded_shape[-1] % 32 == 0, wrong, "a multiple of 32", "Pad the ids.")
    require_layout(grad, Layout.TILE, f"Gradient tensor layout must be TILE but got Layout::{grad.layout.name}")
    wrong = "Output gradient tensor must be BFLOAT16 or BFLOAT8_B"
    require_dtype(grad, (DataType.BFLOAT16, DataType.BFLOAT8_B), wrong)
    wrong = "Output and input gradient tensors must have the same dtype"
    require(call["dtype"] in (None, grad.dtype), wrong, str(grad.dtype), "Leave dtype out.")
    shape = grad.padded_shape
    wrong = f"First two dimensions for the gradient tensor must be 1, but found {shape[0]} && {shape[1]}."
    require(shape[0] == 1 and shape[1] == 1, wrong, "[1, 1, ids, columns]", "Reshape the gradient.")
    wrong = "Number of rows in gradient tensor must be equal to number of indices in index tensor"
    rows = ids.padded_shape[0] * ids.padded_shape[-1]
    require(shape[2] == rows, wrong, f"{rows} rows", "Reshape the gradient.")


@op("ttnn.embedding_bw", golden=goldens.embedding_bw, out=_grad_spec, check=_check_gradient)
def embedding_bw(
    input_tensor: torch.Tensor, weight_tensor: torch.Tensor, output_gradient_tensor: torch.Tensor, lane_axes: int
) -> torch.Tensor:
    """The gradient of the table: each row is the sum of the gradients of its uses."""
    length, width = weight_tensor.shape[-2:]
    (ids, grads), dims = align_and_flatten([input_tensor, output_gradient_tensor], lane_axes)
    devices = ids.shape[0]
    first = torch.arange(devices, device=ids.device).unsqueeze(-1) * length
    total = torch.zeros(devices * length, width, device=ids.device, dtype=torch.float32)
    rows = (ids.reshape(devices, -1).long() + first).flatten()
    total.index_add_(0, rows, grads.float().reshape(-1, width))
    return unflatten_lanes(total.reshape(devices, 1, 1, length, width), dims)
