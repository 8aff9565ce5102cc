"""Operations that training needs and TT-NN does not have; they are launched like all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ttmesh.base.dtypes import float32
from ttmesh.ops.catalogue.definition import device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.lane_functions.gemm import matmul_lanes
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.tensor.calls.gate import DeviceOperation
from ttmesh.tensor.calls.operation import Call, SpecRule
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec


def define_local_op(
    name: str,
    lane: Callable[..., Any],
    out: SpecRule,
    *,
    runtime: Sequence[str] = (),
    outputs: Sequence[str] | None = None,
) -> DeviceOperation:
    """Make an operation of a lane function, with this name; its arguments are passed by keyword."""
    return device_operation(f"ttmesh.{name}", out=out, runtime=runtime, outputs=outputs)(lane)


def keep_format(position: int) -> SpecRule:
    """Spec rule: results in DRAM with the dtype and layout of the input at this position and the computed shape."""

    def rule(call: Call, inferred: Inferred) -> list[TensorSpec]:
        source = call.specs[position]
        return [
            TensorSpec(shape, source.dtype, source.layout, tile=source.tile, memory_config=DRAM_MEMORY_CONFIG)
            for shape, _ in inferred
        ]

    return rule


def keep_specs(*positions: int) -> SpecRule:
    """Spec rule: one result per position, with the spec of the input at that position."""
    return lambda call, inferred: [call.specs[position] for position in positions]


def _weight_grad(x: torch.Tensor, grad: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """xᵀ · grad on each chip, all leading dims folded into rows."""
    x, grad = align_mesh_dims([x, grad], lane_axes)
    lanes = x.shape[:lane_axes]
    rows, columns = x.reshape(*lanes, -1, x.shape[-1]), grad.reshape(*lanes, -1, grad.shape[-1])
    return matmul_lanes(rows.mT, columns, lane_axes)


def _weight_grad_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    source = call.specs[0]
    ((shape, _),) = inferred
    return [TensorSpec(shape, source.dtype, source.layout, memory_config=DRAM_MEMORY_CONFIG)]


weight_grad = define_local_op("weight_grad", _weight_grad, _weight_grad_spec)


def _sum_to(grad: torch.Tensor, shape: tuple[int, ...], lane_axes: int) -> torch.Tensor:
    """The gradient summed over the dims that were broadcast, on each chip."""
    padded = (1,) * (grad.dim() - lane_axes - len(shape)) + tuple(shape)
    spare = len(padded) - (grad.dim() - lane_axes)  # dims of length 1 that the result no longer had
    local_shape = (1,) * spare + tuple(grad.shape[lane_axes:])
    dims = [
        lane_axes + i - spare for i, (have, want) in enumerate(zip(local_shape, padded, strict=True)) if have != want
    ]
    total = grad.float().sum(dims, keepdim=True) if dims else grad
    return total.reshape(*grad.shape[:lane_axes], *shape)


sum_to = define_local_op("sum_to", _sum_to, keep_format(0))


def _constant(like: torch.Tensor, value: float) -> torch.Tensor:
    """A tensor of this value."""
    return torch.full_like(like, value)


constant = define_local_op("constant", _constant, keep_specs(0), runtime=("value",))


def _square_sum(x: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """The sum of squares on each chip, as a 1x1 tensor."""
    return x.float().square().sum(tuple(range(lane_axes, x.dim()))).reshape(*x.shape[:lane_axes], 1, 1)


def _scalar_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    from_spec = call.specs[0]
    return [TensorSpec((1, 1), float32, from_spec.layout, memory_config=DRAM_MEMORY_CONFIG)]


square_sum = define_local_op("square_sum", _square_sum, _scalar_spec)


def _scale_lane(x: torch.Tensor, factor: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """A tensor times a 1x1 tensor."""
    shape = (*factor.shape[:lane_axes], *[1] * (x.dim() - lane_axes))
    return x.float() * factor.reshape(shape)


scale_by = define_local_op("scale_by", _scale_lane, keep_specs(0))
