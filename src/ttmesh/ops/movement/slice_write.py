"""slice_write: a tensor, or rows as padded_slice gives them, into a slice of another."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from ttmesh.base.dtypes import ELEMENT_BYTES, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.ops.movement.slice_ops import make_slices
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.tensor import Tensor

NAME = "ttnn.experimental.slice_write"
TILE = 32


def _check_slice_write(call: Call) -> None:
    given = call.specs[0].shape
    sizes = [
        -(-(end - start) // step) for start, end, step in zip(call["start"], call["end"], call["step"], strict=True)
    ]
    if any(size <= 0 for size in sizes):
        return
    for i, (size, extent) in enumerate(zip(sizes, given, strict=False)):
        wrong = (
            f"Size of the slice being written {size} should match the size of the input tensor {extent} at dim {i}. Got "
            f"{Shape(sizes)}, expected {given}"
        )
        require(call["row_width"] is not None or size == extent, wrong, f"{extent}", "Change start or end.")
    source, target = call["input_tensor"].dtype, call["output_tensor"].dtype
    same_size = ELEMENT_BYTES.get(source) == ELEMENT_BYTES.get(target)
    for wrong, fits in (
        ("Input & output should have the same element size", same_size),
        ("Input & output should have the same dtype", source is target),
    ):
        require(fits, wrong, f"{target.name.lower()}", "Convert it with ttnn.typecast.")


@device_operation(NAME, writes="output_tensor", outputs=(), check=_check_slice_write)
def _slice_write(
    input_tensor: torch.Tensor,
    output_tensor: torch.Tensor,
    start: Sequence[int],
    end: Sequence[int],
    step: Sequence[int],
    row_width: int | None,
    lane_axes: int,
) -> torch.Tensor:
    if any(last <= first for first, last in zip(start, end, strict=True)):
        return output_tensor  # an empty slice
    slices = make_slices(output_tensor.shape[lane_axes:], start, end, step)
    if row_width is not None:
        sizes = [last - first for first, last in zip(start, end, strict=True)]
        images = (*sizes[:2], row_width)
        rows = input_tensor.flatten(lane_axes, -2)[..., : prod(images), : sizes[3]]
        input_tensor = rows.reshape(*rows.shape[:-2], *images, sizes[3])[..., : sizes[2], :]
    result, source = align_mesh_dims([output_tensor, input_tensor], lane_axes)
    result = result.clone()
    result[slices] = source.to(result.dtype)
    return result


@composite(NAME)
def slice_write(
    input_tensor: Tensor, output_tensor: Tensor, start: Sequence[int], end: Sequence[int], step: Sequence[int]
) -> Tensor:
    """Write a tensor into a slice of another, which is returned."""
    wrong = "Slice Write currently doesn't support sharded output tensors."
    require(not output_tensor.memory_config().is_sharded(), wrong, "an interleaved tensor", "Move it to DRAM first.")
    shape, row_width = input_tensor.shape, None
    is_sharded = input_tensor.memory_config().is_sharded()
    if is_sharded and len(shape) == len(end) == 4 and tuple(shape[:2]) == (1, 1):
        wrong = "Step is not supported for sharded slice_write operation"
        require(all(each == 1 for each in step), wrong, "steps of 1", "Move the input to DRAM first.")
        last = -(-end[2] // TILE) * TILE if input_tensor.layout is Layout.TILE else end[2]
        row_width = last - start[2]  # rows of an image are padded to tiles
        sizes = [b - a for a, b in zip(start, end, strict=True)]
        rows = prod(sizes[:2]) * row_width
        wrong = f"{shape[2]} rows of {shape[3]} values are less than the slice has, {rows} rows of {sizes[3]}"
        fits = 0 in sizes or (shape[2] >= rows and shape[3] >= sizes[3])  # TT-NN would write what lies behind them
        require(fits, wrong, "as many rows and columns as the slice", "Change start or end, or pad the rows.")
    written: Tensor = _slice_write(
        input_tensor=input_tensor,
        output_tensor=output_tensor,
        start=tuple(start),
        end=tuple(end),
        step=tuple(step),
        row_width=row_width,
    )
    return written
