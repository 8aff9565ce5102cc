"""The shards of a tensor: which coordinates hold one, which of them are this process's, and the values there."""

from __future__ import annotations

from abc import abstractmethod
from itertools import product
from typing import Any

import torch

from ttmesh.base.argument_types import suggest_object
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.tensor.distribution.composers import Composer, lane_at
from ttmesh.tensor.spec.distribution_shape import Coord
from ttmesh.tensor.spec.tensor_properties import TensorProperties


class DistributedTensor(TensorProperties):
    """A tensor with a shard for each of some coordinates of a mesh. Where ranks divide the mesh, lanes are this rank's."""

    __slots__ = ()

    @property
    @abstractmethod
    def mesh_shape(self) -> MeshShape:
        """The mesh it is stored on, or was sharded for."""

    @property
    @abstractmethod
    def rank_block(self) -> RankBlock | None:
        """This rank's block of that mesh where several ranks divide it."""

    @property
    @abstractmethod
    def lanes(self) -> torch.Tensor:
        """The lanes of a host tensor; never change what you get."""

    def device_coords(self) -> list[MeshCoordinate]:
        """The coordinates of this process that hold a shard."""
        return [MeshCoordinate(coord) for coord in self.local_coords()]

    def local_coords(self) -> list[Coord]:
        """The same as plain tuples, row-major."""
        block = self.rank_block
        return self.coords() if block is None else [coord for coord in self.coords() if block.has_chip(coord)]

    def coords(self) -> list[Coord]:
        """Every coordinate that holds a shard, on any rank."""
        if self.kind.presence is not None:
            return sorted(self.kind.presence)
        return list(product(*map(range, self.mesh_shape)))

    def lane(self, coord: Coord) -> torch.Tensor:
        """The shard of one device of a host tensor; never change what you get."""
        block = self.rank_block
        return lane_at(self.lanes, coord if block is None else block.to_local(coord))

    def only_shard(self) -> torch.Tensor:
        """The shard of a host tensor that has exactly one."""
        return self.find_only_lane(self.lanes, self.rank_block)

    def find_only_lane(self, lanes: torch.Tensor, block: RankBlock | None) -> torch.Tensor:
        """The shard among these lanes of a tensor that has exactly one; never change what you get."""
        presence, shape = self.kind.presence, self.mesh_shape
        if (shape.mesh_size() if presence is None else len(presence)) != 1:
            raise MeshError(
                f"Can't convert a tensor distributed on {self.mesh_shape!r} mesh to row-major logical tensor. Supply a "
                "mesh composer to concatenate multi-device shards.",
                expected="mesh_composer=, for example ConcatMeshToTensor(mesh_device, dim=0)",
                fix="Or convert each of get_device_tensors() by itself.",
            )
        coord = (0,) * shape.dims() if presence is None else next(iter(presence))
        return lane_at(lanes, coord if block is None else block.to_local(coord))

    def all_lanes(self) -> torch.Tensor:
        """The lanes of all ranks of a host tensor; every rank of its mesh calls it."""
        block = self.rank_block
        return self.lanes if block is None else block.gather_all(self.lanes)

    def compose(self, composer: Composer, dtype: torch.dtype | None = None) -> Any:
        """What a composer makes of the shards of all ranks; None on ranks that it leaves out."""
        block = self.rank_block
        lanes: torch.Tensor | None = self.lanes
        if block is not None:
            lanes = block.gather_on_first(self.lanes) if composer.first_rank_only else block.gather_all(self.lanes)
        if not hasattr(composer, "compose") or isinstance(composer, type):
            hint = suggest_object("mesh_composer")
            raise TypeError(f"mesh_composer={composer!r} is a {type(composer).__name__}; pass {hint}")
        return None if lanes is None else composer.compose(lanes, self.mesh_shape, self.kind.presence, dtype)
