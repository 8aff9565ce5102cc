"""What all_to_all_dispatch and all_to_all_combine require of tokens, indices and the map of experts, in TT-NN's order."""

from __future__ import annotations

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

RANKS = "Reshape them: tokens [batch, 1, seq, hidden], indices [batch, 1, seq, k]."


def _require_rows(tensor: Tensor, name: str) -> None:
    is_rows, fix = tensor.layout is Layout.ROW_MAJOR, "Convert it with ttnn.to_layout."
    require(is_rows, f"{name} tensor must be in row major layout", "ROW_MAJOR_LAYOUT", fix)


def _require_format(tensor: Tensor, dtype: DataType, wrong: str) -> None:
    require(tensor.dtype is dtype, wrong, dtype.name.lower(), "Convert it with ttnn.typecast.")


def _require_interleaved(config: MemoryConfig) -> None:
    wrong = "Output memory config must not be sharded"
    require(not config.is_sharded(), wrong, "interleaved memory", "Pass memory_config=ttnn.DRAM_MEMORY_CONFIG.")


def check_dispatch(tokens: Tensor, indices: Tensor, dim: int, config: MemoryConfig) -> None:
    """all_to_all_dispatch: rows of bfloat16 tokens with uint16 indices of the same batch and sequence."""
    _require_rows(tokens, "Input")
    _require_rows(indices, "Indices")
    _require_format(tokens, DataType.BFLOAT16, "Input tensor must be bfloat16")
    _require_format(indices, DataType.UINT16, "Indices tensor must be uint16")
    _require_interleaved(config)
    wrong = "Input and indices tensor must have the same number of dimensions"
    require(len(tokens.shape) == len(indices.shape) == 4, wrong, "rank 4", RANKS)
    for i, (own, other) in enumerate(zip(tuple(tokens.shape)[:-1], tuple(indices.shape)[:-1], strict=True)):
        wrong = (
            "Input and indices tensor must have the same shape for all dimensions except the last. Mismatch at dimension "
            f"{i} with shape {own} and {other}"
        )
        require(own == other, wrong, "one row of indices per token", RANKS)
    wrong = (
        f"Output concat dimension must be 1 or 2, got {dim}. Output concat dimension is used to determine "
        "the dimension to concat the output tokens along."
    )
    require(dim in (1, 2), wrong, "1 or 2", "Pass output_concat_dim=1 for the batch or 2 for the sequence.")


def check_combine(
    mesh: MeshDevice,
    results: Tensor,
    metadata: Tensor,
    mapping: Tensor,
    *,
    axis: int | None,
    dim: int,
    local_reduce: bool,
    config: MemoryConfig,
) -> None:
    """all_to_all_combine: a slice of results for each of a device's experts, or one where they were summed before."""
    _require_rows(results, "Input")
    _require_rows(metadata, "Metadata")
    _require_format(results, DataType.BFLOAT16, "Input tensor must be bfloat16")
    _require_format(metadata, DataType.UINT16, "Metadata tensor must be uint16")
    _require_format(mapping, DataType.UINT16, "Indices tensor must be uint32")  # TT-NN's text says another format
    _require_rows(mapping, "Metadata")
    _require_interleaved(config)
    wrong = "Input, metadata, and mapping tensors must all be rank 4"
    require(all(len(tensor.shape) == 4 for tensor in (results, metadata, mapping)), wrong, "rank 4", "Reshape them.")
    devices, experts, slices = mesh.get_num_devices(), mapping.shape[2], results.shape[0]
    wrong = f"Number of experts {experts} should be evenly divisible by devices: {devices}"
    require(experts % devices == 0, wrong, f"a multiple of {devices}", "Add experts without tokens.")
    if local_reduce:
        wrong = f"Expecting input dim 0 equal to num devices: {devices}, got: {slices}"
        require(
            slices == 1, wrong, "1: the sum over a device's experts", "Sum the results, or pass local_reduce=False."
        )
    else:
        wrong = f"Expected input shape dim 0: {slices} to be equal to expert mapping dim 2: {experts}"
        own = experts // devices
        require(slices == own, wrong, f"{own}: a slice per expert of a device", "Check the number of experts.")
    wrong = "Axis must be specified at the moment"
    require(axis is not None, wrong, "an axis of the mesh", "Pass cluster_axis.")
    wrong = (
        f"Output shard dimension must be 1 or 2, got {dim}. Output shard dimension is used to determine the dimension to "
        "shard the output tokens along."
    )
    require(dim in (1, 2), wrong, "1 or 2", "Pass output_shard_dim=1 for the batch or 2 for the sequence.")
    assert axis is not None, "required above"
    group, extent = mesh.shape[axis], metadata.shape[dim]
    wrong = f"{'Batch' if dim == 1 else 'Sequence length'} {extent} must be divisible by axis group"
    require(extent % group == 0, wrong, f"a multiple of {group}", "Pad the tokens.")
