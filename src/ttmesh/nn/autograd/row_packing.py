"""Many tensors packed into one without tile padding, so that one collective moves them all."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

import torch

from ttmesh.nn.autograd.local_ops import define_local_op, keep_format
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec

WIDTH = 32  # of a tile: [1, rows, 32] with a multiple of 32 rows needs no padding


def count_rows(shapes: Sequence[Sequence[int]], shards: int = 1) -> int:
    """How many rows hold tensors of these local shapes, in full tiles for each of the shards."""
    return ceil(sum(prod(shape) for shape in shapes) / (WIDTH * WIDTH * shards)) * WIDTH * shards


def flatten_to_rows(tensors: Sequence[torch.Tensor], rows: int, lane_axes: int) -> torch.Tensor:
    """The tensors one after another as [1, rows, 32] on each lane, zeros at the end."""
    lanes = [max(extents) for extents in zip(*(t.shape[:lane_axes] for t in tensors), strict=True)]
    flat = [t.expand(*lanes, *t.shape[lane_axes:]).flatten(lane_axes) for t in tensors]
    rest = rows * WIDTH - sum(t.shape[-1] for t in flat)
    if rest:
        flat.append(flat[0].new_zeros(()).expand(*lanes, rest))
    return torch.cat(flat, -1).reshape(*lanes, 1, rows, WIDTH)


def _pack_lane(tensors: list[torch.Tensor], rows: int, lane_axes: int) -> torch.Tensor:
    """All tensors in one."""
    return flatten_to_rows(tensors, rows, lane_axes)


def _unpack_lane(packed: torch.Tensor, shapes: tuple[tuple[int, ...], ...], lane_axes: int) -> tuple[torch.Tensor, ...]:
    """The tensors that were packed, from their rows."""
    sizes = [prod(shape) for shape in shapes]
    flat = packed.flatten(lane_axes)
    pieces = torch.split(flat, [*sizes, flat.shape[-1] - sum(sizes)], -1)[:-1]
    return tuple(p.reshape(*packed.shape[:lane_axes], *shape) for p, shape in zip(pieces, shapes, strict=True))


def _packed_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    ((shape, _),) = inferred
    source = call.specs[0]
    return [TensorSpec(shape, source.dtype, source.layout, memory_config=DRAM_MEMORY_CONFIG)]


pack_tensors = define_local_op("pack_tensors", _pack_lane, _packed_spec)
unpack_tensors = define_local_op("unpack_tensors", _unpack_lane, keep_format(0), outputs=("out",))
