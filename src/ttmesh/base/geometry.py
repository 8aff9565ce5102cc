"""Shapes, coordinates and ranges on a mesh, printed and compared as TT-NN does."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import mul

from ttmesh.base.argument_types import misfit
from ttmesh.base.errors import ShapeError


class MeshShape:
    """The extent of a mesh along each of its axes."""

    __slots__ = ("_dims",)

    def __init__(self, *dims: int | Sequence[int]) -> None:
        values = tuple(dims[0]) if len(dims) == 1 and not isinstance(dims[0], int) else dims
        if not values or not all(isinstance(v, int) for v in values) or (len(dims) == 1 and isinstance(dims[0], int)):
            raise misfit(
                "__init__", "rows, cols",
                f"MeshShape{dims!r} is not a shape; expected MeshShape(rows, cols), three ints or a sequence",
            )  # fmt: skip
        self._dims: tuple[int, ...] = tuple(int(v) for v in values)  # type: ignore[arg-type]

    def dims(self) -> int:
        """How many axes."""
        return len(self._dims)

    def mesh_size(self) -> int:
        """How many devices."""
        return reduce(mul, self._dims, 1)

    def get_stride(self, axis: int) -> int:
        """Row-major distance between neighbours along an axis."""
        return reduce(mul, self._dims[axis % len(self._dims) + 1 :], 1)

    def is_line_topology(self) -> bool:
        """At most one axis is longer than one."""
        return sum(d != 1 for d in self._dims) <= 1

    def to_tuple(self) -> tuple[int, ...]:
        """The extents as a plain tuple."""
        return self._dims

    def __getitem__(self, axis: int) -> int:
        try:
            return self._dims[axis]
        except IndexError:
            raise ShapeError(
                f"ShapeBase[] index out of range. {axis} not in [-4, {len(self._dims)})",
                expected=f"an axis of {self!r}",
                fix="Choose another axis.",
            ) from None

    def __iter__(self) -> Iterator[int]:
        return iter(self._dims)

    def __len__(self) -> int:
        return len(self._dims)

    def __eq__(self, other: object) -> bool:
        return self._dims == other._dims if isinstance(other, MeshShape) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._dims)

    def __repr__(self) -> str:
        return f"MeshShape({list(self._dims)})"


class MeshCoordinate:
    """The position of one device on a mesh."""

    __slots__ = ("_coords",)

    def __init__(self, *coords: int | Sequence[int]) -> None:
        single = len(coords) == 1 and not isinstance(coords[0], int)
        values = tuple(coords[0]) if single else coords  # type: ignore[arg-type]
        if not all(isinstance(v, int) and v >= 0 for v in values) or (len(coords) < 2 and not single):
            raise misfit(
                "__init__", "row, col", f"MeshCoordinate{coords!r} is not a coordinate; expected non-negative ints"
            )
        self._coords: tuple[int, ...] = tuple(int(v) for v in values)  # type: ignore[arg-type]

    @staticmethod
    def zero_coordinate(dims: int) -> MeshCoordinate:
        """The origin of a mesh with this many axes."""
        return MeshCoordinate([0] * dims)

    def dims(self) -> int:
        """How many axes."""
        return len(self._coords)

    def coords(self) -> tuple[int, ...]:
        """The components as a plain tuple."""
        return self._coords

    def to_linear_index(self, shape: MeshShape) -> int:
        """Row-major position in a mesh of this shape."""
        if len(shape) != self.dims() or any(c >= s for c, s in zip(self._coords, shape, strict=False)):
            raise ShapeError(
                f"{self!r} lies outside {shape!r}",
                expected="a coordinate inside the mesh",
                fix="Pass a coordinate below the shape along every axis.",
            )
        return sum(c * shape.get_stride(axis) for axis, c in enumerate(self._coords))

    def get_neighbor(self, shape: MeshShape, offset: int, axis: int, mode: str = "wrap") -> MeshCoordinate | None:
        """The coordinate `offset` steps along an axis; past the edge it wraps, clamps or is None."""
        axis %= len(shape)
        at = self._coords[axis] + offset
        if not 0 <= at < shape[axis]:
            if mode == "none":
                return None
            at = at % shape[axis] if mode == "wrap" else min(max(at, 0), shape[axis] - 1)
        return MeshCoordinate([*self._coords[:axis], at, *self._coords[axis + 1 :]])

    def __getitem__(self, axis: int) -> int:
        return self._coords[axis]

    def __iter__(self) -> Iterator[int]:
        return iter(self._coords)

    def __len__(self) -> int:
        return len(self._coords)

    def __eq__(self, other: object) -> bool:
        return self._coords == other._coords if isinstance(other, MeshCoordinate) else NotImplemented

    def __lt__(self, other: MeshCoordinate) -> bool:
        if other.dims() != self.dims():
            raise ShapeError(
                f"Cannot compare {self!r} with {other!r}",
                expected="equal numbers of axes",
                fix="Compare coordinates of one mesh.",
            )
        return self._coords < other._coords

    def __hash__(self) -> int:
        return hash(self._coords)

    def __repr__(self) -> str:
        return f"MeshCoordinate({list(self._coords)})"


class MeshCoordinateRange:
    """A box of coordinates, both ends included; iterates in row-major order."""

    __slots__ = ("end_coord", "start_coord")

    def __init__(self, start: MeshCoordinate | MeshShape, end: MeshCoordinate | None = None) -> None:
        if isinstance(start, MeshShape):
            start, end = MeshCoordinate.zero_coordinate(start.dims()), MeshCoordinate([d - 1 for d in start])
        end = start if end is None else end
        if start.dims() != end.dims() or any(a > b for a, b in zip(start, end, strict=True)):
            raise ShapeError(
                f"Start coordinate {start!r} is after end coordinate {end!r}",
                expected="start <= end along every axis",
                fix="Swap them.",
            )
        self.start_coord, self.end_coord = start, end

    @property
    def shape(self) -> MeshShape:
        """The extent of the box."""
        return MeshShape([b - a + 1 for a, b in zip(self.start_coord, self.end_coord, strict=True)])

    def coords(self) -> list[MeshCoordinate]:
        """Every coordinate in row-major order."""
        axes = (range(a, b + 1) for a, b in zip(self.start_coord, self.end_coord, strict=True))
        return [MeshCoordinate(c) for c in itertools.product(*axes)]

    def contains(self, what: MeshCoordinate | MeshCoordinateRange) -> bool:
        """Whether a coordinate, or every coordinate of a range, is inside."""
        first, last = (what, what) if isinstance(what, MeshCoordinate) else (what.start_coord, what.end_coord)
        box = zip(self.start_coord, first, last, self.end_coord, strict=True)
        return all(a <= lo and hi <= b for a, lo, hi, b in box)

    def intersection(self, other: MeshCoordinateRange) -> MeshCoordinateRange | None:
        """The common box, or None."""
        start = [max(a, b) for a, b in zip(self.start_coord, other.start_coord, strict=True)]
        end = [min(a, b) for a, b in zip(self.end_coord, other.end_coord, strict=True)]
        if any(a > b for a, b in zip(start, end, strict=True)):
            return None
        return MeshCoordinateRange(MeshCoordinate(start), MeshCoordinate(end))

    def intersects(self, other: MeshCoordinateRange) -> bool:
        """Whether the boxes share a coordinate."""
        return self.intersection(other) is not None

    def __iter__(self) -> Iterator[MeshCoordinate]:
        return iter(self.coords())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MeshCoordinateRange):
            return NotImplemented
        return (self.start_coord, self.end_coord) == (other.start_coord, other.end_coord)

    def __hash__(self) -> int:
        return hash((self.start_coord, self.end_coord))

    def __repr__(self) -> str:
        return f"MeshCoordinateRange(start={self.start_coord!r}, end={self.end_coord!r})"


class MeshCoordinateRangeSet:
    """A union of boxes."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: MeshCoordinateRange | Iterable[MeshCoordinateRange] = ()) -> None:
        self._ranges: list[MeshCoordinateRange] = []
        for box in [ranges] if isinstance(ranges, MeshCoordinateRange) else ranges:
            self.merge(box)

    def merge(self, box: MeshCoordinateRange) -> None:
        """Add a box; boxes that together form a larger box become one."""
        new = box
        while (partner := next((r for r in self._ranges if _merge_boxes(r, new)), None)) is not None:
            self._ranges.remove(partner)
            merged = _merge_boxes(partner, new)
            assert merged is not None, "partner was chosen because it merges"
            new = merged
        self._ranges.append(new)
        self._ranges.sort(key=lambda r: (r.start_coord.coords(), r.end_coord.coords()))

    def ranges(self) -> list[MeshCoordinateRange]:
        """The boxes, sorted."""
        return list(self._ranges)

    def coords(self) -> list[MeshCoordinate]:
        """Every coordinate once, in row-major order."""
        return sorted({c for r in self._ranges for c in r})

    def size(self) -> int:
        """How many boxes."""
        return len(self._ranges)

    def empty(self) -> bool:
        """No box yet."""
        return not self._ranges

    def __iter__(self) -> Iterator[MeshCoordinateRange]:
        return iter(self._ranges)

    def __eq__(self, other: object) -> bool:
        return self.coords() == other.coords() if isinstance(other, MeshCoordinateRangeSet) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.coords()))

    def __repr__(self) -> str:
        return f"MeshCoordinateRangeSet({', '.join(map(repr, self._ranges))})"


def _merge_boxes(a: MeshCoordinateRange, b: MeshCoordinateRange) -> MeshCoordinateRange | None:
    """The box that is exactly the union of two, if there is one."""
    low = MeshCoordinate([min(x, y) for x, y in zip(a.start_coord, b.start_coord, strict=True)])
    high = MeshCoordinate([max(x, y) for x, y in zip(a.end_coord, b.end_coord, strict=True)])
    both = MeshCoordinateRange(low, high)
    common = a.intersection(b)
    covered = a.shape.mesh_size() + b.shape.mesh_size() - (common.shape.mesh_size() if common else 0)
    return both if covered == both.shape.mesh_size() else None
