"""moreh's bmm, matmul, dot and linear with their gradients, getitem and fold."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.checks import normalize_dim, require_dtype
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import make_like_rule
from ttmesh.ops.goldens import moreh as goldens
from ttmesh.ops.lane_functions.gemm import matmul_lanes
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims, equalize_ranks, flatten_lanes
from ttmesh.ops.matmul.matmul import transpose_if
from ttmesh.ops.moreh.matmul_shapes import check_matmul_shapes, gradient_of, operands_are
from ttmesh.ops.moreh.moreh_sums import sum_dims
from ttmesh.tensor.calls.gate import DeviceOperation
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

tiled_spec = make_like_rule(layout=Layout.TILE)


def add_bias(values: torch.Tensor, bias: torch.Tensor | None, lane_axes: int) -> torch.Tensor:
    """Add a bias if there is one."""
    if bias is None:
        return values
    left, right = equalize_ranks([values, bias], lane_axes)
    return left + right


# -- forward -------------------------------------------------------------------------------------------------------------


@op("ttnn.moreh_bmm", golden=goldens.bmm, out=tiled_spec, outputs=("output",), check=operands_are("input", "mat2"))
def moreh_bmm(input: torch.Tensor, mat2: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """Matmul of two batches of matrices."""
    return matmul_lanes(input, mat2, lane_axes)


@op(
    "ttnn.moreh_matmul",
    golden=goldens.matmul,
    out=tiled_spec,
    outputs=("output",),
    check=operands_are("input", "other"),
)
def moreh_matmul(
    input: torch.Tensor,
    other: torch.Tensor,
    transpose_input: bool,
    transpose_other: bool,
    bias: torch.Tensor | None,
    lane_axes: int,
) -> torch.Tensor:
    """Matmul plus a bias; the batches of both operands broadcast."""
    a, b = equalize_ranks([transpose_if(input, transpose_input), transpose_if(other, transpose_other)], lane_axes)
    return add_bias(matmul_lanes(a, b, lane_axes), bias, lane_axes)


def _dot(a: torch.Tensor, b: torch.Tensor, lane_axes: int) -> torch.Tensor:
    total = fpu.total(fpu.multiply(a.float(), b.float()).flatten(lane_axes), (-1,))
    return total.reshape(*total.shape, *[1] * (a.dim() - lane_axes))


@op(
    "ttnn.moreh_dot",
    golden=goldens.dot,
    out=tiled_spec,
    outputs=("output",),
)
def moreh_dot(input_tensor_a: torch.Tensor, input_tensor_b: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The dot product of two vectors, with all dims of length 1."""
    return _dot(input_tensor_a, input_tensor_b, lane_axes)


@op(
    "ttnn.moreh_linear",
    golden=goldens.linear,
    out=tiled_spec,
    outputs=("output",),
    check=operands_are("input", "weight", transpose_other=True),
)
def moreh_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, lane_axes: int) -> torch.Tensor:
    """The input times the transposed weight, plus a bias."""
    return add_bias(matmul_lanes(input, weight.transpose(-1, -2), lane_axes), bias, lane_axes)


# -- backward ------------------------------------------------------------------------------------------------------------


def _sum_to_shape(grad: torch.Tensor, shape: Sequence[int], lane_axes: int) -> torch.Tensor:
    """Sum a gradient over the dims along which its operand was broadcast."""
    rank = grad.dim() - lane_axes
    padded = [*[1] * (rank - len(shape)), *shape]
    dims = [i - rank for i in range(rank) if padded[i] == 1 and grad.shape[lane_axes + i] != 1]
    whole = sum_dims(fpu.keep_in_tensor(grad), dims) if dims else grad
    return whole.reshape(*whole.shape[:lane_axes], *shape)


def _left_gradient(grad: torch.Tensor, other: torch.Tensor, like_: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The gradient of A in A @ B."""
    a, b = equalize_ranks([grad, other.transpose(-1, -2)], lane_axes)
    return _sum_to_shape(matmul_lanes(a, b, lane_axes), like_.shape[lane_axes:], lane_axes)


def _right_gradient(grad: torch.Tensor, other: torch.Tensor, like_: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The gradient of B in A @ B."""
    a, b = equalize_ranks([other.transpose(-1, -2), grad], lane_axes)
    return _sum_to_shape(matmul_lanes(a, b, lane_axes), like_.shape[lane_axes:], lane_axes)


def _weight_gradient(grad: torch.Tensor, other: torch.Tensor, like_: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The gradient of W in A @ W^T."""
    return _right_gradient(other, grad, like_, lane_axes)


def _bias_gradient(grad: torch.Tensor, other: torch.Tensor, like_: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The gradient of a bias: the sum over all rows, or over all elements for a single number."""
    rank = like_.dim() - lane_axes
    total = fpu.total(grad.flatten(lane_axes, -2), (-2,))
    if like_.shape[-1] == 1:
        total = fpu.total(fpu.keep(total), (-1,), keepdim=True)
    return total.reshape(*total.shape[:lane_axes], *[1] * (rank - 1), total.shape[-1])


def _dot_gradient(grad: torch.Tensor, other: torch.Tensor, like_: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The gradient of one vector in a dot product."""
    return grad.float() * other.float()


def _gradient_programs(call: Call) -> tuple[Hashable, ...]:
    """The product, and the sum over the batches along which the operand was broadcast."""
    own = (call.name, call.specs)
    batches = [[*[1] * (8 - len(spec.shape)), *spec.shape][:-2] for spec in call.specs]
    broadcast = call.name != "ttnn.moreh_bias" and any(max(a, b) > c for a, b, c in zip(*batches, strict=True))
    return (own, (*own, "sum")) if broadcast else (own,)


def _define_gradient(key: str, lane: Any) -> DeviceOperation:
    check = gradient_of(key) if key in ("left", "right", "weight") else None
    return device_operation(
        f"ttnn.moreh_{key}", out=make_like_rule(2), outputs=("output",), programs=_gradient_programs, check=check
    )(lane)


_OPERATIONS = {
    key: _define_gradient(key, lane)
    for key, lane in {
        "left": _left_gradient,
        "right": _right_gradient,
        "weight": _weight_gradient,
        "bias": _bias_gradient,
        "times": _dot_gradient,
    }.items()
}


def compute_gradient(
    key: str,
    grad: Tensor,
    other: Tensor,
    like_: Tensor,
    output: Tensor | None,
    memory_config: MemoryConfig | None,
    compute_kernel_config: Any = None,
) -> Tensor:
    """Compute one gradient by its own device operation."""
    arguments = {"grad": grad, "other": other, "like_": like_, "output": output, "memory_config": memory_config}
    result: Tensor = _OPERATIONS[key](**arguments, compute_kernel_config=compute_kernel_config)
    return result


def _require_output(is_required: bool, output: Tensor | None, wrong: str) -> None:
    """Raise for a gradient that is asked for without a tensor to write it into."""
    require(not is_required or output is not None, wrong, "a tensor for it", "Pass one, or leave the gradient out.")


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
    compute_kernel_config: Any,
) -> list[Tensor | None]:
    """The gradients of a matmul's operands."""
    first, second = are_required_outputs
    _require_output(first, input_a_grad, "Input gradient is marked required but not provided.")
    _require_output(second, input_b_grad, "Other gradient is marked required but not provided.")
    options = memory_config, compute_kernel_config
    return [
        compute_gradient("left", output_grad, input_b, input_a, input_a_grad, *options) if first else None,
        compute_gradient("right", output_grad, input_a, input_b, input_b_grad, *options) if second else None,
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
    compute_kernel_config: Any,
) -> list[Tensor | None]:
    """The gradients of a batched matmul's operands."""
    first, second = are_required_outputs
    into_input, into_mat2 = (
        (config, compute_kernel_config) for config in (input_grad_memory_config, mat2_grad_memory_config)
    )
    _require_output(first, input_grad, "input_grad needs to have a value when input_requires_grad is True.")
    _require_output(second, mat2_grad, "mat2_grad needs to have a value when mat2_requires_grad is True.")
    if first:  # TT-NN sums over no batches here
        check_matmul_shapes(output_grad, mat2, input_grad, None, transpose_other=True)
    if second:
        check_matmul_shapes(input, output_grad, mat2_grad, None, transpose_input=True)
    return [
        compute_gradient("left", output_grad, mat2, input, input_grad, *into_input) if first else None,
        compute_gradient("right", output_grad, input, mat2, mat2_grad, *into_mat2) if second else None,
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
    """The gradients of a dot product's vectors: those with an output tensor."""
    for tensor in (output_grad, input, other):
        require_dtype(tensor, (DataType.BFLOAT16, DataType.BFLOAT8_B), "Unsupported data format")
    return [
        compute_gradient("times", output_grad, other, input, input_grad, memory_config)
        if input_grad is not None
        else None,
        compute_gradient("times", output_grad, input, other, other_grad, memory_config)
        if other_grad is not None
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
    compute_kernel_config: Any,
) -> list[Tensor | None]:
    """The gradients of input, weight and bias."""
    first, second, third = are_required_outputs
    _require_output(first, input_grad, "input_grad tensor should not be std::nullopt")
    _require_output(second, weight_grad, "weight_grad tensor should not be std::nullopt")
    _require_output(third and bias is not None, bias_grad, "bias_grad tensor should not be std::nullopt")
    computed_input_grad: Tensor | None = None
    if first:
        computed_input_grad = moreh_bmm(
            output_grad,
            weight,
            output=input_grad,
            memory_config=input_grad_memory_config,
            compute_kernel_config=compute_kernel_config,
        )
    computed_weight_grad = (
        compute_gradient(
            "weight", output_grad, input, weight, weight_grad, weight_grad_memory_config, compute_kernel_config
        )
        if second
        else None
    )
    computed_bias_grad = None
    if third and bias is not None:
        computed_bias_grad = compute_gradient(
            "bias", output_grad, output_grad, bias, bias_grad, bias_grad_memory_config, compute_kernel_config
        )
    return [computed_input_grad, computed_weight_grad, computed_bias_grad]


# -- getitem and fold ----------------------------------------------------------------------------------------------------


def _gather_elements(
    values: torch.Tensor, indices: Sequence[torch.Tensor], dims: Sequence[int], lane_axes: int
) -> torch.Tensor:
    """values[..., i, ..., j, ...] per device; the lane number is an additional index."""
    rank = values.dim() - lane_axes
    tensors = align_mesh_dims([values, *indices], lane_axes)
    lanes = [flatten_lanes(tensor, lane_axes) for tensor in tensors]
    source, flat_indices = lanes[0], [index.reshape(index.shape[0], -1).long() for index in lanes[1:]]
    devices = source.shape[0]
    positions = [dim % rank for dim in dims]
    first = torch.arange(devices, device=values.device).reshape(devices, 1)
    reordered = source.movedim([position + 1 for position in positions], list(range(1, len(positions) + 1)))
    index: tuple[Any, ...] = (first, *flat_indices)
    elements = reordered[index]  # [devices, count, *other dims]
    result = elements.movedim(1, positions[0] + 1)
    return result.reshape(*tensors[0].shape[:lane_axes], *result.shape[1:])


def _check_getitem(call: Call) -> None:
    taken = (DataType.INT32, DataType.BFLOAT16)
    require_dtype(call.specs[0], taken, "Input tensor must be of type INT32 or BFLOAT16!")
    for index in call["index_tensors"]:
        require_dtype(index, DataType.INT32, "Index tensor must be of type INT32!")
        in_rows = index.layout is Layout.ROW_MAJOR
        wrong = "Index tensor must be 1D for ROW_MAJOR layout!"
        require(
            not in_rows or len(index.shape) == 1, wrong, "a vector", "Reshape it, or convert it with ttnn.to_layout."
        )
        wrong = "input layout ROW_MAJOR and index layout TILE not supported"
        fits = in_rows or call.specs[0].layout is Layout.TILE
        require(fits, wrong, "an index in ROW_MAJOR layout", "Convert it with ttnn.to_layout.")
        wrong = "The shapes of all index tensors must be identical!"
        length = call["index_tensors"][0].shape[-1]
        require(index.shape[-1] == length, wrong, f"{length} indices", "Pass as many indices for every dim.")
    rank = len(call.specs[0].shape)
    by_column = any(dim % rank == rank - 1 for dim in call["index_dims"])
    in_rows = call.specs[0].layout is Layout.ROW_MAJOR
    wrong = "getitem for ROW_MAJOR layout not support W index tensor!"
    require(not (in_rows and by_column), wrong, "TILE layout", "Convert it with ttnn.to_layout.")


@op("ttnn.moreh_getitem", golden=goldens.getitem, check=_check_getitem, outputs=("output",))
def moreh_getitem(
    input: torch.Tensor, index_tensors: Sequence[torch.Tensor], index_dims: Sequence[int], lane_axes: int
) -> torch.Tensor:
    """The elements at these indices of adjacent dims."""
    rank = input.dim() - lane_axes
    positions = sorted(normalize_dim(dim, rank) for dim in index_dims)
    adjacent = positions == list(range(positions[0], positions[0] + len(positions)))
    wrong = f"moreh_getitem: index_dims {list(index_dims)} are not adjacent"
    require(adjacent, wrong, "adjacent dims", "Permute the tensor so that the indexed dims are adjacent.")
    return _gather_elements(input, index_tensors, index_dims, lane_axes)


Pair = tuple[int, int]


def _fold_blocks(
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
    sizes = (tuple(size) for size in (output_size, kernel_size, dilation, padding, stride))
    image = _fold_blocks(blocks, *sizes)  # type: ignore[arg-type]
    return image.reshape(*mesh, *local[:-2], *image.shape[1:])
