"""permute, transpose, roll, convert_to_chw and convert_to_hwc."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import BufferType, DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import ShapeError, require
from ttmesh.ops.catalogue.checks import normalize_dim, out_of_bounds, require_layout
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_like_rule, make_output_spec
from ttmesh.ops.goldens import movement as goldens
from ttmesh.ops.movement.permuted_shards import permute_spec
from ttmesh.ops.stages.movement_stages import permute_stages
from ttmesh.ops.stages.rows_stages import compose_roll, roll_stages
from ttmesh.tensor.calls.lane_calls import Lane
from ttmesh.tensor.calls.operation import Call, Case
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.page_extents import element_bytes
from ttmesh.tensor.spec.tensor_spec import TensorSpec


def _check_permute(call: Call) -> None:
    rank, dims = len(call.specs[0].shape), tuple(call["dims"])
    wrong = "The number of dimensions in the tensor input does not match the length of the desired ordering"
    require(len(dims) == rank, wrong, f"{rank} dims", "Pass every dim once.")
    sorted_dims = sorted(dim + rank if dim < 0 else dim for dim in dims)
    wrong = "Invalid permutation: duplicate or out of range value"
    require(sorted_dims == list(range(rank)), wrong, f"a permutation of 0 to {rank - 1}", "Pass every dim once.")


def _permute_alias(call: Call) -> Sequence[int] | None:
    """A view, if the permutation moves no dim longer than 1 and none of the last two (tiles) or the last (rows)."""
    spec = call.specs[0]
    rank = len(spec.shape)
    dims, inner = [dim % rank for dim in call["dims"]] if rank else [], 2 if spec.layout is Layout.TILE else 1
    moved_dims = [i for i, dim in enumerate(dims) if dim != i]
    is_view = rank <= 1 or all(i < rank - inner and spec.shape[i] == spec.shape[dims[i]] == 1 for i in moved_dims)
    return spec.shape if is_view else None


def _transpose_alias(call: Call) -> Sequence[int] | None:
    shape, narrow = (
        call.specs[0].shape,
        call.specs[0].dtype is DataType.BFLOAT8_B,
    )  # which is widened and narrowed again
    same = normalize_dim(call["dim1"], len(shape)) == normalize_dim(call["dim2"], len(shape))
    return shape if same and not narrow else None


def _roll_alias(call: Call) -> Sequence[int] | None:
    """A view, if every shift is a multiple of the dim's length."""
    shape = call.specs[0].shape
    if call["dim"] is None:
        return None
    dims, shifts = [normalize_dim(dim, len(shape)) for dim in _to_tuple(call["dim"])], _to_tuple(call["shifts"])
    empty = next((dim for dim in dims if not shape[dim]), None)
    if empty is not None:
        raise ShapeError(
            f"ttnn.roll: dim {empty % len(shape)} of {list(shape)} has no elements",
            expected="dims with elements: TT-NN divides by their length, which ends the process",
            fix="Leave out dims without elements.",
        )
    fits = len(shifts) == len(dims) and not any(n % shape[dim] for dim, n in zip(dims, shifts, strict=True))
    return shape if fits else None


def _specialise_permute(case: Case) -> Lane:
    rank, axes = len(case.specs[0].shape), case.lane_axes
    order = (*range(axes), *(dim % rank + axes for dim in case["dims"]))
    return lambda values: values.permute(order)


def _specialise_transpose(case: Case) -> Lane:
    dims = [normalize_dim(case[name], len(case.specs[0].shape)) for name in ("dim1", "dim2")]
    return lambda values: values.transpose(*dims)


@op(
    "ttnn.permute",
    golden=goldens.permute,
    out=permute_spec,
    check=_check_permute,
    stages=permute_stages,
    specialise=_specialise_permute,
    alias=_permute_alias,
)
def permute(input_tensor: torch.Tensor, dims: Sequence[int], lane_axes: int) -> torch.Tensor:
    """The dims permuted."""
    rank = input_tensor.dim() - lane_axes
    return input_tensor.permute(*range(lane_axes), *(dim % rank + lane_axes for dim in dims))


def _check_transpose(call: Call) -> None:
    rank = len(call.specs[0].shape)
    for name in ("dim1", "dim2"):
        normalize_dim(call[name], rank, out_of_bounds(call[name], rank))
    tiled = call.specs[0].layout is Layout.TILE
    require(rank > 1 or not tiled, "Can't convert shape rank", "two dims or more", "Reshape it to [1, n] first.")


@op(
    "ttnn.transpose",
    golden=goldens.transpose,
    out=permute_spec,
    check=_check_transpose,
    stages=permute_stages,
    specialise=_specialise_transpose,
    alias=_transpose_alias,
)
def transpose(input_tensor: torch.Tensor, dim1: int, dim2: int, lane_axes: int) -> torch.Tensor:
    """Two dims swapped."""
    rank = input_tensor.dim() - lane_axes
    return input_tensor.transpose(normalize_dim(dim1, rank), normalize_dim(dim2, rank))


Shifts = int | Sequence[int]


def _to_tuple(value: Shifts) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def _roll_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """Where slices leave their tiles, block floats become bfloat16."""
    composed = compose_roll(call)
    return [make_output_spec(call, inferred[0][0])] if composed is None else [composed[1].spec]


@op("ttnn.roll", golden=goldens.roll, alias=_roll_alias, out=_roll_spec, stages=roll_stages)
def roll(input_tensor: torch.Tensor, shifts: Shifts, lane_axes: int, dim: Shifts | None = None) -> torch.Tensor:
    """Elements shifted cyclically along dims; without a dim the tensor is flattened first."""
    if dim is None:
        flat = input_tensor.flatten(lane_axes)
        return torch.roll(flat, sum(_to_tuple(shifts)), -1).reshape(input_tensor.shape)
    rank = input_tensor.dim() - lane_axes
    dims = tuple(normalize_dim(position, rank) for position in _to_tuple(dim))
    shift_tuple = _to_tuple(shifts)
    wrong = f"roll: {len(shift_tuple)} shifts for {len(dims)} dims"
    require(len(shift_tuple) == len(dims), wrong, "one shift per dim", "Give as many shifts as dims.")
    return torch.roll(input_tensor, shift_tuple, dims)


def _check_chw(call: Call) -> None:
    require(len(call.specs[0].shape) == 4, "expected a 4D tensor", "[1, 1, HW, C]", "Reshape it to four dims.")


def _check_chw_shards(call: Call) -> None:
    _check_chw(call)
    config, fix = call.specs[0].memory_config, "Move it with ttnn.to_memory_config."
    wrong = "Input tensor must be sharded to infer output memory config"
    require(call["memory_config"] is not None or config.is_sharded(), wrong, "a sharded tensor", fix)
    by_height = config.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED
    require(by_height, "Input tensor must be height sharded", "HEIGHT_SHARDED", fix)


def _chw_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """Each core keeps its pixels: rows of shards become columns."""
    input_memory = call.specs[0].memory_config
    shard = input_memory.shard_spec
    if shard is None or input_memory.memory_layout is not TensorMemoryLayout.HEIGHT_SHARDED:
        return list(make_like_rule(layout=Layout.ROW_MAJOR)(call, inferred))
    transposed_shard = ShardSpec(shard.grid, (call.specs[0].shape[-1], shard.shape[0]), shard.orientation)
    memory_config = MemoryConfig(TensorMemoryLayout.WIDTH_SHARDED, input_memory.buffer_type, transposed_shard)
    dtype = call["dtype"] or call.specs[0].dtype
    return [TensorSpec(inferred[0][0], dtype, Layout.ROW_MAJOR, memory_config=memory_config)]


@op(
    "ttnn.experimental.convert_to_chw",
    golden=goldens.convert_to_chw,
    check=_check_chw_shards,
    out=_chw_spec,
)
def convert_to_chw(input: torch.Tensor) -> torch.Tensor:
    """[1, 1, HW, C] → [1, 1, C, HW], row-major."""
    return input.transpose(-1, -2)


def _to_channels_last(values: torch.Tensor) -> torch.Tensor:
    """[.., 1, B, C, HW] → [.., 1, 1, B * HW, C]."""
    transposed = values.transpose(-1, -2)
    return transposed.reshape(*transposed.shape[:-4], 1, 1, -1, transposed.shape[-1])


def _check_hwc(call: Call) -> None:
    in_dram = call.specs[0].memory_config.buffer_type is BufferType.DRAM
    wrong = "When input tensor is in DRAM, output memory_config must be explicitly specified"
    require(not in_dram or call["memory_config"] is not None, wrong, "memory_config=", "Pass a memory_config in L1.")
    _check_chw(call)
    require_layout(call.specs[0], Layout.ROW_MAJOR, "Input tensor must be in row-major layout")
    shards, given = call.specs[0].memory_config, call["memory_config"]
    wrong = "Input tensor must be width sharded"
    by_width = shards.memory_layout is TensorMemoryLayout.WIDTH_SHARDED
    require(by_width, wrong, "WIDTH_SHARDED", "Move it with ttnn.to_memory_config.")
    by_height = given is None or given.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED
    require(by_height, "Output tensor must be height sharded", "HEIGHT_SHARDED", "Change memory_config.")
    if given is None and shards.shard_spec is not None:
        height = shards.shard_spec.shape[1]
        wrong = f"Shard height {height} must be multiple of tile width (32)"
        require(height % 32 == 0, wrong, "a multiple of 32", "Widen the shards.")
    shard_spec = call["memory_config"].shard_spec if call["memory_config"] is not None else None
    alignment = call.mesh.chip.l1_alignment // element_bytes(call.specs[0].dtype)
    require(
        shard_spec is None or shard_spec.shape[1] % alignment == 0,
        f"Output shard width must be rounded up to next multiple of {alignment} to satisfy alignment constraints (width was "
        f"{shard_spec.shape[1] if shard_spec else 0})",
        f"a shard width that is a multiple of {alignment}",
        "Widen the shards of memory_config.",
    )


def _hwc_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """Shards of rows on the cores that hold the columns, unless the call says otherwise."""
    x, shape = call.specs[0], inferred[0][0]
    shards = x.memory_config.shard_spec
    if call["memory_config"] is not None or shards is None:
        return [make_output_spec(call, shape, layout=Layout.ROW_MAJOR)]
    alignment = call.mesh.chip.l1_alignment // element_bytes(x.dtype)
    width = -(-shape[-1] // alignment) * alignment
    spec = ShardSpec(shards.grid, (shape[-2] // shards.num_cores(), width), shards.orientation)
    config = MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, x.memory_config.buffer_type, spec)
    return [make_output_spec(call, shape, layout=Layout.ROW_MAJOR, memory_config=config)]


@op(
    "ttnn.experimental.convert_to_hwc",
    golden=goldens.convert_to_hwc,
    check=_check_hwc,
    out=_hwc_spec,
)
def convert_to_hwc(input: torch.Tensor) -> torch.Tensor:
    """[1, B, C, HW] → [1, 1, B * HW, C], row-major."""
    return _to_channels_last(input)
