"""ttnn.broadcast_to: a tensor repeated along dims of length one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import make_like_rule
from ttmesh.ops.goldens import movement as goldens
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.shape import Shape


def _check_broadcast_to(call: Call) -> None:
    shape, target_shape = tuple(call.specs[0].shape), tuple(call["output_shape"])
    for side, config in (("input", call.specs[0].memory_config), ("output", call["memory_config"])):
        wrong = f"bcast_to: Invalid {side} memory config {config}. {side.capitalize()} tensor sharding not supported"
        require(config is None or not config.is_sharded(), wrong, "interleaved memory", "Use ttnn.DRAM_MEMORY_CONFIG.")
    layout = call.specs[0].layout
    wrong = f"bcast_to: Invalid tensor memory layout Layout::{layout.name}. Input tensor layout must be TILE."
    at_most_four = max(len(shape), len(target_shape)) <= 4
    require(layout is Layout.TILE or not at_most_four, wrong, "TILE layout", "Convert it with ttnn.to_layout.")
    require(
        len(shape) <= len(target_shape),
        f"Input tensor shape {list(shape)}({len(shape)}) must be at least as large as the broadcast shape "
        f"{list(target_shape)}({len(target_shape)}), which it is not",
        f"{len(shape)} dims or more",
        "Name every dim of the result.",
    )
    require(
        len(target_shape) <= 4,
        f"Tensor shape and broadcast size {Shape(shape)}({len(shape)}) {Shape(target_shape)}({len(target_shape)}) "
        "must be at most 4D",
        "four dims or fewer",
        "Fold outer dims with ttnn.reshape.",
    )
    for i, (length, target) in enumerate(zip(shape, target_shape[len(target_shape) - len(shape) :], strict=True)):
        wrong = f"Input dimension {i} (size {length}) cannot be broadcast to output dimension {i} (size {target})"
        require(length in (1, target), wrong, f"length 1 or {target}", "Only dims of length 1 are repeated.")


@op(
    "ttnn.experimental.broadcast_to",
    golden=goldens.broadcast_to,
    check=_check_broadcast_to,
    out=make_like_rule(),
    outputs=("output",),
)
def broadcast_to(input: torch.Tensor, output_shape: Sequence[int], lane_axes: int) -> torch.Tensor:
    """The values repeated along dims of length 1 until the shape is reached."""
    mesh, local = input.shape[:lane_axes], input.shape[lane_axes:]
    return input.reshape(*mesh, *[1] * (len(output_shape) - len(local)), *local).expand(*mesh, *output_shape)
