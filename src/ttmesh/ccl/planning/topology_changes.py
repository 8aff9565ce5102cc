"""The topologies that TT-NN writes on the results of collectives.

A distribution over all chips at once counts as one over every axis of its mesh. Two axes that shard the same dim are one
distribution over all chips, the later axis inside the earlier; where a collective would turn that order round, no
topology says so, and the result keeps its input's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttmesh.base.geometry import MeshCoordinateRange, MeshShape
from ttmesh.base.placement import Placement, Replicate, Shard
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor


@dataclass(frozen=True)
class _Axes:
    """The placements of a tensor along the axes of its distribution; `flat`: one over all chips of a line or of some."""

    tensor: Tensor
    shape: MeshShape
    placements: tuple[Placement, ...]
    flat: bool

    def position(self, axis: int) -> int:
        """Where the placement of a mesh axis is."""
        return 0 if self.flat else axis

    def shards(self, placement: Placement, dim: int) -> bool:
        """Whether a placement shards this dim."""
        return isinstance(placement, Shard) and placement.dim % max(1, len(self.tensor.shape)) == dim

    def later_shards(self, position: int, dim: int) -> bool:
        """Whether a later axis shards the dim."""
        return any(self.shards(placement, dim) for placement in self.placements[position + 1 :])

    def topology(self, placements: Sequence[Placement]) -> TensorTopology:
        """The topology with these placements; several that shard one dim are one over all chips."""
        topology, last = self.tensor.tensor_topology(), placements[-1]
        full = len(topology.mesh_coords()) == self.tensor.mesh_shape.mesh_size()
        coords = MeshCoordinateRange(self.tensor.mesh_shape).coords() if full else topology.mesh_coords()
        if len(placements) > 1 and isinstance(last, Shard):
            dim = last.dim % max(1, len(self.tensor.shape))
            if all(self.shards(placement, dim) for placement in placements):
                return TensorTopology(MeshShape([len(coords)]), [last], coords)
        return TensorTopology(self.shape, placements, coords)

    def replace(self, position: int, placement: Placement) -> list[Placement]:
        """The placements with another one here; a dim that it shards is sharded by no axis of one chip."""
        dim = placement.dim if isinstance(placement, Shard) else None
        kept = [
            Replicate() if dim is not None and self.shape[i] == 1 and self.shards(other, dim) else other
            for i, other in enumerate(self.placements)
        ]
        kept[position] = placement
        return kept


def _axes_of(tensor: Tensor) -> _Axes:
    topology, mesh = tensor.tensor_topology(), tensor.mesh_shape
    shape, placements = topology.distribution_shape(), topology.placements()
    whole = len(topology.mesh_coords()) == mesh.mesh_size()
    if shape.dims() < mesh.dims() and whole and not mesh.is_line_topology():
        return _Axes(tensor, mesh, tuple(placements) * mesh.dims(), flat=False)
    return _Axes(tensor, shape, tuple(placements), flat=shape.dims() < mesh.dims())


def replicated_topology(tensor: Tensor, axis: int | None) -> TensorTopology:
    """The input's topology with the axis (or all of them) replicated."""
    if axis is None:
        topology = tensor.tensor_topology()
        placements = [Replicate() for _ in topology.placements()]
        return TensorTopology(topology.distribution_shape(), placements, topology.mesh_coords())
    axes = _axes_of(tensor)
    return axes.topology(axes.replace(axes.position(axis), Replicate()))


def gathered_topology(tensor: Tensor, dim: int, axis: int | None) -> TensorTopology:
    """The axis replicated; the input's topology where a later axis shards the gathered dim too."""
    axes = _axes_of(tensor)
    if axis is not None and not axes.flat:
        held = axes.placements[axis]
        if axes.shards(held, dim) and axes.later_shards(axis, dim):
            return tensor.tensor_topology()
    return replicated_topology(tensor, axis)


def scattered_topology(tensor: Tensor, dim: int, axis: int | None) -> TensorTopology:
    """The axis sharding a dim; the input's topology where a later axis shards that dim; without an axis, over all chips."""
    if axis is None:
        coords = tensor.tensor_topology().mesh_coords()
        return TensorTopology(MeshShape([len(coords)]), [Shard(dim)], coords)
    axes = _axes_of(tensor)
    position = axes.position(axis)
    if axes.later_shards(position, dim):
        return tensor.tensor_topology()
    return axes.topology(axes.replace(position, Shard(dim)))


def partitioned_topology(tensor: Tensor, dim: int, axis: int | None) -> TensorTopology:
    """The topology after every chip kept its part of a dim: what was sharded along another dim stays as it was."""
    axes = _axes_of(tensor)
    if axis is not None and not axes.flat:
        held = axes.placements[axis]
        free = isinstance(held, Replicate) or axes.shards(held, dim)
        return scattered_topology(tensor, dim, axis) if free else tensor.tensor_topology()
    if axis is not None:
        return scattered_topology(tensor, dim, axis)
    several = [p for p, extent in zip(axes.placements, axes.shape, strict=True) if extent > 1]
    if all(isinstance(p, Replicate) or axes.shards(p, dim) for p in several):
        return scattered_topology(tensor, dim, None)
    return tensor.tensor_topology()
