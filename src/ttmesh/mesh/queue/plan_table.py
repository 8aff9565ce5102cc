"""The table of fast paths: where a call like an earlier one goes. What a path is, is known to the layers above."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ttmesh.mesh.device.mesh_device import MeshDevice

Key = tuple[Hashable, ...]


class CallPath(Protocol):
    """How to carry out a call whose key was seen before."""

    def run(self, mesh: MeshDevice, tensors: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out a call with these tensors and arguments."""


class PlanTable(dict[Key, CallPath]):
    """The fast paths of one mesh, by key."""
