"""A mesh seen as a grid of devices."""

from __future__ import annotations

from ttmesh.base.geometry import MeshCoordinate, MeshShape


class MeshDeviceView:
    """A mesh as a grid of devices."""

    __slots__ = ("_ids", "_shape")

    def __init__(self, shape: MeshShape, physical_ids: tuple[int, ...]) -> None:
        self._shape, self._ids = shape, physical_ids

    def shape(self) -> MeshShape:
        """The extent."""
        return self._shape

    def num_devices(self) -> int:
        """How many devices."""
        return len(self._ids)

    def is_local(self, coord: MeshCoordinate) -> bool:
        """Whether this process drives the device there."""
        coord.to_linear_index(self._shape)
        return self._shape.part is None or self._shape.part.holds(coord)

    def __repr__(self) -> str:
        return f"MeshDeviceView({self._shape!r}, devices={list(self._ids)})"
