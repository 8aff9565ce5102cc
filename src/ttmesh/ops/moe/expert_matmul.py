"""Matmuls over experts of which only some are active."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from ttmesh.base.dtypes import FLOATS, DataType, Layout
from ttmesh.base.errors import require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.checks import require_dtype, require_layout
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.goldens import linear_algebra as goldens
from ttmesh.ops.lane_functions.gemm import matmul_lanes
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.ops.matmul.matmul import widen_for_result
from ttmesh.ops.matmul.matmul_fpu import resolve_sparse
from ttmesh.ops.matmul.matmul_memory import check_blocks, extents
from ttmesh.ops.matmul.matmul_rules import matmul_spec
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

# -- sparse matmul -----------------------------------------------------------------------------------------------------


def _check_sparse(call: Call) -> None:
    a, b, sparsity = call.specs[:3]
    for name, spec in (("A", a), ("B", b)):
        wrong = f"Input tensor {name} must be TILE layout, got {spec.layout}"
        require_layout(spec, Layout.TILE, wrong)
        require_dtype(spec, FLOATS, f"Input tensor {name} must be a floating point type, got {spec.dtype}")
    wrong = f"Sparsity tensor must be ROW_MAJOR layout, got {sparsity.layout}"
    require_layout(sparsity, Layout.ROW_MAJOR, wrong)
    a_sparse, b_sparse = call["is_input_a_sparse"], call["is_input_b_sparse"]
    wrong = "sparse_matmul requires at least one of is_input_a_sparse or is_input_b_sparse to be true"
    require(a_sparse or b_sparse, wrong, "a sparse operand", "Set is_input_a_sparse or is_input_b_sparse.")
    wrong = f"Dimension K (A.shape[-1] {a.shape[-1]}) and B.shape[-2] ({b.shape[-2]}) must match for A and B"
    require(a.shape[-1] == b.shape[-2], wrong, "equal inner dims", "Transpose an operand, or check its shape.")
    batch_a, batch_b = (spec.shape.volume() // (spec.shape[-1] * spec.shape[-2]) for spec in (a, b))
    blocks = batch_a if a_sparse and not b_sparse else batch_b if a_sparse else batch_a * batch_b
    wrong = (
        f"sparsity logical_volume ({sparsity.shape.volume()}) must equal batch_length ({blocks}) "
        f"[sparsity_shape={sparsity.shape!r}, is_input_a_sparse={a_sparse}, is_input_b_sparse={b_sparse}]"
    )
    require(
        sparsity.shape.volume() == blocks or call["indices"] is not None,
        wrong,
        f"{blocks} flags",
        "Give one flag per block.",
    )
    check_blocks(call["program_config"], extents(a, b, False, False))


def sparse_matmul_lanes(
    a: torch.Tensor, b: torch.Tensor, sparsity: torch.Tensor, a_sparse: bool, b_sparse: bool, lane_axes: int
) -> torch.Tensor:
    """Matmuls of the blocks that the sparsity selects; the others are zeros."""
    if a_sparse:  # [.., E, M, K] x [1, E, K, N] or [1, 1, K, N]: one block each
        result = matmul_lanes(a, b, lane_axes)
        selected = (sparsity != 0).reshape(*sparsity.shape[:lane_axes], *result.shape[lane_axes:-2], 1, 1)
        return torch.where(selected, result, 0.0)
    assert b_sparse, "one operand is sparse"
    rows = a.unsqueeze(-3)  # [A, B, M, K] x [1, E, K, N] → [A, B, 1, E, M, N]
    experts = b.shape[-3]
    weights = b.reshape(*b.shape[:lane_axes], *[1] * (a.dim() - lane_axes - 2), experts, *b.shape[-2:])
    result = fpu.matmul(rows, weights)
    mesh, local = result.shape[:lane_axes], result.shape[lane_axes:]
    selected = (sparsity != 0).reshape(*sparsity.shape[:lane_axes], *local[:-2], 1, 1)
    masked = torch.where(selected, result, 0.0)
    return masked.reshape(*mesh, *local[:-3], 1, *local[-3:])


def _multiply_sparse(
    input_tensor_a: torch.Tensor,
    input_tensor_b: torch.Tensor,
    sparsity: torch.Tensor,
    is_input_a_sparse: bool,
    is_input_b_sparse: bool,
    dtype: DataType | None,
    compact: int | None,
    lane_axes: int,
    indices: torch.Tensor | None = None,
) -> torch.Tensor:
    a, b = widen_for_result(input_tensor_a, dtype), widen_for_result(input_tensor_b, dtype)
    if indices is not None:
        return _multiply_indexed(a, b, indices, is_input_a_sparse, lane_axes)
    result = sparse_matmul_lanes(a, b, sparsity, is_input_a_sparse, is_input_b_sparse, lane_axes)
    return result if compact is None else _compact(result, sparsity, compact, lane_axes)


def _multiply_indexed(
    a: torch.Tensor, b: torch.Tensor, indices: torch.Tensor, a_sparse: bool, lane_axes: int
) -> torch.Tensor:
    """Matmuls of the experts in a list, in the list's order."""
    expert_ids, weights = align_mesh_dims([indices.flatten(lane_axes), b], lane_axes)
    count = expert_ids.shape[-1]
    index_view = expert_ids.long().reshape(*expert_ids.shape[:lane_axes], *[1] * (b.dim() - lane_axes - 3), count, 1, 1)
    shape = (*weights.shape[:-3], count, *weights.shape[-2:])
    selected_weights = torch.gather(weights, -3, index_view.expand(shape))
    all_flags = torch.ones_like(expert_ids)
    if a_sparse:  # A has a block per listed expert already
        return sparse_matmul_lanes(a, selected_weights, all_flags, True, True, lane_axes)
    tokens = a.shape[lane_axes:-2].numel()
    flags = all_flags.unsqueeze(-2).expand(*all_flags.shape[:-1], tokens, count)
    return sparse_matmul_lanes(a, selected_weights, flags, False, True, lane_axes)


def _compact(blocks: torch.Tensor, sparsity: torch.Tensor, count: int, lane_axes: int) -> torch.Tensor:
    """The blocks selected by the sparsity, concatenated: [1, count, M, N]."""
    flat_blocks = blocks.flatten(lane_axes, -3)
    order = torch.argsort(sparsity.flatten(lane_axes) == 0, dim=-1, stable=True)[..., :count]
    mesh = flat_blocks.shape[:lane_axes]
    index_view = order.expand(*mesh, count)[..., None, None].expand(*mesh, count, *flat_blocks.shape[-2:])
    return torch.gather(flat_blocks, -3, index_view).unsqueeze(lane_axes)


def _sparse_programs(call: Call) -> tuple[Hashable, ...]:
    """The matmul, and before it one that fills the result with zeros."""
    key = (call.specs, call["program_config"], call["memory_config"], call["dtype"], call["nnz"])
    return ((call.name, "zeros", *key), (call.name, *key))


_SPARSE = device_operation(
    "ttnn.sparse_matmul", out=matmul_spec, check=_check_sparse, fpu=resolve_sparse, programs=_sparse_programs
)(_multiply_sparse)


def _count_compact_blocks(
    output: Tensor | None, a: Tensor, b: Tensor, expanded: Sequence[int], nnz: int | None
) -> int | None:
    """The number of blocks of a compact output; None for an output that holds every block."""
    if output is not None:
        tile_height, input_tile_height = output.spec.tile.tile_shape[0], a.spec.tile.tile_shape[0]
        wrong = (
            f"the override output tile height ({tile_height}) must equal to the in0 tile height ({input_tile_height})"
        )
        require(
            tile_height == input_tile_height,
            wrong,
            f"tiles of {input_tile_height} rows",
            "Allocate the output with the input's tile.",
        )
    if output is None or tuple(output.shape) == tuple(expanded):
        return None
    compact_shape = (1, nnz or 0, a.shape[-2], b.shape[-1])
    wrong = f"Optional output tensor shape {output.shape!r} must match expanded output shape {list(expanded)}"
    wrong = f"{wrong} when nnz is not provided"
    require(nnz is not None, wrong, "the expanded shape, or nnz=", "Pass nnz=, or allocate the output for all blocks.")
    require(
        tuple(output.shape) == compact_shape,
        f"{wrong} or compact output shape {list(compact_shape)} when nnz={nnz}",
        "the expanded or the compact shape",
        "Allocate the output with one of the two shapes.",
    )
    return nnz


@composite("ttnn.sparse_matmul", golden=goldens.sparse_matmul)
def sparse_matmul(
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    sparsity: Tensor,
    program_config: Any,
    nnz: int | None,
    is_input_a_sparse: bool,
    is_input_b_sparse: bool,
    memory_config: MemoryConfig | None,
    dtype: DataType | None,
    compute_kernel_config: Any,
    output_tile: Any,
    optional_output_tensor: Tensor | None,
    indices: Tensor | None,
) -> Any:
    """The matmuls of the experts that the sparsity (or a list of indices) selects; zeros for the others."""
    a, b = input_tensor_a.shape, input_tensor_b.shape
    output = optional_output_tensor
    if indices is not None:
        _check_indices(indices, input_tensor_b, nnz, is_input_b_sparse)
        count = indices.shape.volume()
        full_shape = (*a[:-3], count, a[-2], b[-1]) if is_input_a_sparse else (*a[:-2], 1, count, a[-2], b[-1])
        wrong = f"Optional output tensor shape {output.shape if output else None!r} must match the indexed output shape"
        fits = output is None or tuple(output.shape) == tuple(full_shape)
        wrong = f"{wrong} {list(full_shape)} when indices are provided (num_active={count})"
        require(fits, wrong, "that shape", "Allocate the output with that shape.")
        compact = None
    else:
        full_shape = (*a[:-2], a[-2], b[-1]) if is_input_a_sparse else (*a[:-2], 1, b[-3], a[-2], b[-1])
        compact = _count_compact_blocks(output, input_tensor_a, input_tensor_b, full_shape, nnz)
    arguments = {
        "input_tensor_a": input_tensor_a,
        "input_tensor_b": input_tensor_b,
        "sparsity": sparsity,
        "program_config": program_config,
        "is_input_a_sparse": is_input_a_sparse,
        "is_input_b_sparse": is_input_b_sparse,
        "memory_config": memory_config,
        "dtype": dtype,
        "compute_kernel_config": compute_kernel_config,
        "output_tile": output_tile,
        "optional_output_tensor": output,
        "indices": indices,
        "compact": compact,
    }
    return _SPARSE(**arguments)


def _check_indices(indices: Tensor, b: Tensor, nnz: int | None, b_sparse: bool) -> None:
    wrong = "Indexed/gather mode requires is_input_b_sparse=true (the indexed operand is the expert weight tensor B)"
    require(b_sparse, wrong, "is_input_b_sparse=True", "Leave is_input_b_sparse at True.")
    on_device = "Device Operations expect device tensors as inputs: indices tensor must be on device"
    require(indices.device() is not None, on_device, "a device tensor", "Move it with ttnn.to_device.")
    wrong = f"indices must be ROW_MAJOR layout, got {indices.layout}"
    require_layout(indices, Layout.ROW_MAJOR, wrong)
    require_dtype(indices.spec, {DataType.UINT16}, f"indices must be UINT16 dtype, got {indices.dtype}")
    wrong = (
        "indices must occupy a single ROW_MAJOR stick (all dimensions except the last must be 1), got shape "
        f"{indices.shape!r}"
    )
    require(all(extent == 1 for extent in indices.shape[:-1]), wrong, "one row", "Reshape the list to one row.")
    wrong = (
        f"nnz ({nnz}) must not be supplied together with indices: the indexed/gather loop count is num_active (the "
        "length of indices), so nnz would be ignored"
    )
    require(nnz is None, wrong, "nnz or indices", "Leave nnz out.")
    count, groups = indices.shape.volume(), b.shape[-3]
    wrong = f"indices length / num_active ({count}) must be <= the number of sparse groups in input B ({groups})"
    require(count <= groups, wrong, f"at most {groups} indices", "Pass each expert at most once.")
