"""scatter and scatter_add; the chip scatters along the last dim of ROW_MAJOR tensors, others are converted first."""

from __future__ import annotations

from math import prod

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import normalize_dim, require_dtype
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.spec_rules import make_like_rule
from ttmesh.ops.goldens import gather_scatter as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.ops.movement.permute import transpose
from ttmesh.ops.movement.reshape import reshape_tensor
from ttmesh.ops.movement.slice_ops import slice_
from ttmesh.tensor.calls.conversions import to_layout
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

INTEGER_DTYPES = {DataType.INT32, DataType.UINT8, DataType.UINT16, DataType.UINT32}
WIDE_DTYPES = {DataType.INT32, DataType.UINT32}
MAX_TILED_ROW = 256  # TT-NN refuses longer rows of 32-bit integers, whose conversion it gets wrong
NAMES = ("input", "index", "source")


def _check_rows(call: Call) -> None:
    values, index, source = call.specs
    wrong = f"input_dtype differs from src_dtype (input_dtype: {values.dtype.name}, src_dtype: {source.dtype.name})."
    require(source.dtype is values.dtype, wrong, "equal dtypes", "Convert one with ttnn.typecast.")
    require_dtype(index, INTEGER_DTYPES, f"index_dtype is not integer, it is {index.dtype.name}.")
    for name, spec in zip(("input", "index", "src"), call.specs, strict=True):
        wrong = f"Sharded tensors are not supported - {name}_tensor is sharded."
        require(not spec.memory_config.is_sharded(), wrong, "interleaved memory", "Use ttnn.sharded_to_interleaved.")


@device_operation("ttnn.scatter", out=make_like_rule(0, layout=Layout.ROW_MAJOR), check=_check_rows)
def _scatter_rows(
    input: torch.Tensor, index: torch.Tensor, src: torch.Tensor, reduce: str | None, lane_axes: int
) -> torch.Tensor:
    """Scatter along the last dim; floats are accumulated in float32."""
    values, indices, source = align_mesh_dims([input, index, src], lane_axes)
    if reduce is None:
        return torch.scatter(values, -1, indices.long(), source)
    widened = values.float() if values.is_floating_point() else values
    if reduce == "add":
        return torch.scatter_add(widened, -1, indices.long(), source.to(widened.dtype))
    return torch.scatter_reduce(widened, -1, indices.long(), source.to(widened.dtype), "prod")


def _check(tensors: tuple[Tensor, ...], dim: int, reduce: str | None) -> None:
    values, index, source = tensors
    rank = len(values.shape)
    position = dim % max(rank, 1)
    for name, tensor in zip(NAMES[::2], tensors[::2], strict=True):
        tiled = tensor.dtype is DataType.FLOAT32 and tensor.layout is Layout.TILE
        wrong = (
            "Scatter doesn't work for fp32 tiled tensors yet (see to_layout issue #) - "
            f"{name} tensor is {tensor.dtype} {tensor.layout}."
        )
        require(not tiled, wrong, "bfloat16, or ROW_MAJOR_LAYOUT", "Convert with ttnn.typecast or ttnn.to_layout.")
    for name, tensor in zip(NAMES, tensors, strict=True):
        tiled = tensor.dtype in WIDE_DTYPES and tensor.layout is Layout.TILE and len(tensor.shape) > position
        wrong = (
            f"Scatter doesn't work for int32 tensors that have scatter row longer than {MAX_TILED_ROW} elements - "
            f"{name} tensor is of type: {tensor.dtype.name}, layout: {tensor.layout.name} and "
            f"{name}_shape[scatter_axis] == {tensor.shape[position] if tiled else 0}"
        )
        fits = not tiled or tensor.shape[position] <= MAX_TILED_ROW
        require(fits, wrong, "ROW_MAJOR_LAYOUT", "Convert it with ttnn.to_layout.")
    for name, other in (("index", index), ("source", source)):
        wrong = f"input_rank must be equal to {name}_rank (input_rank == {rank}, {name}_rank == {len(other.shape)})"
        fix = "Reshape one with ttnn.unsqueeze_to_4D or ttnn.reshape."
        require(len(other.shape) == rank, wrong, "equal ranks", fix)
    wrong = f"reduce must be either 'add' or 'multiply' (case-sensitive), got {reduce}"
    require(reduce in (None, "add", "multiply"), wrong, "add or multiply", "Use one of them, or leave reduce out.")
    for i in range(rank):
        bounds = {"source": source} if i == position else {"source": source, "input": values}
        for name, bound in bounds.items():
            wrong = (
                f"index_shape[{i}] <= {name}_shape[{i}] == false (index_shape: {index.shape!r}, "
                f"{name}_shape: {bound.shape!r})"
            )
            require(index.shape[i] <= bound.shape[i], wrong, f"at most {bound.shape[i]}", "Slice the index.")


def _to_rows(tensor: Tensor, dim: int) -> Tensor:
    """Convert to ROW_MAJOR with this dim last."""
    flat: Tensor = to_layout(tensor, Layout.ROW_MAJOR)
    return flat if dim == len(tensor.shape) - 1 else transpose(flat, dim, -1)


def _to_4d(tensor: Tensor) -> Tensor:
    shape = tuple(tensor.shape)
    return reshape_tensor(
        tensor, (*[1] * (4 - len(shape)), *shape) if len(shape) < 5 else (prod(shape[:-3]), *shape[-3:])
    )


def _scatter(
    values: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str | None, memory_config: MemoryConfig | None
) -> Tensor:
    rank = len(values.shape)
    normalize_dim(dim, rank, f"scatter: dim {dim} is out of range for tensor rank {rank}")
    _check((values, index, source), dim, reduce)
    if not rank:
        return values
    position = dim % rank
    source_slice: Tensor = slice_(source, [0] * rank, list(index.shape), [1] * rank)
    rows, index_rows, source_rows = (_to_rows(tensor, position) for tensor in (values, index, source_slice))
    scattered: Tensor = _scatter_rows(
        input=_to_4d(rows),
        index=_to_4d(index_rows),
        src=_to_4d(source_rows),
        reduce=reduce,
        memory_config=memory_config or values.memory_config(),
    )
    result = reshape_tensor(scattered, rows.shape)
    del scattered  # its memory goes back as soon as the next program has read it
    if position != rank - 1:
        result = transpose(result, position, -1)
    converted: Tensor = to_layout(result, values.layout)
    return converted


@composite("ttnn.scatter", golden=goldens.scatter, direct=True)
def scatter(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str | None, memory_config: MemoryConfig | None
) -> Tensor:
    """The input with source elements written at the indices, or combined with the elements there."""
    return _scatter(input, dim, index, src, reduce, memory_config)


@composite(
    "ttnn.scatter_add",
    golden=goldens.scatter_add,
    direct=True,
)
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor, memory_config: MemoryConfig | None) -> Tensor:
    """The input plus source elements at the indices."""
    return _scatter(input, dim, index, src, "add", memory_config)
