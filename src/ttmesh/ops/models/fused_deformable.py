"""Deformable attention over several images of a pyramid at once: `fused_msda` and the form that takes offsets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import pool_resample as goldens
from ttmesh.ops.lane_functions.lane_broadcast import (
    align_mesh_dims,
    common_mesh_dims,
    fold_into_batch,
    unfold_from_batch,
)
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Sizes = Sequence[Sequence[int]]
WIDTH = 16  # values that one face of a tile holds side by side
LARGEST_SIDE, MOST_LEVELS = 256, 8
MODES = ("level", "pillar")


def _check_operand(name: str, spec: TensorSpec, *, float32: bool = False) -> None:
    right = spec.dtype is DataType.BFLOAT16 or (float32 and spec.dtype is DataType.FLOAT32)
    wrong = f"fused_msda: {name} must be BFLOAT16, got DataType::{spec.dtype.name}"
    require(right, wrong, "bfloat16", "Convert it with ttnn.typecast.")
    wrong = f"fused_msda: {name} must be ROW_MAJOR, got Layout::{spec.layout.name}"
    require(spec.layout is Layout.ROW_MAJOR, wrong, "row-major", "Use ttnn.to_layout.")
    wrong = f"fused_msda: {name} must be INTERLEAVED"
    require(spec.memory_config.interleaved, wrong, "interleaved memory", "Use ttnn.to_memory_config.")


def _check_shapes(call: Call, points: str) -> None:
    value, weights, places = (call[name].spec for name in ("value", "attention_weights", points))
    sizes = call["spatial_shapes"]
    require(bool(sizes), "fused_msda: spatial_shapes must not be empty", "a size per level", "Pass [[h, w], ...].")
    wrong = f"fused_msda: the number of levels must be in [1, {MOST_LEVELS}], got {len(sizes)}"
    require(len(sizes) <= MOST_LEVELS, wrong, f"at most {MOST_LEVELS} levels", "Split the pyramid.")
    small = all(0 < side <= LARGEST_SIDE for size in sizes for side in size)
    wrong = f"fused_msda: each level's H_l and W_l must be in [1, {LARGEST_SIDE}]"
    require(small, wrong, f"at most {LARGEST_SIDE} pixels a side", "Split the images.")
    pixels, held = sum(h * w for h, w in sizes), value.shape[1]
    wrong = f"fused_msda: value's S dim ({held}) must equal sum of H_l * W_l over spatial_shapes ({pixels})"
    require(held == pixels, wrong, f"{pixels} pixels", "Check spatial_shapes.")
    batch, queries, heads = (int(n) for n in weights.shape[:3])
    wrong = f"fused_msda: attention_weights batch ({batch}) != value batch ({value.shape[0]})"
    require(batch == value.shape[0], wrong, "equal batches", "Repeat one.")
    if len(value.shape) == 4:
        wrong = f"fused_msda: attention_weights heads ({heads}) != value heads ({value.shape[2]})"
        require(heads == value.shape[2], wrong, "equal heads", "Check the heads.")
    depth = int(value.shape[-1]) if len(value.shape) == 4 else int(value.shape[-1]) // heads
    wrong = f"fused_msda: head_dim D must be a positive multiple of {WIDTH}, got {depth}"
    require(depth > 0 and depth % WIDTH == 0, wrong, f"a multiple of {WIDTH}", "Pad the heads.")
    wrong = f"fused_msda: {points} leading dims {places.shape!r} do not match (B, Q, H) = ({batch}, {queries}, {heads})"
    require(tuple(places.shape[:3]) == (batch, queries, heads), wrong, "equal dims", "Reshape one.")


def _check(call: Call) -> None:
    for name in ("value", "sampling_locations", "attention_weights"):
        _check_operand(name, call[name].spec)
    _check_shapes(call, "sampling_locations")


def _check_offsets(call: Call) -> None:
    mode = call["reference_mode"]
    wrong = (
        'fused_msda_from_offsets: reference_mode must be "level" (one reference point per feature level, R == L) or '
        f'"pillar" (one per z-anchor, P % R == 0), got "{mode}"'
    )
    require(mode in MODES, wrong, '"level" or "pillar"', "Pass one of these words as reference_mode.")
    for name in ("value", "sampling_offsets", "attention_weights"):
        _check_operand(name, call[name].spec)
    references = call["reference_points"].spec
    _check_operand("reference_points", references, float32=True)
    wrong = f"fused_msda: reference_points last dim must be 2 (normalized x, y), got {references.shape[-1]}."
    require(references.shape[-1] == 2, wrong, "[B, Q, R, 2]", "Compute the locations and call fused_msda.")
    _check_shapes(call, "sampling_offsets")
    levels, given = len(call["spatial_shapes"]), int(references.shape[2])
    points = _count_points(call["attention_weights"].spec.shape, levels)
    if mode == "level":
        wrong = (
            f'fused_msda: reference_mode="level" requires one reference point per level: R ({given}) != L ({levels})'
        )
        require(given == levels, wrong, f"{levels} points", 'Pass them, or reference_mode="pillar".')
    else:
        wrong = f'fused_msda: reference_mode="pillar" requires P ({points}) to be divisible by R ({given})'
        require(points % given == 0, wrong, f"a divisor of {points}", "Check the anchors.")


def _count_points(shape: Sequence[int], levels: int) -> int:
    """Points per level, from the weights, packed or not."""
    return int(shape[4]) if len(shape) == 5 else int(shape[3]) // levels


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, inferred[0][0], dtype=DataType.BFLOAT16, layout=Layout.ROW_MAJOR)]


@op("ttnn.experimental.fused_msda", golden=goldens.fused_msda, check=_check, out=_spec)
def fused_msda(
    value: Lanes,
    sampling_locations: Lanes,
    attention_weights: Lanes,
    spatial_shapes: Sizes,
    align_corners: bool,
    locations_in_grid_space: bool,
    lane_axes: int,
) -> torch.Tensor:
    """The images of all levels sampled at their points and summed with the weights: [batch, queries, heads · depth]."""
    tensors = [value, sampling_locations, attention_weights]
    dims = common_mesh_dims(tensors, lane_axes)
    images, places, weights = (fold_into_batch(t, lane_axes).float() for t in align_mesh_dims(tensors, lane_axes))
    places = _unpack(places, len(spatial_shapes), 2)
    grid = places if locations_in_grid_space else 2 * places - 1
    return unfold_from_batch(_sample(images, grid, weights, spatial_shapes, align_corners), dims)


@op(
    "ttnn.experimental.fused_msda_from_offsets", golden=goldens.fused_msda_from_offsets, check=_check_offsets, out=_spec
)
def fused_msda_from_offsets(
    value: Lanes,
    reference_points: Lanes,
    sampling_offsets: Lanes,
    attention_weights: Lanes,
    spatial_shapes: Sizes,
    reference_mode: str,
    align_corners: bool,
    lane_axes: int,
) -> torch.Tensor:
    """`fused_msda` at reference points moved by offsets in pixels."""
    tensors = [value, reference_points, sampling_offsets, attention_weights]
    dims = common_mesh_dims(tensors, lane_axes)
    images, references, offsets, weights = (
        fold_into_batch(t, lane_axes).float() for t in align_mesh_dims(tensors, lane_axes)
    )
    offsets = _unpack(offsets, len(spatial_shapes), 2)
    less = 1 if align_corners else 0
    steps = [[1 / (side - less) if side > less else 0.0 for side in (w, h)] for h, w in spatial_shapes]
    scale = torch.tensor(steps, device=offsets.device, dtype=torch.float32)[None, None, None, :, None]
    if reference_mode == "level":
        start = references[:, :, None, :, None]
    else:
        start = references.repeat(1, 1, offsets.shape[4] // references.shape[2], 1)[:, :, None, None]
    grid = 2 * (start + offsets * scale) - 1
    return unfold_from_batch(_sample(images, grid, weights, spatial_shapes, align_corners), dims)


def _unpack(packed: Lanes, levels: int, width: int) -> Lanes:
    """[batch, queries, heads, levels, points, width] of locations that may be packed in the last dim."""
    return packed if packed.dim() == 6 else packed.reshape(*packed.shape[:3], levels, -1, width)


def _sample(images: Lanes, grid: Lanes, weights: Lanes, sizes: Sizes, align_corners: bool) -> Lanes:
    batch, queries, heads, levels, points, _ = grid.shape
    weights = weights.reshape(batch, queries, heads, levels, points)
    images = images.reshape(batch, images.shape[1], heads, -1)
    total, first = torch.zeros((), device=images.device, dtype=torch.float32), 0
    for level, (height, width) in enumerate(sizes):
        pixels = images[:, first : first + height * width]
        first += height * width
        image = pixels.permute(0, 2, 3, 1).reshape(batch * heads, -1, height, width)
        places = grid[:, :, :, level].transpose(1, 2).reshape(batch * heads, queries, points, 2)
        sampled = F.grid_sample(image, places, mode="bilinear", align_corners=align_corners)
        share = weights[:, :, :, level].transpose(1, 2).reshape(batch * heads, 1, queries, points)
        for point in range(points):  # added up in float32, one after the other, as the kernel does
            total = total + sampled[..., point] * share[..., point]
    return total.reshape(batch, -1, queries).transpose(1, 2)
