"""Moreh's reductions and their gradients: sum, mean, cumsum, norm, abs_pow, clip_grad_norm."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import Any

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.checks import normalize_dims, require_layout
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_like_rule, make_output_spec
from ttmesh.ops.goldens import moreh as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.ops.moreh.moreh_sums import average_dims, sum_dims
from ttmesh.ops.reduction.cumulative import accumulate
from ttmesh.ops.reduction.reduce import Dims, reduced_count
from ttmesh.ops.stages.moreh_stages import moreh_norm_stages, moreh_reduce_stages
from ttmesh.ops.stages.order_stages import scan_stages
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

TILE = 32
tiled_spec = make_like_rule(layout=Layout.TILE)


def _expand_gradient(
    grad: torch.Tensor, shape: Sequence[int], dim: Dims, keepdim: bool, lane_axes: int
) -> torch.Tensor:
    """A reduced gradient expanded to the shape it was reduced from; a view."""
    mesh, rank = grad.shape[:lane_axes], len(shape)
    dims = normalize_dims(dim, rank)
    ones = [1 if i in dims else shape[i] for i in range(-rank, 0)]
    return grad.reshape(*mesh, *ones).expand(*mesh, *shape)


def _read_dims(dim: Dims, rank: int) -> tuple[int, ...]:
    """The dims of a reduction as negative dims; moreh's reductions accept only nonnegative dims."""
    for position in () if dim is None else (dim,) if isinstance(dim, int) else dim:
        wrong = f"dim must be between 0 and 8. Invalid dimension value: {position}. Expected a value between 0 and 7."
        require(position >= 0, wrong, f"a dim in [0, {rank - 1}]", "Count dims from the front.")
        wrong = f"dim must be smaller than input tensor rank {rank}."
        require(position < max(rank, 1), wrong, f"a dim in [0, {rank - 1}]", "Check the rank.")
    return normalize_dims(dim, rank)


def _squeeze_reduced(values: torch.Tensor, dims: Sequence[int], keepdim: bool) -> torch.Tensor:
    """Remove reduced dims, except height and width, which stay with length 1."""
    return values if keepdim else values.squeeze([dim for dim in dims if dim < -2])


def _same_memory_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """The spec with the input's memory; its shards must fit the result."""
    return [make_output_spec(call, inferred[0][0], memory_config=call.specs[0].memory_config)]


# -- sum and mean --------------------------------------------------------------------------------------------------------


@op(
    "ttnn.moreh_sum",
    golden=goldens.sum_,
    out=_same_memory_spec,
    outputs=("output",),
    stages=moreh_reduce_stages("moreh_sum"),
)
def moreh_sum(input: torch.Tensor, dim: Dims, keepdim: bool, lane_axes: int) -> torch.Tensor:
    """The sum over one dim, several or all."""
    widened = input if input.is_floating_point() else input.long()
    dims = _read_dims(dim, input.dim() - lane_axes)
    if dims and fpu.is_emulated(widened):
        return _squeeze_reduced(sum_dims(widened, dims), dims, keepdim)
    return _squeeze_reduced(widened.sum(dims, keepdim=True) if dims else widened, dims, keepdim)


def _check_sum_backward(call: Call) -> None:
    wrong = "moreh_sum_backward needs the input's shape"
    require(call["input"] is not None or call["keepdim"], wrong, "input=", "Pass input=, or keepdim=True.")
    if call["input"] is not None and not call["keepdim"]:
        rank, given = len(call["input"].shape), len(call.specs[0].shape)
        removed = [dim for dim in normalize_dims(call["dim"], rank) if dim < -2]
        wrong = f"expected_rank {rank - len(removed)} == rank {given}"
        require(given == rank - len(removed), wrong, "height and width kept with length 1", "Reshape the gradient.")


@op(
    "ttnn.moreh_sum_backward",
    golden=goldens.sum_backward,
    check=_check_sum_backward,
    out=tiled_spec,
    outputs=("input_grad",),
)
def moreh_sum_backward(
    output_grad: torch.Tensor, input: torch.Tensor | None, dim: Dims, keepdim: bool, lane_axes: int
) -> torch.Tensor:
    """The gradient of a sum: the output's, expanded to the input's shape."""
    source = output_grad if input is None else input
    return _expand_gradient(output_grad, source.shape[lane_axes:], dim, keepdim, lane_axes)


def _mean(values: torch.Tensor, dim: Dims, keepdim: bool, lane_axes: int) -> torch.Tensor:
    dims = _read_dims(dim, values.dim() - lane_axes)
    averaged = average_dims(values, dims) if dims else values.float()
    return _squeeze_reduced(averaged, dims, keepdim)


def _check_mean(call: Call) -> None:
    require(call["divisor"] is None, "divisor not supported yet.", "divisor=None", "Divide the sum by it afterwards.")
    _read_dims(call["dim"], len(call.specs[0].shape))


@op(
    "ttnn.moreh_mean",
    golden=goldens.mean,
    check=_check_mean,
    out=_same_memory_spec,
    outputs=("output",),
    stages=moreh_reduce_stages("moreh_mean"),
)
def moreh_mean(input: torch.Tensor, dim: Dims, keepdim: bool, lane_axes: int) -> torch.Tensor:
    """The mean over one dim, several or all."""
    return _mean(input, dim, keepdim, lane_axes)


def _mean_backward(
    grad: torch.Tensor, dim: Dims, keepdim: bool, shape: Sequence[int] | None, lane_axes: int
) -> torch.Tensor:
    input_shape = tuple(grad.shape[lane_axes:] if shape is None else shape)
    expanded = _expand_gradient(grad, input_shape, dim, keepdim, lane_axes)
    return expanded.float() / reduced_count(expanded, normalize_dims(dim, len(input_shape)))


_MEAN_BACKWARD = device_operation("ttnn.moreh_mean_backward", out=tiled_spec, outputs=("input_grad",))(
    lambda output_grad, dim, keepdim, shape, lane_axes: _mean_backward(output_grad, dim, keepdim, shape, lane_axes)
)


@composite("ttnn.moreh_mean_backward", golden=goldens.mean_backward)
def moreh_mean_backward(
    output_grad: Tensor,
    dim: Dims,
    keepdim: bool,
    input_grad_shape: Sequence[int] | None,
    input_grad: Tensor | None,
    memory_config: MemoryConfig | None,
) -> Any:
    """The gradient of a mean: the output's divided by the count, expanded to the input's shape."""
    shape = input_grad.shape if input_grad_shape is None and input_grad is not None else input_grad_shape
    arguments = {
        "output_grad": output_grad,
        "dim": dim,
        "keepdim": keepdim,
        "shape": None if shape is None else tuple(shape),
        "input_grad": input_grad,
        "memory_config": memory_config,
    }
    return _MEAN_BACKWARD(**arguments)


# -- cumsum --------------------------------------------------------------------------------------------------------------


@op(
    "ttnn.moreh_cumsum",
    golden=goldens.cumsum,
    out=tiled_spec,
    outputs=("output",),
    stages=scan_stages("sum"),
)
def moreh_cumsum(input: torch.Tensor, dim: int, lane_axes: int) -> torch.Tensor:
    """Cumulative sum along a dim."""
    return accumulate(input, normalize_dims(dim, input.dim() - lane_axes)[0], False, torch.cumsum)


@op(
    "ttnn.moreh_cumsum_backward",
    golden=goldens.cumsum_backward,
    out=tiled_spec,
    outputs=("input_grad",),
    stages=scan_stages("sum", backwards=True),
)
def moreh_cumsum_backward(output_grad: torch.Tensor, dim: int, lane_axes: int) -> torch.Tensor:
    """The gradient of a cumulative sum: the cumulative sum from the other end."""
    return accumulate(output_grad, normalize_dims(dim, output_grad.dim() - lane_axes)[0], True, torch.cumsum)


# -- norm ----------------------------------------------------------------------------------------------------------------


@op(
    "ttnn.moreh_abs_pow",
    golden=goldens.abs_pow,
    out=tiled_spec,
    outputs=("output",),
)
def moreh_abs_pow(input: torch.Tensor, p: float) -> torch.Tensor:
    """The absolute value to a power."""
    return input.float().abs() ** p


def _norm(values: torch.Tensor, p: float, dims: tuple[int, ...]) -> torch.Tensor:
    """The p-norm along dims, which stay with length 1."""
    magnitude = values.float().abs()
    if not dims:
        return (magnitude != 0).float() if p == 0 else magnitude
    if p == 0:
        return (magnitude != 0).float().sum(dims, keepdim=True)
    if p == float("inf"):
        return magnitude.amax(dims, keepdim=True)
    if p == float("-inf"):
        return magnitude.amin(dims, keepdim=True)
    powers = fpu.keep_in_tensor(magnitude**p)
    return fpu.keep_in_tensor(sum_dims(powers, dims)) ** (1.0 / p)


def _norm_programs(call: Call) -> tuple[Hashable, ...]:
    """Powers, a sum per dim, and the root."""
    spec = call.specs[0]
    dims = _read_dims(call["dim"], len(spec.shape))
    plain = call["p"] not in (0, float("inf"), float("-inf")) and bool(dims)
    steps = ("power", *dims, "root") if plain else (0,)
    return tuple((call.name, step, spec, call["p"]) for step in steps)


@op(
    "ttnn.moreh_norm",
    golden=goldens.norm,
    out=tiled_spec,
    outputs=("output",),
    programs=_norm_programs,
    stages=moreh_norm_stages,
)
def moreh_norm(input: torch.Tensor, p: float, dim: Dims, keepdim: bool, lane_axes: int) -> torch.Tensor:
    """The p-norm over one dim, several or all."""
    dims = _read_dims(dim, input.dim() - lane_axes)
    return _squeeze_reduced(_norm(input, p, dims), dims, keepdim)


def _norm_backward(
    values: torch.Tensor,
    output: torch.Tensor,
    grad: torch.Tensor,
    p: float,
    dim: Dims,
    keepdim: bool,
    lane_axes: int,
) -> torch.Tensor:
    """d|x|_p = sign(x) |x|^(p-1) / |x|_p^(p-1), 0 where the norm is 0."""
    shape = values.shape[lane_axes:]
    x = values.float()
    norm, upstream = (_expand_gradient(tensor.float(), shape, dim, keepdim, lane_axes) for tensor in (output, grad))
    if p == 0:
        return torch.zeros_like(x)
    if abs(p) == float("inf"):
        return torch.where(x.abs() == norm, torch.sign(x) * upstream, 0.0)
    slope = torch.sign(x) * x.abs() ** (p - 1) / norm ** (p - 1)
    return torch.where(norm == 0, 0.0, slope * upstream)


@op("ttnn.moreh_norm_backward", golden=goldens.norm_backward, out=tiled_spec, outputs=("input_grad",))
def moreh_norm_backward(
    input: torch.Tensor,
    output: torch.Tensor,
    output_grad: torch.Tensor,
    p: float,
    dim: Dims,
    keepdim: bool,
    lane_axes: int,
) -> torch.Tensor:
    """The gradient of a p-norm."""
    return _norm_backward(input, output, output_grad, p, dim, keepdim, lane_axes)


# -- clip_grad_norm ------------------------------------------------------------------------------------------------------


def _compute_total_norm(
    inputs: Sequence[torch.Tensor], norm_type: float, shape: tuple[int, ...], lane_axes: int
) -> torch.Tensor:
    """The norm of all tensors concatenated into one vector, in a shape of one element.

    TT-NN adds the tiles of a tensor first, element by element, and then the elements of that one tile.
    """
    norms = [_norm_by_tiles(tensor, norm_type, lane_axes) for tensor in inputs]
    total = _norm(torch.cat(align_mesh_dims(norms, lane_axes), -1), norm_type, (-1,))
    return total.reshape(*total.shape[:lane_axes], *shape)


def _norm_by_tiles(values: torch.Tensor, p: float, lane_axes: int) -> torch.Tensor:
    lanes = values.shape[:lane_axes]
    if abs(p) == float("inf") or p == 0:
        return _norm(values.reshape(*lanes, -1), p, (-1,))
    powers = fpu.keep(values.float().abs() ** p)
    padded = torch.nn.functional.pad(powers, (0, -powers.shape[-1] % TILE, 0, -powers.shape[-2] % TILE))
    tiles = torch.unflatten(torch.unflatten(padded, -1, (-1, TILE)), -3, (-1, TILE)).transpose(-3, -2)
    one = fpu.add_up_through_l1(tiles.reshape(*lanes, -1, TILE * TILE), -2)
    return fpu.total(one.reshape(*lanes, TILE, TILE), (-2, -1)).reshape(*lanes, 1) ** (1.0 / p)


_TOTAL_NORM = device_operation("ttnn.moreh_clip_grad_norm", out=tiled_spec, outputs=("total_norm",))(
    lambda inputs, norm_type, shape, lane_axes: _compute_total_norm(inputs, norm_type, shape, lane_axes)
)
_SCALE = device_operation("ttnn.moreh_clip_grad_norm", out=make_like_rule(0), writes="gradient")(
    lambda gradient, total, max_norm: _scale_gradient(gradient, total, max_norm)
)


def _scale_gradient(gradient: torch.Tensor, total: torch.Tensor, max_norm: float) -> torch.Tensor:
    factor = (max_norm / (total.float() + 1e-6)).clamp(max=1.0)
    return gradient.float() * factor.reshape(*factor.shape[:-1], *[1] * (gradient.dim() - factor.dim() + 1))


@composite(
    "ttnn.moreh_clip_grad_norm",
    golden=goldens.clip_grad_norm,
)
def moreh_clip_grad_norm(
    inputs: Sequence[Tensor],
    max_norm: float,
    norm_type: float,
    error_if_nonfinite: bool,
    total_norm: Tensor | None,
    memory_config: MemoryConfig | None,
    compute_kernel_config: Any,
) -> Any:
    """Scale gradients in place so that their total norm is at most max_norm; returns the norm before scaling."""
    for gradient in inputs:
        require_layout(gradient, Layout.TILE, "moreh_clip_grad_norm_step1 input only supports TILE layout.")
        wrong = "moreh_clip_grad_norm_step1 input only supports specific data types. [BFLOAT16]"
        require(gradient.dtype is DataType.BFLOAT16, wrong, "bfloat16", "Convert it with ttnn.typecast.")
    for gradient in inputs:
        rank = len(gradient.shape)
        wrong = f"ShapeBase[] index out of range. {rank} not in [-4, {rank})"
        require(rank >= 4, wrong, "gradients of four dims", "Reshape them with ttnn.unsqueeze_to_4D.")
    given = () if total_norm is None else tuple(total_norm.shape)
    arguments = {
        "inputs": list(inputs),
        "norm_type": norm_type,
        "shape": given if prod(given) == 1 and given else (1, 1),
        "total_norm": total_norm,
        "memory_config": memory_config,
        "compute_kernel_config": compute_kernel_config,
    }
    total = _TOTAL_NORM(**arguments)
    if error_if_nonfinite:
        values = total.cpu().lanes.float()
        order = f"The total norm of order {norm_type}"
        wrong = f"{order} for gradients from `parameters` is non-finite, so it cannot be clipped."
        require(
            bool(torch.isfinite(values).all()),
            wrong,
            "finite gradients",
            "Look for NaN and infinities in the gradients.",
        )
    for gradient in inputs:
        _SCALE(gradient=gradient, total=total, max_norm=max_norm, compute_kernel_config=compute_kernel_config)
    return total
