"""The calls of data-movement kernels: addresses, network on chip, semaphores and fabric, under TT-Metal's names."""

from __future__ import annotations

from typing import Any

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import BufferType
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.programs.buffers.addresses import MulticastAddress, NocAddress, TensorAccessor, TensorAccessorArgs
from ttmesh.programs.buffers.page_layout import make_interleaved_layout
from ttmesh.programs.execution.contents import Contents, NocError, NocTransfer, Owner
from ttmesh.programs.execution.fabric_connection import FabricConnection
from ttmesh.programs.execution.kernel_core import KernelCore
from ttmesh.programs.execution.ordering import Clock, Site, Transfers
from ttmesh.programs.execution.scheduler import Wait
from ttmesh.programs.l1_layout import SEMAPHORE_BYTES


class DataMovement(KernelCore):
    """A processor that moves data. Reads and writes take effect at their barrier, the latest time the chip allows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._reads: list[NocTransfer] = []
        self._writes: list[NocTransfer] = []
        self._unflushed: list[NocTransfer] = []  # arrived in front of a semaphore, but not known to have left
        self._reading = Transfers(self._memory.new_id())
        self._sending = Transfers(self._memory.new_id())  # the bytes here that are sent
        self._arriving: dict[int | None, Transfers] = {}  # the bytes there, by the bank of L1; None: DRAM

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
            fix="Keep a reference to the buffer: a program does not hold it.",
        )

    def interleaved_addr_gen(self, is_dram: bool, bank_base_address: int, page_size: int) -> TensorAccessor:
        """Pages interleaved over all banks of a memory, from an address on."""
        kind = BufferType.DRAM if is_dram else BufferType.L1
        banks = self._memory.mesh.heap.map.banks[kind]
        pages = make_interleaved_layout(
            banks.count * banks.size // page_size, page_size, banks.page_alignment, banks.count
        )
        return TensorAccessor(kind, pages, bank_base_address)

    def get_noc_addr(self, x: int, y: int, address: int) -> NocAddress:
        """An L1 address of a core, given by its coordinates on the network (worker_core_from_logical_core)."""
        return self._make_core_address(x, y, address)

    def get_noc_addr_from_bank_id(self, is_dram: bool, bank_id: int, address: int) -> NocAddress:
        """An address in a bank."""
        return NocAddress(BufferType.DRAM if is_dram else BufferType.L1, bank_id, address)

    def get_noc_multicast_addr(
        self, x_start: int, y_start: int, x_end: int, y_end: int, address: int
    ) -> MulticastAddress:
        """An L1 address on every core of a rectangle."""
        corners = self._to_logical(x_start, y_start), self._to_logical(x_end, y_end)
        (x0, x1), (y0, y1) = sorted(c.x for c in corners), sorted(c.y for c in corners)
        return MulticastAddress([CoreCoord(x, y) for y in range(y0, y1 + 1) for x in range(x0, x1 + 1)], address)

    # ---- the network

    def noc_async_read(self, source: NocAddress, l1_address: int, size: int) -> None:
        """Read bytes into this core's L1; they are there after noc_async_read_barrier."""
        for owner, offset, length in self._memory.pieces(source, size, self._chips):
            self._queue_read(owner, offset, *self._find_local(l1_address, length), length)
            l1_address += length

    def noc_async_write(self, l1_address: int, target: NocAddress, size: int) -> None:
        """Write bytes of this core's L1; they are there after noc_async_write_barrier."""
        for owner, offset, length in self._memory.pieces(target, size, self._chips):
            self._queue_write(*self._find_local(l1_address, length), owner, offset, length, target.l1_bank)
            l1_address += length

    def noc_async_read_page(self, page: int, accessor: TensorAccessor, l1_address: int) -> None:
        """Read one page of a buffer."""
        size = accessor.pages.page_bytes
        contents = self._find_page_contents(page, accessor)
        if contents is None:
            self.noc_async_read(accessor.get_noc_addr(page), l1_address, size)
        else:
            self._queue_read(contents, page * size, *self._find_local(l1_address, size), size)

    def noc_async_write_page(self, page: int, accessor: TensorAccessor, l1_address: int) -> None:
        """Write one page of a buffer."""
        size = accessor.pages.page_bytes
        contents = self._find_page_contents(page, accessor)
        if contents is None:
            self.noc_async_write(l1_address, accessor.get_noc_addr(page), size)
        else:
            bank = None if accessor.kind is BufferType.DRAM else accessor.pages.locate(page)[0]
            self._queue_write(*self._find_local(l1_address, size), contents, page * size, size, bank)

    noc_async_read_tile = noc_async_read_page
    noc_async_write_tile = noc_async_write_page

    def noc_async_write_multicast(self, l1_address: int, target: MulticastAddress, size: int) -> None:
        """Send the same bytes to every core of a rectangle but this one."""
        for core in target.cores:
            if core != self._l1.core:
                self.noc_async_write(l1_address, self._make_l1_address(core, target.address), size)

    def noc_async_read_barrier(self) -> None:
        """From here on everything read so far is in L1."""
        self._run_transfers(self._reads)
        self._reading.end(self.actor.clock)

    def noc_async_write_barrier(self) -> None:
        """From here on everything written so far has arrived."""
        self.noc_async_writes_flushed()
        for arriving in self._arriving.values():
            arriving.end(self.actor.clock)

    def noc_async_writes_flushed(self) -> None:
        """From here on everything written so far has left; when it arrives is not known."""
        self._run_transfers(self._writes)
        self._unflushed.clear()
        self._sending.end(self.actor.clock)

    # ---- circular buffers

    def cb_push_back(self, cb_id: int, num_pages: int) -> None:
        """Pass reserved pages to the consumer; refuse while a read into them is pending."""
        for one in self._reads:
            if one.target is self._l1 and self._overlaps(cb_id, num_pages, one.at, one.size, to_push=True):
                raise self._make_pending_error(
                    "cb_push_back hands over a page", cb_id, "into which the read", one.site, "read"
                )
        super().cb_push_back(cb_id, num_pages)

    def cb_pop_front(self, cb_id: int, num_pages: int) -> None:
        """Return filled pages to the producer; refuse while a write from them is pending."""
        for one in (*self._writes, *self._unflushed):
            if one.source is self._l1 and self._overlaps(cb_id, num_pages, one.start, one.size, to_push=False):
                raise self._make_pending_error(
                    "cb_pop_front gives a page back", cb_id, "of which the write", one.site, "write"
                )
        super().cb_pop_front(cb_id, num_pages)

    # ---- semaphores

    def get_semaphore(self, semaphore_id: int) -> int:
        """The L1 address of a program's semaphore."""
        return self._placement.semaphore_base + semaphore_id * SEMAPHORE_BYTES

    def noc_semaphore_wait(self, address: int, value: int) -> Wait:
        """Await that a semaphore of this core has a value."""
        return self._make_wait(address, value, exact=True)

    def noc_semaphore_wait_min(self, address: int, value: int) -> Wait:
        """Await that a semaphore of this core has at least a value."""
        return self._make_wait(address, value, exact=False)

    def noc_semaphore_set(self, address: int, value: int) -> None:
        """Set a semaphore of this core."""
        released, here = self.actor.release(), self._make_local_address(address)
        self._memory.change_semaphore(self._chips, here, value, self.actor, released, increment=False)

    def noc_semaphore_inc(self, target: NocAddress, increment: int) -> None:
        """Add to a semaphore of any core, after the writes sent to that core before."""
        released = self._release_to(target.l1_bank)
        self._memory.change_semaphore(self._chips, target, increment, self.actor, released, increment=True)

    def noc_semaphore_set_remote(self, address: int, target: NocAddress) -> None:
        """Copy a semaphore of this core to another core, after the writes sent to that core before."""
        value, released = self.load_word(address), self._release_to(target.l1_bank)
        self._memory.change_semaphore(self._chips, target, value, self.actor, released, increment=False)

    def noc_semaphore_set_multicast(self, address: int, target: MulticastAddress) -> None:
        """Copy a semaphore of this core to every other core of a rectangle, after the writes sent to them before."""
        value = self.load_word(address)
        for core in target.cores:
            if core != self._l1.core:
                there = self._make_l1_address(core, target.address)
                released = self._release_to(there.l1_bank)
                self._memory.change_semaphore(self._chips, there, value, self.actor, released, increment=False)

    def load_word(self, address: int) -> int:
        """The 32-bit number at an L1 address of this core (a pointer dereferenced)."""
        self._note_transfers()
        word = self._memory.touch_word(self._chips, self._make_local_address(address), self.actor, writes=False)
        if word is not None:
            word.load(self.actor)
        return self._memory.load(self._chips, self._make_local_address(address))

    def store_word(self, address: int, value: int) -> None:
        """Write a 32-bit number at an L1 address of this core."""
        self._note_transfers()
        if self._memory.touch_word(self._chips, self._make_local_address(address), self.actor, writes=True) is not None:
            self.noc_semaphore_set(address, value)
        else:
            self._memory.store(self._chips, self._make_local_address(address), value)

    # ---- other chips

    def fabric_connection(self, neighbour: MeshCoordinate) -> FabricConnection:
        """A connection to a neighbouring chip. A kernel that opens one runs once per chip."""
        self._note_transfers()
        return FabricConnection(self._memory, self._chips, self._l1, neighbour, self._running, self.actor)

    # ---- inside

    def finish(self) -> None:
        """Refuse a kernel that ends with pending transfers."""
        super().finish()
        pending = self._reads or self._writes or self._unflushed
        if pending:
            what, barrier = ("reads", "read") if self._reads else ("writes", "write")
            raise NocError(
                f"{self.actor.name} ended with NoC {what} under way, the first from {pending[0].site.find_line()}",
                expected="a barrier after the last of them",
                fix=f"Call noc_async_{barrier}_barrier() before the kernel returns.",
            )

    def _queue_read(self, source: Owner, start: int, target: Owner, at: int, size: int) -> None:
        if self._reads and self._extend_last(self._reads[-1], source, start, target, at, size):
            return
        self._reads.append(NocTransfer(source, start, target, at, size, self._reading, self._reading, self.actor))

    def _queue_write(self, source: Owner, start: int, target: Owner, at: int, size: int, bank: int | None) -> None:
        arriving = self._arriving.get(bank)
        if arriving is None:
            arriving = self._arriving[bank] = Transfers(self._memory.new_id())
        last = self._writes[-1] if self._writes else None
        if last is not None and last.arriving is arriving and self._extend_last(last, source, start, target, at, size):
            return
        self._writes.append(NocTransfer(source, start, target, at, size, self._sending, arriving, self.actor))

    def _run_transfers(self, pending: list[NocTransfer]) -> None:
        memory, chips = self._memory, self._chips
        for one in pending:
            one.note(chips)
            memory.copy((one.source, one.start, one.size), chips, one.target, one.at, chips)
        pending.clear()

    def _note_transfers(self) -> None:
        """Record the pending transfers for the race check, before this kernel touches bytes itself."""
        for one in (*self._reads, *self._writes):
            one.note(self._chips)

    def _release_to(self, bank: int | None) -> Clock:
        """The clock for a semaphore on a core: all that this kernel knows, and its writes to that core."""
        self._unflushed += self._writes
        self._run_transfers(self._writes)
        released = self.actor.release()
        arriving = self._arriving.get(bank)
        if arriving is not None:
            arriving.end(released)
        return released

    def _extend_last(self, last: NocTransfer, source: Owner, start: int, target: Owner, at: int, size: int) -> bool:
        """Extend the last transfer if this one continues it, so that runs of pages become one copy; whether it did."""
        if last.source is not source or last.target is not target or last.actor_version != self.actor.version:
            return False
        if last.start + last.size != start or last.at + last.size != at:
            return False
        last.size += size
        return True

    def _overlaps(self, cb_id: int, pages: int, at: int, size: int, *, to_push: bool) -> bool:
        begin = self._l1.start + at
        spans = self._ring(cb_id).next_pages(pages, to_push=to_push)
        return any(start < begin + size and begin < start + length for start, length in spans)

    def _make_pending_error(self, wrong: str, cb_id: int, what: str, site: Site, barrier: str) -> NocError:
        return NocError(
            f"{wrong} of cb {cb_id} {what} from {site.find_line()} is under way",
            expected=f"noc_async_{barrier}_barrier() before it",
            fix=f"Call noc_async_{barrier}_barrier() after the transfer.",
        )

    def _find_page_contents(self, page: int, accessor: TensorAccessor) -> Contents | None:
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

    def _find_local(self, address: int, size: int) -> tuple[Owner, int]:
        l1 = self._l1
        if l1.start <= address < l1.end:
            return l1, l1.offset(address, size)
        (owner, offset, _), *rest = self._memory.pieces(self._make_local_address(address), size, self._chips)
        if rest:
            raise NocError(
                f"{size} B at L1 address {address} span pages of a buffer",
                expected="one page",
                fix="Copy page by page.",
            )
        return owner, offset

    def _make_wait(self, address: int, value: int, *, exact: bool) -> Wait:
        where, memory, chips = self._make_local_address(address), self._memory, self._chips

        def ready() -> bool:
            now = memory.load(chips, where)
            return now == value if exact else now >= value

        def text() -> str:
            wanted = f"{value}" if exact else f"{value} or more"
            return f"semaphore at L1 address {address} to be {wanted} ({memory.load(chips, where)} now)"

        def on_ready() -> None:
            if not memory.word(chips, where).see(self.actor, value, exact):
                memory.learn_everything(self.actor)  # the value came by an ordinary write

        memory.word(chips, where)
        return self._track_wait(Wait(ready, memory.waiters(chips, where), text, on_ready))

    def _make_local_address(self, address: int) -> NocAddress:
        return NocAddress(BufferType.L1, self._l1.bank, address)

    def _make_l1_address(self, core: CoreCoord, address: int) -> NocAddress:
        return NocAddress(BufferType.L1, core.y * self._memory.columns + core.x, address)

    def _make_core_address(self, x: int, y: int, address: int) -> NocAddress:
        return self._make_l1_address(self._to_logical(x, y), address)

    def _to_logical(self, x: int, y: int) -> CoreCoord:
        mesh = self._memory.mesh
        origin, grid = mesh.worker_core_from_logical_core(CoreCoord(0, 0)), mesh.compute_with_storage_grid_size()
        core = CoreCoord(x - origin.x, y - origin.y)
        if not (0 <= core.x < grid.x and 0 <= core.y < grid.y):
            raise NocError(
                f"no worker core at ({x}, {y}) on the network",
                expected=f"x from {origin.x}, y from {origin.y}, {grid.x}x{grid.y} cores",
                fix="Use the coordinates that worker_core_from_logical_core returns.",
            )
        return core
