"""Values in another order: permute, transpose, roll, flip-like moves between image layouts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import BufferType, Layout, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import normalize_dim
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_like_rule
from ttmesh.ops.goldens import movement as goldens
from ttmesh.ops.movement.permuted_shards import permuted_spec
from ttmesh.tensor.calls.lane_calls import Lane
from ttmesh.tensor.calls.launch_op import Call, Case
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.page_extents import element_bytes
from ttmesh.tensor.spec.tensor_spec import TensorSpec


def _check_permute(call: Call) -> None:
    rank, dims = len(call.specs[0].shape), tuple(call["dims"])
    wrong = "The number of dimensions in the tensor input does not match the length of the desired ordering"
    require(len(dims) == rank, wrong, f"{rank} dims", "Name every dim.")
    placed = sorted(dim + rank if dim < 0 else dim for dim in dims)
    wrong = "Invalid permutation: duplicate or out of range value"
    require(placed == list(range(rank)), wrong, "every dim once", "Name every dim once.")


def _permute_alias(call: Call) -> Sequence[int] | None:
    """A view, if the permutation moves no dim longer than 1 and none of the last two (tiles) or the last (rows)."""
    spec = call.specs[0]
    rank = len(spec.shape)
    dims, inner = [dim % rank for dim in call["dims"]] if rank else [], 2 if spec.layout is Layout.TILE else 1
    moved = [i for i, dim in enumerate(dims) if dim != i]
    kept = rank <= 1 or all(i < rank - inner and spec.shape[i] == spec.shape[dims[i]] == 1 for i in moved)
    return spec.shape if kept else None


def _transpose_alias(call: Call) -> Sequence[int] | None:
    shape = call.specs[0].shape
    return shape if normalize_dim(call["dim1"], len(shape)) == normalize_dim(call["dim2"], len(shape)) else None


def _roll_alias(call: Call) -> Sequence[int] | None:
    """A view, if every shift is a multiple of the dim's length."""
    shape = call.specs[0].shape
    if call["dim"] is None:
        return None
    dims, by = [normalize_dim(one, len(shape)) for one in _to_tuple(call["dim"])], _to_tuple(call["shifts"])
    return shape if len(by) == len(dims) and not any(n % shape[dim] for dim, n in zip(dims, by, strict=True)) else None


def _permute_once(case: Case) -> Lane:
    rank, axes = len(case.specs[0].shape), case.lane_axes
    order = (*range(axes), *(dim % rank + axes for dim in case["dims"]))
    return lambda values: values.permute(order)


def _transpose_once(case: Case) -> Lane:
    dims = [normalize_dim(case[name], len(case.specs[0].shape)) for name in ("dim1", "dim2")]
    return lambda values: values.transpose(*dims)


@op(
    "ttnn.permute",
    golden=goldens.permute,
    out=permuted_spec,
    check=_check_permute,
    specialise=_permute_once,
    alias=_permute_alias,
)
def permute(input_tensor: torch.Tensor, dims: Sequence[int], lane_axes: int) -> torch.Tensor:
    """The dims in another order."""
    rank = input_tensor.dim() - lane_axes
    return input_tensor.permute(*range(lane_axes), *(dim % rank + lane_axes for dim in dims))


def _check_transpose(call: Call) -> None:
    rank = len(call.specs[0].shape)
    for name in ("dim1", "dim2"):
        normalize_dim(call[name], rank)
    require(rank > 1, "Can't convert shape rank", "two dims or more", "Reshape it to [1, n] first.")


@op(
    "ttnn.transpose",
    golden=goldens.transpose,
    out=permuted_spec,
    check=_check_transpose,
    specialise=_transpose_once,
    alias=_transpose_alias,
)
def transpose(input_tensor: torch.Tensor, dim1: int, dim2: int, lane_axes: int) -> torch.Tensor:
    """Two dims swapped."""
    rank = input_tensor.dim() - lane_axes
    return input_tensor.transpose(normalize_dim(dim1, rank), normalize_dim(dim2, rank))


Shifts = int | Sequence[int]


def _to_tuple(value: Shifts) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


@op("ttnn.roll", golden=goldens.roll, alias=_roll_alias)
def roll(input_tensor: torch.Tensor, shifts: Shifts, lane_axes: int, dim: Shifts | None = None) -> torch.Tensor:
    """Moved along dims, what falls off one end comes in at the other; without a dim the tensor counts as flat."""
    if dim is None:
        whole = input_tensor.flatten(lane_axes)
        return torch.roll(whole, sum(_to_tuple(shifts)), -1).reshape(input_tensor.shape)
    rank = input_tensor.dim() - lane_axes
    dims = tuple(normalize_dim(one, rank) for one in _to_tuple(dim))
    by = _to_tuple(shifts)
    wrong = f"roll: {len(by)} shifts for {len(dims)} dims"
    require(len(by) == len(dims), wrong, "one shift per dim", "Give as many shifts as dims.")
    return torch.roll(input_tensor, by, dims)


def _check_chw(call: Call) -> None:
    require(len(call.specs[0].shape) == 4, "expected a 4D tensor", "[1, 1, HW, C]", "Reshape it to four dims.")


def _chw_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """A core keeps its pixels: rows of shards become columns."""
    held = call.specs[0].memory_config
    shard = held.shard_spec
    if shard is None or held.memory_layout is not TensorMemoryLayout.HEIGHT_SHARDED:
        return list(make_like_rule(layout=Layout.ROW_MAJOR)(call, inferred))
    own = ShardSpec(shard.grid, (call.specs[0].shape[-1], shard.shape[0]), shard.orientation)
    where = MemoryConfig(TensorMemoryLayout.WIDTH_SHARDED, held.buffer_type, own)
    dtype = call["dtype"] or call.specs[0].dtype
    return [TensorSpec(inferred[0][0], dtype, Layout.ROW_MAJOR, memory_config=where)]


@op(
    "ttnn.experimental.convert_to_chw",
    golden=goldens.convert_to_chw,
    check=_check_chw,
    out=_chw_spec,
)
def convert_to_chw(input: torch.Tensor) -> torch.Tensor:
    """[1, 1, HW, C] → [1, 1, C, HW], row-major."""
    return input.transpose(-1, -2)


def _channels_last(values: torch.Tensor) -> torch.Tensor:
    """[.., 1, B, C, HW] → [.., 1, 1, B * HW, C]."""
    turned = values.transpose(-1, -2)
    return turned.reshape(*turned.shape[:-4], 1, 1, -1, turned.shape[-1])


def _check_hwc(call: Call) -> None:
    _check_chw(call)
    in_dram = call.specs[0].memory_config.buffer_type is BufferType.DRAM
    wrong = "When input tensor is in DRAM, output memory_config must be explicitly specified"
    require(not in_dram or call["memory_config"] is not None, wrong, "memory_config=", "Pass a memory_config in L1.")
    asked = call["memory_config"].shard_spec if call["memory_config"] is not None else None
    step = call.mesh.chip.l1_alignment // element_bytes(call.specs[0].dtype)
    require(
        asked is None or asked.shape[1] % step == 0,
        f"Output shard width must be rounded up to next multiple of {step} to satisfy alignment constraints (width was "
        f"{asked.shape[1] if asked else 0})",
        "shards whose rows are aligned in L1",
        "Widen the shards of memory_config.",
    )


@op(
    "ttnn.experimental.convert_to_hwc",
    golden=goldens.convert_to_hwc,
    check=_check_hwc,
    out=make_like_rule(layout=Layout.ROW_MAJOR),
)
def convert_to_hwc(input: torch.Tensor) -> torch.Tensor:
    """[1, B, C, HW] → [1, 1, B * HW, C], row-major."""
    return _channels_last(input)
