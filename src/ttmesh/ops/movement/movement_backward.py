"""concat_bw, repeat_bw and prod_bw."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import normalize_dim
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.spec_rules import make_like_rule
from ttmesh.ops.goldens import autodiff as goldens
from ttmesh.ops.lane_functions.lane_broadcast import equalize_ranks
from ttmesh.ops.movement.copy_ops import copy
from ttmesh.ops.movement.slice_ops import slice_
from ttmesh.tensor.spec.memory_config import MemoryConfig
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
    shape = list(grad_tensor.shape)
    position = normalize_dim(dim, len(shape))
    boundary = input_tensor_a.shape[position]

    def slice_grad(start: int, end: int, given: Tensor | None) -> Tensor:
        starts, ends = [0] * len(shape), list(shape)
        starts[position], ends[position] = start, end
        return _copy_if_given(slice_(grad_tensor, starts, ends, memory_config=memory_config), given)

    return _compute_required(
        are_required_outputs,
        (lambda: slice_grad(0, boundary, input_a_grad), lambda: slice_grad(boundary, shape[position], input_b_grad)),
    )


# -- repeat --------------------------------------------------------------------------------------------------------------


def _sum_repeats(grad: torch.Tensor, shape: Sequence[int], dim: int | None, lane_axes: int) -> torch.Tensor:
    """Sum all of a dim, whatever its length before the repeats, as TT-NN does; zeros for no dim."""
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


_PROD_BW = device_operation("ttnn.prod_bw", out=make_like_rule(1))(
    lambda grad_tensor, input_tensor, dim, lane_axes: _product_grad(grad_tensor, input_tensor, dim, lane_axes)
)


@composite("ttnn.prod_bw", golden=goldens.prod_bw)
def prod_bw(grad_tensor: Tensor, input_tensor: Tensor, dim: int | None, memory_config: MemoryConfig | None) -> Grads:
    """The gradient of a product over one dim or all."""
    arguments = {
        "grad_tensor": grad_tensor,
        "input_tensor": input_tensor,
        "dim": dim,
        "memory_config": memory_config,
    }
    return [_PROD_BW(**arguments)]
