"""How the fabric names a chip: its mesh and its place there."""

from __future__ import annotations

from typing import NamedTuple


class MeshId(int):
    """The number of a mesh in a system of several."""

    def __repr__(self) -> str:
        return f"MeshId({int(self)})"


class FabricNodeId(NamedTuple):
    """A chip as the fabric knows it."""

    mesh_id: MeshId
    chip_id: int

    def __repr__(self) -> str:
        return f"(M{int(self.mesh_id)}, D{self.chip_id})"
