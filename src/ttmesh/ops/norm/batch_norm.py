"""Batch norm, with running statistics updated in place while training."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.checks import require_dtype, require_interleaved, require_layout
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.device_programs import like_written
from ttmesh.ops.goldens import normalization as goldens
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def _check(call: Call) -> None:
    x = call["input"].spec
    require_layout(x, Layout.TILE, "Input tensor must be must be tilized")
    if len(x.shape) != 4:
        raise ShapeError(
            f"batch_norm got an input of shape {x.shape} in {x.layout}",
            expected="N, C, H, W in TILE layout",
            fix="Convert it with ttnn.reshape and ttnn.to_layout.",
        )
    shown = {"running_mean": "batch_mean", "running_var": "batch_var"}
    for name in ("running_mean", "running_var", "weight", "bias"):
        if call[name] is not None and not call["training"]:
            called = shown.get(name, name)
            require_layout(call[name], Layout.TILE, f"{called} tensor must be tilized")
            require_interleaved(call[name].spec, f"{called} tensor must be interleaved")
    for name in ("running_mean", "running_var", "weight", "bias"):
        if call[name] is not None:
            wrong = f"batch_norm only supports bfloat16, float32. Got: DataType::{call[name].dtype.name}"
            require_dtype(call[name], (DataType.BFLOAT16, DataType.FLOAT32), wrong)
        _check_channels(name, call[name], x)
    if not call["training"] and (call["running_mean"] is None or call["running_var"] is None):
        raise MeshError(
            "running_mean and running_var must be defined in evaluation mode",
            expected="both running tensors, or training=True",
            fix="Pass both, or training=True.",
        )
    require_interleaved(x, "Input tensor must be interleaved")


def _check_channels(name: str, tensor: Tensor | None, x: TensorSpec) -> None:
    if tensor is not None and tensor.padded_shape[1] != x.padded_shape[1]:
        raise ShapeError(
            f"{name}_shape[1] must be the same as input's channel size.; it has shape {tensor.shape}",
            expected=f"[1, {x.shape[1]}, 1, 1]",
            fix="Give one value per channel.",
        )


def _moments(x: Lanes) -> tuple[Lanes, Lanes]:
    dims = (-4, -2, -1)
    return fpu.mean(x, dims, keepdim=True), x.var(dims, unbiased=False, keepdim=True)


def _norm_program(call: Call) -> tuple[Hashable, ...]:
    """In training the batch's statistics are used, so the running ones are not part of this program."""
    names = (
        ("input", "weight", "bias") if call["training"] else ("input", "running_mean", "running_var", "weight", "bias")
    )
    specs = tuple(None if call[name] is None else call[name].spec for name in names)
    return (("batch_norm", call["training"], specs, call["memory_config"]),)


@device_operation("ttnn.batch_norm", check=_check, programs=_norm_program, runtime=("eps",))
def _normalise(
    input: Lanes,
    running_mean: Lanes | None,
    running_var: Lanes | None,
    training: bool,
    eps: float,
    weight: Lanes | None,
    bias: Lanes | None,
) -> Lanes:
    x = input.float()
    if training or running_mean is None or running_var is None:
        mean, var = _moments(x)
    else:
        mean, var = running_mean.float(), running_var.float()
    out = (x - mean) * torch.rsqrt(var + eps)
    out = out if weight is None else out * weight.float()
    return out if bias is None else out + bias.float()


def _statistics_program(call: Call) -> tuple[Hashable, ...]:
    """One program updates both statistics; its key holds the momentum and which of them exist."""
    present = call["present"]
    return (("running_statistics", call["momentum"], *present, call.specs),) if call["moment"] == present[0] else ()


@device_operation("ttnn.batch_norm running statistics", out=like_written, programs=_statistics_program, writes="old")
def _update_statistic(old: Lanes, input: Lanes, momentum: float, moment: int) -> Lanes:
    return (1 - momentum) * old.float() + momentum * _moments(input.float())[moment]


@composite("ttnn.batch_norm", golden=goldens.batch_norm)
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    eps: float,
    momentum: float,
    weight: Tensor | None,
    bias: Tensor | None,
    output: Tensor | None,
    memory_config: MemoryConfig | None,
    compute_kernel_config: Any,
) -> Tensor:
    """Channels normalized with the statistics of the batch (training) or the running ones."""
    running = (running_mean, running_var)
    wrong = f"batch_norm only supports bfloat16, float32. Got: DataType::{input.dtype.name}"
    bare = training and all(tensor is None for tensor in (running_mean, running_var, weight, bias))
    if bare:
        require_dtype(input, (DataType.BFLOAT16, DataType.FLOAT32), wrong)
    if training and len(input.shape) == 4:
        for name, tensor in zip(("running_mean", "running_var"), running, strict=True):
            if tensor is not None:
                wrong = f"batch_norm only supports bfloat16, float32. Got: DataType::{tensor.dtype.name}"
                require_dtype(tensor, (DataType.BFLOAT16, DataType.FLOAT32), wrong)
            _check_channels(name, tensor, input.spec)
    result: Tensor = _normalise(
        input=input,
        running_mean=None if training else running_mean,
        running_var=None if training else running_var,
        training=training,
        eps=eps,
        weight=weight,
        bias=bias,
        output_tensor=output,
        memory_config=memory_config,
        compute_kernel_config=compute_kernel_config,
    )
    if training:
        existing = [(moment, old) for moment, old in enumerate(running) if old is not None]
        present = tuple(moment for moment, _ in existing)
        for moment, old in existing:
            _update_statistic(
                old=old,
                input=input,
                momentum=momentum,
                moment=moment,
                present=present,
                compute_kernel_config=compute_kernel_config,
            )
    return result
