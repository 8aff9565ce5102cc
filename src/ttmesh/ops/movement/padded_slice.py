"""padded_slice: a slice of images in rows, each as long as a shard, for a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch.nn import functional as F

from ttmesh.base.dtypes import DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import ShapeError, require
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.movement.slice_ops import SLICE, Slices
from ttmesh.tensor.calls.conversions import to_memory_config
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

NAME = "ttnn.experimental.padded_slice"
RANK = 4


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """Rows, whatever the layout was; they hold no bfloat8_b."""
    dtype = DataType.BFLOAT16 if call.specs[0].dtype is DataType.BFLOAT8_B else None
    return [make_output_spec(call, inferred[0][0], dtype=dtype, layout=Layout.ROW_MAJOR)]


@device_operation(NAME, out=_spec)
def _padded_slice(
    input_tensor: torch.Tensor, starts: Sequence[int], ends: Sequence[int], extents: tuple[int, int], lane_axes: int
) -> torch.Tensor:
    """[1, 1, rows, columns] of so many; what lies outside the tensor is zero."""
    shape = input_tensor.shape[lane_axes:]
    bounds: Slices = (..., *(slice(start, end) for start, end in zip(starts, ends, strict=True)))
    part = input_tensor[bounds]
    missing = [max(end - extent, 0) for end, extent in zip(ends, shape, strict=True)]
    part = F.pad(part, [side for count in reversed(missing) for side in (0, count)]).flatten(lane_axes, -2)
    rows, columns = extents
    part = F.pad(part, (0, columns - part.shape[-1], 0, rows - part.shape[-2]))
    return part.unsqueeze(lane_axes).unsqueeze(lane_axes)


@composite(NAME)
def padded_slice(
    input_tensor: Tensor,
    padded_slice_start: Sequence[int],
    padded_slice_end: Sequence[int],
    padded_slice_step: Sequence[int] | None,
    memory_config: MemoryConfig,
    output_tensor: Tensor | None,
) -> Tensor:
    """A slice in rows, flattened to [1, 1, rows, columns] and padded to its shards."""
    shape, rank = input_tensor.shape, len(input_tensor.shape)
    require(rank == RANK, "Only 4D tensors are supported for padded_slice", "4 dims", "Give it leading dims of 1.")
    counts = len(padded_slice_start), len(padded_slice_end)
    wrong = f"Input rank {rank} and begins {counts[0]} must have the same size"
    require(counts[0] == rank, wrong, "one start per dim", "Give a start for every dim.")
    wrong = f"Start {counts[0]} and end {counts[1]} must have the same size"
    require(counts[0] == counts[1], wrong, "equal lengths", "Give both the same number of entries.")
    steps = [1] * rank if padded_slice_step is None else list(padded_slice_step)
    wrong = f"Step {len(steps)} must have the same size as start {rank} and end"
    require(len(steps) == rank, wrong, "one step per dim", "Give a step for every dim.")
    wrong = "Steps != 1 are not supported for padded_slice."
    require(all(step == 1 for step in steps), wrong, "steps of 1", "Use ttnn.slice.")
    wrong = "Output Memory Config must be sharded. Use slice for non-sharded outputs."
    require(memory_config.is_sharded(), wrong, "a sharded memory_config", "Use ttnn.slice.")
    wrong = "padded_slice does not support sharded inputs."
    require(not input_tensor.memory_config().is_sharded(), wrong, "an interleaved tensor", "Move it to DRAM first.")
    shards = memory_config.shard_spec
    if shards is None:
        raise ShapeError(
            "bad optional access", expected="a memory_config with a shard_spec", fix="Say which cores hold what."
        )
    starts, ends = (
        tuple(i + n if i < 0 else i for i, n in zip(bounds, shape, strict=True))
        for bounds in (padded_slice_start, padded_slice_end)
    )
    is_padded = shards.shape[1] != input_tensor.padded_shape[3]
    if not any(starts) and ends == tuple(shape) and not is_padded and input_tensor.layout is Layout.ROW_MAJOR:
        whole: Tensor = to_memory_config(input_tensor, memory_config)
        return whole
    for start, end in zip(starts, ends, strict=True):
        wrong = f"End {end} must be greater than or equal to start {start}"
        require(end >= start, wrong, "an end after its start", "Swap them, or leave the call out.")
    sizes = [end - start for start, end in zip(starts, ends, strict=True)]
    if 0 in sizes:
        none = {"starts": starts, "ends": ends, "steps": None, "output_tensor": None}
        empty: Tensor = SLICE(input_tensor=input_tensor, memory_config=memory_config, **none)
        return empty
    rows, columns = prod(sizes[:-1]), sizes[-1]
    if memory_config.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED:
        columns = shards.shape[1]
    elif memory_config.memory_layout is TensorMemoryLayout.WIDTH_SHARDED:
        rows = shards.shape[0]
    part: Tensor = _padded_slice(
        input_tensor=input_tensor,
        starts=starts,
        ends=ends,
        extents=(rows, columns),
        memory_config=memory_config,
        output_tensor=output_tensor,
    )
    return part
