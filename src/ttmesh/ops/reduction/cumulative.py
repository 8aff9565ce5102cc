"""cumsum and cumprod along a dim, integral images, and the exponential moving average."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import normalize_dim, refuse_in_order, require_dtype, require_tiles
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import make_like_rule
from ttmesh.ops.goldens import reduction as goldens
from ttmesh.ops.stages.order_stages import scan_stages
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Scan = Callable[[torch.Tensor, int], torch.Tensor]


def accumulate(values: torch.Tensor, dim: int, reverse: bool, scan: Scan) -> torch.Tensor:
    """A cumulative reduction from either end, accumulated in float32 (integers in int64)."""
    widened = values.float() if values.is_floating_point() else values.long()
    return scan(widened.flip(dim), dim).flip(dim) if reverse else scan(widened, dim)


def _check_permuted(spec: TensorSpec, dim: int) -> None:
    """Shards are refused; first where they do not fit the tensor with the dim in front."""
    if not spec.memory_config.is_sharded() or not spec.shape or len(spec.shape) > 4:
        return
    shape = [*[1] * (4 - len(spec.shape)), *spec.shape]
    shape[0], shape[dim] = shape[dim], shape[0]
    if dim and not (spec.dtype is DataType.BFLOAT16 and dim > 1):
        with refuse_in_order():
            TensorSpec(shape, spec.dtype, spec.layout, memory_config=spec.memory_config)
    wrong = "ttnn accumulation operations (cumprod, cumsum) do not support sharded input tensors."
    require(False, wrong, "interleaved memory", "Convert it with ttnn.to_memory_config.")


def _check_scan(call: Call) -> None:
    rank, dim = len(call.specs[0].shape), call["dim"]
    normalize_dim(dim, rank, f"The requested accumulation axis is {dim}, while the input tensor has rank {rank}.")
    _check_permuted(call.specs[0], dim % rank + 4 - rank if rank else 0)
    given = call.outputs[0] if call.outputs else None
    if given is not None:
        wrong = (
            f"Shape mismatch: input tensor shape {call.specs[0].shape!r} does not match output tensor shape "
            f"{given.shape!r}."
        )
        require(
            tuple(given.shape) == tuple(call.specs[0].shape),
            wrong,
            "equal shapes",
            "Allocate the output with the input's shape.",
        )


@op("ttnn.cumsum", golden=goldens.cumsum, check=_check_scan, stages=scan_stages("sum"), outputs=("out",))
def cumsum(input: torch.Tensor, dim: int, reverse_order: bool, lane_axes: int) -> torch.Tensor:
    """Cumulative sum along a dim."""
    rank = input.dim() - lane_axes
    return accumulate(input, normalize_dim(dim, rank), reverse_order, torch.cumsum) if rank else input


@op("ttnn.cumprod", golden=goldens.cumprod, check=_check_scan, stages=scan_stages("product"), outputs=("out",))
def cumprod(input_tensor: torch.Tensor, dim: int, reverse_order: bool, lane_axes: int) -> torch.Tensor:
    """Cumulative product along a dim."""
    rank = input_tensor.dim() - lane_axes
    return accumulate(input_tensor, normalize_dim(dim, rank), reverse_order, torch.cumprod) if rank else input_tensor


def _check_image(call: Call) -> None:
    spec = call.specs[0]
    wrong = f"intimg expects one image [1, H, W, C], got {spec.shape!r}"
    require(len(spec.shape) == 4 and spec.shape[0] == 1, wrong, "[1, H, W, C]", "Take one image at a time.")
    require_tiles(call, f"only tile layout is supported, Layout::{spec.layout.name} was provided instead")
    taken = spec.dtype in (DataType.BFLOAT16, DataType.FLOAT32)
    wrong = f"only bf16 and fp32 dtypes are supported, DataType::{spec.dtype.name} was provided instead"
    require(taken, wrong, "bfloat16 or float32", "Convert it with ttnn.typecast.")


@op(
    "ttnn.experimental.intimg",
    golden=goldens.intimg,
    check=_check_image,
)
def intimg(input_tensor: torch.Tensor) -> torch.Tensor:
    """The integral image of [1, H, W, C]: every pixel becomes the sum of all pixels above it and to its left."""
    return input_tensor.float().cumsum(-3).cumsum(-2)


def moving_average(values: torch.Tensor, alpha: float) -> torch.Tensor:
    """y[t] = alpha y[t-1] + (1 - alpha) x[t] from y[-1] = 0, along the last dim, in float32."""
    steps = (values.float() * (1 - alpha)).movedim(-1, 0).contiguous()  # makes each step contiguous
    for t in range(1, steps.shape[0]):
        steps[t].add_(steps[t - 1], alpha=alpha)
    return steps.movedim(0, -1)


def _check_ema(call: Call) -> None:
    spec = call.specs[0]
    require_dtype(spec, {DataType.BFLOAT16}, f"Input tensor must be BFLOAT16, got: {spec.dtype}")
    require_tiles(call, f"only tile layout is supported, Layout::{spec.layout.name} was provided instead")
    rank = len(spec.shape)
    wrong = f"EMA input must be 4D [1, B, C, T], got rank {rank}"
    require(rank == 4, wrong, "a 4D tensor", "Reshape it with ttnn.unsqueeze_to_4D.")
    wrong = f"EMA expects leading dimension to be 1, got {spec.shape[0]}"
    require(spec.shape[0] == 1, wrong, "[1, B, C, T]", "Reshape it so that the first dim is 1.")
    wrong = "EMA alpha must be a valid number, got NaN"
    require(not isnan(call["alpha"]), wrong, "a number", "Compute alpha from finite numbers.")


@op("ttnn.ema", golden=goldens.ema, check=_check_ema, out=make_like_rule(layout=Layout.TILE), outputs=("out",))
def ema(input_tensor: torch.Tensor, alpha: float) -> torch.Tensor:
    """Exponential moving average along the last dim."""
    return moving_average(input_tensor, alpha)
