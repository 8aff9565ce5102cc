"""gather, TOSA's gather and scatter, index_fill, indexed_fill, nonzero and isin."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import INTEGERS, DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import normalize_dim, require_dtype, require_interleaved, require_layout
from ttmesh.ops.catalogue.definition import alias, op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_like_rule, make_output_spec
from ttmesh.ops.goldens import gather_scatter as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.ops.stages.conversion_stages import isin_stages, tosa_gather_stages
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec

BLOCK_FLOATS = (DataType.BFLOAT8_B, DataType.BFLOAT4_B)
INDEX_TYPES = {DataType.UINT16, DataType.UINT32}

# -- gather ------------------------------------------------------------------------------------------------------------


def _check_gather(call: Call) -> None:
    source, index = call.specs[:2]
    rank = len(source.shape)
    wrong = (
        "Input and index tensor must have the same number of dimensions. Got input dim: "
        f"{rank} and index dim: {len(index.shape)}"
    )
    require(len(index.shape) == rank, wrong, "equal ranks", "Reshape one with ttnn.unsqueeze_to_4D or ttnn.reshape.")
    normalize_dim(call["dim"], rank, f"gather: dim {call['dim']} is out of range for tensor rank {rank}")
    inner = source.layout is Layout.TILE and rank > 0 and call["dim"] % rank != rank - 1
    wrong = f"gather_codegen: index tensor must be of type UINT32 or UINT16. Got: DataType::{index.dtype.name}"
    require(not inner or index.dtype in INDEX_TYPES, wrong, "uint32 or uint16", "Convert it with ttnn.typecast.")
    require_dtype(index, INDEX_TYPES, f"Index tensor must be of type UINT32 or UINT16. Got: {index.dtype}")
    wrong = (
        "Input tensor and index tensor must have the same layout. Got input layout: "
        f"{source.layout} and index layout: {index.layout}"
    )
    require(source.layout is index.layout, wrong, "equal layouts", "Convert one with ttnn.to_layout.")
    short = rank == 1 and source.shape[0] == 1
    wrong = "ShapeBase[] index out of range. 3 not in [-4, 2)" if short else "Can't convert shape rank"
    plain = rank != 1 or source.layout is Layout.ROW_MAJOR
    require(plain, wrong, "two dims or more", "Reshape both with ttnn.reshape.")
    require(
        not call["sparse_grad"], "Sparse gradient is not supported yet.", "sparse_grad=False", "Leave sparse_grad out."
    )


def _gather_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """Along other dims than the last the result is transposed back, into the input's memory."""
    rank, shape = len(call.specs[0].shape), inferred[0][0]
    last = rank == 0 or call["dim"] % rank == rank - 1
    spec = make_output_spec(call, shape)
    given = call.outputs and call.outputs[0] is not None
    return [spec if last or given else spec.with_memory_config(call.specs[0].memory_config)]


@op(
    "ttnn.gather",
    golden=goldens.gather,
    check=_check_gather,
    out=_gather_spec,
    outputs=("out",),
)
def gather(input: torch.Tensor, dim: int, index: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The elements at the indices along a dim."""
    if input.dim() == lane_axes:
        return input
    values, indices = align_mesh_dims([input, index], lane_axes)
    return torch.gather(values, normalize_dim(dim, input.dim() - lane_axes), indices.long())


def _check_tosa(call: Call) -> None:
    """The index gets a third dim, which is a reshape of 16-bit integers that no program does."""
    index = call["index"].spec
    wrong = "Can only work with bfloat16/float32 or int32/uint32 tensors"
    require(index.dtype not in (DataType.UINT16, DataType.UINT8), wrong, "uint32", "Convert it with ttnn.typecast.")


def _check_tosa_gather(call: Call) -> None:
    _check_tosa(call)
    source, index = call["input"].spec, call["index"].spec
    require_dtype(
        index, INDEX_TYPES, f"Index tensor must be of type UINT32 or UINT16. Got: DataType::{index.dtype.name}"
    )
    wrong = (
        "Input tensor and index tensor must have the same layout. Got input layout: "
        f"Layout::{source.layout.name} and index layout: Layout::{index.layout.name}"
    )
    require(source.layout is index.layout, wrong, "equal layouts", "Convert one with ttnn.to_layout.")


def _tosa_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory = call["index"].memory_config() if call["memory_config"] is None else None
    return [make_output_spec(call, inferred[0][0], memory_config=memory)]


@op(
    "ttnn.tosa_gather",
    golden=goldens.tosa_gather,
    check=_check_tosa_gather,
    out=_tosa_spec,
    stages=tosa_gather_stages,
)
def tosa_gather(input: torch.Tensor, index: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """Rows [N, K, C] by index [N, W] → [N, W, C]."""
    values, indices = align_mesh_dims([input, index], lane_axes)
    return torch.gather(values, -2, indices.long()[..., None].expand(*indices.shape, values.shape[-1]))


def _check_tosa_scatter(call: Call) -> None:
    _check_tosa(call)
    given, source = (  # what they are in rows
        DataType.BFLOAT16 if call[name].dtype in BLOCK_FLOATS else call[name].dtype for name in ("input", "src")
    )
    wrong = f"input_dtype differs from src_dtype (input_dtype: {given.name}, src_dtype: {source.name})."
    require(given is source, wrong, "equal dtypes", "Convert one with ttnn.typecast.")


@op("ttnn.tosa_scatter", golden=goldens.tosa_scatter, check=_check_tosa_scatter)
def tosa_scatter(input: torch.Tensor, index: torch.Tensor, src: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """Rows [N, K, C] with those at index [N, W] replaced by [N, W, C]."""
    values, indices, source = align_mesh_dims([input, index, src], lane_axes)
    return torch.scatter(values, -2, indices.long()[..., None].expand(*indices.shape, values.shape[-1]), source)


# -- fill ----------------------------------------------------------------------------------------------------------------


def _check_index_fill(call: Call) -> None:
    spec = call.specs[0]
    wrong = "Index fill: Only supporting row major layout"
    require_layout(spec, Layout.ROW_MAJOR, wrong)
    index = call["index"].dtype
    wrong = f"Index fill: Index tensor must have UINT32 dtype; got DataType::{index.name}"
    require_dtype(call["index"], DataType.UINT32, wrong)
    kind = "float" if isinstance(call["value"], float) else "int"
    wrong = (
        f"Index fill: Value type must match input tensor dtype. Got DataType::{spec.dtype.name} input dtype with {kind} "
        "value type"
    )
    fits = (spec.dtype in INTEGERS) == (kind == "int")
    require(fits, wrong, "a number of the tensor's kind", "Pass an int for integers.")


@op("ttnn.index_fill", golden=goldens.index_fill, runtime=("value",), check=_check_index_fill, recheck=True)
def index_fill(input: torch.Tensor, dim: int, index: torch.Tensor, value: float, lane_axes: int) -> torch.Tensor:
    """The input with a number in the rows at the indices along a dim."""
    values, indices = align_mesh_dims([input, index], lane_axes)
    position = normalize_dim(dim, input.dim() - lane_axes)
    local = values.shape[lane_axes:]
    shape = [1] * len(local)
    shape[position] = indices.shape[-1]
    index_view = indices.long().reshape(*indices.shape[:lane_axes], *shape)
    index_shape = list(local)
    index_shape[position] = indices.shape[-1]
    return values.scatter(position, index_view.expand(*values.shape[:lane_axes], *index_shape), value)


index_fill_new = alias("ttnn.index_fill_new", index_fill)


def _check_indexed_fill(call: Call) -> None:
    ids, a, b = call.specs
    require_layout(b, a.layout, "Inputs must be same layout")
    rank = len(a.shape)
    position = normalize_dim(call["dim"], rank, f"indexed_fill: dim {call['dim']} is out of bounds for rank {rank}")
    wrong = (
        f"indexed_fill: input_a and input_b must have the same rank; got input_a.rank() = {rank} and input_b.rank() = "
        f"{len(b.shape)}"
    )
    require(len(b.shape) == rank, wrong, "equal ranks", "Reshape one with ttnn.unsqueeze_to_4D or ttnn.reshape.")
    shapes = a.padded_shape, b.padded_shape
    for i in range(rank):
        lengths = [shape[i] for shape in shapes]
        wrong = (
            f"indexed_fill: input_a and input_b must have the same size along every dimension except dim {position % rank}; "
            f"mismatch at dim {i}: input_a.size({i}) = {lengths[0]}, input_b.size({i}) = {lengths[1]}"
        )
        same = i == position % rank or lengths[0] == lengths[1]
        require(same, wrong, f"length {lengths[0]}", "Reshape the second tensor.")
    count = ids.shape.volume()
    wrong = (
        f"indexed_fill: input_b.size({call['dim']}) = {b.shape[position]} must equal the number of indices "
        "(batch_id count = "
        f"{count})"
    )
    require(b.shape[position] == count, wrong, f"{count} rows in the second tensor", "Reshape it to as many rows.")
    require_layout(ids, Layout.ROW_MAJOR, "Batch IDs must be ROW MAJOR")
    wrong = f"indexed_fill: batch_id must be UINT32 or INT32, got DataType::{ids.dtype.name}"
    require_dtype(ids, (DataType.UINT32, DataType.INT32), wrong)


@op("ttnn.indexed_fill", golden=goldens.indexed_fill, check=_check_indexed_fill, out=make_like_rule(1))
def indexed_fill(
    batch_id: torch.Tensor, input_tensor_a: torch.Tensor, input_tensor_b: torch.Tensor, dim: int, lane_axes: int
) -> torch.Tensor:
    """The first tensor with the rows at these ids along a dim replaced by the second's."""
    ids, a, b = align_mesh_dims([batch_id, input_tensor_a, input_tensor_b], lane_axes)
    rank = a.dim() - lane_axes
    position = normalize_dim(dim, rank)
    indices = ids.long().flatten(lane_axes)
    index_view = indices.reshape(
        *indices.shape[:lane_axes], *[indices.shape[-1] if i == position else 1 for i in range(-rank, 0)]
    )
    return a.scatter(position, index_view.expand(b.shape), b.to(a.dtype))


# -- nonzero -------------------------------------------------------------------------------------------------------------


def _check_nonzero(call: Call) -> None:
    rank = len(call.specs[0].shape)
    wrong = f"non_zero_indices: input must be rank-4, got rank {rank}"
    require(rank == 4, wrong, "a 4D tensor", "Reshape it with ttnn.unsqueeze_to_4D.")


def _nonzero_specs(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory = call["memory_config"] or DRAM_MEMORY_CONFIG
    return [TensorSpec(s, DataType.UINT32, Layout.ROW_MAJOR, memory_config=memory) for s, _ in inferred]


def find_nonzero(values: torch.Tensor, lane_axes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of nonzero elements and their indices in order, four numbers each, padded with zeros."""
    mesh, local = values.shape[:lane_axes], values.shape[lane_axes:]
    is_nonzero = values.flatten(lane_axes) != 0
    order = torch.argsort(~is_nonzero, dim=-1, stable=True)
    sorted_mask = torch.gather(is_nonzero, -1, order)
    coordinates = torch.stack(_unravel(order, local), -1) * sorted_mask.unsqueeze(-1)
    count = is_nonzero.sum(-1).reshape(*mesh, 1, 1, 1, 1)
    return torch.nn.functional.pad(count, (0, 7)), coordinates.reshape(*mesh, 1, 1, 1, -1)


def _unravel(flat: torch.Tensor, shape: Sequence[int]) -> list[torch.Tensor]:
    coordinates: list[torch.Tensor] = []
    for extent in reversed(shape):
        coordinates.insert(0, flat % extent)
        flat = flat // extent
    return coordinates


@op("ttnn.nonzero", golden=goldens.nonzero, check=_check_nonzero, out=_nonzero_specs)
def nonzero(input_tensor: torch.Tensor, lane_axes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[count, indices]: how many elements are not zero (first of eight numbers), and (n, c, h, w) of each."""
    return find_nonzero(input_tensor, lane_axes)


# -- membership --------------------------------------------------------------------------------------------------------

TRUE = 0xFFFFFFFF


def _check_isin(call: Call) -> None:
    elements, test = call.specs[:2]
    wrong = f"elements.dtype: {elements.dtype.name}, test_elements.dtype: {test.dtype.name}, they must be equal"
    require(elements.dtype is test.dtype, wrong, "equal formats", "Convert one with ttnn.typecast.")
    for name, spec in (("Elements", elements), ("Test elements", test)):
        wrong = f"{name} tensor is sharded"
        require_interleaved(spec, wrong)
    flattened = [spec for spec in call.specs[:2] if len(spec.shape) > 1]
    wrong = "Can only work with bfloat16/float32 or int32/uint32 tensors"
    taken = all(spec.dtype not in (DataType.UINT16, DataType.UINT8) for spec in flattened)
    require(taken, wrong, "formats that tiles are reshaped in", "Convert it with ttnn.typecast.")
    given = call["out"]
    if given is not None:
        require(
            given.dtype is DataType.UINT32,
            "Preallocated output should be of uint32 dtype",
            "uint32",
            "Allocate it with dtype=ttnn.uint32.",
        )


@op(
    "ttnn.experimental.isin",
    golden=goldens.isin,
    check=_check_isin,
    out=make_like_rule(dtype=DataType.UINT32),
    outputs=("out",),
    stages=isin_stages,
)
def isin(elements: torch.Tensor, test_elements: torch.Tensor, invert: bool, lane_axes: int) -> torch.Tensor:
    """All bits set if an element is among the test elements, else zero."""
    values, candidates = align_mesh_dims([elements.flatten(lane_axes), test_elements.flatten(lane_axes)], lane_axes)
    candidates = candidates.contiguous().sort(dim=-1).values
    position = torch.searchsorted(candidates, values.contiguous()).clamp(max=candidates.shape[-1] - 1)
    matches = candidates.gather(-1, position) == values
    return torch.where(matches ^ invert, TRUE, 0).reshape(*matches.shape[:-1], *elements.shape[lane_axes:])
