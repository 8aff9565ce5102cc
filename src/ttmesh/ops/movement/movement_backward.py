"""concat_bw, repeat_bw and prod_bw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import normalize_dim
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred, make_like_rule, make_output_spec
from ttmesh.ops.goldens import autodiff as goldens
from ttmesh.ops.lane_functions.lane_broadcast import equalize_ranks
from ttmesh.ops.movement.copy_ops import copy
from ttmesh.ops.movement.slice_ops import slice_
from ttmesh.ops.stages.conversion_stages import concat_gradient_stages, prod_gradient_stages
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

Grads = list[Tensor | None]


def _compute_required(required: Sequence[bool], makers: Sequence[Callable[[], Tensor]]) -> Grads:
    """The required gradients; None for the others."""
    wrong = "At least one gradient is expected to be calculated."
    require(any(required), wrong, "are_required_outputs with a True", "Ask for at least one gradient.")
    return [make() if is_required else None for is_required, make in zip(required, makers, strict=True)]


def _copy_if_given(result: Tensor, given: Tensor | None) -> Tensor:
    if given is None:
        return result
    written: Tensor = copy(result, given)
    return written


def _parts_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, shape, source=i + 1) for i, (shape, _) in enumerate(inferred)]


@device_operation("ttnn.concat_bw", out=_parts_spec, stages=concat_gradient_stages)
def _slice_parts(
    grad: torch.Tensor, first: torch.Tensor, second: torch.Tensor, dim: int, lane_axes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Parts of the gradient with the inputs' shapes; the second one begins after the first along the dim."""
    parts = []
    for part, start in ((first, 0), (second, first.shape[lane_axes + dim])):
        shape = part.shape[lane_axes:]
        begin = [min(start, grad.shape[lane_axes + i] - n) if i == dim else 0 for i, n in enumerate(shape)]
        at: list[Any] = [...]
        at += [slice(max(b, 0), max(b, 0) + n) for b, n in zip(begin, shape, strict=True)]
        parts.append(grad[tuple(at)].clone())
    return parts[0], parts[1]


@composite("ttnn.concat_bw", golden=goldens.concat_bw)
def concat_bw(
    grad_tensor: Tensor,
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    dim: int,
    are_required_outputs: Sequence[bool],
    memory_config: MemoryConfig | None,
    input_a_grad: Tensor | None,
    input_b_grad: Tensor | None,
) -> Grads:
    """The gradients of the two inputs."""
    tensors = (grad_tensor, input_tensor_a, input_tensor_b)
    ranks = [len(tensor.shape) for tensor in tensors]
    wrong = f"concat_bw expects rank-4 tensors, got grad rank {ranks[0]}, input rank {ranks[1]}, other rank {ranks[2]}"
    require(ranks == [4, 4, 4], wrong, "four dims", "Reshape them with ttnn.unsqueeze_to_4D.")
    wrong = f"Index is out of bounds for the rank, should be between 0 and 3 however is {dim}"
    require(-4 <= dim < 4, wrong, "a dim of four", "Choose one of four dims.")
    arguments = dict(zip(("grad", "first", "second"), tensors, strict=True)) | {"dim": dim % 4}
    if all(are_required_outputs) and input_a_grad is None and input_b_grad is None:
        return list(_slice_parts(**arguments, memory_config=memory_config))
    shape, boundary = list(grad_tensor.shape), input_tensor_a.shape[dim % 4]

    def slice_grad(start: int, end: int, given: Tensor | None) -> Tensor:
        starts, ends = [0] * len(shape), list(shape)
        starts[dim % 4], ends[dim % 4] = start, end
        return _copy_if_given(slice_(grad_tensor, starts, ends, memory_config=memory_config), given)

    return _compute_required(
        are_required_outputs,
        (lambda: slice_grad(0, boundary, input_a_grad), lambda: slice_grad(boundary, shape[dim % 4], input_b_grad)),
    )


# -- repeat --------------------------------------------------------------------------------------------------------------


def _sum_repeats(grad: torch.Tensor, shape: Sequence[int], dim: int | None, lane_axes: int) -> torch.Tensor:
    """Sum a whole dim, without regard to its length before the repeats, as TT-NN does; zeros for no dim."""
    if dim is None:
        return grad.new_zeros((*grad.shape[:lane_axes], *shape))
    return grad.float().sum(lane_axes + dim, keepdim=True)


_REPEAT_BW = device_operation("ttnn.repeat_bw", out=make_like_rule(1))(
    lambda grad_tensor, input_tensor, dim, lane_axes: _sum_repeats(
        grad_tensor, input_tensor.shape[lane_axes:], dim, lane_axes
    )
)


@composite("ttnn.repeat_bw", golden=goldens.repeat_bw)
def repeat_bw(
    grad_tensor: Tensor, input_tensor: Tensor, shape: Sequence[int], memory_config: MemoryConfig | None
) -> Grads:
    """The gradients of all repeats, summed; none where neither of the first two dims was repeated, as in TT-NN."""
    first = input_tensor.padded_shape[0]
    require(first == 1, f"Input shape[0] must be 1 but got {first}", "one along the first dim", "Reshape the input.")
    dim = next((dim for dim in (0, 1) if 0 not in shape and shape[dim] > 1), None)
    if dim is None and 0 not in shape:
        return []
    if dim is not None:
        others = [other for other in range(4) if other != dim]
        wrong = f"repeat[{others[0]}], [{others[1]}], [{others[2]}] should be 1"
        repeats_one_dim = all(shape[other] == 1 for other in others)
        require(repeats_one_dim, wrong, f"repeats along dim {dim} alone", "Repeat along one dim at a time.")
        dtype = grad_tensor.dtype
        wrong = "moreh_sum input only supports specific data types. [BFLOAT16, INT32]"
        accepts = dtype in (DataType.BFLOAT16, DataType.INT32)
        require(accepts, wrong, "bfloat16 or int32", "Convert it with ttnn.typecast.")
        padded = grad_tensor.padded_shape
        for i, (held, whole) in enumerate(zip(reversed(grad_tensor.shape[-2:]), reversed(padded[-2:]), strict=True)):
            dims = (f"dimension without padding[{i}] ({extent})" for extent in (held, whole))
            wrong = "Input {} must equal output {}".format(*dims)
            require(held == whole, wrong, "whole tiles", "Pad both tensors with ttnn.pad.")
    arguments = {
        "grad_tensor": grad_tensor,
        "input_tensor": input_tensor,
        "dim": dim,
        "memory_config": memory_config,
    }
    return [_REPEAT_BW(**arguments)]


# -- prod ----------------------------------------------------------------------------------------------------------------


def _product_grad(grad: torch.Tensor, values: torch.Tensor, dim: int | None, lane_axes: int) -> torch.Tensor:
    """grad * product / input, as the chip computes it: zeros in the input give NaN or infinity."""
    widened = values.float()
    rank = values.dim() - lane_axes
    if dim is None:
        total_product = widened.flatten(lane_axes).prod(-1)
        first = grad.float().flatten(lane_axes)[..., 0]
        factor = total_product * first
        return factor.reshape(*factor.shape, *[1] * rank) / widened
    position = normalize_dim(dim, rank)
    dim_product = widened.prod(position, keepdim=True)
    grads, dim_product = equalize_ranks([grad.float(), dim_product], lane_axes)
    if grads.shape[position] != 1:
        grads = grads.narrow(position, 0, 1)
    return grads * dim_product / widened


_PROD_BW = device_operation("ttnn.prod_bw", out=make_like_rule(1), stages=prod_gradient_stages)(
    lambda grad_tensor, input_tensor, dim, lane_axes: _product_grad(grad_tensor, input_tensor, dim, lane_axes)
)


@composite("ttnn.prod_bw", golden=goldens.prod_bw)
def prod_bw(grad_tensor: Tensor, input_tensor: Tensor, dim: int | None, memory_config: MemoryConfig | None) -> Grads:
    """The gradient of a product over one dim or all."""
    if dim in (-1, 3) and len(input_tensor.shape) == 4:
        rows, padded = input_tensor.shape[2], input_tensor.padded_shape[2]
        wrong = f"Broadcasting rule violation at dimension index -2 (output rank 4), dim a: {rows}, dim b: {padded}"
        require(rows == padded, wrong, "a multiple of 32 rows", "Pad the rows with ttnn.pad.")
    arguments = {
        "grad_tensor": grad_tensor,
        "input_tensor": input_tensor,
        "dim": dim,
        "memory_config": memory_config,
    }
    return [_PROD_BW(**arguments)]
