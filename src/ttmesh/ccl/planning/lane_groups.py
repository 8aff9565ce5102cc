"""Lanes of a mesh seen as groups of members, and back."""

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
class Arrangement:
    """Which chips take part together. `groups` holds linear mesh indices; `grid` is the form of one group."""

    mesh: tuple[int, ...]
    axis: int | None  # the axis whole lines of which are the groups; None: one group, or a choice of chips
    groups: tuple[tuple[int, ...], ...]
    grid: tuple[int, int]

    @property
    def members(self) -> int:
        """How many chips take part in one group."""
        return len(self.groups[0])

    @cached_property
    def _whole(self) -> bool:
        return sum(map(len, self.groups)) == prod(self.mesh)

    def gather(self, lanes: torch.Tensor) -> torch.Tensor:
        """[*mesh, *local] → [groups, members, *local]; an axis of length 1 stays so where it can."""
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
        if self._whole and len(self.groups) == 1:
            return flat[None]
        return flat[torch.tensor(self.groups, device=lanes.device)]

    def spread(self, result: torch.Tensor) -> torch.Tensor:
        """[groups, members, *local] → [*mesh, *local]; chips that do not take part get zeros."""
        axes = len(self.mesh)
        if axes == 2 and self.axis is not None:
            return result if self.axis == 1 else result.transpose(0, 1)
        count, members, *local = result.shape
        if self.axis is not None:
            others = [n for axis, n in enumerate(self.mesh) if axis != self.axis]
            return result.reshape(*others, members, *local).movedim(axes - 1, self.axis)
        if count == 1 and members == 1:
            return result.reshape(*[1] * axes, *local)
        every = result.expand(len(self.groups), self.members, *local)
        if self._whole and len(self.groups) == 1:
            return every.reshape(*self.mesh, *local)
        lanes = result.new_zeros(prod(self.mesh), *local)
        lanes[torch.tensor(self.groups, device=result.device)] = every
        return lanes.reshape(*self.mesh, *local)


def arrangement(mesh: Sequence[int], axis: int | None, presence: frozenset[Coord] | None) -> Arrangement:
    """Whole lines along an axis; without one, all chips that hold the tensor, in row-major order."""
    shape = tuple(mesh)
    long = [i for i, n in enumerate(shape) if n > 1]
    if axis is None and presence is None and len(long) <= 1:
        axis = long[0] if long else len(shape) - 1
    coords = [c for c in product(*map(range, shape)) if presence is None or c in presence]
    if axis is None:
        grid = (shape[0], shape[1]) if presence is None and len(shape) == 2 else (1, len(coords))
        return Arrangement(shape, None, (tuple(_index(c, shape) for c in coords),), grid)
    lines: dict[Coord, list[int]] = {}
    for c in coords:
        lines.setdefault(c[:axis] + c[axis + 1 :], []).append(_index(c, shape))
    groups = tuple(tuple(line) for line in lines.values())
    if len({len(line) for line in groups}) != 1:
        raise ShapeError(
            f"the tensor fills lines along axis {axis} of {list(shape)} unevenly",
            expected="equally many chips in every line",
            fix="Distribute the tensor over whole lines, or leave cluster_axis out.",
        )
    return Arrangement(shape, axis if presence is None else None, groups, (1, len(groups[0])))


def _index(coord: Coord, shape: tuple[int, ...]) -> int:
    index = 0
    for at, n in zip(coord, shape, strict=True):
        index = index * n + at
    return index


def split_dim(tensor: torch.Tensor, dim: int, parts: int) -> torch.Tensor:
    """A view with a dim, counted from the back, as [parts, rest]; parts comes at `dim - 1` from the back."""
    at = tensor.dim() + dim
    shape = tensor.shape
    return tensor.view(*shape[:at], parts, shape[at] // parts, *shape[at + 1 :])
