"""Parameters that are trained: a tensor on a mesh, how it is cut, its gradient."""

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

Cut = tuple[int | None, ...]


def whole(mesh: MeshDevice) -> Cut:
    """Replicated along every mesh axis."""
    return (None,) * mesh.shape.dims()


def cut_along(mesh: MeshDevice, axis: int, dim: int) -> Cut:
    """Sharded along one mesh axis by a tensor dim, replicated along the others."""
    if not 0 <= axis < mesh.shape.dims():
        raise ShapeError(
            f"axis {axis} of a mesh of shape {list(mesh.shape)}",
            expected=f"0 to {mesh.shape.dims() - 1}",
            fix="Name the mesh axis that shares the tensor.",
        )
    return tuple(dim if i == axis else None for i in range(mesh.shape.dims()))


def mapper_for(mesh: MeshDevice, cut: Cut) -> TensorToMesh:
    """The mapper that cuts like this."""
    placements = [PlacementReplicate() if dim is None else PlacementShard(dim) for dim in cut]
    return create_mesh_mapper(mesh, MeshMapperConfig(placements))


def place(values: torch.Tensor, mesh: MeshDevice, cut: Cut, dtype: DataType) -> Tensor:
    """A torch tensor on a mesh, cut per axis."""
    tensor = from_torch(values, dtype=dtype, layout=Layout.TILE, device=mesh, mesh_mapper=mapper_for(mesh, cut))
    assert tensor is not None, "only None gives None"
    return tensor


def collect(tensor: Tensor, cut: Cut) -> torch.Tensor:
    """The whole tensor on the host: shards joined, one copy of what is replicated."""
    mesh = tensor.device()
    assert mesh is not None, "parameters live on a mesh"
    free = [dim for dim in range(len(tensor.shape)) if dim not in cut]
    spare = iter(free)
    dims = []
    for axis, dim in enumerate(cut):
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
    joined: torch.Tensor = to_torch(tensor, mesh_composer=create_mesh_composer(mesh, MeshComposerConfig(dims)))
    for axis, dim in enumerate(cut):
        if dim is None:
            place_ = dims[axis]
            assert place_ is not None, "checked above"
            joined = joined.narrow(place_, 0, joined.shape[place_] // mesh.shape[axis])
    return joined.contiguous()


class Parameter:
    """One tensor to train. `cut` names the tensor dim that each mesh axis shards, None where it is replicated."""

    def __init__(
        self, values: torch.Tensor, mesh: MeshDevice, cut: Cut | None = None, dtype: DataType = bfloat16
    ) -> None:
        self.mesh = mesh
        self.cut = whole(mesh) if cut is None else cut
        self.shape = tuple(values.shape)
        self._exact = None if dtype is float32 else values.detach().float()
        self.tensor = place(values.detach(), mesh, self.cut, dtype)
        self.grad: Tensor | None = None

    @property
    def replicated_axes(self) -> tuple[int, ...]:
        """Mesh axes along which every chip holds the same, so that gradients must be summed there."""
        return tuple(axis for axis, dim in enumerate(self.cut) if dim is None and self.mesh.shape[axis] > 1)

    def accumulate(self, grad: Tensor | None) -> None:
        """Add a gradient to what is there."""
        if grad is not None:
            self.grad = grad if self.grad is None else add_gradients(self.grad, grad)

    def take_exact(self) -> torch.Tensor:
        """The values before they were rounded, for a master copy; they are kept on the host until somebody takes them."""
        exact, self._exact = self._exact, None
        return self.to_torch().float() if exact is None else exact

    def to_torch(self) -> torch.Tensor:
        """The whole parameter on the host."""
        return collect(self.tensor, self.cut)

    def __repr__(self) -> str:
        return f"Parameter({list(self.shape)}, cut={self.cut}, {self.tensor.dtype})"


class ParameterSet(Mapping[str, Parameter]):
    """Parameters by name."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._parameters = dict(parameters)
        if not self._parameters:
            raise ShapeError(
                "a set of no parameters",
                expected="one or more",
                fix="Pass layer.named_parameters(); layers keep parameters, layers and lists of layers as attributes.",
            )

    def __getitem__(self, name: str) -> Parameter:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def backward(self, record: Tape, loss: Tensor, seed: float | None = None) -> None:
        """Walk a tape back and add every parameter's gradient to what it has."""
        for parameter, gradient in zip(
            self._parameters.values(),
            record.backward(loss, [p.tensor for p in self._parameters.values()], seed),
            strict=True,
        ):
            parameter.accumulate(gradient)

    def zero_grad(self) -> None:
        """Forget the gradients and free their memory."""
        for parameter in self._parameters.values():
            parameter.grad = None
