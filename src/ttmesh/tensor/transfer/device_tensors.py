"""Distributing and aggregating tensors, the default mapper and composer, and one tensor per device and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from ttmesh.base.argument_types import name_wrong_types, refuse_wrong_types
from ttmesh.base.dtypes import StorageType
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.distribution.composers import Composer, ListMeshToTensor, MeshToTensor, lane_at
from ttmesh.tensor.distribution.ingest import ONE_CHIP, ONE_CHIP_TOPOLOGY
from ttmesh.tensor.distribution.mappers import ReplicateTensorToMeshWrapper, TensorToMesh, unwrap_mapper
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor

Mapper = TensorToMesh | ReplicateTensorToMeshWrapper

default_mapper: ContextVar[Mapper | None] = ContextVar("default_mapper", default=None)
default_composer: ContextVar[Composer | None] = ContextVar("default_composer", default=None)


@contextmanager
def distribute(default: Mapper | Composer) -> Iterator[None]:
    """Make this the default mapper of from_torch, or the default composer of to_torch, inside the block."""
    if isinstance(default, (TensorToMesh, ReplicateTensorToMeshWrapper)):
        token = default_mapper.set(default)
        try:
            yield
        finally:
            default_mapper.reset(token)
    elif isinstance(default, (MeshToTensor, ListMeshToTensor)):
        chosen = default_composer.set(default)
        try:
            yield
        finally:
            default_composer.reset(chosen)
    else:
        raise ValueError("Argument must be an instance of either TensorToMesh or MeshToTensor.")


@name_wrong_types
def distribute_tensor(tensor: Tensor, mapper: Mapper, mesh_device: MeshDevice | None = None) -> Tensor:
    """A host tensor sharded for a mesh, and moved there when one is given."""
    if tensor.storage_type() is not StorageType.HOST:
        raise MeshError(
            f"TensorToMesh only supports host tensors; got storage type: {tensor.storage_type()}",
            expected="a host tensor",
            fix="Copy it to the host with from_device() first.",
        )
    chosen = unwrap_mapper(mapper)
    mapped = chosen.map(_only_shard(tensor))
    spec = tensor.spec.with_shape(mapped.values.shape[chosen.mesh_shape.dims() :])
    lanes = mapped.values.contiguous()
    result = Tensor.on_host(
        kind_of(spec, mapped.topology, mapped.presence), lanes, chosen.mesh_shape, chosen.rank_block
    )
    return result if mesh_device is None else result.onto(mesh_device)


@refuse_wrong_types
def aggregate_tensor(tensor: Tensor, composer: MeshToTensor) -> Tensor:
    """A distributed tensor composed into one host tensor."""
    host = tensor.cpu()
    composed = host.compose(composer)
    return Tensor.on_host(kind_of(tensor.spec.with_shape(composed.shape), ONE_CHIP_TOPOLOGY), composed[None, None])


@name_wrong_types
def get_device_tensors(tensor: Tensor) -> list[Tensor]:
    """One tensor per device, row-major; on a device they share its buffer.

    Where ranks divide the mesh: of a device tensor this rank's, of a host tensor those of all ranks, as in TT-NN.
    """
    mesh = tensor.device()
    if mesh is None:
        kind, lanes = kind_of(tensor.spec, ONE_CHIP_TOPOLOGY), tensor.all_lanes()
        return [Tensor.on_host(kind, lane_at(lanes, coord)[None, None]) for coord in tensor.coords()]
    if not tensor.is_allocated():
        return [tensor]
    return [
        Tensor.on_device(kind_of(tensor.spec, tensor.kind.topology, frozenset({coord})), tensor.buffer, mesh)
        for coord in tensor.local_coords()
    ]


def from_host_shards(tensors: Sequence[Tensor], mesh_shape: MeshShape, shard_dim: int = 0) -> Tensor:
    """Host tensors as the shards of one, in row-major order."""
    if len(tensors) != mesh_shape.mesh_size():
        raise _shards_error(
            f"Number of tensor shards must match mesh size: {len(tensors)}",
            f"{mesh_shape.mesh_size()}",
            "Pass one tensor per device.",
        )
    if any(tensor.storage_type() is not StorageType.HOST for tensor in tensors):
        raise _shards_error("All tensor shards must be on host", "host tensors", "Bring them with from_device() first.")
    if any(tensor.spec != tensors[0].spec for tensor in tensors):
        raise _shards_error(
            "All tensor shards must have the same tensor spec",
            "equal shapes, formats and layouts",
            "Make all shards with the same shape, dtype and layout.",
        )
    lanes = torch.stack([_only_shard(tensor) for tensor in tensors]).reshape(*mesh_shape, *tensors[0].shape)
    topology = TensorTopology.create_sharded_tensor_topology(mesh_shape, shard_dim)
    return Tensor.on_host(kind_of(tensors[0].spec, topology), lanes, mesh_shape)


@refuse_wrong_types
def combine_device_tensors(*, tensors: Sequence[Tensor]) -> Tensor:
    """Device tensors on one buffer as one tensor over all their coordinates."""
    if not tensors:
        raise _shards_error(
            "At least one tensor shard must be provided",
            "one tensor or more",
            "Pass the tensors of get_device_tensors().",
        )
    first = tensors[0]
    mesh = first.device()
    if mesh is None or any(tensor.device() is None for tensor in tensors):
        raise _shards_error(
            "All tensor shards must be on device", "device tensors", "Move them with to_device() first."
        )
    if any(tensor.spec != first.spec for tensor in tensors):
        raise _shards_error(
            "All tensor shards must have the same spec",
            "equal shapes, formats and layouts",
            "Pass shards of one tensor.",
        )
    if any(tensor.buffer is not first.buffer for tensor in tensors):
        raise _shards_error(
            "tensor shards must be allocated on the same mesh buffer.",
            "tensors from one call of get_device_tensors()",
            "Pass shards of one tensor.",
        )
    coords = [coord for tensor in tensors for coord in tensor.coords()]
    if len(set(coords)) != len(coords):
        twice = next(coord for coord in coords if coords.count(coord) > 1)
        raise _shards_error(
            f"Found a tensor shard at duplicate coordinate {MeshCoordinate(twice)!r}",
            "each coordinate once",
            "Pass every shard once.",
        )
    topology = TensorTopology.create_sharded_tensor_topology(MeshShape([len(coords)]), 0)
    presence = None if len(coords) == len(mesh.local_ids()) else frozenset(coords)
    return Tensor.on_device(kind_of(first.spec, topology, presence), first.buffer, mesh)


def _only_shard(tensor: Tensor) -> torch.Tensor:
    coords = tensor.coords()
    if len(coords) != 1:
        raise _shards_error(
            f"a tensor sharded for {tensor.mesh_shape!r} has {len(coords)} shards",
            f"one shard ({ONE_CHIP!r})",
            "Split it with get_device_tensors() first.",
        )
    return tensor.lane(coords[0])


def _shards_error(wrong: str, expected: str, fix: str) -> ShapeError:
    return ShapeError(wrong, expected=expected, fix=fix)
