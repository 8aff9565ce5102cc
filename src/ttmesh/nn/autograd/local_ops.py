"""Operations of ttmesh's own that training needs and TT-NN has no name for; they go through the same launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ttmesh.base.dtypes import float32
from ttmesh.ops.catalogue.definition import device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.tensor.calls.gate import DeviceOperation
from ttmesh.tensor.calls.launch_op import Call, SpecRule
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec


def local(
    name: str,
    lane: Callable[..., Any],
    out: SpecRule,
    *,
    runtime: Sequence[str] = (),
    outputs: Sequence[str] | None = None,
) -> DeviceOperation:
    """A function that launches a lane function under this name; arguments by keyword."""
    return device_operation(f"ttmesh.{name}", out=out, runtime=runtime, outputs=outputs)(lane)


def shaped_like(position: int) -> SpecRule:
    """One result with the format of the tensor at this position, in DRAM, with the shape that came out."""

    def rule(call: Call, inferred: Inferred) -> list[TensorSpec]:
        source = call.specs[position]
        return [
            TensorSpec(shape, source.dtype, source.layout, tile=source.tile, memory_config=DRAM_MEMORY_CONFIG)
            for shape, _ in inferred
        ]

    return rule


def same_as(*positions: int) -> SpecRule:
    """One result per position, each with that tensor's own spec."""
    return lambda call, inferred: [call.specs[position] for position in positions]


def _weight_grad(x: torch.Tensor, grad: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """xᵀ · grad on each chip, all leading dims folded into rows."""
    x, grad = align_mesh_dims([x, grad], lane_axes)
    lanes = x.shape[:lane_axes]
    rows, columns = x.reshape(*lanes, -1, x.shape[-1]), grad.reshape(*lanes, -1, grad.shape[-1])
    return torch.matmul(rows.transpose(-1, -2), columns)


def _weight_grad_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    source = call.specs[0]
    ((shape, _),) = inferred
    return [TensorSpec(shape, source.dtype, source.layout, memory_config=DRAM_MEMORY_CONFIG)]


weight_grad = local("weight_grad", _weight_grad, _weight_grad_spec)


def _sum_to(grad: torch.Tensor, shape: tuple[int, ...], lane_axes: int) -> torch.Tensor:
    """The gradient summed over the dims that were broadcast, on each chip."""
    padded = (1,) * (grad.dim() - lane_axes - len(shape)) + tuple(shape)
    spare = len(padded) - (grad.dim() - lane_axes)  # dims of length 1 that the result had dropped
    local_shape = (1,) * spare + tuple(grad.shape[lane_axes:])
    dims = [
        lane_axes + i - spare for i, (have, want) in enumerate(zip(local_shape, padded, strict=True)) if have != want
    ]
    total = grad.float().sum(dims, keepdim=True) if dims else grad
    return total.reshape(*grad.shape[:lane_axes], *shape)


sum_to = local("sum_to", _sum_to, shaped_like(0))


def _constant(like: torch.Tensor, value: float) -> torch.Tensor:
    """A tensor of this value."""
    return torch.full_like(like, value)


constant = local("constant", _constant, same_as(0), runtime=("value",))


def _square_sum(x: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The sum of squares on each chip, as a 1x1 tensor."""
    return x.float().square().sum(tuple(range(lane_axes, x.dim()))).reshape(*x.shape[:lane_axes], 1, 1)


def _scalar_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    from_spec = call.specs[0]
    return [TensorSpec((1, 1), float32, from_spec.layout, memory_config=DRAM_MEMORY_CONFIG)]


square_sum = local("square_sum", _square_sum, _scalar_spec)


def _scaled(x: torch.Tensor, factor: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """A tensor times a 1x1 tensor."""
    shape = (*factor.shape[:lane_axes], *[1] * (x.dim() - lane_axes))
    return x.float() * factor.reshape(shape)


scaled = local("scaled", _scaled, same_as(0))
