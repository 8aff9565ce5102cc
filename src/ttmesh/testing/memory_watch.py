"""Leaks and memory use of a test."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ttmesh.mesh.device.mesh_device import MeshDevice


@dataclass(frozen=True)
class MemoryUsage:
    """Peaks of one test, and the L1 that each device had in use, reservations included."""

    test: str
    coordinator: int
    peak_dram_bytes: int
    peak_l1_bytes: int
    l1_bytes: dict[int, int]

    @property
    def highest_l1_device(self) -> int:
        """The device with the most L1 in use."""
        return max(self.l1_bytes, key=self.l1_bytes.__getitem__)


def usage(test: str, mesh: MeshDevice) -> MemoryUsage:
    """The memory use of a mesh at the end of a test."""
    from ttmesh.base.dtypes import BufferType
    from ttmesh.mesh.allocation.reservations import reserved_bytes
    from ttmesh.mesh.functions.memory_reports import peak_bytes

    peak_l1 = peak_bytes(mesh, BufferType.L1)
    leader = mesh.reference_device()
    l1 = {chip: reserved_bytes(coordinator=chip == leader) + peak_l1 for chip in mesh.get_device_ids()}
    return MemoryUsage(test, leader, peak_bytes(mesh, BufferType.DRAM), peak_l1, l1)


def leaks(mesh: MeshDevice) -> list[str]:
    """Buffers that are still allocated although the test is over, with their names.

    Not those that belong to the mesh: traces, and what cached programs keep, such as the semaphores of collectives.
    """
    gc.collect()
    meshes = [mesh, *mesh.get_submeshes()]
    kept = {buffer.cell for mesh in meshes for buffer in mesh.program_cache.buffers.values()}
    return [
        f"{cell.label or 'unnamed'}: {cell.size_bytes} B of {cell.buffer_type.name} at {cell.address}"
        for mesh in meshes
        for cell in mesh.heap.cells()
        if cell not in kept and not cell.label.startswith("trace ")
    ]
