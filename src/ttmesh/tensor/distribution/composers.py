"""From the shards on a mesh back to one tensor: concatenation over mesh axes, as TT-NN's composers do it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from math import prod
from typing import NamedTuple, TypeVar

import torch

from ttmesh.base.argument_types import misfit, name_wrong_types, refuse_wrong_types
from ttmesh.base.errors import ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.tensor.spec.distribution_shape import (
    ORIGIN,
    Coord,
    DistributionConfig,
    HasMeshShape,
    check_distribution,
    check_pairs,
    fits_directly,
    mesh_coords,
    mesh_shape_of,
    normalised_dims,
    start_of,
)


class MeshComposerConfig(DistributionConfig):
    """The tensor dim each axis is concatenated along: `(dims, …)` or `(row_dim, col_dim, …)`."""

    __slots__ = ()

    ALL_AXES = "dims"

    def __init__(self, *args: object, **given: object) -> None:
        super().__init__(*args, **given)
        if not all(isinstance(dim, int) for dim in self.per_axis):
            raise misfit("__init__", "dims", f"{list(self.per_axis)} are no dims; expected one int per axis")

    @property
    def dims(self) -> list[int]:
        """The tensor dim of each axis."""
        return list(self.per_axis)  # type: ignore[arg-type]


class MeshToTensor:
    """A composer; made without a mesh it takes the shape from the tensor it composes."""

    __slots__ = ("_config", "_dim", "_key", "first_rank_only", "mesh_shape")

    def __init__(
        self,
        mesh: HasMeshShape | MeshShape | None,
        config: MeshComposerConfig | None = None,
        *,
        dim: int | None = None,
    ) -> None:
        assert (config is None) != (dim is None), "either a config or one dim for all devices"
        self.mesh_shape = None if mesh is None else mesh_shape_of(mesh)
        self.first_rank_only = False
        self._config, self._dim = config, dim
        self._key: Key | None = None
        if config is not None:
            self._key = (tuple(config.dims), config.mesh_shape_override, config.mesh_offset_override)
        if self.mesh_shape is not None and config is not None:
            shape = config.mesh_shape_override or self.mesh_shape
            offset = config.mesh_offset_override
            check_distribution(shape, self.mesh_shape, offset, len(config.dims), config, "dimensions")

    def compose(
        self,
        values: torch.Tensor,
        mesh_shape: MeshShape,
        presence: frozenset[Coord] | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Lanes of a mesh concatenated into one new tensor with exactly one copy, cast if a dtype is given."""
        # A tensor on another mesh than the composer's is read by the composer's shape, as in TT-NN.
        own = self.mesh_shape or mesh_shape
        key = self._key or ((self._dim or 0,), MeshShape([own.mesh_size()]), ORIGIN)
        plan = _plan(key, own, mesh_shape, presence, values.shape[mesh_shape.dims() :])
        wanted = values.dtype if dtype is None else dtype
        if plan.groups is None:  # one shard needs no dim; none gives an empty tensor
            return lane_at(values, plan.present[0]).to(wanted, copy=True) if plan.present else values.new_empty(0)
        if plan.box is not None:
            view = values.expand(plan.expanded)[plan.box]
        else:
            view = torch.stack([lane_at(values, coord) for coord in plan.present]).view(plan.expanded)
        composed = torch.empty(plan.shape, dtype=wanted, device=view.device)
        composed.view(plan.split).copy_(view.permute(plan.order))
        return composed


class ListMeshToTensor:
    """TT-NN's older composer that gives one tensor per device, in row-major order."""

    __slots__ = ("first_rank_only", "mesh_shape")

    def __init__(self, mesh_device: HasMeshShape | MeshShape | None = None) -> None:
        self.mesh_shape = None if mesh_device is None else mesh_shape_of(mesh_device)
        self.first_rank_only = False

    def compose(
        self,
        values: torch.Tensor,
        mesh_shape: MeshShape,
        presence: frozenset[Coord] | None = None,
        dtype: torch.dtype | None = None,
    ) -> list[torch.Tensor]:
        """One tensor per lane."""
        held = sorted(_find_holders(mesh_shape, presence))
        return [lane_at(values, coord).to(dtype or values.dtype, copy=True) for coord in held]


Composer = MeshToTensor | ListMeshToTensor
C = TypeVar("C", MeshToTensor, ListMeshToTensor)


def on_first_rank(composer: C) -> C:
    """The same composer for ranks that divide a mesh: only the first one gets the full tensor, the others get None."""
    made = copy(composer)
    made.first_rank_only = True
    return made


@name_wrong_types
def create_mesh_composer(mesh_device: HasMeshShape | MeshShape, config: MeshComposerConfig) -> MeshToTensor:
    """A composer that does what the config says."""
    return MeshToTensor(mesh_device, config)


@refuse_wrong_types
def concat_mesh_to_tensor_composer(mesh_device: HasMeshShape | MeshShape, dim: int) -> MeshToTensor:
    """A composer that concatenates the shards of all devices along one dim."""
    return MeshToTensor(mesh_device, dim=dim)


@name_wrong_types
def ConcatMeshToTensor(mesh_device: HasMeshShape | MeshShape | None = None, dim: int | None = None) -> MeshToTensor:
    """TT-NN's older name of `concat_mesh_to_tensor_composer`; without a device the tensor's mesh is used."""
    if dim is None:
        raise TypeError("ConcatMeshToTensor() needs dim=")
    return MeshToTensor(mesh_device, dim=dim)


@name_wrong_types
def ConcatMesh2dToTensor(
    mesh_device: HasMeshShape | MeshShape, mesh_shape: Sequence[int], dims: Sequence[int]
) -> MeshToTensor:
    """A composer that concatenates rows along one dim and columns along another."""
    check_pairs(mesh_shape=mesh_shape, dims=dims)
    config = MeshComposerConfig([dims[0], dims[1]], MeshShape(mesh_shape[0], mesh_shape[1]))
    return MeshToTensor(mesh_device, config)


Key = tuple[tuple[int, ...], MeshShape | None, MeshCoordinate]


class _ComposePlan(NamedTuple):
    """How lanes of one shape become one tensor."""

    present: list[Coord]
    groups: list[int] | None = None  # the tensor dim that each leading axis goes into; None: nothing to concatenate
    expanded: tuple[int, ...] = ()  # every lane, or the stacked shards
    box: tuple[slice, ...] | None = None  # the lanes that count; None: they are gathered one by one
    shape: tuple[int, ...] = ()
    split: tuple[int, ...] = ()  # the result's shape with every concatenated dim split again
    order: tuple[int, ...] = ()  # brings the leading axes next to their dims


@lru_cache(maxsize=512)
def _plan(
    key: Key, own: MeshShape, mesh_shape: MeshShape, presence: frozenset[Coord] | None, local: tuple[int, ...]
) -> _ComposePlan:
    (asked, override, offset) = key
    distribution = override or own
    where = mesh_coords(distribution, own, offset)
    held = _find_holders(mesh_shape, presence)
    present = [coord for coord in where if coord in held]
    if len(present) <= 1:
        return _ComposePlan(present)
    if len(asked) > 1 and len(present) != distribution.mesh_size():
        raise ShapeError(
            f"ND composition requires the number of tensors {len(present)} to match the mesh shape {distribution}",
            expected=f"{distribution.mesh_size()} shards",
            fix="Compose over the coordinates that hold a shard.",
        )
    dims = normalised_dims(asked, len(local))
    box: tuple[slice, ...] | None = None
    if len(present) == mesh_shape.mesh_size() and len(dims) == 1:
        groups, counts, box = dims * mesh_shape.dims(), mesh_shape.to_tuple(), ()
    elif fits_directly(distribution, mesh_shape) and len(present) == distribution.mesh_size():
        start = start_of(offset, mesh_shape)
        groups, counts = dims, distribution.to_tuple()
        box = tuple(slice(a, a + n) for a, n in zip(start, distribution, strict=True))
    else:
        groups, counts = dims, (len(present),) if len(dims) == 1 else distribution.to_tuple()
    expanded = (*(counts if box is None else mesh_shape), *local)
    return _ComposePlan(present, groups, expanded, box, *_plan_concat(counts, local, groups))


def _plan_concat(
    counts: tuple[int, ...], local: tuple[int, ...], groups: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Leading axes merged into tensor dims: the result's shape, that shape split, and the order of axes."""
    split, order = list[int](), list[int]()
    for dim, extent in enumerate(local):
        merged = [axis for axis, group in enumerate(groups) if group == dim]
        split += [*(counts[axis] for axis in merged), extent]
        order += [*merged, len(counts) + dim]
    shape = [
        e * prod(n for n, group in zip(counts, groups, strict=True) if group == dim) for dim, e in enumerate(local)
    ]
    return tuple(shape), tuple(split), tuple(order)


def lane_at(values: torch.Tensor, coord: Coord) -> torch.Tensor:
    """The shard of one device; replicated axes have size one."""
    for at in coord:  # quicker than an index by a tuple
        values = values.select(0, at if values.size(0) > 1 else 0)
    return values


def _find_holders(mesh_shape: MeshShape, presence: frozenset[Coord] | None) -> frozenset[Coord]:
    return presence if presence is not None else frozenset(mesh_coords(mesh_shape, mesh_shape))
