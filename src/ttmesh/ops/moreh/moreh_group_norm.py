"""Moreh's group norm and its gradients."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor as Lanes

from ttmesh.base.errors import ShapeError
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import moreh as goldens
from ttmesh.ops.lane_functions.fpu_rows import fpu_moments
from ttmesh.ops.moreh.moreh_sums import sum_channels
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Optional = list[Lanes | None]
FORWARD = ("output", "mean", "rstd")
BACKWARD = ("input_grad", "gamma_grad", "beta_grad")


def _split_groups(x: Lanes, groups: int, lane_axes: int) -> Lanes:
    """[*mesh, batch, channels, h, w] → [*mesh, batch, groups, values]."""
    return torch.unflatten(x.float(), lane_axes + 1, (groups, -1)).flatten(lane_axes + 2)


def _expand_channels(parameter: Lanes, lane_axes: int) -> Lanes:
    """gamma or beta [1, 1, 1, channels] as [*mesh, 1, channels, 1, 1]."""
    return parameter.float().flatten(lane_axes)[..., None, :, None, None]


def _forward(
    x: Lanes, groups: int, eps: float, gamma: Lanes | None, beta: Lanes | None, required: Sequence[bool], lane_axes: int
) -> Optional:
    flat = _split_groups(x, groups, lane_axes)
    if fpu.is_emulated(flat):
        mean, rstd = fpu_moments(flat, eps)
    else:
        mean, rstd = flat.mean(-1), torch.rsqrt(flat.var(-1, unbiased=False) + eps)
    out = ((flat - mean[..., None]) * rstd[..., None]).reshape(x.shape)
    out = out if gamma is None else out * _expand_channels(gamma, lane_axes)
    out = out if beta is None else out + _expand_channels(beta, lane_axes)
    statistics = [value[..., None, None, :, :] for value in (mean, rstd)]  # [1, 1, batch, groups]
    return [value if is_required else None for value, is_required in zip((out, *statistics), required, strict=True)]


def _make_spec_rule(names: Sequence[str]) -> Any:
    def rule(call: Call, inferred: Inferred) -> list[TensorSpec]:
        required = [name for name, is_required in zip(names, call["are_required_outputs"], strict=True) if is_required]
        specs = []
        for name, (shape, _) in zip(required, inferred, strict=True):
            output, memory_config = call[name], call[f"{name}_memory_config"]
            specs.append(
                output.spec
                if output is not None
                else make_output_spec(call, shape, memory_config=memory_config, result=9)
            )
        return specs

    return rule


@op("ttnn.moreh_group_norm", golden=goldens.group_norm, out=_make_spec_rule(FORWARD), outputs=FORWARD)
def moreh_group_norm(
    input: Lanes,
    num_groups: int,
    eps: float,
    gamma: Lanes | None,
    beta: Lanes | None,
    are_required_outputs: Sequence[bool],
    lane_axes: int,
) -> Optional:
    """Group norm of [batch, channels, h, w]; optionally with mean and 1/deviation as [1, 1, batch, groups]."""
    return _forward(input, num_groups, eps, gamma, beta, are_required_outputs, lane_axes)


def _backward(
    grad: Lanes,
    x: Lanes,
    mean: Lanes,
    rstd: Lanes,
    groups: int,
    gamma: Lanes | None,
    required: Sequence[bool],
    lane_axes: int,
) -> Optional:
    batch, channels = x.shape[lane_axes], x.shape[lane_axes + 1]
    center, scale = (
        torch.unflatten(value.float().flatten(lane_axes), -1, (batch, groups))[..., None] for value in (mean, rstd)
    )
    y = (_split_groups(x, groups, lane_axes) - center) * scale
    inner = grad.float() if gamma is None else grad.float() * _expand_channels(gamma, lane_axes)
    dy = _split_groups(inner, groups, lane_axes)
    dx = scale * (dy - fpu.mean(dy, (-1,), keepdim=True) - y * fpu.mean(dy * y, (-1,), keepdim=True))
    outer = grad.float()
    scaled = outer * y.reshape(*y.shape[:lane_axes], *x.shape[lane_axes:])
    sums = (sum_channels(values, lane_axes) for values in (scaled, outer))
    rows = [value.reshape(*value.shape[:lane_axes], 1, 1, 1, channels) for value in sums]
    results = (dx.reshape(*dx.shape[:lane_axes], *x.shape[lane_axes:]), *rows)
    return [value if is_required else None for value, is_required in zip(results, required, strict=True)]


def _backward_programs(call: Call) -> tuple[Hashable, ...]:
    """One program for the input's gradient, one for those of gamma and beta."""
    of_input, *of_parameters = call["are_required_outputs"]
    kinds = [kind for kind, needed in (("input", of_input), ("parameters", any(of_parameters))) if needed]
    return tuple((call.name, kind, call.specs, call["num_groups"]) for kind in kinds)


def _check_backward(call: Call) -> None:
    rows = call["input"].shape[0] * call["num_groups"]
    for name in ("mean", "rstd"):
        if call[name].shape.volume() != rows:
            raise ShapeError(
                f"{name} must have logical volume {rows}. Got {call[name].shape.volume()}.",
                expected=f"{rows} values, batch x groups",
                fix="Pass the statistics of the forward call.",
            )


@op(
    "ttnn.moreh_group_norm_backward",
    golden=goldens.group_norm_backward,
    out=_make_spec_rule(BACKWARD),
    outputs=BACKWARD,
    check=_check_backward,
    programs=_backward_programs,
)
def moreh_group_norm_backward(
    output_grad: Lanes,
    input: Lanes,
    mean: Lanes,
    rstd: Lanes,
    num_groups: int,
    gamma: Lanes | None,
    are_required_outputs: Sequence[bool],
    lane_axes: int,
) -> Optional:
    """The requested gradients of the input, gamma and beta."""
    return _backward(output_grad, input, mean, rstd, num_groups, gamma, are_required_outputs, lane_axes)
