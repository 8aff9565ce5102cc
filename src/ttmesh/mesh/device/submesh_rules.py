"""Which submeshes a mesh can have: TT-Metal's rules and texts, as pure functions."""

from __future__ import annotations

import itertools

from ttmesh.base.errors import ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshShape


def check_submesh(shape: MeshShape, offset: MeshCoordinate | None, parent: MeshShape) -> None:
    """Refuse a submesh that is not inside its parent; without an offset it starts at the first coordinate."""
    if any(extent <= 0 for extent in shape):
        raise ShapeError(
            f"Invalid submesh shape: ({shape!r}). All dimensions must be positive.",
            expected="positive extents",
            fix="Pass extents of 1 or more.",
        )
    if shape.dims() != parent.dims():
        raise ShapeError(
            f"Submesh shape {shape!r} and mesh device shape {parent!r} must have the same number of dimensions.",
            expected=f"{parent.dims()} dimensions",
            fix="Add an axis of length 1.",
        )
    start = [0] * parent.dims() if offset is None else list(offset)
    if any(o + s > p for o, s, p in zip(start, shape, parent, strict=True)):
        shown = "std::nullopt" if offset is None else repr(offset)
        raise ShapeError(
            f"Submesh shape {shape!r} and offset {shown} does not fit within parent mesh ({parent!r}).",
            expected="a submesh inside its parent",
            fix="Choose a smaller shape or offset.",
        )


def list_submesh_starts(shape: MeshShape, parent: MeshShape) -> list[MeshCoordinate]:
    """The first coordinates of the submeshes of this shape that tile the mesh, in row-major order."""
    steps = []
    for axis, (extent, size) in enumerate(zip(parent, shape, strict=True)):
        if size <= 0 or extent % size:
            raise ShapeError(
                f"Shape {parent!r} is not divisible by submesh shape {shape!r} along dimension {axis}",
                expected="a shape that tiles the mesh",
                fix="Choose divisors of the mesh's extents.",
            )
        steps.append(range(0, extent, size))
    return [MeshCoordinate(start) for start in itertools.product(*steps)]
