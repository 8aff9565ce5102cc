"""Tensor: values on a mesh or on the host, with their kind."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import DataType, Layout, StorageType
from ttmesh.base.errors import DeallocatedError
from ttmesh.mesh.buffer import Buffer
from ttmesh.mesh.mesh_device import MeshDevice
from ttmesh.tensor.kind import Kind, kind_of
from ttmesh.tensor.memory_config import MemoryConfig
from ttmesh.tensor.shape import Shape
from ttmesh.tensor.spec import TensorSpec
from ttmesh.tensor.topology import TensorTopology


class Tensor:
    """On a device it is a kind and a buffer; on the host a kind and lanes. Tensors on one buffer share its contents.

    Lanes have one leading dimension per mesh axis (length 1 where every device has the same), then the local shape.
    """

    __slots__ = ("__weakref__", "_buffer", "_lanes", "_mesh", "kind")

    def __init__(self, kind: Kind, buffer: Buffer | None, mesh: MeshDevice | None, lanes: torch.Tensor | None) -> None:
        self.kind = kind
        self._buffer = buffer
        self._mesh = mesh
        self._lanes = lanes

    @staticmethod
    def on_device(kind: Kind, buffer: Buffer, mesh: MeshDevice) -> Tensor:
        """A tensor over a buffer; called by launch, transfers and views."""
        return Tensor(kind, buffer, mesh, None)

    @staticmethod
    def on_host(kind: Kind, lanes: torch.Tensor) -> Tensor:
        """A tensor that holds its values itself."""
        return Tensor(kind, None, None, lanes)

    @property
    def spec(self) -> TensorSpec:
        """Shape, format, layout and memory."""
        return self.kind.spec

    @property
    def shape(self) -> Shape:
        """The logical shape on one device."""
        return self.kind.spec.shape

    @property
    def padded_shape(self) -> Shape:
        """The shape rounded up to whole tiles or pages."""
        return self.kind.spec.padded_shape

    @property
    def dtype(self) -> DataType:
        """The number format."""
        return self.kind.spec.dtype

    @property
    def layout(self) -> Layout:
        """ROW_MAJOR or TILE."""
        return self.kind.spec.layout

    def memory_config(self) -> MemoryConfig:
        """Where the values lie on a chip."""
        return self.kind.spec.memory_config

    def tensor_topology(self) -> TensorTopology:
        """How the tensor lies over the mesh."""
        return self.kind.topology

    def update_tensor_topology(self, topology: TensorTopology) -> None:
        """Say something else about how it lies over the mesh; values do not move."""
        self.kind = kind_of(self.kind.spec, topology, self.kind.presence)

    def storage_type(self) -> StorageType:
        """HOST or DEVICE."""
        return StorageType.HOST if self._mesh is None else StorageType.DEVICE

    def device(self) -> MeshDevice | None:
        """The mesh that holds it, or None on the host."""
        return self._mesh

    @property
    def buffer(self) -> Buffer:
        """The buffer of a device tensor."""
        if self._buffer is None:
            raise DeallocatedError(
                "this tensor is on the host", expected="a tensor on a device", fix="Move it with to_device() first."
            )
        return self._buffer

    def is_allocated(self) -> bool:
        """Whether its values are still there."""
        return self._buffer.is_allocated() if self._buffer is not None else self._lanes is not None

    def buffer_address(self) -> int:
        """Where it lies, the same on every device."""
        return self.buffer.cell.address
