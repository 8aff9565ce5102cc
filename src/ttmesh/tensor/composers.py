"""From the parts on a mesh back to one tensor: concatenation over mesh axes, as TT-NN's composers do it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from ttmesh.base.errors import ShapeError
from ttmesh.base.geometry import MeshShape
from ttmesh.tensor.distribution import (
    Coord,
    DistributionConfig,
    HasMeshShape,
    check_distribution,
    fits_directly,
    mesh_coords,
    mesh_shape_of,
    normalised_dims,
    start_of,
)


class MeshComposerConfig(DistributionConfig):
    """The tensor dim each axis is concatenated along: `(dims, …)` or `(row_dim, col_dim, …)`."""

    __slots__ = ()

    WHOLE = "dims"

    def __init__(self, *args: object, **given: object) -> None:
        super().__init__(*args, **given)
        if not all(isinstance(dim, int) for dim in self.per_axis):
            raise TypeError(f"{list(self.per_axis)} are no dims; expected one int per axis")

    @property
    def dims(self) -> list[int]:
        """The tensor dim of each axis."""
        return list(self.per_axis)  # type: ignore[arg-type]


class MeshToTensor:
    """A composer; made without a mesh it takes the shape from the tensor it composes."""

    __slots__ = ("_config", "_dim", "mesh_shape")

    def __init__(
        self,
        mesh: HasMeshShape | MeshShape | None,
        config: MeshComposerConfig | None = None,
        *,
        dim: int | None = None,
    ) -> None:
        assert (config is None) != (dim is None), "either a config or one dim for all devices"
        self.mesh_shape = None if mesh is None else mesh_shape_of(mesh)
        self._config, self._dim = config, dim
        if self.mesh_shape is not None:
            self._distribution(self.mesh_shape)

    def compose(
        self,
        values: torch.Tensor,
        mesh_shape: MeshShape,
        presence: frozenset[Coord] | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Lanes of a mesh joined into one new tensor with exactly one copy, cast on the way if asked."""
        # A tensor on another mesh than the composer's is read by the composer's shape, as in TT-NN.
        distribution, config = self._distribution(self.mesh_shape or mesh_shape)
        where = mesh_coords(distribution, self.mesh_shape or mesh_shape, config.mesh_offset_override)
        held = _held(mesh_shape, presence)
        present = [coord for coord in where if coord in held]
        rank = mesh_shape.dims()
        local = tuple(values.shape[rank:])
        if len(present) <= 1:  # one part needs no dim; none gives an empty tensor
            return lane_at(values, present[0]).to(dtype or values.dtype, copy=True) if present else values.new_empty(0)
        if len(config.dims) > 1 and len(present) != distribution.mesh_size():
            raise ShapeError(
                f"ND composition requires the number of tensors {len(present)} to match the mesh shape {distribution}",
                expected=f"{distribution.mesh_size()} parts",
                fix="Compose over the coordinates that hold a part.",
            )
        dims = normalised_dims(config.dims, len(local))
        every = len(present) == mesh_shape.mesh_size()
        if every and len(dims) == 1:
            view, groups = values.expand(*mesh_shape, *local), dims * rank
        elif fits_directly(distribution, mesh_shape) and len(present) == distribution.mesh_size():
            start = start_of(config.mesh_offset_override, mesh_shape)
            box = tuple(slice(a, a + n) for a, n in zip(start, distribution, strict=True))
            view, groups = values.expand(*mesh_shape, *local)[box], dims
        else:
            parts = torch.stack([lane_at(values, coord) for coord in present])
            counts = (len(present),) if len(dims) == 1 else distribution.to_tuple()
            view, groups = parts.view(*counts, *local), dims
        return _joined(view, groups, dtype or values.dtype)

    def _distribution(self, mesh_shape: MeshShape) -> tuple[MeshShape, MeshComposerConfig]:
        config = self._config or MeshComposerConfig([self._dim], MeshShape([mesh_shape.mesh_size()]))
        shape = config.mesh_shape_override or mesh_shape
        offset = config.mesh_offset_override
        check_distribution(shape, mesh_shape, offset, len(config.dims), config, "dimensions")
        return shape, config


class ListMeshToTensor:
    """A composer of TT-NN's past that gives one tensor per device, in row-major order."""

    __slots__ = ("mesh_shape",)

    def __init__(self, mesh_device: HasMeshShape | MeshShape | None = None) -> None:
        self.mesh_shape = None if mesh_device is None else mesh_shape_of(mesh_device)

    def compose(
        self,
        values: torch.Tensor,
        mesh_shape: MeshShape,
        presence: frozenset[Coord] | None = None,
        dtype: torch.dtype | None = None,
    ) -> list[torch.Tensor]:
        """Every lane as a tensor of its own."""
        held = sorted(_held(mesh_shape, presence))
        return [lane_at(values, coord).to(dtype or values.dtype, copy=True) for coord in held]


Composer = MeshToTensor | ListMeshToTensor


def create_mesh_composer(mesh_device: HasMeshShape | MeshShape, config: MeshComposerConfig) -> MeshToTensor:
    """A composer that does what the config says."""
    return MeshToTensor(mesh_device, config)


def concat_mesh_to_tensor_composer(mesh_device: HasMeshShape | MeshShape, dim: int) -> MeshToTensor:
    """A composer that concatenates the parts of all devices along one dim."""
    return MeshToTensor(mesh_device, dim=dim)


def ConcatMeshToTensor(mesh_device: HasMeshShape | MeshShape | None = None, dim: int | None = None) -> MeshToTensor:
    """TT-NN's older name of `concat_mesh_to_tensor_composer`; without a device the tensor says its mesh."""
    if dim is None:
        raise TypeError("ConcatMeshToTensor() needs dim=")
    return MeshToTensor(mesh_device, dim=dim)


def ConcatMesh2dToTensor(
    mesh_device: HasMeshShape | MeshShape, mesh_shape: Sequence[int], dims: Sequence[int]
) -> MeshToTensor:
    """A composer that concatenates rows along one dim and columns along another."""
    config = MeshComposerConfig([dims[0], dims[1]], MeshShape(mesh_shape[0], mesh_shape[1]))
    return MeshToTensor(mesh_device, config)


def _joined(view: torch.Tensor, groups: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Leading axes merged into tensor dims (`groups` names the dim of each axis): one strided copy."""
    axes, local = len(groups), view.shape[len(groups) :]
    split, order = list[int](), list[int]()
    for dim, extent in enumerate(local):
        merged = [axis for axis, group in enumerate(groups) if group == dim]
        split += [*(view.shape[axis] for axis in merged), extent]
        order += [*merged, axes + dim]
    shape = [e * prod(view.shape[a] for a, g in enumerate(groups) if g == dim) for dim, e in enumerate(local)]
    joined = torch.empty(shape, dtype=dtype, device=view.device)
    joined.view(split).copy_(view.permute(order))
    return joined


def lane_at(values: torch.Tensor, coord: Coord) -> torch.Tensor:
    """The part of one device; replicated axes have size one."""
    return values[tuple(at if values.shape[axis] > 1 else 0 for axis, at in enumerate(coord))]


def _held(mesh_shape: MeshShape, presence: frozenset[Coord] | None) -> frozenset[Coord]:
    return presence if presence is not None else frozenset(mesh_coords(mesh_shape, mesh_shape))
