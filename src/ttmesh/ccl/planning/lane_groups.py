"""Views of the lanes of a mesh as groups of chips, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import torch

from ttmesh.base.errors import ShapeError

Coord = tuple[int, ...]


@dataclass(frozen=True)
class LaneGroups:
    """Which chips form a group. `groups` holds linear mesh indices; `grid` is the shape of one group."""

    mesh: tuple[int, ...]
    axis: int | None  # the axis whose lines are the groups; None: one group, or a subset of chips
    groups: tuple[tuple[int, ...], ...]
    grid: tuple[int, int]

    @property
    def group_size(self) -> int:
        """The number of chips in one group."""
        return len(self.groups[0])

    def device_ids(self, device: torch.device) -> torch.Tensor:
        """[groups, chips]: linear mesh indices, where the lanes are."""
        return torch.tensor(self.groups, device=device, dtype=torch.int64)

    @cached_property
    def _covers_mesh(self) -> bool:
        return sum(map(len, self.groups)) == prod(self.mesh)

    @property
    def is_stored_so(self) -> bool:
        """Whether lanes are [groups, chips, *local] as they are."""
        return self.axis == 1 and len(self.mesh) == 2

    def split(self, lanes: torch.Tensor) -> torch.Tensor:
        """[*mesh, *local] → [groups, chips, *local]; an axis of length 1 (replicated) keeps that length if possible."""
        axes = len(self.mesh)
        if axes == 2 and self.axis is not None:
            return lanes if self.axis == 1 else lanes.transpose(0, 1)
        sizes, local = lanes.shape[:axes], lanes.shape[axes:]
        if self.axis is not None:
            others = [n for axis, n in enumerate(self.mesh) if axis != self.axis]
            moved = lanes.movedim(self.axis, axes - 1)
            return moved.expand(*others, sizes[self.axis], *local).reshape(-1, sizes[self.axis], *local)
        if all(n == 1 for n in sizes):
            return lanes.reshape(1, 1, *local)
        flat = lanes.expand(*self.mesh, *local).reshape(-1, *local)
        if self._covers_mesh and len(self.groups) == 1:
            return flat[None]
        return flat[self.device_ids(lanes.device)]

    def merge(self, result: torch.Tensor) -> torch.Tensor:
        """[groups, chips, *local] → [*mesh, *local]; chips outside the groups get zeros."""
        axes = len(self.mesh)
        if axes == 2 and self.axis is not None:
            return result if self.axis == 1 else result.transpose(0, 1)
        count, chips, *local = result.shape
        if self.axis is not None:
            others = [n for axis, n in enumerate(self.mesh) if axis != self.axis]
            return result.reshape(*others, chips, *local).movedim(axes - 1, self.axis)
        if count == 1 and chips == 1:
            return result.reshape(*[1] * axes, *local)
        expanded = result.expand(len(self.groups), self.group_size, *local)
        if self._covers_mesh and len(self.groups) == 1:
            return expanded.reshape(*self.mesh, *local)
        lanes = result.new_zeros(prod(self.mesh), *local)
        lanes[self.device_ids(result.device)] = expanded
        return lanes.reshape(*self.mesh, *local)


def make_lane_groups(mesh: Sequence[int], axis: int | None, presence: frozenset[Coord] | None) -> LaneGroups:
    """All lines along an axis; without one, one group of all chips that hold the tensor, in row-major order."""
    shape = tuple(mesh)
    long_axes = [i for i, n in enumerate(shape) if n > 1]
    if axis is None and presence is None and len(long_axes) <= 1:
        axis = long_axes[0] if long_axes else len(shape) - 1
    coords = [c for c in product(*map(range, shape)) if presence is None or c in presence]
    if axis is None:
        grid = (shape[0], shape[1]) if presence is None and len(shape) == 2 else (1, len(coords))
        return LaneGroups(shape, None, (tuple(_index(c, shape) for c in coords),), grid)
    lines: dict[Coord, list[int]] = {}
    for c in coords:
        lines.setdefault(c[:axis] + c[axis + 1 :], []).append(_index(c, shape))
    groups = tuple(tuple(line) for line in lines.values())
    if len({len(line) for line in groups}) != 1:
        raise ShapeError(
            f"some lines along axis {axis} of the {list(shape)} mesh hold more shards than others",
            expected="the same number of chips in every line",
            fix="Distribute the tensor over full lines, or leave cluster_axis out.",
        )
    return LaneGroups(shape, axis if presence is None else None, groups, (1, len(groups[0])))


def _index(coord: Coord, shape: tuple[int, ...]) -> int:
    index = 0
    for position, n in zip(coord, shape, strict=True):
        index = index * n + position
    return index


def split_dim(tensor: torch.Tensor, dim: int, parts: int) -> torch.Tensor:
    """A view with a negative dim split into [parts, extent / parts]; the new dim is `dim - 1`."""
    index = tensor.dim() + dim
    shape = tensor.shape
    return tensor.view(*shape[:index], parts, shape[index] // parts, *shape[index + 1 :])
