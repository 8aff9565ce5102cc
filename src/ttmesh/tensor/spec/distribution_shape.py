"""Which coordinates of a mesh a distribution shape lands on, shared by mappers and composers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ttmesh.base.errors import ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange, MeshShape
from ttmesh.mesh.ranks.rank_block import RankBlock

Coord = tuple[int, ...]

ORIGIN = MeshCoordinate([])  # TT-NN's default offset: no axes, no shift


class DistributionConfig:
    """What mapper and composer configs share: TT-NN's two constructors and the overrides."""

    __slots__ = ("mesh_offset_override", "mesh_shape_override", "per_axis")

    ALL_AXES = ""  # the name of the argument that holds all axes; the other form has row_dim and col_dim

    def __init__(self, *args: object, **given: object) -> None:
        has_all_axes = self.ALL_AXES in given or (bool(args) and isinstance(args[0], (list, tuple)))
        names = [self.ALL_AXES] if has_all_axes else ["row_dim", "col_dim"]
        names += ["mesh_shape_override", "mesh_offset_override"]
        bound = dict(zip(names, args, strict=False))
        if len(args) > len(names) or bound.keys() & given.keys() or given.keys() - set(names):
            raise TypeError(
                f"{type(self).__name__}{args!r} with {sorted(given)}; expected each of {names} at most once"
            )
        bound |= given
        found = bound[self.ALL_AXES] if has_all_axes else (bound.get("row_dim"), bound.get("col_dim"))
        self.per_axis: tuple[object, ...] = tuple(found)  # type: ignore[arg-type]
        self.mesh_shape_override: MeshShape | None = bound.get("mesh_shape_override")  # type: ignore[assignment]
        self.mesh_offset_override: MeshCoordinate = bound.get("mesh_offset_override", ORIGIN)  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other) if isinstance(other, DistributionConfig) else NotImplemented

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        shape, offset = self.mesh_shape_override, self.mesh_offset_override
        overrides = "" if shape is None else f", mesh_shape_override={shape!r}"
        overrides += f", mesh_offset_override={offset!r}" if any(offset) else ""
        return f"{type(self).__name__}({self.ALL_AXES}: {list(self.per_axis)!r}{overrides})"


class HasMeshShape(Protocol):
    """What mappers need of a mesh device."""

    @property
    def shape(self) -> MeshShape:
        """Rows and columns."""

    @property
    def rank_block(self) -> RankBlock | None:
        """This rank's block where several ranks divide the mesh."""


def mesh_shape_of(mesh: HasMeshShape | MeshShape) -> MeshShape:
    """The shape of a mesh device, or the shape itself."""
    if isinstance(mesh, MeshShape):
        return mesh
    shape: object = getattr(mesh, "shape", None)
    if not isinstance(shape, MeshShape):
        raise TypeError(f"mesh_device={mesh!r} is a {type(mesh).__name__}; pass what ttnn.open_mesh_device() returned")
    return shape


def check_pairs(**given: object) -> None:
    """Refuse what does not have a value for the rows and one for the columns of a mesh."""
    for name, value in given.items():
        if not isinstance(value, Iterable) or len(tuple(value)) < 2:
            example = "(2, 4)" if name == "mesh_shape" else "(0, None)"
            raise TypeError(f"{name}={value!r} is not a pair; pass a value for rows and one for columns, as {example}")


def rank_block_of(mesh: HasMeshShape | MeshShape) -> RankBlock | None:
    """The rank block of a mesh device; a shape alone has none."""
    return None if isinstance(mesh, MeshShape) else mesh.rank_block


def fits_directly(override: MeshShape | None, mesh_shape: MeshShape) -> bool:
    """Whether coordinates map one to one (a submesh) rather than in row-major order."""
    if override is None:
        return True
    return override.dims() == mesh_shape.dims() and all(a <= b for a, b in zip(override, mesh_shape, strict=True))


def start_of(offset: MeshCoordinate, mesh_shape: MeshShape) -> Coord:
    """An offset with as many axes as the mesh; no offset is the origin."""
    return offset.coords() if any(offset) else (0,) * mesh_shape.dims()


def mesh_coords(distribution: MeshShape, mesh_shape: MeshShape, offset: MeshCoordinate = ORIGIN) -> list[Coord]:
    """The coordinate of every shard, in row-major order of shards; shards beyond the mesh have none."""
    if not fits_directly(distribution, mesh_shape):
        count = distribution.mesh_size()
        return [coord.coords() for coord in MeshCoordinateRange(mesh_shape).coords()[:count]]
    shift = start_of(offset, mesh_shape)
    return [
        tuple(a + b for a, b in zip(coord, shift, strict=True)) for coord in MeshCoordinateRange(distribution).coords()
    ]


def compute_distribution_to_mesh_mapping(distribution_shape: MeshShape, mesh_shape: MeshShape) -> list[MeshCoordinate]:
    """The device of every shard of a distribution, in row-major order of shards."""
    return [MeshCoordinate(coord) for coord in mesh_coords(distribution_shape, mesh_shape)]


def check_distribution(
    distribution: MeshShape, mesh_shape: MeshShape, offset: MeshCoordinate, axes: int, config: object, what: str
) -> None:
    """Refuse a distribution shape that the mesh, the config or the offset does not allow."""
    if distribution.mesh_size() > mesh_shape.mesh_size():
        raise _shape_error(
            f"The size of the supplied mesh shape {distribution} does not match the device shape size {mesh_shape}",
            f"at most {mesh_shape.mesh_size()} devices",
        )
    if distribution.dims() != axes:
        raise _shape_error(
            f"The number of dimensions in the mesh shape {distribution} does not match the number of {what} in the "
            f"config {config!r}",
            f"{distribution.dims()} {what}",
        )
    if not any(offset):
        return
    if not fits_directly(distribution, mesh_shape):
        raise _shape_error(
            "mesh_offset_override is only supported when the distribution fits within the mesh device per-dimension "
            f"(SUBMESH mode); the supplied mesh_shape_override {distribution} requires a row-major reshape of device "
            f"shape {mesh_shape}",
            "no offset here",
        )
    if offset.dims() != mesh_shape.dims():
        raise _shape_error(
            f"The offset {offset} must have the same dimensionality as the mesh device shape {mesh_shape}",
            f"{mesh_shape.dims()} axes",
        )
    for axis, (at, extent, room) in enumerate(zip(offset, distribution, mesh_shape, strict=True)):
        if at + extent > room:
            raise _shape_error(
                f"The sub-rectangle anchored at offset {offset} with shape {distribution} does not fit within the "
                f"mesh device shape {mesh_shape} (dimension {axis})",
                f"an offset of at most {room - extent} there",
            )


def normalised_dims(dims: Sequence[int], rank: int) -> list[int]:
    """Non-negative, distinct tensor dims."""
    found = [dim + rank if dim < 0 else dim for dim in dims]
    if any(not 0 <= dim < rank for dim in found):
        raise _shape_error(
            f"Invalid dimension index; got dims: {list(dims)}, tensor dimension: {rank}", f"dims below {rank}"
        )
    if len(set(found)) != len(found):
        raise _shape_error(f"dims must be unique: {list(dims)}", "each tensor dim at most once")
    return found


def _shape_error(wrong: str, expected: str) -> ShapeError:
    return ShapeError(wrong, expected=expected, fix="Change the mesh shape, the dims or the offset.")
