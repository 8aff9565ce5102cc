"""Sums of replicated parameters' gradients over the mesh, and clipping by the global norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import MeshError
from ttmesh.ccl.collectives.reduce_gather import all_reduce
from ttmesh.nn.autograd.local_ops import define_local_op, keep_specs, scale_by, square_sum
from ttmesh.nn.autograd.row_packing import count_rows, pack_tensors, unpack_tensors
from ttmesh.nn.parameters import Parameter, ParameterSet
from ttmesh.ops.elementwise.binary import binary
from ttmesh.tensor.tensor import Tensor

BUCKET_BYTES = 25 * 2**20  # as torch's DistributedDataParallel; one collective per bucket
ALONE_BYTES = 256 * 2**10  # from here on packing costs more than a collective's start (benchmarks/training.py)


def synchronize_gradients(
    parameters: ParameterSet,
    cluster_axis: int | None = None,
    *,
    mode: str = "fabric",
    bucket_bytes: int = BUCKET_BYTES,
) -> None:
    """Sum every gradient over the mesh axes along which its parameter is replicated (or over one of them).

    `mode` is the collectives': "host" reads back, sums and writes; "fabric" goes over links. Gradients of the same format
    are sent together in buckets of at most `bucket_bytes`, large ones alone; 0 sends each alone.
    """
    axes = range(next(iter(parameters.values())).mesh.shape.dims()) if cluster_axis is None else [cluster_axis]
    for axis in axes:
        waiting = [p for p in parameters.values() if p.grad is not None and axis in p.replicated_axes]
        for bucket in _fill_buckets(waiting, bucket_bytes):
            _reduce(bucket, axis, mode)


def clip_gradients(parameters: ParameterSet, max_norm: float, *, mode: str = "fabric") -> Tensor:
    """Scale the gradients so that their norm over the whole model is at most `max_norm`; returns the norm's square.

    Call it after synchronize_gradients: a replicated gradient counts once, a sharded one with all its shards.
    """
    total = square_norm(parameters, mode=mode)
    scale_gradients(parameters, total, max_norm)
    return total


def square_norm(parameters: ParameterSet, *, mode: str = "fabric") -> Tensor:
    """The square of the gradients' norm over the whole model, on every chip."""
    total: Tensor | None = None
    mesh = next(iter(parameters.values())).mesh
    everywhere = {axis for axis in range(mesh.shape.dims()) if mesh.shape[axis] > 1}
    by_axes: dict[tuple[int, ...], Tensor] = {}
    for parameter in parameters.values():
        if parameter.grad is not None:
            sharded = tuple(sorted(everywhere - set(parameter.replicated_axes)))
            square = square_sum(x=parameter.grad)
            by_axes[sharded] = square if sharded not in by_axes else binary["add"](by_axes[sharded], square)
    for sharded, square in by_axes.items():
        for axis in sharded:
            square = all_reduce(square, cluster_axis=axis, mode=mode)
        total = square if total is None else binary["add"](total, square)
    if total is None:
        raise MeshError(
            "no parameter has a gradient", expected="gradients to clip", fix="Call backward and accumulate first."
        )
    return total


def scale_gradients(parameters: ParameterSet, total: Tensor, max_norm: float) -> None:
    """Scale the gradients so that a norm whose square is `total` becomes at most `max_norm`."""
    factor = _factor(total=total, max_norm=float(max_norm))
    for parameter in parameters.values():
        if parameter.grad is not None:
            parameter.grad = scale_by(x=parameter.grad, factor=factor)


def _fill_buckets(parameters: Iterable[Parameter], limit: int) -> list[list[Parameter]]:
    buckets: list[list[Parameter]] = []
    filling: dict[DataType, tuple[list[Parameter], int]] = {}  # by format: the open bucket and its bytes
    for parameter in parameters:
        assert parameter.grad is not None, "only those with a gradient wait"
        size = parameter.grad.spec.packed_size_bytes
        bucket, used = filling.get(parameter.grad.dtype, ([], 0))
        if size >= ALONE_BYTES or not bucket or used + size > limit:
            bucket, used = [], 0
            buckets.append(bucket)
        bucket.append(parameter)
        if size < ALONE_BYTES:
            filling[parameter.grad.dtype] = (bucket, used + size)
    return buckets


def _reduce(bucket: list[Parameter], axis: int, mode: str) -> None:
    gradients = [p.grad for p in bucket if p.grad is not None]
    if len(gradients) == 1:
        bucket[0].grad = all_reduce(gradients[0], cluster_axis=axis, mode=mode)
        return
    shapes = tuple(tuple(g.shape) for g in gradients)
    summed = all_reduce(pack_tensors(tensors=gradients, rows=count_rows(shapes)), cluster_axis=axis, mode=mode)
    for parameter, gradient in zip(bucket, unpack_tensors(packed=summed, shapes=shapes), strict=True):
        parameter.grad = gradient


def _compute_factor(total: torch.Tensor, max_norm: float) -> torch.Tensor:
    """The factor that brings the norm down to the limit, at most 1."""
    return torch.clamp(max_norm / (total.float().sqrt() + 1e-6), max=1.0)


_factor = define_local_op("clip_factor", _compute_factor, keep_specs(0), runtime=("max_norm",))
