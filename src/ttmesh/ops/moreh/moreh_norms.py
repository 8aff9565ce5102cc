"""Moreh's layer and group norms with their gradients; statistics are written to the caller's tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor as Lanes

from ttmesh.base.errors import require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.device_programs import like_written, no_programs
from ttmesh.ops.goldens import moreh as goldens
from ttmesh.ops.moreh.moreh_sums import sum_channels
from ttmesh.ops.requirements.moreh_operands import MOREH_OPERANDS
from ttmesh.ops.requirements.operand_rules import check_operands
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.tensor import Tensor

# A norm is described by the local shape it works on: rows of `count` values that are normalised together.
# Layer norm: (outer, inner). Group norm: (batch · groups, channels per group · pixels).

TILE = 32


def _to_rows(x: Lanes, rows: int, lane_axes: int) -> Lanes:
    return x.float().reshape(*x.shape[:lane_axes], rows, -1)


def _moments(x: Lanes, rows: int, eps: float, lane_axes: int) -> tuple[Lanes, Lanes]:
    flat = _to_rows(x, rows, lane_axes)
    if fpu.is_emulated(flat):
        mean = _mean_by_tiles(flat)
        centred = fpu.keep(flat - mean[..., None])
        return mean, torch.rsqrt(_mean_by_tiles(fpu.keep(centred.square())) + eps)
    return flat.mean(-1), torch.rsqrt(flat.var(-1, unbiased=False) + eps)


def _mean_by_tiles(rows: Lanes) -> Lanes:
    """TT-NN adds the tiles of a row's elements first, one to the other, and then the elements of that one."""
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[-1] % (TILE * TILE)))
    one = fpu.add_up_through_l1(torch.unflatten(padded, -1, (-1, TILE * TILE)), -2).squeeze(-2)
    return fpu.keep(fpu.total(torch.unflatten(one, -1, (TILE, TILE)), (-2, -1), scaler=1 / max(1, rows.shape[-1])))


def _expand_parameter(parameter: Lanes, x: Lanes, layer: bool, lane_axes: int) -> Lanes:
    """gamma or beta reshaped to broadcast over x: along the last dims (layer norm) or dim 1 (group norm)."""
    local = x.dim() - lane_axes
    flat = parameter.float().flatten(lane_axes)
    if layer:
        inner, dims = flat.shape[-1], 0
        while math.prod(x.shape[x.dim() - dims :]) < inner:
            dims += 1
        return flat.reshape(*flat.shape[:-1], *[1] * (local - dims), *x.shape[x.dim() - dims :])
    return flat.reshape(*flat.shape[:-1], 1, -1, *[1] * (local - 2))


@device_operation("ttnn.moreh_layer_norm", runtime=("eps",))
def _normalise(
    input: Lanes, gamma: Lanes | None, beta: Lanes | None, rows: int, layer: bool, eps: float, lane_axes: int
) -> Lanes:
    mean, rstd = _moments(input, rows, eps, lane_axes)
    out = ((_to_rows(input, rows, lane_axes) - mean[..., None]) * rstd[..., None]).reshape(input.shape)
    out = out if gamma is None else out * _expand_parameter(gamma, input, layer, lane_axes)
    return out if beta is None else out + _expand_parameter(beta, input, layer, lane_axes)


@device_operation(
    "ttnn.moreh_norm statistics", out=like_written, programs=no_programs, writes="output", runtime=("eps",)
)
def _statistic(output: Lanes, input: Lanes, rows: int, index: int, eps: float, lane_axes: int) -> Lanes:
    value = _moments(input, rows, eps, lane_axes)[index]
    return value.reshape(*value.shape[:lane_axes], *output.shape[lane_axes:])


@device_operation("ttnn.moreh_norm_backward input")
def _input_grad(
    input: Lanes,
    output_grad: Lanes,
    mean: Lanes,
    rstd: Lanes,
    gamma: Lanes | None,
    rows: int,
    layer: bool,
    lane_axes: int,
) -> Lanes:
    grad = output_grad.float()
    if gamma is not None:
        grad = grad * _expand_parameter(gamma, input, layer, lane_axes)
    dy = _to_rows(grad, rows, lane_axes)
    scale = rstd.float().flatten(lane_axes)[..., None]
    y = (_to_rows(input, rows, lane_axes) - mean.float().flatten(lane_axes)[..., None]) * scale
    dx = scale * (dy - fpu.mean(dy, (-1,), keepdim=True) - y * fpu.mean(dy * y, (-1,), keepdim=True))
    return dx.reshape(*dx.shape[:lane_axes], *input.shape[lane_axes:])


def _parameter_grad(
    output: Lanes, input: Lanes, output_grad: Lanes, mean: Lanes, rstd: Lanes, rows: int, layer: bool, scale: bool,
    lane_axes: int,
) -> Lanes:  # fmt: skip
    """Sum over all dims but the parameter's."""
    grad = output_grad.float()
    if scale:
        y = _to_rows(input, rows, lane_axes) - mean.float().flatten(lane_axes)[..., None]
        y = y * rstd.float().flatten(lane_axes)[..., None]
        grad = grad * y.reshape(*y.shape[:lane_axes], *input.shape[lane_axes:])
    if layer:
        by_rows = _to_rows(grad, rows, lane_axes)
        tiles = torch.unflatten(torch.nn.functional.pad(by_rows, (0, 0, 0, -rows % TILE)), -2, (-1, TILE))
        total = fpu.total(fpu.add_up_through_l1(fpu.keep(tiles), -3).squeeze(-3), (-2,))  # then the rows of one tile
    else:
        total = sum_channels(grad, lane_axes)
    return total.reshape(*total.shape[:lane_axes], *output.shape[lane_axes:])


_write_parameter_grad = device_operation(
    "ttnn.moreh_norm_backward parameters", out=like_written, programs=no_programs, writes="output"
)(_parameter_grad)


def _run_norm(
    input: Tensor, gamma: Tensor | None, beta: Tensor | None, rows: int, layer: bool, eps: float,
    outputs: Sequence[Tensor | None], memory_config: MemoryConfig | None, compute_kernel_config: Any,
) -> list[Tensor | None]:  # fmt: skip
    output, mean, rstd = outputs
    result = _normalise(
        input=input, gamma=gamma, beta=beta, rows=rows, layer=layer, eps=eps, output_tensor=output,
        memory_config=memory_config, compute_kernel_config=compute_kernel_config,
    )  # fmt: skip
    for index, statistic in enumerate((mean, rstd)):
        if statistic is not None:
            _statistic(
                output=statistic,
                input=input,
                rows=rows,
                index=index,
                eps=eps,
                compute_kernel_config=compute_kernel_config,
            )
    return [result, mean, rstd]


def _count_rows(input: Tensor, normalized_dims: int) -> int:
    return math.prod(input.shape[: len(input.shape) - normalized_dims])


@composite("ttnn.moreh_layer_norm", golden=goldens.layer_norm)
def moreh_layer_norm(
    input: Tensor,
    normalized_dims: int,
    eps: float,
    gamma: Tensor | None,
    beta: Tensor | None,
    output: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    memory_config: MemoryConfig | None,
    compute_kernel_config: Any,
) -> list[Tensor | None]:
    """Layer norm over the last dims; mean and 1/deviation are written if tensors for them are given."""
    rows = _count_rows(input, normalized_dims)
    return _run_norm(input, gamma, beta, rows, True, eps, (output, mean, rstd), memory_config, compute_kernel_config)


def _to_matrix(shape: Sequence[int]) -> tuple[int, ...]:
    return (*[1] * (2 - len(shape)), *shape)


def _check_backward(operands: Mapping[str, Tensor | None], normalized_dims: int) -> None:
    """Formats and layouts first, then the shapes of the gradient, the statistics and gamma."""
    name = "input" if operands["input_grad"] is not None else "parameters"
    check_operands(MOREH_OPERANDS[f"ttnn.moreh_norm_backward {name}"], operands)
    input, grad = operands["input"], operands["output_grad"]
    assert input is not None, "the second argument"
    assert grad is not None, "the first argument"
    wrong = "output_grad and input should have the same logical shape."
    require(tuple(grad.shape) == tuple(input.shape), wrong, f"{input.shape}", "Pass the gradient of the forward call.")
    at = max(len(input.shape) - normalized_dims, 0)
    statistics, parameter = (Shape(_to_matrix(part)) for part in (input.shape[:at], input.shape[at:]))
    for operand, expected in (("mean", statistics), ("rstd", statistics), ("gamma", parameter)):
        given = operands[operand]
        if given is not None:
            wrong = f"{operand} must have logical shape {expected!r}. Got {given.shape!r}."
            same = _to_matrix(given.shape) == tuple(expected)
            require(same, wrong, f"{expected}", "Pass the tensors of the forward call.")


@composite("ttnn.moreh_layer_norm_backward", golden=goldens.layer_norm_backward)
def moreh_layer_norm_backward(
    output_grad: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    normalized_dims: int,
    gamma: Tensor | None,
    input_grad: Tensor | None,
    gamma_grad: Tensor | None,
    beta_grad: Tensor | None,
    memory_config: MemoryConfig | None,
    compute_kernel_config: Any,
) -> list[Tensor | None]:
    """Gradients of the input, of gamma and of beta: those that tensors are given for, as in TT-NN."""
    rows = _count_rows(input, normalized_dims)
    operands = {
        "output_grad": output_grad, "input": input, "mean": mean, "rstd": rstd, "input_grad": input_grad, "gamma": gamma,
        "output": gamma_grad,
    }  # fmt: skip
    if any(one is not None for one in (input_grad, gamma_grad, beta_grad)):
        _check_backward(operands, normalized_dims)
    result = None
    if input_grad is not None:
        result = _input_grad(
            input=input, output_grad=output_grad, mean=mean, rstd=rstd, gamma=gamma, rows=rows, layer=True,
            output_tensor=input_grad, memory_config=memory_config, compute_kernel_config=compute_kernel_config,
        )  # fmt: skip
    for scale, parameter_grad in ((True, gamma_grad), (False, beta_grad)):
        if parameter_grad is not None:
            _write_parameter_grad(
                output=parameter_grad,
                input=input,
                output_grad=output_grad,
                mean=mean,
                rstd=rstd,
                rows=rows,
                layer=True,
                scale=scale,
                compute_kernel_config=compute_kernel_config,
            )
    return [result, gamma_grad, beta_grad]
