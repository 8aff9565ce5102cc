"""Layer norm and RMS norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import DataType
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import normalization as goldens
from ttmesh.ops.norm.layer_norm_rules import check_norm
from ttmesh.tensor.calls.operation import Call, Case
from ttmesh.tensor.spec.tensor_spec import TensorSpec

CHUNK = 1 << 18  # elements of rows that are normalized at a time: 1 MiB of float32


def to_row(values: Lanes, lane_axes: int, rank: int) -> Lanes:
    """Per-column parameters ([W], [1, 1, 1, W] or [1, 1, W/32, 32]) as a row that broadcasts over a local rank."""
    local = values.shape[lane_axes:].numel()  # not -1, which means nothing where there are no elements
    return values.reshape(*values.shape[:lane_axes], *[1] * (rank - 1), local)


def is_shared(values: Lanes | None, lane_axes: int) -> bool:
    """Whether all devices share the values, so that torch's fused functions can take them."""
    return values is None or all(extent == 1 for extent in values.shape[:lane_axes])


def apply_affine(x: Lanes, weight: Lanes | None, bias: Lanes | None, lane_axes: int) -> Lanes:
    """x · weight + bias by columns."""
    rank = x.dim() - lane_axes
    if weight is not None:
        x = fpu.multiply(fpu.keep(x), to_row(weight, lane_axes, rank)[..., : x.shape[-1]])
    if bias is not None:
        x = fpu.add(fpu.keep(x), to_row(bias, lane_axes, rank)[..., : x.shape[-1]])
    return x


def count_shards(spec: TensorSpec) -> int:
    """Over how many cores each row goes; 1 where it is not sharded."""
    shards = spec.memory_config.shard_spec
    return 1 if shards is None else -(-spec.padded_shape[-1] // shards.shape[1])


def average_on_cores(values: Lanes, shards: int) -> Lanes:
    """The mean of each row: every core averages its own columns, then the cores' averages are averaged."""
    if shards == 1 or values.shape[-1] % shards:
        return fpu.mean(values, (-1,), keepdim=True)
    per_core = fpu.keep(fpu.mean(torch.unflatten(values, -1, (shards, -1)), (-1,)))
    return fpu.mean(per_core, (-1,), keepdim=True)


def normalize_rms(x: Lanes, epsilon: float, shards: int = 1) -> Lanes:
    """x divided by the root of its mean square along the last dim."""
    if fpu.is_emulated(x):
        mean_square = fpu.keep(average_on_cores(fpu.multiply(x, x), shards))
        return fpu.multiply(x, fpu.keep(torch.rsqrt(mean_square + epsilon)))
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


def normalize_layer(x: Lanes, epsilon: float, shards: int = 1) -> Lanes:
    """x with mean 0 and variance 1 along the last dim, by the steps of TT-NN's kernel."""
    centred = fpu.subtract(x, fpu.keep(average_on_cores(x, shards)))
    variance = fpu.keep(average_on_cores(fpu.multiply(centred, centred), shards))
    return fpu.multiply(centred, fpu.keep(torch.rsqrt(variance + epsilon)))


def _norm_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    requested, x = call["memory_config"], call.specs[0]
    if (
        requested is not None
        and requested.is_sharded()
        and requested.shard_spec is None
        and requested.nd_shard_spec is None
    ):
        return [x]  # configs without shards, such as L1_BLOCK_SHARDED_MEMORY_CONFIG, take the input's
    return [make_output_spec(call, inferred[0][0])]


def _has_plain_parameters(case: Case) -> bool:
    """Whether the only parameters are a weight, or a weight and a bias, with one value per column."""
    known_names = tuple(case.tensors[1:]) in ((), ("weight",), ("weight", "bias"))
    width = case.specs[0].shape[-1] if case.specs[0].shape else 0
    return known_names and width > 0 and all(spec.shape.volume() == width for spec in case.specs[1:])


def _specialise_layer_norm(case: Case) -> Callable[..., Lanes] | None:
    if not _has_plain_parameters(case) or not case.one_format(DataType.BFLOAT16, DataType.FLOAT32):
        return None
    width, epsilon, lane_axes = case.specs[0].shape[-1], case["epsilon"], case.lane_axes

    def normalize(x: Lanes, weight: Lanes | None = None, bias: Lanes | None = None) -> Lanes:
        for parameter in (weight, bias):
            if parameter is not None and parameter.numel() != width:  # the devices' values differ
                centred = F.layer_norm(x.float(), (width,), eps=epsilon)
                return apply_affine(centred, weight, bias, lane_axes).to(x.dtype)
        scale, shift = (None if p is None else p.reshape(-1) for p in (weight, bias))
        return torch.layer_norm(x, (width,), scale, shift, epsilon)

    return normalize


def _specialise_rms_norm(case: Case) -> Callable[..., Lanes] | None:
    if not _has_plain_parameters(case) or len(case.tensors) > 2 or not case.one_format(DataType.BFLOAT16):
        return None
    width, epsilon, lane_axes = case.specs[0].shape[-1], case["epsilon"], case.lane_axes

    def normalize(x: Lanes, weight: Lanes | None = None) -> Lanes:
        if x.is_cuda and (weight is None or weight.numel() == width):
            kernels = find_gpu_kernels("gpu_decoding")
            normalized = None if kernels is None else kernels.normalize_rms(x, weight, epsilon)
            if normalized is not None:
                result: Lanes = normalized
                return result
        widened = x.float()
        widened = widened * torch.rsqrt(widened.square().mean(-1, keepdim=True).add_(epsilon))
        if weight is None:
            return widened
        return (
            widened.mul_(weight.reshape(-1))
            if weight.numel() == width
            else apply_affine(widened, weight, None, lane_axes)
        )

    return normalize


def _can_add_in_chunks(x: Lanes, residual: Lanes) -> bool:
    alike = x.shape == residual.shape and x.dtype is residual.dtype is torch.bfloat16
    return alike and x.is_cpu and x.numel() > CHUNK and not fpu.is_emulated(x)


def _normalize_sums(x: Lanes, residual: Lanes, scale: Lanes | None, shift: Lanes | None, epsilon: float) -> Lanes:
    """The norm of x + residual in float32, rounded once: rows at a time, so that the float32 sums stay in a cache."""
    width = x.shape[-1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = max(1, CHUNK // width)
    left, right, normalized = (values.reshape(-1, width) for values in (x, residual, out))
    for start in range(0, left.shape[0], rows):
        part = slice(start, start + rows)
        sums = left[part].float().add_(right[part])
        normalized[part] = F.layer_norm(sums, (width,), scale, shift, epsilon)
    return out


@op(
    "ttnn.layer_norm",
    golden=goldens.layer_norm,
    out=_norm_spec,
    check=check_norm,
    min_rank=1,
    specialise=_specialise_layer_norm,
)
def layer_norm(
    input_tensor: Lanes,
    epsilon: float,
    weight: Lanes | None,
    bias: Lanes | None,
    residual_input_tensor: Lanes | None,
    lane_axes: int,
    specs: Sequence[TensorSpec],
) -> Lanes:
    """Rows normalized to mean 0 and variance 1, then weight and bias."""
    x, width = input_tensor, input_tensor.shape[-1]
    shared = is_shared(weight, lane_axes) and is_shared(bias, lane_axes)
    if residual_input_tensor is not None:
        if shared and _can_add_in_chunks(x, residual_input_tensor):
            scale, shift = (None if p is None else p.reshape(-1)[:width].float() for p in (weight, bias))
            return _normalize_sums(x, residual_input_tensor, scale, shift, epsilon)
        x = x.float() + residual_input_tensor
    if fpu.is_emulated(x):
        return apply_affine(
            normalize_layer(fpu.keep(x.float()), epsilon, count_shards(specs[0])), weight, bias, lane_axes
        )
    fits = x.dtype is torch.float32 or all(p is None or p.dtype is x.dtype for p in (weight, bias))
    if shared and fits:
        scale, shift = (None if p is None else p.reshape(-1)[:width].to(x.dtype) for p in (weight, bias))
        return F.layer_norm(x, (width,), scale, shift, epsilon)  # computes in float32 and rounds once
    normalized = apply_affine(F.layer_norm(x.float(), (width,), eps=epsilon), weight, bias, lane_axes)
    return normalized.to(x.dtype) if fits else normalized


@op(
    "ttnn.rms_norm",
    golden=goldens.rms_norm,
    out=_norm_spec,
    check=check_norm,
    min_rank=1,
    specialise=_specialise_rms_norm,
)
def rms_norm(
    input_tensor: Lanes,
    epsilon: float,
    weight: Lanes | None,
    bias: Lanes | None,
    residual_input_tensor: Lanes | None,
    lane_axes: int,
    specs: Sequence[TensorSpec],
) -> Lanes:
    """Rows divided by their root mean square, then weight and bias."""
    x = input_tensor.float()
    if residual_input_tensor is not None:
        x = fpu.add(x, residual_input_tensor.float())
    return apply_affine(normalize_rms(x, epsilon, count_shards(specs[0])), weight, bias, lane_axes)
