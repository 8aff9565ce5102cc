"""From one tensor to its shards on a mesh: which device gets which slice, as TT-NN's mappers decide it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

import torch

from ttmesh.base.argument_types import name_wrong_types, refuse_wrong_types, suggest_object
from ttmesh.base.errors import ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.base.placement import Placement, Replicate, Shard
from ttmesh.tensor.spec.distribution_shape import (
    Coord,
    DistributionConfig,
    HasMeshShape,
    check_distribution,
    check_pairs,
    fits_directly,
    mesh_coords,
    mesh_shape_of,
    normalised_dims,
    rank_block_of,
    start_of,
)
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.spec.tensor_topology import TensorTopology


class MeshMapperConfig(DistributionConfig):
    """What each axis of a distribution does: `(placements, …)` or `(row_dim, col_dim, …)`, None replicating."""

    __slots__ = ()

    ALL_AXES = "placements"

    def __init__(self, *args: object, **given: object) -> None:
        super().__init__(*args, **given)
        self.per_axis = tuple(p if isinstance(p, (Replicate, Shard)) else _placement(p) for p in self.per_axis)

    @property
    def placements(self) -> list[Placement]:
        """What each axis does."""
        return list(self.per_axis)  # type: ignore[arg-type]


@dataclass(frozen=True)
class MappedLanes:
    """A tensor sharded for a mesh: lanes (perhaps a view of the input), the chips that hold one, and TT-NN's topology."""

    values: torch.Tensor
    presence: frozenset[Coord] | None  # None: every coordinate
    topology: TensorTopology


class TensorToMesh:
    """A mapper: shards a tensor for a mesh of known shape."""

    __slots__ = ("_config", "_key", "distribution_shape", "mesh_shape", "rank_block")

    def __init__(self, mesh: HasMeshShape | MeshShape, config: MeshMapperConfig) -> None:
        self.mesh_shape, self.rank_block = mesh_shape_of(mesh), rank_block_of(mesh)
        self.distribution_shape = config.mesh_shape_override or self.mesh_shape
        self._config = config
        self._key: Key = (tuple(config.placements), config.mesh_shape_override, config.mesh_offset_override)
        check_distribution(
            self.distribution_shape,
            self.mesh_shape,
            config.mesh_offset_override,
            len(config.placements),
            config,
            "placements",
        )

    def config(self) -> MeshMapperConfig:
        """What the mapper was made from."""
        return self._config

    def map(self, values: torch.Tensor) -> MappedLanes:
        """Shard a tensor, without a copy where a strided view suffices. Of a mesh divided by ranks: this rank's lanes."""
        plan = _plan(self._key, self.mesh_shape, values.shape)
        lanes = self._to_mesh_axes(values.reshape(plan.split).permute(plan.order), plan)
        block = self.rank_block
        return MappedLanes(lanes if block is None else block.narrow_to_block(lanes), plan.presence, plan.topology)

    def _to_mesh_axes(self, shards: torch.Tensor, plan: _ShardPlan) -> torch.Tensor:
        """Shards [distribution axes…, *local] moved to the axes of the mesh."""
        distribution, mesh = plan.distribution, self.mesh_shape.to_tuple()
        rank = distribution.dims()
        local = shards.shape[rank:]
        if plan.presence is None:
            if distribution == self.mesh_shape:
                return shards
            if all(n == 1 for n in shards.shape[:rank]):
                return shards.reshape(*(1 for _ in mesh), *local)
            return shards.expand(*distribution, *local).reshape(*mesh, *local)
        every = shards.expand(*distribution, *local)
        dense = shards.new_zeros(*mesh, *local)
        if fits_directly(distribution, self.mesh_shape):
            start = start_of(self._config.mesh_offset_override, self.mesh_shape)
            dense[tuple(slice(a, a + n) for a, n in zip(start, distribution, strict=True))] = every
        else:
            dense.view(-1, *local)[: distribution.mesh_size()] = every.reshape(-1, *local)
        return dense


Key = tuple[tuple[Placement, ...], MeshShape | None, MeshCoordinate]


class _ShardPlan(NamedTuple):
    """How tensors of one shape are sharded."""

    split: list[int]  # the shape with every sharded dim as (chunks, chunk size), and a 1 for every axis that replicates
    order: list[int]  # brings the chunk axes to the front
    distribution: MeshShape
    topology: TensorTopology
    presence: frozenset[Coord] | None


@lru_cache(maxsize=512)
def _plan(key: Key, mesh_shape: MeshShape, shape: tuple[int, ...]) -> _ShardPlan:
    placements, override, offset = key
    extents = override or mesh_shape
    shard_dims = {axis: p.dim for axis, p in enumerate(placements) if isinstance(p, Shard)}
    dims = dict(zip(shard_dims, normalised_dims(list(shard_dims.values()), len(shape)), strict=True))
    chunks = _chunks(shape, extents, dims)
    split, order, covered = _split_and_order(shape, extents, dims, chunks)
    # TT-NN: a line of fewer chunks than devices is a shorter line.
    distribution = MeshShape(covered)
    where = mesh_coords(extents, mesh_shape, offset)[: prod(covered)]
    topology = TensorTopology(distribution, placements, [MeshCoordinate(coord) for coord in where])
    presence = None if len(where) == mesh_shape.mesh_size() else frozenset(where)
    return _ShardPlan(split, order, distribution, topology, presence)


def _chunks(shape: tuple[int, ...], extents: MeshShape, dims: dict[int, int]) -> dict[int, tuple[int, int]]:
    """For each sharded dim, how many chunks of which size; ceil chunks that must come out equal."""
    sizes = {dim: -(-shape[dim] // extents[axis]) for axis, dim in dims.items()}
    chunks = {dim: (-(-shape[dim] // size) if size else 0, size) for dim, size in sizes.items()}
    wanted, found = prod(extents[axis] for axis in dims), prod(count for count, _ in chunks.values())
    if not found:
        raise _uneven_split_error("No chunks were produced", shape)
    if extents.dims() != 1 and found != wanted:
        raise _uneven_split_error(
            f"ND sharding requires the number of chunks {found} to match the mesh dimension size {wanted}", shape
        )
    local = Shape(sizes.get(i, extent) for i, extent in enumerate(shape))
    for dim, size in sizes.items():
        if rest := shape[dim] % size:
            last = Shape(rest if i == dim else extent for i, extent in enumerate(local))
            raise _uneven_split_error(f"Shard shape mismatch: expected {local} but got {last}", shape)
    return chunks


def _split_and_order(
    shape: tuple[int, ...], extents: MeshShape, dims: dict[int, int], chunks: dict[int, tuple[int, int]]
) -> tuple[list[int], list[int], list[int]]:
    """The split shape, the order that brings chunk axes to the front, and the extents that are covered."""
    free = [axis for axis in range(extents.dims()) if axis not in dims]
    split, at, inner = [1] * len(free), dict[int, int](), list[int]()
    for dim, extent in enumerate(shape):
        if dim in chunks:
            at[dim] = len(split)
        split += chunks.get(dim, (extent,))
        inner.append(len(split) - 1)
    front = [free.index(axis) if axis in free else at[dims[axis]] for axis in range(extents.dims())]
    covered = [chunks[dims[axis]][0] if axis in dims else extents[axis] for axis in range(extents.dims())]
    return split, front + inner, covered


class ReplicateTensorToMeshWrapper:
    """A replicating mapper; a separate type, because TT-NN names its cache files differently."""

    __slots__ = ("_mapper",)

    def __init__(self, mapper: TensorToMesh) -> None:
        self._mapper = mapper

    def unwrap(self) -> TensorToMesh:
        """The mapper itself."""
        return self._mapper


@name_wrong_types
def create_mesh_mapper(mesh_device: HasMeshShape | MeshShape, config: MeshMapperConfig) -> TensorToMesh:
    """A mapper that does what the config says."""
    return TensorToMesh(mesh_device, config)


@name_wrong_types
def replicate_tensor_to_mesh_mapper(mesh_device: HasMeshShape | MeshShape) -> TensorToMesh:
    """A mapper that gives every device the full tensor."""
    devices = MeshShape([mesh_shape_of(mesh_device).mesh_size()])
    return TensorToMesh(mesh_device, MeshMapperConfig([Replicate()], devices))


@refuse_wrong_types
def shard_tensor_to_mesh_mapper(
    mesh_device: HasMeshShape | MeshShape, dim: int, cluster_axis: int | None = None
) -> TensorToMesh:
    """A mapper that shards one dim over all devices, or over one axis of the mesh."""
    mesh_shape = mesh_shape_of(mesh_device)
    if cluster_axis is None:
        return TensorToMesh(mesh_device, MeshMapperConfig([Shard(dim)], MeshShape([mesh_shape.mesh_size()])))
    if not 0 <= cluster_axis < mesh_shape.dims():
        raise ShapeError(
            f"Cluster axis {cluster_axis} is out of range for mesh device with {mesh_shape.dims()} dimensions",
            expected=f"an axis below {mesh_shape.dims()}",
            fix="Pass an axis of the mesh, or None to shard over all devices.",
        )
    return TensorToMesh(
        mesh_device,
        MeshMapperConfig([Shard(dim) if axis == cluster_axis else Replicate() for axis in range(mesh_shape.dims())]),
    )


@name_wrong_types
def ReplicateTensorToMesh(mesh_device: HasMeshShape | MeshShape) -> ReplicateTensorToMeshWrapper:
    """TT-NN's older name of `replicate_tensor_to_mesh_mapper`."""
    return ReplicateTensorToMeshWrapper(replicate_tensor_to_mesh_mapper(mesh_device))


@name_wrong_types
def ShardTensorToMesh(mesh_device: HasMeshShape | MeshShape, dim: int) -> TensorToMesh:
    """TT-NN's older name of `shard_tensor_to_mesh_mapper`."""
    return shard_tensor_to_mesh_mapper(mesh_device, dim)


@name_wrong_types
def ShardTensor2dMesh(
    mesh_device: HasMeshShape | MeshShape, mesh_shape: Sequence[int], dims: Sequence[int | None]
) -> TensorToMesh:
    """A mapper that shards one dim over rows and one over columns; None replicates."""
    check_pairs(mesh_shape=mesh_shape, dims=dims)
    config = MeshMapperConfig([_placement(dims[0]), _placement(dims[1])], MeshShape(mesh_shape[0], mesh_shape[1]))
    return TensorToMesh(mesh_device, config)


def unwrap_mapper(mapper: TensorToMesh | ReplicateTensorToMeshWrapper) -> TensorToMesh:
    """The mapper, from either of its two forms."""
    chosen = mapper.unwrap() if isinstance(mapper, ReplicateTensorToMeshWrapper) else mapper
    if not isinstance(chosen, TensorToMesh):
        hint = suggest_object("mesh_mapper")
        raise TypeError(f"mesh_mapper={chosen!r} is a {type(chosen).__name__}; pass {hint}")
    return chosen


def _placement(dim: object) -> Placement:
    if dim is not None and not isinstance(dim, int):
        raise TypeError(f"{dim!r} is not a placement; expected PlacementShard, PlacementReplicate, a dim or None")
    return Replicate() if dim is None else Shard(dim)


def _uneven_split_error(wrong: str, shape: tuple[int, ...]) -> ShapeError:
    return ShapeError(
        wrong,
        expected=f"{list(shape)} to split into equal shards",
        fix="Pad the tensor (pad_batch does it for the first dim) or choose another dim.",
    )
