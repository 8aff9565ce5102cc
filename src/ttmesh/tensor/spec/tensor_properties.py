"""Properties of a tensor that follow from its kind."""

from __future__ import annotations

from ttmesh.base.dtypes import ELEMENT_BYTES, DataType, Layout
from ttmesh.chip.formats.tiles import Tile
from ttmesh.tensor.spec.kind import Kind, kind_of
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology


class TensorProperties:
    """An object with a kind: shape, format, layout, memory and topology under TT-NN's names."""

    __slots__ = ("kind",)

    kind: Kind

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

    @property
    def tile(self) -> Tile:
        """The shape of its tiles."""
        return self.kind.spec.tile

    def get_layout(self) -> Layout:
        """ROW_MAJOR or TILE."""
        return self.layout

    def get_dtype(self) -> DataType:
        """The number format."""
        return self.dtype

    def get_tile(self) -> Tile:
        """The shape of its tiles."""
        return self.tile

    def memory_config(self) -> MemoryConfig:
        """Where the values are stored on a chip."""
        return self.kind.spec.memory_config

    def is_sharded(self) -> bool:
        """Whether it is sharded over the cores or banks of a chip."""
        return self.kind.spec.memory_config.is_sharded()

    def volume(self) -> int:
        """Elements on one device, padding included."""
        height, width = self.kind.spec.physical_shape
        return height * width

    def logical_volume(self) -> int:
        """Elements on one device."""
        return self.shape.volume()

    def element_size(self) -> int:
        """Bytes of one element; 1 for block floats, as TT-NN counts them."""
        return ELEMENT_BYTES.get(self.dtype, 1)

    def tensor_topology(self) -> TensorTopology:
        """How the tensor is distributed over the mesh."""
        return self.kind.topology

    def update_tensor_topology(self, topology: TensorTopology) -> None:
        """Replace the topology; values do not move."""
        self.kind = kind_of(self.kind.spec, topology, self.kind.presence)
