"""How the fabric names a chip: its mesh and its place there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeshId:
    """The number of a mesh in a system of several."""

    value: int

    def __int__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"MeshId({self.value})"


@dataclass(frozen=True)
class FabricNodeId:
    """A chip as the fabric knows it: its mesh and its row-major place in the system mesh."""

    mesh_id: MeshId
    chip_id: int

    def __repr__(self) -> str:
        return f"FabricNodeId(M{self.mesh_id.value}, D{self.chip_id})"
