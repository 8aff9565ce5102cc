"""slice and narrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, BufferType, DataType, Layout
from ttmesh.base.errors import ShapeError, require
from ttmesh.ops.catalogue.checks import normalize_dim
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import Inferred, fit_shards, like_first, make_output_spec
from ttmesh.ops.goldens import movement as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_and_flatten, unflatten_lanes
from ttmesh.ops.stages.movement_stages import move_to
from ttmesh.ops.stages.slice_stages import slice_tensor, slices_rows
from ttmesh.tensor import indexing, operators
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.gate import TensorFunction
from ttmesh.tensor.calls.lane_calls import Lane
from ttmesh.tensor.calls.launch_op import separate
from ttmesh.tensor.calls.operation import Call, Case
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.page_extents import element_bytes
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

Slices = tuple[Any, ...]  # an ellipsis for the mesh dims, then one slice per dim


def make_slices(
    shape: Sequence[int], starts: Sequence[int], ends: Sequence[int], steps: Sequence[int] | None
) -> Slices:
    """One Python slice per dim; negative indices count from the end, and all are clamped to the shape."""
    rank = len(shape)
    wrong = f"Start {len(starts)} and end {len(ends)} must have the same size"
    require(len(starts) == len(ends), wrong, "equal lengths", "Give both the same number of entries.")
    wrong = f"Input rank {rank} and begins {len(starts)} must have the same size"
    require(rank == len(starts), wrong, "one start per dim", "Give a start for every dim.")
    strides = [1] * rank if steps is None else list(steps)
    wrong = f"Step {len(strides)} must have the same size as start and end"
    require(len(strides) == rank, wrong, "one step per dim", "Give a step for every dim.")
    slices = []
    for extent, start, end, step in zip(shape, starts, ends, strides, strict=True):
        require(step > 0, f"Step {step} must be positive", "steps of at least 1", "Use steps of at least 1.")
        first, last = (index + extent if index < 0 else index for index in (int(start), int(end)))
        wrong = f"End {last} must be greater than or equal to start {first}"
        require(last >= first, wrong, "an end after its start", "Swap them, or leave the call out.")
        slices.append(slice(min(first, extent), min(last, extent), step))
    return (..., *slices)


def _check_slice(call: Call) -> None:
    steps = call["steps"]
    strided = steps is not None and any(step != 1 for step in steps)
    wrong = "Strided slice is not supported for BFLOAT8 tensors"
    require(not (strided and call.specs[0].dtype is DataType.BFLOAT8_B), wrong, "steps of 1", "Typecast first.")


def _slice(
    input_tensor: torch.Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    steps: Sequence[int] | None,
    lane_axes: int,
) -> torch.Tensor:
    return input_tensor[make_slices(input_tensor.shape[lane_axes:], starts, ends, steps)]


def _specialise_slice(case: Case) -> Lane:
    """The slice with its bounds computed in advance; torch.narrow for one dim without steps, which is faster."""
    shape = case.specs[0].shape
    slices = make_slices(shape, case["starts"], case["ends"], case["steps"])
    changed_dims = [(i, s) for i, s in enumerate(slices[1:], -len(shape)) if s != slice(0, shape[i], 1)]
    if len(changed_dims) == 1 and changed_dims[0][1].step == 1:
        ((dim, bounds),) = changed_dims
        return lambda values: values.narrow(dim, bounds.start, bounds.stop - bounds.start)
    return lambda values: values[slices]


def _slice_at(
    input_tensor: torch.Tensor, starts: torch.Tensor, slice_dim: int, length: int, lane_axes: int
) -> torch.Tensor:
    """A slice along a dim; every device's start comes from a tensor."""
    rank = input_tensor.dim() - lane_axes
    position = normalize_dim(slice_dim, rank)
    (values, start_values), dims = align_and_flatten([input_tensor, starts], lane_axes)
    first = start_values.reshape(start_values.shape[0], -1)[:, slice_dim % rank].long()
    index = first[:, None] + torch.arange(length, device=values.device)
    index_view = index.reshape(values.shape[0], *[length if i == position else 1 for i in range(-rank, 0)])
    shape = list(values.shape)
    shape[position] = length
    return unflatten_lanes(torch.gather(values, position, index_view.expand(shape)), dims)


def _is_whole(shape: Sequence[int], starts: Sequence[int], ends: Sequence[int], steps: Sequence[int] | None) -> bool:
    """Whether TT-NN takes bounds for the whole tensor: it looks at the numbers as they are written."""
    return not any(starts) and tuple(ends) == tuple(shape) and set(steps or ()) <= {1}


def _check_bounds(spec: TensorSpec, starts: Sequence[int], ends: Sequence[int], in_rows: bool) -> None:
    """Starts and ends past the tensor are refused; in tiles, those past its padding."""
    rank, extents = len(spec.shape), spec.shape if in_rows else spec.padded_shape[-len(spec.shape) :]
    for i, (start, end, extent) in enumerate(zip(starts, ends, extents, strict=True)):
        wrong = f"Slice start[{i}] ({start}) must be less than input tensor shape[{i}] ({extent})"
        require(
            start < extent or start == end, wrong, f"a start below {spec.shape[i]}", "Check the shape of the tensor."
        )
        last = end if in_rows or i < rank - 2 else -(-end // 32) * 32
        wrong = f"Ends {last} must be less than or equal to the shape of the tensor {extent}"
        require(last <= extent, wrong, f"an end of at most {spec.shape[i]}", "Check the shape of the tensor.")


def _compose(call: Call) -> tuple[Composition, PlannedTensor] | None:
    """TT-NN's composition; None where memory is given, or shards are asked for without saying which."""
    spec, config = call.specs[0], call["memory_config"]
    bounds = make_slices(spec.shape, call["starts"], call["ends"], call["steps"])[1:]
    unknown = config is not None and config.is_sharded() and config.shard_spec is None
    empty = any(bound.start >= bound.stop for bound in bounds)
    if call.mesh is not None and not _is_whole(spec.shape, call["starts"], call["ends"], call["steps"]):
        _check_bounds(spec, call["starts"], call["ends"], slices_rows(spec, bounds))
    if call.mesh is None or unknown or empty or spec.memory_config.created_with_nd_shard_spec or any(call.outputs):
        return None
    c, x = Composition(), PlannedTensor(spec)
    if _is_whole(spec.shape, call["starts"], call["ends"], call["steps"]):
        return c, move_to(c, x, config or spec.memory_config)
    return c, slice_tensor(c, x, bounds, config)


def _slice_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """Sharded tensors stay on their cores, in shards that fit the slice; slices of rows get ROW_MAJOR shards."""
    composed, spec = _compose(call), call.specs[0]
    if composed is not None:
        return [composed[1].spec]
    bounds = make_slices(spec.shape, call["starts"], call["ends"], call["steps"])[1:]
    rows = spec.dtype in BLOCK_FLOATS and slices_rows(spec, bounds)  # rows hold no block floats
    return [make_output_spec(call, inferred[0][0], dtype=DataType.BFLOAT16 if rows else None)]


def _slice_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """The programs of that composition."""
    composed = _compose(call)
    return None if composed is None else (composed[0], [composed[0].view(composed[1], results[0])])


SLICE = device_operation(
    "ttnn.slice",
    out=_slice_spec,
    check=_check_slice,
    stages=_slice_stages,
    host=True,
    specialise=_specialise_slice,
)(_slice)
_SLICE_AT = device_operation("ttnn.slice", out=like_first)(_slice_at)


@composite("ttnn.slice", golden=goldens.slice_, direct=True)
def slice_(
    input_tensor: Tensor,
    memory_config: MemoryConfig | None,
    output_tensor: Tensor | None,
    starts: Sequence[int] | Tensor | None = None,
    ends: Sequence[int] | Tensor | None = None,
    steps: Sequence[int] | None = None,
    slice_start: Sequence[int] | None = None,
    slice_end: Sequence[int] | None = None,
    slice_step: Sequence[int] | None = None,
    slice_dim: int | None = None,
    num_devices: int | None = None,
) -> Any:
    """The elements from starts to ends (exclusive), every step-th."""
    first, last = (slice_start if starts is None else starts), (slice_end if ends is None else ends)
    strides = slice_step if steps is None else steps
    if isinstance(first, Tensor) and isinstance(last, Tensor):
        if first.device() is not None and not (strides and any(step != 1 for step in strides)):
            return _slice_by_tensors(input_tensor, first, slice_dim, num_devices, memory_config, output_tensor)
        first, last = (bound.cpu().lanes.reshape(-1, len(input_tensor.shape))[0].tolist() for bound in (first, last))
    if first is None or last is None or isinstance(first, Tensor) or isinstance(last, Tensor):
        raise TypeError("ttnn.slice(): starts and ends must both be lists, or both be tensors")
    make_slices(input_tensor.shape, first, last, strides)  # raises for bounds that are none
    is_full = _is_whole(input_tensor.shape, first, last, strides)
    same_memory = memory_config is None or memory_config == input_tensor.memory_config()
    if is_full and same_memory and output_tensor is None:
        return separate(input_tensor)
    arguments = {
        "input_tensor": input_tensor,
        "starts": tuple(first),
        "ends": tuple(last),
        "steps": None if strides is None else tuple(strides),
        "memory_config": memory_config,
        "output_tensor": output_tensor,
    }
    return SLICE(**arguments)


def _slice_by_tensors(
    tensor: Tensor,
    starts: Tensor,
    slice_dim: int | None,
    num_devices: int | None,
    memory_config: MemoryConfig | None,
    output_tensor: Tensor | None,
) -> Any:
    if slice_dim is None or num_devices is None:
        raise ShapeError(
            "slice_dim and num_devices must be provided for device-only tensor args slice",
            expected="slice_dim= and num_devices=",
            fix="Pass them, or lists of numbers.",
        )
    arguments = {
        "input_tensor": tensor,
        "starts": starts,
        "slice_dim": slice_dim,
        "length": tensor.shape[slice_dim] // num_devices,
        "memory_config": memory_config,
        "output_tensor": output_tensor,
    }
    return _SLICE_AT(**arguments)


# -- narrow ----------------------------------------------------------------------------------------------------------


def _check_narrow(call: Call) -> None:
    spec, length = call.specs[0], call["length"]
    rank = len(spec.shape)
    position = normalize_dim(call["dim"], rank)
    flat_tiles = rank == 1 and spec.layout is Layout.TILE  # TT-NN counts the rows of the tiles as the first dim
    extent = 32 if flat_tiles else spec.padded_shape[position]
    start = call["start"] + extent if call["start"] < 0 else call["start"]
    dim_text = f"dimension {position % rank} with"
    wrong = f"Narrow start index {start} out of bounds for {dim_text} size {extent}"
    require(start < extent, wrong, f"a start below {extent}", "Pass a smaller start.")
    wrong = f"Narrow length {length} out of bounds for {dim_text} start index {start} and size {extent}"
    require(
        0 < length <= extent - start, wrong, f"a length of 1 to {extent - start}", "Pass a smaller length or start."
    )
    if spec.layout is Layout.TILE and position >= -2:
        side = spec.tile.tile_shape[position]
        name, unit = ("width", "TILE_WIDTH") if position == -1 else ("height", "TILE_HEIGHT")
        wrong = (
            f"Narrowing on {name} for TILE layout requires start and length to be multiples of {unit} ({side}), got start "
            f"{start} and length {length}"
        )
        require(
            start % side == 0 and length % side == 0, wrong, "whole tiles", "Start and end at multiples of the tile."
        )
    in_dram = spec.buffer_type is BufferType.DRAM and spec.memory_config.interleaved
    chip = call.mesh.chip
    alignment = chip.dram_alignment if spec.buffer_type is BufferType.DRAM else chip.l1_alignment
    wrong = (
        f"Narrowing on width for ROW_MAJOR layout requires start ({start}) to be aligned to buffer alignment "
        f"({alignment})"
    )
    aligned = spec.layout is Layout.TILE or position != -1 or start % alignment == 0
    require(aligned, wrong, f"a multiple of {alignment}", "Use ttnn.slice.")
    wrong = (
        f"Narrowing on dimension {position % rank} for DRAM INTERLEAVED tensors requires all preceding dimensions to be "
        f"trivial (size 1). Got non-trivial dimensions before dimension {position % rank}."
    )
    leads = all(extent == 1 for extent in spec.padded_shape[: position % rank])
    require(leads or not in_dram, wrong, "the first dim that is not 1", "Use ttnn.slice.")
    if spec.layout is Layout.ROW_MAJOR and position == -1 and in_dram and length != extent:
        size = element_bytes(spec.dtype)
        wrong = (
            f"For valid non-interleaved buffers page size {extent * size} must equal buffer size {length * size}. For "
            "interleaved-buffers, buffer size should be divisible by the page size"
        )
        require(False, wrong, "whole rows", "Use ttnn.slice.")
    wrong = (
        "Narrowing for the given tensor configuration is not yet implemented.Supported: DRAM INTERLEAVED tensors on first "
        "non-trivial dimension, L1 sharded tensors with restrictions"
    )
    changes = length != extent
    taken = in_dram or not spec.memory_config.interleaved or not changes
    require(taken, wrong, "a tensor in DRAM or in shards", "Use ttnn.slice.")


def _narrow_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """A sharded tensor stays on its cores, in smaller shards if they fit."""
    spec, shape = call.specs[0], inferred[0][0]
    config = spec.memory_config
    if config.shard_spec is None:
        return [make_output_spec(call, shape)]
    plain = TensorSpec(shape, spec.dtype, spec.layout, tile=spec.tile if spec.layout is Layout.TILE else None)
    return [plain.with_memory_config(fit_shards(config, plain, config))]


@op(
    "ttnn.narrow",
    golden=goldens.narrow,
    check=_check_narrow,
    out=_narrow_spec,
    alias=lambda call: call.specs[0].shape if call["length"] == call.specs[0].shape[call["dim"]] else None,
)
def narrow(input_tensor: torch.Tensor, dim: int, start: int, length: int, lane_axes: int) -> torch.Tensor:
    """A slice of one dim; TT-NN returns a view at an offset, ttmesh a copy."""
    position = normalize_dim(dim, input_tensor.dim() - lane_axes)
    return input_tensor.narrow(position, start + input_tensor.shape[position] if start < 0 else start, length)


getitem = TensorFunction(indexing.getitem)
operators.fill(slice=slice_, getitem=getitem)
