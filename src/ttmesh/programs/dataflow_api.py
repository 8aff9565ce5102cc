"""What data-movement kernels call: addresses, the network on chip, semaphores and the fabric, in TT-Metal's words."""

from __future__ import annotations

from typing import Any

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import BufferType
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.programs.addresses import MulticastAddress, NocAddress, TensorAccessor, TensorAccessorArgs
from ttmesh.programs.fabric_connection import FabricConnection
from ttmesh.programs.kernel_core import KernelCore
from ttmesh.programs.kernel_memory import Contents, NocError, Owner
from ttmesh.programs.l1_layout import SEMAPHORE_BYTES
from ttmesh.programs.page_layout import interleaved
from ttmesh.programs.scheduler import Wait


class DataMovement(KernelCore):
    """A core that moves data. Reads and writes take effect at their barrier, as late as the chip may be."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._reads: list[list[Any]] = []  # [source, offset, target, offset, size], target chips: this one's
        self._writes: list[list[Any]] = []

    # ---- addresses

    def tensor_accessor(self, address: int, args: TensorAccessorArgs | None = None) -> TensorAccessor:
        """The pages of a buffer: laid out as the compile-time args say, else as the buffer at that address is."""
        if args is not None:
            return TensorAccessor(args.kind, args.pages, address)
        for kind in (BufferType.DRAM, BufferType.L1):
            contents = self._memory.find(kind, address)
            if contents is not None and contents.cell.address == address:
                return TensorAccessor(contents.cell.buffer_type, contents.layout, address)
        raise NocError(
            f"no buffer begins at address {address}",
            expected="the address of a live buffer",
            fix="A program does not keep its buffers: hold a reference.",
        )

    def interleaved_addr_gen(self, is_dram: bool, bank_base_address: int, page_size: int) -> TensorAccessor:
        """Pages dealt over all banks of a memory from an address on."""
        kind = BufferType.DRAM if is_dram else BufferType.L1
        banks = self._memory.mesh.heap.map.banks[kind]
        pages = interleaved(banks.count * banks.size // page_size, page_size, banks.page_alignment, banks.count)
        return TensorAccessor(kind, pages, bank_base_address)

    def get_noc_addr(self, x: int, y: int, address: int) -> NocAddress:
        """An L1 address of a core, given by its place on the network (worker_core_from_logical_core)."""
        return self._core_address(x, y, address)

    def get_noc_addr_from_bank_id(self, is_dram: bool, bank_id: int, address: int) -> NocAddress:
        """An address in a bank."""
        return NocAddress(BufferType.DRAM if is_dram else BufferType.L1, bank_id, address)

    def get_noc_multicast_addr(
        self, x_start: int, y_start: int, x_end: int, y_end: int, address: int
    ) -> MulticastAddress:
        """An L1 address on every core of a rectangle."""
        corners = self._logical(x_start, y_start), self._logical(x_end, y_end)
        (x0, x1), (y0, y1) = sorted(c.x for c in corners), sorted(c.y for c in corners)
        return MulticastAddress([CoreCoord(x, y) for y in range(y0, y1 + 1) for x in range(x0, x1 + 1)], address)

    # ---- the network

    def noc_async_read(self, source: NocAddress, l1_address: int, size: int) -> None:
        """Bring bytes into this core's L1; there after noc_async_read_barrier."""
        for owner, offset, part in self._memory.pieces(source, size, self._chips):
            self._queue(self._reads, owner, offset, *self._local(l1_address, part), part)
            l1_address += part

    def noc_async_write(self, l1_address: int, target: NocAddress, size: int) -> None:
        """Send bytes of this core's L1; there after noc_async_write_barrier."""
        for owner, offset, part in self._memory.pieces(target, size, self._chips):
            self._queue(self._writes, *self._local(l1_address, part), owner, offset, part)
            l1_address += part

    def noc_async_read_page(self, page: int, accessor: TensorAccessor, l1_address: int) -> None:
        """Bring one page of a buffer."""
        size = accessor.pages.page_bytes
        contents = self._page(page, accessor)
        if contents is None:
            self.noc_async_read(accessor.get_noc_addr(page), l1_address, size)
        else:
            self._queue(self._reads, contents, page * size, *self._local(l1_address, size), size)

    def noc_async_write_page(self, page: int, accessor: TensorAccessor, l1_address: int) -> None:
        """Send one page of a buffer."""
        size = accessor.pages.page_bytes
        contents = self._page(page, accessor)
        if contents is None:
            self.noc_async_write(l1_address, accessor.get_noc_addr(page), size)
        else:
            self._queue(self._writes, *self._local(l1_address, size), contents, page * size, size)

    noc_async_read_tile = noc_async_read_page
    noc_async_write_tile = noc_async_write_page

    def noc_async_write_multicast(self, l1_address: int, target: MulticastAddress, size: int) -> None:
        """Send the same bytes to every core of a rectangle but this one."""
        for core in target.cores:
            if core != self._l1.core:
                self.noc_async_write(l1_address, self._l1_of(core, target.address), size)

    def noc_async_read_barrier(self) -> None:
        """From here on everything read so far is in L1."""
        self._carry_out(self._reads)

    def noc_async_write_barrier(self) -> None:
        """From here on everything written so far has arrived."""
        self._carry_out(self._writes)

    noc_async_writes_flushed = noc_async_write_barrier

    # ---- semaphores

    def get_semaphore(self, semaphore_id: int) -> int:
        """The L1 address of a program's semaphore."""
        return self._placement.semaphore_base + semaphore_id * SEMAPHORE_BYTES

    def noc_semaphore_wait(self, address: int, value: int) -> Wait:
        """Await that a semaphore of this core has a value."""
        return self._wait(address, value, exact=True)

    def noc_semaphore_wait_min(self, address: int, value: int) -> Wait:
        """Await that a semaphore of this core has at least a value."""
        return self._wait(address, value, exact=False)

    def noc_semaphore_set(self, address: int, value: int) -> None:
        """Set a semaphore of this core."""
        self._memory.store(self._chips, self._here(address), value)

    def noc_semaphore_inc(self, target: NocAddress, increment: int) -> None:
        """Add to a semaphore of any core, behind the writes sent before."""
        self._carry_out(self._writes)
        self._memory.store(self._chips, target, self._memory.load(self._chips, target) + increment)

    def noc_semaphore_set_remote(self, address: int, target: NocAddress) -> None:
        """Copy a semaphore of this core to another core, behind the writes sent before."""
        self._carry_out(self._writes)
        self._memory.store(self._chips, target, self.load_word(address))

    def noc_semaphore_set_multicast(self, address: int, target: MulticastAddress) -> None:
        """Copy a semaphore of this core to every other core of a rectangle, behind the writes sent before."""
        self._carry_out(self._writes)
        value = self.load_word(address)
        for core in target.cores:
            if core != self._l1.core:
                self._memory.store(self._chips, self._l1_of(core, target.address), value)

    def load_word(self, address: int) -> int:
        """The 32-bit number at an L1 address of this core (a pointer dereferenced)."""
        return self._memory.load(self._chips, self._here(address))

    def store_word(self, address: int, value: int) -> None:
        """Write a 32-bit number at an L1 address of this core."""
        self._memory.store(self._chips, self._here(address), value)

    # ---- other chips

    def fabric_connection(self, neighbour: MeshCoordinate) -> FabricConnection:
        """A way to a chip that a link joins to this one. A kernel that opens one runs once per chip."""
        return FabricConnection(self._memory, self._chips, self._l1, neighbour, self._running)

    # ---- inside

    def finish(self) -> None:
        """Refuse to end with transfers under way."""
        if self._reads or self._writes:
            what, barrier = ("reads", "read") if self._reads else ("writes", "write")
            raise NocError(
                f"{self._kernel.name} on core {self._l1.core.str()} ended with NoC {what} under way",
                expected="a barrier after the last of them",
                fix=f"Call noc_async_{barrier}_barrier() before the kernel returns.",
            )

    def _queue(self, pending: list[list[Any]], source: Owner, start: int, target: Owner, at: int, size: int) -> None:
        if pending:
            last = pending[-1]  # runs of pages become one copy
            if last[0] is source and last[2] is target and last[1] + last[4] == start and last[3] + last[4] == at:
                last[4] += size
                return
        pending.append([source, start, target, at, size])

    def _carry_out(self, pending: list[list[Any]]) -> None:
        memory, chips = self._memory, self._chips
        for source, start, target, at, size in pending:
            memory.copy((source, start, size), chips, target, at, chips)
        pending.clear()

    def _page(self, page: int, accessor: TensorAccessor) -> Contents | None:
        """The buffer of an accessor when its pages are the buffer's own, so that page p begins at p * page_bytes."""
        contents = self._memory.find(accessor.kind, accessor.address)
        if contents is None or contents.layout is not accessor.pages or contents.cell.address != accessor.address:
            return None
        if contents in self._memory.shadowed:
            return None
        if not 0 <= page < contents.layout.pages:
            raise NocError(
                f"NoC access to page {page} lies outside a buffer of {contents.layout.pages} pages at "
                f"{accessor.kind.name} address {accessor.address}",
                expected=f"pages 0 to {contents.layout.pages - 1}",
                fix="Check the page numbers and the runtime arguments.",
            )
        return contents

    def _local(self, address: int, size: int) -> tuple[Owner, int]:
        l1 = self._l1
        if l1.start <= address < l1.end:
            return l1, l1.offset(address, size)
        (owner, offset, _), *rest = self._memory.pieces(self._here(address), size, self._chips)
        if rest:
            raise NocError(
                f"{size} B at L1 address {address} span pages of a buffer",
                expected="one page",
                fix="Copy page by page.",
            )
        return owner, offset

    def _wait(self, address: int, value: int, *, exact: bool) -> Wait:
        where, memory, chips = self._here(address), self._memory, self._chips

        def ready() -> bool:
            now = memory.load(chips, where)
            return now == value if exact else now >= value

        def text() -> str:
            wanted = f"{value}" if exact else f"{value} or more"
            return f"semaphore at L1 address {address} to be {wanted} ({memory.load(chips, where)} now)"

        return Wait(ready, memory.waiters(chips, where), text, None)

    def _here(self, address: int) -> NocAddress:
        return NocAddress(BufferType.L1, self._l1.bank, address)

    def _l1_of(self, core: CoreCoord, address: int) -> NocAddress:
        return NocAddress(BufferType.L1, core.y * self._memory.columns + core.x, address)

    def _core_address(self, x: int, y: int, address: int) -> NocAddress:
        return self._l1_of(self._logical(x, y), address)

    def _logical(self, x: int, y: int) -> CoreCoord:
        mesh = self._memory.mesh
        origin, grid = mesh.worker_core_from_logical_core(CoreCoord(0, 0)), mesh.compute_with_storage_grid_size()
        core = CoreCoord(x - origin.x, y - origin.y)
        if not (0 <= core.x < grid.x and 0 <= core.y < grid.y):
            raise NocError(
                f"no worker core at ({x}, {y}) on the network",
                expected=f"x from {origin.x}, y from {origin.y}, {grid.x}x{grid.y} cores",
                fix="Use what worker_core_from_logical_core answers.",
            )
        return core
