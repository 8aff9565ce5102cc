"""moreh's products and their gradients: bmm, matmul, dot, linear; and getitem, fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import require
from ttmesh.chip.numerics import engine
from ttmesh.ops.catalogue.checks import normalize_dim
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import make_like_rule
from ttmesh.ops.goldens import moreh as goldens
from ttmesh.ops.lane_functions.gemm import matmul_lanes
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims, equalize_ranks, flatten_lanes
from ttmesh.ops.matmul.matmul import transpose_if
from ttmesh.tensor.calls.gate import DeviceOperation
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

in_tiles = make_like_rule(layout=Layout.TILE)


def with_bias(values: torch.Tensor, bias: torch.Tensor | None, lane_axes: int) -> torch.Tensor:
    """The product plus its bias."""
    if bias is None:
        return values
    left, right = equalize_ranks([values, bias], lane_axes)
    return left + right


# -- forward -------------------------------------------------------------------------------------------------------------


@op("ttnn.moreh_bmm", golden=goldens.bmm, out=in_tiles, outputs=("output",))
def moreh_bmm(input: torch.Tensor, mat2: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The product of two batches of matrices."""
    return matmul_lanes(input, mat2, lane_axes)


@op("ttnn.moreh_matmul", golden=goldens.matmul, out=in_tiles, outputs=("output",))
def moreh_matmul(
    input: torch.Tensor,
    other: torch.Tensor,
    transpose_input: bool,
    transpose_other: bool,
    bias: torch.Tensor | None,
    lane_axes: int,
) -> torch.Tensor:
    """The matrix product, batches broadcast both ways, plus a bias."""
    a, b = equalize_ranks([transpose_if(input, transpose_input), transpose_if(other, transpose_other)], lane_axes)
    return with_bias(matmul_lanes(a, b, lane_axes), bias, lane_axes)


def _dot(a: torch.Tensor, b: torch.Tensor, lane_axes: int) -> torch.Tensor:
    total = engine.total(engine.multiply(a.float(), b.float()).flatten(lane_axes), (-1,))
    return total.reshape(*total.shape, *[1] * (a.dim() - lane_axes))


@op(
    "ttnn.moreh_dot",
    golden=goldens.dot,
    out=in_tiles,
    outputs=("output",),
)
def moreh_dot(input_tensor_a: torch.Tensor, input_tensor_b: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The product of two vectors, with all dims of length 1."""
    return _dot(input_tensor_a, input_tensor_b, lane_axes)


@op("ttnn.moreh_linear", golden=goldens.linear, out=in_tiles, outputs=("output",))
def moreh_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, lane_axes: int) -> torch.Tensor:
    """The input times the transposed weight, plus a bias."""
    return with_bias(matmul_lanes(input, weight.transpose(-1, -2), lane_axes), bias, lane_axes)


# -- backward ------------------------------------------------------------------------------------------------------------


def _reduced_to(grad: torch.Tensor, shape: Sequence[int], lane_axes: int) -> torch.Tensor:
    """A gradient summed over the dims that its operand was broadcast along."""
    extra = grad.dim() - lane_axes - len(shape)
    if extra > 0:
        grad = engine.total(grad, tuple(range(lane_axes - grad.dim(), lane_axes + extra - grad.dim())))
    dims = tuple(i for i in range(-len(shape), 0) if shape[i] == 1 and grad.shape[i] != 1)
    return engine.total(grad, dims, keepdim=True) if dims else grad


def _left(grad: torch.Tensor, other: torch.Tensor, like_: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The gradient of A in A @ B."""
    a, b = equalize_ranks([grad, other.transpose(-1, -2)], lane_axes)
    return _reduced_to(matmul_lanes(a, b, lane_axes), like_.shape[lane_axes:], lane_axes)


def _right(grad: torch.Tensor, other: torch.Tensor, like_: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The gradient of B in A @ B."""
    a, b = equalize_ranks([other.transpose(-1, -2), grad], lane_axes)
    return _reduced_to(matmul_lanes(a, b, lane_axes), like_.shape[lane_axes:], lane_axes)


def _weight(grad: torch.Tensor, other: torch.Tensor, like_: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The gradient of W in A @ W^T."""
    return _right(other, grad, like_, lane_axes)


def _bias(grad: torch.Tensor, other: torch.Tensor, like_: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The gradient of a bias: the sum over all rows, or over everything for a single number."""
    rank = like_.dim() - lane_axes
    wide = engine.total(grad.flatten(lane_axes, -2), (-2,))
    if like_.shape[-1] == 1:
        wide = engine.total(engine.keep(wide), (-1,), keepdim=True)
    return wide.reshape(*wide.shape[:lane_axes], *[1] * (rank - 1), wide.shape[-1])


def _times(grad: torch.Tensor, other: torch.Tensor, like_: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The gradient of one vector in a dot product."""
    return grad.float() * other.float()


def _operation(name: str, lane: Any) -> DeviceOperation:
    return device_operation(name, out=make_like_rule(2), outputs=("output",))(lane)


_OPERATIONS = {
    key: _operation(f"ttnn.moreh_{key}", lane)
    for key, lane in {"left": _left, "right": _right, "weight": _weight, "bias": _bias, "times": _times}.items()
}


def gradient(
    key: str, grad: Tensor, other: Tensor, like_: Tensor, output: Tensor | None, memory_config: MemoryConfig | None
) -> Tensor:
    """One gradient as an operation of its own."""
    asked = {"grad": grad, "other": other, "like_": like_, "output": output, "memory_config": memory_config}
    result: Tensor = _OPERATIONS[key](**asked)
    return result


@composite(
    "ttnn.moreh_matmul_backward",
    golden=goldens.matmul_backward,
)
def moreh_matmul_backward(
    output_grad: Tensor,
    input_a: Tensor,
    input_b: Tensor,
    are_required_outputs: Sequence[bool],
    input_a_grad: Tensor | None,
    input_b_grad: Tensor | None,
    memory_config: MemoryConfig | None,
) -> list[Tensor | None]:
    """The gradients of a product's operands."""
    first, second = are_required_outputs
    return [
        gradient("left", output_grad, input_b, input_a, input_a_grad, memory_config) if first else None,
        gradient("right", output_grad, input_a, input_b, input_b_grad, memory_config) if second else None,
    ]


@composite("ttnn.moreh_bmm_backward", golden=goldens.matmul_backward)
def moreh_bmm_backward(
    output_grad: Tensor,
    input: Tensor,
    mat2: Tensor,
    are_required_outputs: Sequence[bool],
    input_grad: Tensor | None,
    mat2_grad: Tensor | None,
    input_grad_memory_config: MemoryConfig | None,
    mat2_grad_memory_config: MemoryConfig | None,
) -> list[Tensor | None]:
    """The gradients of a batched product's operands."""
    first, second = are_required_outputs
    return [
        gradient("left", output_grad, mat2, input, input_grad, input_grad_memory_config) if first else None,
        gradient("right", output_grad, input, mat2, mat2_grad, mat2_grad_memory_config) if second else None,
    ]


@composite(
    "ttnn.moreh_dot_backward",
    golden=goldens.dot_backward,
)
def moreh_dot_backward(
    output_grad: Tensor,
    input: Tensor,
    other: Tensor,
    input_grad: Tensor | None,
    other_grad: Tensor | None,
    memory_config: MemoryConfig | None,
) -> list[Tensor | None]:
    """The gradients of two vectors of a dot product, into the tensors given for them; all when none is given."""
    every = input_grad is None and other_grad is None
    return [
        gradient("times", output_grad, other, input, input_grad, memory_config)
        if every or input_grad is not None
        else None,
        gradient("times", output_grad, input, other, other_grad, memory_config)
        if every or other_grad is not None
        else None,
    ]


@composite("ttnn.moreh_linear_backward", golden=goldens.linear_backward)
def moreh_linear_backward(
    output_grad: Tensor,
    input: Tensor,
    weight: Tensor,
    are_required_outputs: Sequence[bool],
    bias: Tensor | None,
    input_grad: Tensor | None,
    weight_grad: Tensor | None,
    bias_grad: Tensor | None,
    input_grad_memory_config: MemoryConfig | None,
    weight_grad_memory_config: MemoryConfig | None,
    bias_grad_memory_config: MemoryConfig | None,
) -> list[Tensor | None]:
    """The gradients of input, weight and bias."""
    first, second, third = are_required_outputs
    down: Tensor | None = None
    if first:
        down = moreh_bmm(output_grad, weight, output=input_grad, memory_config=input_grad_memory_config)
    into = gradient("weight", output_grad, input, weight, weight_grad, weight_grad_memory_config) if second else None
    added = None
    if third and bias is not None:
        added = gradient("bias", output_grad, output_grad, bias, bias_grad, bias_grad_memory_config)
    return [down, into, added]


# -- getitem and fold ----------------------------------------------------------------------------------------------------


def _picked(values: torch.Tensor, indices: Sequence[torch.Tensor], dims: Sequence[int], lane_axes: int) -> torch.Tensor:
    """values[..., i, ..., j, ...] per device: the lane number is one more index."""
    rank = values.dim() - lane_axes
    tensors = align_mesh_dims([values, *indices], lane_axes)
    lanes = [flatten_lanes(tensor, lane_axes) for tensor in tensors]
    source, where = lanes[0], [index.reshape(index.shape[0], -1).long() for index in lanes[1:]]
    devices = source.shape[0]
    places = [dim % rank for dim in dims]
    first = torch.arange(devices, device=values.device).reshape(devices, 1)
    moved = source.movedim([place + 1 for place in places], list(range(1, len(places) + 1)))
    index: tuple[Any, ...] = (first, *where)
    found = moved[index]  # [devices, picks, *rest]
    result = found.movedim(1, places[0] + 1)
    return result.reshape(*tensors[0].shape[:lane_axes], *result.shape[1:])


@op("ttnn.moreh_getitem", golden=goldens.getitem, outputs=("output",))
def moreh_getitem(
    input: torch.Tensor, index_tensors: Sequence[torch.Tensor], index_dims: Sequence[int], lane_axes: int
) -> torch.Tensor:
    """The elements at these indices of neighbouring dims."""
    rank = input.dim() - lane_axes
    places = sorted(normalize_dim(dim, rank) for dim in index_dims)
    together = places == list(range(places[0], places[0] + len(places)))
    wrong = f"moreh_getitem: index_dims {list(index_dims)} are not neighbours"
    require(together, wrong, "neighbouring dims", "Index dims that lie side by side, or permute first.")
    return _picked(input, index_tensors, index_dims, lane_axes)


Pair = tuple[int, int]


def _folded(
    values: torch.Tensor, size: Pair, kernel: Pair, dilation: Pair, padding: Pair, stride: Pair
) -> torch.Tensor:
    return torch.nn.functional.fold(values.float(), size, kernel, dilation, padding, stride)


@op("ttnn.moreh_fold", golden=goldens.fold, outputs=("output",))
def moreh_fold(
    input: torch.Tensor,
    output_size: Pair,
    kernel_size: Pair,
    dilation: Pair,
    padding: Pair,
    stride: Pair,
    lane_axes: int,
) -> torch.Tensor:
    """Overlapping blocks [N, C * k, L] summed into an image [N, C, H, W]."""
    mesh, local = input.shape[:lane_axes], input.shape[lane_axes:]
    blocks = input.reshape(-1, *local[-2:])
    sizes = (tuple(part) for part in (output_size, kernel_size, dilation, padding, stride))
    image = _folded(blocks, *sizes)  # type: ignore[arg-type]
    return image.reshape(*mesh, *local[:-2], *image.shape[1:])
