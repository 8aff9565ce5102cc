"""argmax, topk and sort."""

from __future__ import annotations

from math import prod

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import normalize_dim, refuse_in_order, require_dtype
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import reduction as goldens
from ttmesh.ops.stages.order_stages import compose_sort, compose_topk, sort_stages, topk_stages
from ttmesh.tensor.calls.call_temporaries import Composition
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Pair = tuple[torch.Tensor, torch.Tensor]

UINT16_INDICES = 65535  # dims longer than this need 32-bit indices
ROW_MAJOR_ARGMAX = {DataType.BFLOAT16, DataType.FLOAT32, DataType.INT32, DataType.UINT32, DataType.UINT16}


# -- argmax ------------------------------------------------------------------------------------------------------------


def _check_argmax(call: Call) -> None:
    spec, dim = call.specs[0], call["dim"]
    rank = len(spec.shape)
    if dim is not None:
        wrong = f"argmax: Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
        position = normalize_dim(dim, rank, wrong)
        wrong = f"argmax: Expected reduction dim {dim} to have non-zero size"
        require(
            rank == 0 or spec.shape[position] > 0,
            wrong,
            "at least one element",
            "Leave the call out for empty tensors.",
        )
    if spec.layout is Layout.TILE:
        wrong = f"Only BFLOAT16, FLOAT32 are supported for inputs with TILE layout, got {spec.dtype}"
        require_dtype(spec, {DataType.BFLOAT16, DataType.FLOAT32}, wrong)
        wrong = "For inputs with TILE layout, dim parameter must be specified!"
        require(dim is not None, wrong, "a dim", "Pass dim=, or convert the tensor to ROW_MAJOR.")
    else:
        wrong = (
            "Only BFLOAT16, FLOAT32, INT32, UINT32, and UINT16 are supported for inputs with ROW_MAJOR layout, got "
            f"{spec.dtype}"
        )
        require_dtype(spec, ROW_MAJOR_ARGMAX, wrong)
        if dim is not None and rank and spec.dtype not in (DataType.BFLOAT16, DataType.FLOAT32):
            wrong = (
                f"ROW_MAJOR: only argmax on the last dim is supported. Got dim={dim} (normalized={dim % rank}), expected "
                f"{rank - 1}"
            )
            require(dim % rank == rank - 1, wrong, "the last dim", "Convert the tensor to TILE layout.")
    given = call.outputs[0] if call.outputs else None
    if given is not None:
        wrong = f"Only UINT32 is supported for outputs, got {given.dtype}"
        require_dtype(given.spec, {DataType.UINT32}, wrong)


def _argmax_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    shape, given = inferred[0][0], call.outputs[0] if call.outputs else None
    if given is not None:  # of any shape with as many rows of the same length
        same = given.shape.volume() == prod(shape) and (not shape or [*given.shape][-1:] == [*shape][-1:])
        wrong = (
            "Preallocated output tensor is not page-compatible with the reduction result! Got : "
            f"{given.shape!r} expected: {list(shape)}"
        )
        require(same, wrong, "rows of the same length", "Allocate the output with the result's shape.")
        return [given.spec.with_shape(shape)]
    return [make_output_spec(call, inferred[0][0], dtype=DataType.UINT32, layout=Layout.ROW_MAJOR)]


@op("ttnn.argmax", golden=goldens.argmax, out=_argmax_spec, check=_check_argmax)
def argmax(input_tensor: torch.Tensor, dim: int | None, keepdim: bool, lane_axes: int) -> torch.Tensor:
    """Index of the largest value along a dim, or in the flattened tensor; the first of equal values."""
    rank = input_tensor.dim() - lane_axes
    if not rank:
        return torch.zeros_like(input_tensor, dtype=torch.int64)
    if dim is not None:
        return torch.argmax(input_tensor, normalize_dim(dim, rank), keepdim)
    flat_index = torch.argmax(input_tensor.flatten(lane_axes), -1)
    return flat_index.reshape(*flat_index.shape, *[1] * rank) if keepdim else flat_index


# -- topk --------------------------------------------------------------------------------------------------------------


def _check_topk(call: Call) -> None:
    spec, dim, k = call.specs[0], call["dim"], call["k"]
    rank = len(spec.shape)
    wrong = f"Dimension for topk is out of range (expected to be in range of [{-rank}, {rank - 1}])"
    dim = normalize_dim(dim, rank, wrong)
    size = spec.shape[dim] if rank else 1
    wrong = f"K cannot be larger than the dimension size! K={k}, dimension size={size}"
    require(k <= size, wrong, f"k <= {size}", "Pad the tensor with -inf, or ask for fewer.")
    if rank and (k == 0 or 0 in tuple(spec.shape)):
        return  # empty results, whatever the rest
    config = call["memory_config"] or spec.memory_config
    if call["indices_tensor"] is None and not any(call.outputs) and rank and 0 not in tuple(spec.shape):
        plain = spec.layout is Layout.TILE and not spec.memory_config.is_sharded()
        if dim == -1 or plain:
            with refuse_in_order():
                compose_topk(Composition(), call, (spec.dtype, DataType.UINT16), config)
    wrong = "Sharded implementation not supported yet"
    require(not config.is_sharded(), wrong, "interleaved memory", "Move it with ttnn.to_memory_config.")
    if call["indices_tensor"] is not None:
        _check_given_indices(call, dim, rank)
    for given, what in zip(call.outputs, ("values", "indices"), strict=False):
        if given is not None:
            shape = list(spec.shape)
            shape[dim] = k
            wrong = f"Preallocated {what} tensor has incorrect shape! Got : {given.shape!r}, expected: {shape}"
            require(list(given.shape) == shape, wrong, "the result's shape", "Allocate it with the result's shape.")
    if len(call.outputs) > 1 and call.outputs[1] is not None:
        index_dtype = call.outputs[1].dtype
        wrong = f"Preallocated indices tensor must be UINT16, UINT32, or INT32 got: {index_dtype}"
        require(
            index_dtype in (DataType.UINT16, DataType.UINT32, DataType.INT32),
            wrong,
            "an integer format",
            "Use ttnn.uint32 for indices.",
        )
    if call.outputs and call.outputs[0] is not None:
        out = call.outputs[0].dtype
        wrong = (
            f"Preallocated output tensor dtype must match input tensor dtype. Got output: {out}, input: {spec.dtype}"
        )
        require(out is spec.dtype, wrong, f"{spec.dtype}", "Convert it with ttnn.typecast.")


def _check_given_indices(call: Call, dim: int, rank: int) -> None:
    spec, indices = call.specs[0], call["indices_tensor"].spec
    wrong = f"Indices tensor has incorrect shape! Got : {indices.shape!r}, expected: {spec.shape!r}"
    require(
        tuple(indices.shape) == tuple(spec.shape), wrong, "the input's shape", "Allocate it with the input's shape."
    )
    wrong = (
        f"Indices tensor is only supported for a reduction on the last dimension, got dim={call['dim']} for rank {rank}"
    )
    require(dim == -1, wrong, "dim=-1", "Move that dim to the end with ttnn.transpose.")
    if spec.dtype is DataType.FLOAT32:
        wrong = "Optional indices tensor must be UINT32 when input tensor is FLOAT32, got UINT16"
        require(indices.dtype is not DataType.UINT16, wrong, "uint32 indices", "Use ttnn.uint32 for indices.")


def _topk_specs(call: Call, inferred: Inferred) -> list[TensorSpec]:
    spec, dim = call.specs[0], call["dim"]
    if len(spec.shape) and 0 in inferred[0][0]:  # both have the input's format, and none was computed
        config = call["memory_config"] or spec.memory_config
        return [TensorSpec(inferred[0][0], spec.dtype, spec.layout, memory_config=config)] * 2
    length = spec.padded_shape[dim] if len(spec.shape) else 1
    needs_uint32 = length > UINT16_INDICES or spec.dtype is DataType.FLOAT32
    if call["indices_tensor"] is not None:
        needs_uint32 = call["indices_tensor"].dtype is not DataType.UINT16
    indices = DataType.UINT32 if needs_uint32 else DataType.UINT16
    specs = [
        make_output_spec(call, inferred[0][0], memory_config=spec.memory_config, result=0),
        make_output_spec(call, inferred[1][0], dtype=indices, memory_config=spec.memory_config, result=1),
    ]
    rank = len(spec.shape)
    if rank == 0 or dim % rank == rank - 1 or any(given is not None for given in call.outputs):
        return specs
    return [made.with_memory_config(spec.memory_config) for made in specs]  # transposed back into the input's memory


@op("ttnn.topk", golden=goldens.topk, out=_topk_specs, check=_check_topk, stages=topk_stages)
def topk(
    input_tensor: torch.Tensor,
    k: int,
    dim: int,
    largest: bool,
    stable: bool,
    lane_axes: int,
    indices_tensor: torch.Tensor | None = None,
) -> Pair:
    """The k largest (or smallest) values along a dim, and their indices."""
    if input_tensor.dim() == lane_axes:
        return input_tensor, torch.zeros_like(input_tensor, dtype=torch.int64)
    position = normalize_dim(dim, input_tensor.dim() - lane_axes)
    if stable:  # torch.topk guarantees no order among equal values
        values, indices = torch.sort(input_tensor, stable=True, dim=position, descending=largest)
        values, indices = values.narrow(position, 0, k), indices.narrow(position, 0, k)
    else:
        values, indices = torch.topk(input_tensor, k, position, largest)
    if indices_tensor is not None:
        indices = torch.gather(indices_tensor.expand(input_tensor.shape), position, indices)
    return values, indices


# -- sort --------------------------------------------------------------------------------------------------------------


def _check_sort(call: Call) -> None:
    spec = call.specs[0]
    require(not call["stable"], "ttnn::sort: stable=True is not yet implemented.", "stable=False", "Leave stable out.")
    rank = len(spec.shape)
    if rank:
        wrong = f"Sort dim {call['dim']} is out of range for rank-{rank} tensor"
        dim = normalize_dim(call["dim"], rank, wrong)
    if not prod(spec.shape) or spec.shape.volume() == 1 or (rank and spec.shape[dim] == 1):
        return
    if not any(call.outputs):
        config = call["memory_config"] or spec.memory_config
        with refuse_in_order():
            compose_sort(Composition(), call, [spec.with_memory_config(config)])
    wrong = f"Input tensor data type must be BFLOAT16, UINT16, or FLOAT32, got DataType::{spec.dtype.name}"
    require_dtype(spec, {DataType.BFLOAT16, DataType.UINT16, DataType.FLOAT32}, wrong)
    given = call.outputs[1] if len(call.outputs) > 1 else None
    if given is not None and spec.dtype is DataType.FLOAT32:
        wrong = f"Index tensor dtype must be UINT32 when input dtype is FLOAT32, got {given.dtype}"
        require(given.dtype is DataType.UINT32, wrong, "uint32 indices", "Use ttnn.uint32 for indices.")


def _sort_specs(call: Call, inferred: Inferred) -> list[TensorSpec]:
    spec = call.specs[0]
    width = spec.shape[call["dim"]] if len(spec.shape) else 1
    needs_uint32 = width >= UINT16_INDICES or spec.dtype in (DataType.FLOAT32, DataType.UINT16)
    indices = DataType.UINT32 if needs_uint32 else DataType.UINT16
    return [
        make_output_spec(call, inferred[0][0], result=0),
        make_output_spec(call, inferred[1][0], dtype=indices, result=1),
    ]


@op("ttnn.sort", golden=goldens.sort, out=_sort_specs, check=_check_sort, stages=sort_stages, outputs=("out",))
def sort(input_tensor: torch.Tensor, dim: int, descending: bool, lane_axes: int) -> Pair:
    """The values sorted along a dim, and the index of each in the input."""
    rank = input_tensor.dim() - lane_axes
    if not rank:
        return input_tensor, torch.zeros_like(input_tensor, dtype=torch.int64)
    values, indices = torch.sort(input_tensor, stable=True, dim=normalize_dim(dim, rank), descending=descending)
    return values, indices
