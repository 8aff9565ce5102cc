"""Ordered sends over a link to a neighbouring chip: writes, increments, and both in one packet."""

from __future__ import annotations

from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.programs.buffers.addresses import NocAddress
from ttmesh.programs.execution.contents import Chips, CoreMemory, touch
from ttmesh.programs.execution.kernel_memory import Memory
from ttmesh.programs.execution.ordering import Actor, Transfers


class FabricConnection:
    """One link, opened by a kernel; addresses are the neighbour's."""

    __slots__ = ("_actor", "_arriving", "_chips", "_hop", "_l1", "_memory", "_there")

    def __init__(
        self,
        memory: Memory,
        chips: Chips,
        l1: CoreMemory,
        neighbour: MeshCoordinate,
        running: list[Chips],
        actor: Actor,
    ) -> None:
        mesh, here = memory.mesh, chips.coord()
        self._memory, self._chips, self._l1, self._actor = memory, chips, l1, actor
        self._arriving = Transfers(memory.new_id())
        self._hop = (mesh.chip_at(here), mesh.chip_at(neighbour))
        if not mesh.system.link_count(*self._hop):
            raise MeshError(
                f"no link from {here!r} (chip {self._hop[0]}) to {neighbour!r} (chip {self._hop[1]})",
                expected="a neighbour that a link connects to this chip",
                fix="Send through the chips between them, or open the mesh as a line along the links.",
            )
        self._there = memory.chips_at(neighbour, running)

    def noc_unicast_write(self, l1_address: int, target: NocAddress, size: int) -> None:
        """Write bytes of this core's L1 to an address on the other chip."""
        here = NocAddress(BufferType.L1, self._l1.bank, l1_address)
        sources = self._memory.pieces(here, size, self._chips)
        if len(sources) > 1:
            raise MeshError(
                f"{size} B at L1 address {l1_address} span pages of a buffer",
                expected="one page",
                fix="Send page by page.",
            )
        owner, start, _ = sources[0]
        touch(owner, start, size, self._chips, self._actor, writes=False)
        arriving, site = self._arriving, self._actor.site()
        for into, offset, length in self._memory.pieces(target, size, self._there):
            shadow = into.shadow(self._there)
            shadow.touch(offset, length, self._actor.clock, arriving.id, arriving.time, True, site)
            self._memory.copy((owner, start, length), self._chips, into, offset, self._there)
            start += length
        self._memory.count_crossing(self._hop, size)

    def noc_unicast_atomic_inc(self, target: NocAddress, increment: int) -> None:
        """Add to a semaphore on the other chip, after everything sent before."""
        released = self._actor.release()
        self._arriving.end(released)
        self._memory.change_semaphore(self._there, target, increment, self._actor, released, increment=True)
        self._memory.count_crossing(self._hop, 4)

    def noc_fused_unicast_atomic_inc(
        self, l1_address: int, target: NocAddress, size: int, semaphore: NocAddress, increment: int
    ) -> None:
        """Write, then add to a semaphore there, in one packet."""
        self.noc_unicast_write(l1_address, target, size)
        self.noc_unicast_atomic_inc(semaphore, increment)
