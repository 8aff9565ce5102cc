"""Parameters to train: a tensor on a mesh, the dims it is sharded by, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from ttmesh.base.dtypes import DataType, Layout, bfloat16, float32
from ttmesh.base.errors import ShapeError
from ttmesh.base.placement import PlacementReplicate, PlacementShard
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.nn.autograd.gradient_rules import add_gradients
from ttmesh.nn.tape import Tape
from ttmesh.tensor.distribution.composers import MeshComposerConfig, create_mesh_composer
from ttmesh.tensor.distribution.mappers import MeshMapperConfig, TensorToMesh, create_mesh_mapper
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import from_torch, to_torch

ShardDims = tuple[int | None, ...]  # per mesh axis: the tensor dim that it shards, None where replicated


def replicate(mesh: MeshDevice) -> ShardDims:
    """Shard dims of a tensor that is replicated along every mesh axis."""
    return (None,) * mesh.shape.dims()


def shard_along(mesh: MeshDevice, axis: int, dim: int) -> ShardDims:
    """Shard dims of a tensor that one mesh axis shards along `dim`, replicated along the other axes."""
    if not 0 <= axis < mesh.shape.dims():
        raise ShapeError(
            f"axis {axis} of a mesh of shape {list(mesh.shape)}",
            expected=f"0 to {mesh.shape.dims() - 1}",
            fix="Pass the number of the mesh axis that shards the tensor.",
        )
    return tuple(dim if i == axis else None for i in range(mesh.shape.dims()))


def make_mapper(mesh: MeshDevice, shard_dims: ShardDims) -> TensorToMesh:
    """The mapper that shards a host tensor by these dims."""
    placements = [PlacementReplicate() if dim is None else PlacementShard(dim) for dim in shard_dims]
    return create_mesh_mapper(mesh, MeshMapperConfig(placements))


def place(values: torch.Tensor, mesh: MeshDevice, shard_dims: ShardDims, dtype: DataType) -> Tensor:
    """A torch tensor on a mesh, sharded by these dims."""
    tensor = from_torch(values, dtype=dtype, layout=Layout.TILE, device=mesh, mesh_mapper=make_mapper(mesh, shard_dims))
    assert tensor is not None, "only None gives None"
    return tensor


def collect(tensor: Tensor, shard_dims: ShardDims) -> torch.Tensor:
    """The full tensor on the host: shards concatenated, one copy of replicas."""
    mesh = tensor.device()
    assert mesh is not None, "parameters live on a mesh"
    free = [dim for dim in range(len(tensor.shape)) if dim not in shard_dims]
    spare = iter(free)
    dims = []
    for axis, dim in enumerate(shard_dims):
        if dim is None and mesh.shape[axis] > 1:
            dims.append(next(spare, None))
        else:
            dims.append(dim if dim is not None else next(spare, None))
    if any(dim is None for dim in dims):
        raise ShapeError(
            f"a tensor of shape {tensor.shape!r} has too few dims for a mesh of {mesh.shape.dims()} axes",
            expected="a dim per mesh axis",
            fix="Give the parameter another leading dim of length 1.",
        )
    full: torch.Tensor = to_torch(tensor, mesh_composer=create_mesh_composer(mesh, MeshComposerConfig(dims)))
    for axis, dim in enumerate(shard_dims):
        if dim is None:
            replica_dim = dims[axis]
            assert replica_dim is not None, "checked above"
            full = full.narrow(replica_dim, 0, full.shape[replica_dim] // mesh.shape[axis])
    return full.contiguous()


class Parameter:
    """One tensor to train. `shard_dims` has the tensor dim that each mesh axis shards, None where it is replicated."""

    def __init__(
        self, values: torch.Tensor, mesh: MeshDevice, shard_dims: ShardDims | None = None, dtype: DataType = bfloat16
    ) -> None:
        self.mesh = mesh
        self.shard_dims = replicate(mesh) if shard_dims is None else shard_dims
        self.shape = tuple(values.shape)
        self._exact = None if dtype is float32 else values.detach().float()
        self.tensor = place(values.detach(), mesh, self.shard_dims, dtype)
        self.grad: Tensor | None = None

    @property
    def replicated_axes(self) -> tuple[int, ...]:
        """Mesh axes along which every chip holds the same values, so that gradients must be summed there."""
        return tuple(axis for axis, dim in enumerate(self.shard_dims) if dim is None and self.mesh.shape[axis] > 1)

    def accumulate(self, grad: Tensor | None) -> None:
        """Add a gradient to the present one."""
        if grad is not None:
            self.grad = grad if self.grad is None else add_gradients(self.grad, grad)

    def take_exact(self) -> torch.Tensor:
        """The values before rounding, for a master copy; they are kept on the host until the first call."""
        exact, self._exact = self._exact, None
        return self.to_torch().float() if exact is None else exact

    def to_torch(self) -> torch.Tensor:
        """The full parameter on the host."""
        return collect(self.tensor, self.shard_dims)

    def __repr__(self) -> str:
        return f"Parameter({list(self.shape)}, shard_dims={self.shard_dims}, {self.tensor.dtype})"


class ParameterSet(Mapping[str, Parameter]):
    """Parameters by name."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._parameters = dict(parameters)
        if not self._parameters:
            raise ShapeError(
                "a set of no parameters",
                expected="one parameter or more",
                fix="Pass layer.named_parameters(); layers keep parameters, layers and lists of layers as attributes.",
            )

    def __getitem__(self, name: str) -> Parameter:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def backward(self, record: Tape, loss: Tensor, seed: float | None = None) -> None:
        """Run the backward pass of a tape and add the result to every parameter's gradient."""
        for parameter, gradient in zip(
            self._parameters.values(),
            record.backward(loss, [p.tensor for p in self._parameters.values()], seed),
            strict=True,
        ):
            parameter.accumulate(gradient)

    def zero_grad(self) -> None:
        """Drop the gradients, which frees their memory."""
        for parameter in self._parameters.values():
            parameter.grad = None
