"""Which chips are linked, and what form any arrangement of them has: line, ring, mesh or torus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import pairwise

from ttmesh.base.geometry import MeshShape
from ttmesh.base.link_notation import Links, pair
from ttmesh.fabric.fabric_config import FabricType, Topology


class AxisForm(Enum):
    """What the chips along one mesh axis form."""

    POINT = "point"
    LINE = "line"
    RING = "ring"
    UNLINKED = "unlinked"  # logical neighbours that no link joins; data between them takes several hops


@dataclass(frozen=True)
class Fabric:
    """The links of a system as a graph of physical chips."""

    links: Links = field(hash=False)

    @cached_property
    def _near(self) -> dict[int, tuple[int, ...]]:
        near: dict[int, list[int]] = {}
        for a, b in self.links:
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
        return {chip: tuple(sorted(others)) for chip, others in near.items()}

    def neighbours(self, chip: int) -> tuple[int, ...]:
        """The chips one link away, ascending."""
        return self._near.get(chip, ())

    def link_count(self, a: int, b: int) -> int:
        """How many links join two chips directly."""
        return self.links.get(pair(a, b), 0)


def axis_lines(shape: MeshShape, ids: Sequence[int], axis: int) -> list[tuple[int, ...]]:
    """The chips of a row-major mesh along one axis, line by line."""
    stride, size = shape.get_stride(axis), shape[axis]
    starts = [i for i in range(len(ids)) if (i // stride) % size == 0]
    return [tuple(ids[start + step * stride] for step in range(size)) for start in starts]


def axis_closes(fabric: Fabric, shape: MeshShape, ids: Sequence[int], axis: int) -> bool:
    """Whether a link joins the ends of every line; two chips would close over the link they already use."""
    lines = axis_lines(shape, ids, axis)
    return shape[axis] > 2 and all(fabric.link_count(line[-1], line[0]) for line in lines)


def axis_form(fabric: Fabric, shape: MeshShape, ids: Sequence[int], axis: int) -> AxisForm:
    """What the chips along one axis of a mesh form."""
    if shape[axis] == 1:
        return AxisForm.POINT
    lines = axis_lines(shape, ids, axis)
    if not all(fabric.link_count(a, b) for line in lines for a, b in pairwise(line)):
        return AxisForm.UNLINKED
    return AxisForm.RING if axis_closes(fabric, shape, ids, axis) else AxisForm.LINE


def mesh_topology(fabric: Fabric, shape: MeshShape, ids: Sequence[int]) -> Topology | None:
    """The form of a whole mesh, or None where logical neighbours are not linked."""
    forms = [axis_form(fabric, shape, ids, axis) for axis in range(shape.dims())]
    longer = [form for form in forms if form is not AxisForm.POINT]
    if AxisForm.UNLINKED in longer:
        return None
    if len(longer) <= 1:
        return Topology.Ring if AxisForm.RING in longer else Topology.Linear
    return Topology.Torus if AxisForm.RING in longer else Topology.Mesh


def fabric_type(fabric: Fabric, shape: MeshShape, ids: Sequence[int]) -> FabricType:
    """Which axes of a two-dimensional mesh close."""
    closing = (axis_closes(fabric, shape, ids, 1), axis_closes(fabric, shape, ids, 0))
    return {
        (False, False): FabricType.MESH,
        (True, False): FabricType.TORUS_X,
        (False, True): FabricType.TORUS_Y,
        (True, True): FabricType.TORUS_XY,
    }[closing]


def link_width(fabric: Fabric, shape: MeshShape, ids: Sequence[int], axis: int) -> int:
    """The number of links that every pair of neighbours along an axis has; 0 where one has none."""
    counts = [fabric.link_count(a, b) for line in axis_lines(shape, ids, axis) for a, b in pairwise(line)]
    return min(counts, default=0)
