"""Which chips a mesh of a given shape gets: the mapping rules of TT-Metal's SystemMesh, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from ttmesh.base.errors import ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.chip.system import System
from ttmesh.mesh.system.grid_path import Position, find_path

PERIMETER_SHAPES = ((2, 4), (4, 2))  # tt-metal issue 33737: on these a line follows the edge, never a snake


def map_devices(
    system: System, shape: MeshShape | None = None, offset: MeshCoordinate | None = None
) -> tuple[MeshShape, tuple[int, ...]]:
    """The shape of the mesh and its physical ids in row-major order; no shape means the full system."""
    requested = system.shape if shape is None else shape
    size, available = requested.mesh_size(), system.shape.mesh_size()
    if size <= 0 or min(requested) < 0:
        raise ShapeError(
            f"Requested mesh shape {requested!r} has zero devices (mesh_size=0). "
            "MeshShape must have at least one device.",
            expected="positive extents",
            fix=f"Choose extents within the system mesh, {system.shape!r}.",
        )
    if size > available:
        raise ShapeError(
            f"Requested mesh shape {requested!r} requires {size} devices, but only {available} devices are available "
            f"in the system mesh {system.shape!r}.",
            expected=f"at most {available} devices",
            fix="Open a smaller mesh or choose a larger system (TTMESH_SYSTEM).",
        )
    if offset is not None and offset.dims() != system.shape.dims():
        raise ShapeError(
            f"Provided offset dimensions mismatch: {offset!r} != {system.shape.dims()}",
            expected="one number per axis of the system mesh",
            fix="Pass MeshCoordinate(row, col).",
        )
    start = MeshCoordinate(0, 0) if offset is None else offset
    if requested.is_line_topology():
        positions = _list_line_positions(system, size, start)
    else:
        positions = _list_box_positions(system, requested, start)
    return requested, tuple(system.grid[row][col] for row, col in positions)


def _list_line_positions(system: System, length: int, start: MeshCoordinate) -> list[Position]:
    if any(at >= extent for at, extent in zip(start, system.shape, strict=True)):
        raise ShapeError(
            f"The specified offset {start!r} is out of bounds for the system mesh shape {system.shape!r}",
            expected="an offset inside the system mesh",
            fix="Choose a smaller offset.",
        )
    return [(c[0], c[1]) for c in get_line_coordinates(length, system.shape, start)]


def _list_box_positions(system: System, requested: MeshShape, start: MeshCoordinate) -> list[Position]:
    whole = system.shape
    if requested.dims() != whole.dims():
        raise ShapeError(
            f"Requested mesh shape dimensions mismatch: {requested!r} != {whole!r}",
            expected=f"{whole.dims()} axes, or a line",
            fix="Open the mesh with two axes; its shape can have three only where one axis is longer than 1.",
        )
    rows, cols = requested
    if _is_inside((rows, cols), start, whole):
        return [(start[0] + row, start[1] + col) for row in range(rows) for col in range(cols)]
    if _is_inside((cols, rows), start, whole):
        # TT-Metal's transposed placement checks the offset but then starts at the origin; so does this.
        return [(col, row) for row in range(rows) for col in range(cols)]
    raise ShapeError(
        f"Requested mesh is too big and is not rotatable: {requested!r} and SystemMesh {whole!r}, offset {start!r}",
        expected="a shape that fits, directly or transposed",
        fix="Choose a smaller shape or offset.",
    )


def _is_inside(extents: Sequence[int], start: MeshCoordinate, whole: MeshShape) -> bool:
    return all(at + extent <= limit for at, extent, limit in zip(start, extents, whole, strict=True))


def get_line_coordinates(
    length: int, mesh_shape: MeshShape, offset: MeshCoordinate | None = None
) -> list[MeshCoordinate]:
    """A path of neighbours from the offset, closing into a ring where one exists."""
    rows, cols = mesh_shape
    start = (0, 0) if offset is None else (offset[0], offset[1])
    if not (start[0] < rows and start[1] < cols):
        raise ShapeError(
            f"Mesh offset ({start[0]}, {start[1]}) is out of bounds for mesh shape ({rows}, {cols})",
            expected="an offset inside the mesh",
            fix="Choose a smaller offset.",
        )
    if (rows, cols) in PERIMETER_SHAPES:
        ring = get_ring_coordinates(mesh_shape, mesh_shape)
        if length > len(ring):
            raise ShapeError(
                f"Length {length} is greater than the number of ring coordinates {len(ring)}",
                expected=f"at most {len(ring)}",
                fix="Ask for a shorter line.",
            )
        first = ring.index(MeshCoordinate(*start))
        return [ring[(first + i) % len(ring)] for i in range(length)]
    path = find_path(length, rows, cols, start, ring=True) or find_path(length, rows, cols, start, ring=False)
    if path is None:
        raise ShapeError(
            f"Failed to get line coordinates, got 1 coordinates, expected {length}",
            expected="a length for which a path of neighbours exists",
            fix="Ask for a shorter line or another offset.",
        )
    return [MeshCoordinate(position) for position in path]


def get_ring_coordinates(ring_shape: MeshShape, mesh_shape: MeshShape) -> list[MeshCoordinate]:
    """The edge of a box at the origin, clockwise: along the top row, down, back and up."""
    rows, cols = ring_shape
    if rows <= 0 or cols <= 0:
        raise ShapeError(
            f"Ring shape must not be empty along either dimension. Got {ring_shape!r}",
            expected="positive extents",
            fix="Pass MeshShape(rows, cols).",
        )
    if rows > mesh_shape[0] or cols > mesh_shape[1]:
        raise ShapeError(
            f"Subgrid {ring_shape!r} is out of mesh bounds {mesh_shape!r}",
            expected="a ring inside the mesh",
            fix="Choose a smaller ring.",
        )
    positions = [(0, col) for col in range(cols)] + [(row, cols - 1) for row in range(1, rows)]
    if rows > 1 and cols > 1:
        positions += [(rows - 1, col) for col in range(cols - 2, -1, -1)] + [(row, 0) for row in range(rows - 2, 0, -1)]
    return [MeshCoordinate(position) for position in positions]


def map_reshaped_devices(system: System, shape: MeshShape, ids: Sequence[int], new: MeshShape) -> tuple[int, ...]:
    """The physical ids under another shape: a line follows the current grid, a grid is mapped again from its corner."""
    if new.mesh_size() != shape.mesh_size():
        raise ShapeError(
            f"New shape must have the same number of devices as current shape ({new!r} against {shape!r})",
            expected=f"{shape.mesh_size()} devices",
            fix="Choose extents whose product is that number.",
        )
    if new == shape:
        return tuple(ids)
    if new.is_line_topology():
        return tuple(ids[coord.to_linear_index(shape)] for coord in get_line_coordinates(len(ids), shape))
    corner = min(system.find_position(chip) for chip in ids)
    try:
        _, found = map_devices(system, new, MeshCoordinate(corner))
    except ShapeError:
        found = ()
    if set(found) != set(ids):
        raise ShapeError(
            f"User has requested a reshape of the MeshDevice to shape: {new!r}, but it is not possible to form a "
            f"physically connected mesh grid with the opened devices from the original shape: {shape!r}.",
            expected="a shape that the opened devices form in the system",
            fix="Open the mesh with that shape instead.",
        )
    return found
