"""How a tensor is distributed over a mesh, as TT-NN reports it: distribution shape, placements, coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from ttmesh.base.errors import ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange, MeshShape
from ttmesh.base.placement import Placement, Replicate, Shard


class TensorTopology:
    """The shape a tensor was distributed over, what each axis of it does, and which device got which shard."""

    __slots__ = ("_distribution_shape", "_hash", "_mesh_coords", "_placements")

    def __init__(
        self,
        distribution_shape: MeshShape,
        placements: Sequence[Placement],
        mesh_coords: Iterable[MeshCoordinate],
    ) -> None:
        self._distribution_shape = distribution_shape
        self._placements = tuple(placements)
        self._mesh_coords = tuple(mesh_coords)
        self._hash = hash(
            (distribution_shape, self._placements, self._mesh_coords)
        )  # every tensor's kind is hashed by it

    @staticmethod
    @lru_cache(maxsize=64)  # it costs more than the rest of an allocation
    def create_fully_replicated_tensor_topology(mesh_shape: MeshShape) -> TensorTopology:
        """The same on every device of a mesh."""
        return TensorTopology(MeshShape([mesh_shape.mesh_size()]), [Replicate()], _all_coords(mesh_shape))

    @staticmethod
    @lru_cache(maxsize=64)
    def replicated_along_axes(mesh_shape: MeshShape) -> TensorTopology:
        """The same on every device, said of every axis: what TT-NN writes where the device itself makes a tensor."""
        return TensorTopology(mesh_shape, [Replicate()] * mesh_shape.dims(), _all_coords(mesh_shape))

    @staticmethod
    def create_sharded_tensor_topology(mesh_shape: MeshShape, shard_dim: int = 0) -> TensorTopology:
        """One shard per device of a mesh, in row-major order."""
        return TensorTopology(MeshShape([mesh_shape.mesh_size()]), [Shard(shard_dim)], _all_coords(mesh_shape))

    def distribution_shape(self) -> MeshShape:
        """The shape the tensor was sharded for; it may differ from the mesh's."""
        return self._distribution_shape

    def placements(self) -> list[Placement]:
        """What each axis of the distribution shape does."""
        return list(self._placements)

    def mesh_coords(self) -> list[MeshCoordinate]:
        """The device of each shard, in row-major order of shards."""
        return list(self._mesh_coords)

    def is_fully_replicated(self) -> bool:
        """No axis splits the tensor."""
        return not any(isinstance(placement, Shard) for placement in self._placements)

    def get_device_coord(self, tensor_coord: MeshCoordinate) -> MeshCoordinate:
        """The device that holds a shard."""
        index = tensor_coord.to_linear_index(self._distribution_shape)
        if index >= len(self._mesh_coords):
            raise ShapeError(
                f"Flattened index {index} is out of bounds of mesh_coordinates {len(self._mesh_coords)} in tensor "
                f"topology with distribution shape {self._distribution_shape}",
                expected=f"a coordinate of one of the first {len(self._mesh_coords)} shards",
                fix="Pass a coordinate of a shard that a device holds.",
            )
        return self._mesh_coords[index]

    def get_tensor_coord(self, device_coord: MeshCoordinate) -> MeshCoordinate | None:
        """The coordinate of the shard that a device holds."""
        if device_coord not in self._mesh_coords:
            return None
        index, coords = self._mesh_coords.index(device_coord), []
        for axis in range(self._distribution_shape.dims()):
            at, index = divmod(index, self._distribution_shape.get_stride(axis))
            coords.append(at)
        return MeshCoordinate(coords)

    def get_neighbor(self, tensor_coord: MeshCoordinate, offset: int, dim: int) -> MeshCoordinate:
        """The shard `offset` steps along an axis, wrapping around."""
        found = tensor_coord.get_neighbor(self._distribution_shape, offset, dim, "wrap")
        assert found is not None, "wrapping always finds a neighbour"
        return found

    def get_next_neighbor(self, tensor_coord: MeshCoordinate, dim: int) -> MeshCoordinate:
        """The next shard along an axis, wrapping around."""
        return self.get_neighbor(tensor_coord, 1, dim)

    def get_prev_neighbor(self, tensor_coord: MeshCoordinate, dim: int) -> MeshCoordinate:
        """The previous shard along an axis, wrapping around."""
        return self.get_neighbor(tensor_coord, -1, dim)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, TensorTopology):
            return NotImplemented
        return self._hash == other._hash and (self._distribution_shape, self._placements, self._mesh_coords) == (
            other._distribution_shape,
            other._placements,
            other._mesh_coords,
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        coords = ", ".join(map(repr, self._mesh_coords))
        return (
            f"TensorTopology(distribution_shape={self._distribution_shape!r}, "
            f"placements=SmallVector({list(self._placements)!r}), mesh_coords={coords})"
        )


def merged_topology(inputs: Sequence[TensorTopology], mesh_coords: Sequence[MeshCoordinate]) -> TensorTopology:
    """The topology of an op's output: inputs of the highest rank count, the first shard dim seen wins."""
    sharded = [topology for topology in inputs if not topology.is_fully_replicated()]
    rank = max((t.distribution_shape().dims() for t in sharded), default=inputs[0].distribution_shape().dims())
    extents, placements = [1] * rank, list[Placement]([Replicate()] * rank)
    seen: set[int] = set()
    for topology in inputs:
        if topology.distribution_shape().dims() != rank:
            continue
        extents = [max(a, b) for a, b in zip(extents, topology.distribution_shape(), strict=True)]
        for axis, placement in enumerate(topology.placements()):
            if isinstance(placement, Shard) and placement.dim not in seen:
                seen.add(placement.dim)
                if not isinstance(placements[axis], Shard):
                    placements[axis] = placement
    return TensorTopology(MeshShape(extents), placements, mesh_coords)


def _all_coords(mesh_shape: MeshShape) -> list[MeshCoordinate]:
    # TT-NN gives a one-dimensional mesh two-dimensional coordinates here.
    shape = MeshShape(1, mesh_shape[0]) if mesh_shape.dims() == 1 else mesh_shape
    return MeshCoordinateRange(shape).coords()
