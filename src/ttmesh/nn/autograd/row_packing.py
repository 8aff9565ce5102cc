"""Many tensors as one that fills its tiles, so that one collective moves them all."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

import torch

from ttmesh.nn.autograd.local_ops import local, shaped_like
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.tensor.calls.launch_op import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec

WIDTH = 32  # of a tile: [1, rows, 32] with rows in whole tiles needs no padding


def row_count(shapes: Sequence[Sequence[int]], parts: int = 1) -> int:
    """Rows that hold tensors of these local shapes, in whole tiles for each of the parts."""
    return ceil(sum(prod(shape) for shape in shapes) / (WIDTH * WIDTH * parts)) * WIDTH * parts


def flat_rows(tensors: Sequence[torch.Tensor], rows: int, lane_axes: int) -> torch.Tensor:
    """Tensors end to end as [1, rows, 32] on each lane, zeros behind."""
    lanes = [max(extents) for extents in zip(*(t.shape[:lane_axes] for t in tensors), strict=True)]
    flat = [t.expand(*lanes, *t.shape[lane_axes:]).flatten(lane_axes) for t in tensors]
    rest = rows * WIDTH - sum(t.shape[-1] for t in flat)
    if rest:
        flat.append(flat[0].new_zeros(()).expand(*lanes, rest))
    return torch.cat(flat, -1).reshape(*lanes, 1, rows, WIDTH)


def _join(tensors: list[torch.Tensor], rows: int, lane_axes: int) -> torch.Tensor:
    """Tensors in one."""
    return flat_rows(tensors, rows, lane_axes)


def _part(joined: torch.Tensor, shapes: tuple[tuple[int, ...], ...], lane_axes: int) -> tuple[torch.Tensor, ...]:
    """The tensors again."""
    sizes = [prod(shape) for shape in shapes]
    flat = joined.flatten(lane_axes)
    pieces = torch.split(flat, [*sizes, flat.shape[-1] - sum(sizes)], -1)[:-1]
    return tuple(p.reshape(*joined.shape[:lane_axes], *shape) for p, shape in zip(pieces, shapes, strict=True))


def _joined_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    ((shape, _),) = inferred
    source = call.specs[0]
    return [TensorSpec(shape, source.dtype, source.layout, memory_config=DRAM_MEMORY_CONFIG)]


join_tensors = local("join_tensors", _join, _joined_spec)
part_tensors = local("part_tensors", _part, shaped_like(0), outputs=("out",))
