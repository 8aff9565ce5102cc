"""What all_to_all_dispatch and all_to_all_combine refuse, in TT-NN's order: layouts and formats first, then shapes."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import ShapeError, require
from ttmesh.tensor.tensor import Tensor


def check_dispatch(tokens: Tensor, indices: Tensor, sharded: bool, dim: int) -> None:
    """Refuse layouts, formats and shapes that all_to_all_dispatch does not take."""
    _require_row_major("Input tensor", tokens)
    _require_row_major("Indices tensor", indices)
    _require_format("Input tensor", tokens, DataType.BFLOAT16)
    _require_format("Indices tensor", indices, DataType.UINT16)
    _require_interleaved(sharded)
    shapes = tokens.shape, indices.shape
    require(
        len(shapes[0]) == len(shapes[1]) == 4,
        f"Input and indices tensor must have the same number of dimensions: got {shapes[0]} and {shapes[1]}",
        "tokens of [batch, 1, sequence, hidden] and indices of [batch, 1, sequence, experts per token] on every chip",
        "Reshape them with ttnn.reshape; the order of the arguments is tokens, indices, mapping.",
    )
    for i in range(3):
        require(
            shapes[0][i] == shapes[1][i],
            "Input and indices tensor must have the same shape for all dimensions except the last. Mismatch at "
            f"dimension {i} with shape {shapes[0][i]} and {shapes[1][i]}",
            f"indices of {list(shapes[0])[:3]} and the experts per token",
            "Shard both alike; the order of the arguments is tokens, indices, mapping.",
        )
    require(
        dim in (1, 2),
        f"Output concat dimension must be 1 or 2, got {dim}. Output concat dimension is used to determine "
        "the dimension to concat the output tokens along.",
        "1 or 2",
        "Pass output_concat_dim=1 for the batch or 2 for the sequence.",
    )


def check_combine(
    results: Tensor, metadata: Tensor, mapping: Tensor, *, local_reduce: bool, axis: int | None, sharded: bool, dim: int
) -> None:
    """Refuse layouts, formats and shapes that all_to_all_combine does not take."""
    mesh = results.device()
    assert mesh is not None, "the operation found the mesh"
    _require_row_major("Input tensor", results)
    _require_row_major("Metadata tensor", metadata)
    _require_format("Input tensor", results, DataType.BFLOAT16)
    _require_format("Metadata tensor", metadata, DataType.UINT16)
    require(
        mapping.dtype is DataType.UINT16,
        f"Indices tensor must be uint32: the mapping tensor is {mapping.dtype.name}",
        "uint16 for the mapping, whatever TT-NN's text says",
        "Convert it with ttnn.typecast.",
    )
    require(
        mapping.layout is Layout.ROW_MAJOR,
        "Metadata tensor must be in row major layout: the mapping tensor is not",
        "ROW_MAJOR_LAYOUT",
        "Convert it with ttnn.to_layout.",
    )
    _require_interleaved(sharded)
    rank = len(mapping.shape)
    order = "The order of the arguments is results, metadata, mapping."
    require(
        rank > 2,
        f"ShapeBase[] index out of range. 2 not in [-4, {rank}): the mapping tensor has the shape {mapping.shape}",
        "a mapping of [1, 1, experts, devices]",
        order,
    )
    experts, devices = mapping.shape[2], mesh.get_num_devices()
    columns = mesh.shape[-1]
    fix = f"Add experts that no token chooses. {order}"
    require(
        experts % (devices // columns) * columns == 0,
        f"Experts {experts} must be evenly divisible by devices",
        f"a multiple of {devices} in dim 2 of the mapping",
        fix,
    )
    require(
        len(results.shape) == len(metadata.shape) == rank == 4,
        "Input, metadata, and mapping tensors must all be rank 4: got "
        f"{results.shape}, {metadata.shape} and {mapping.shape}",
        "[experts here, batch, sequence, hidden], [1, batch, sequence, experts per token] and [1, 1, experts, devices]",
        f"Reshape them with ttnn.reshape. {order}",
    )
    require(
        experts % devices == 0,
        f"Number of experts {experts} should be evenly divisible by devices: {devices}",
        f"a multiple of {devices} in dim 2 of the mapping",
        fix,
    )
    if local_reduce:
        require(
            results.shape[0] == 1,
            f"Expecting input dim 0 equal to num devices: {devices}, got: {results.shape[0]}",
            "1 with local_reduce (whatever TT-NN's text says): one sum per token and chip",
            "Sum over dim 0, or pass local_reduce=False.",
        )
    else:
        require(
            results.shape[0] == experts // devices,
            f"Expected input shape dim 0: {results.shape[0]} to be equal to expert mapping dim 2: {experts}",
            f"{experts // devices}, the experts of one of {devices} chips",
            f"Give each chip the results of its own experts, dim 0. {order}",
        )
    require(axis is not None, "Axis must be specified at the moment", "an axis of the mesh", "Pass cluster_axis.")
    require(
        dim in (1, 2),
        f"Output shard dimension must be 1 or 2, got {dim}. Output shard dimension is used to determine the "
        "dimension to shard the output tokens along.",
        "1 or 2",
        "Pass output_shard_dim=1 for the batch or 2 for the sequence.",
    )


def check_room_for_result(metadata: Tensor, dim: int, shards: int) -> None:
    """Refuse fewer tokens than chips: TT-NN fills the result with zeros first, and that needs an extent of 1 or more."""
    rank = len(metadata.shape)
    require(
        rank > 2,
        f"ShapeBase[] index out of range. 2 not in [-4, {rank}): the metadata tensor has the shape {metadata.shape}",
        "metadata of [1, batch, sequence, experts per token]",
        "The order of the arguments is results, metadata, mapping.",
    )
    require(
        dim not in (1, 2) or metadata.shape[dim] >= shards,
        f"Full operation error: Invalid shape at index {dim}. Each dimension of the shape must be greater than 0, "
        f"butgot shape[{dim}] = 0: {metadata.shape[dim]} of dim {dim} of the metadata {metadata.shape} over {shards} chips",
        f"a multiple of {shards}",
        "Pad the tokens with ttnn.pad; the order of the arguments is results, metadata, mapping.",
    )


def check_experts(name: str, experts: torch.Tensor, count: int) -> None:
    """Refuse indices of experts that the mapping does not have; a chip would read what lies behind the mapping."""
    if experts.numel() and int(experts.max()) >= count:
        wrong = int(experts.max())
        raise ShapeError(
            f"{name}: a token chose expert {wrong}, and the mapping has {count} experts",
            expected=f"indices from 0 to {count - 1}",
            fix="Look at the tensor of indices (ttnn.to_torch), and at dim 2 of the mapping [1, 1, experts, devices].",
        )


def _require_row_major(what: str, tensor: Tensor) -> None:
    require(
        tensor.layout is Layout.ROW_MAJOR,
        f"{what} must be in row major layout",
        "ROW_MAJOR_LAYOUT",
        "Convert it with ttnn.to_layout.",
    )


def _require_format(what: str, tensor: Tensor, dtype: DataType) -> None:
    name = dtype.name.lower()
    require(tensor.dtype is dtype, f"{what} must be {name}", name, "Convert it with ttnn.typecast.")


def _require_interleaved(sharded: bool) -> None:
    require(
        not sharded, "Output memory config must not be sharded", "interleaved DRAM or L1", "Leave memory_config out."
    )
