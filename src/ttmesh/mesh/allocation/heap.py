"""Buffers: memory at one address on every chip of a mesh, and the heap that allocates them."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterable
from threading import Lock, local
from typing import NoReturn

import torch

from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import DeallocatedError, OutOfMemoryError
from ttmesh.base.records import Allocated, Freed
from ttmesh.base.signals import signals
from ttmesh.base.tracebacks import find_call_site
from ttmesh.chip.cells import Cell, Room
from ttmesh.chip.free_list import BlockSteps
from ttmesh.chip.memory import BOTTOM_UP, Allocator, MemoryMap, MemoryView, Space
from ttmesh.mesh.allocation import trace_allocations
from ttmesh.mesh.allocation.allocation_digest import Digest

log = logging.getLogger("ttmesh")
DRAM = BufferType.DRAM
LARGE = (
    1 << 20
)  # bytes on a chip from which the user's line is kept: finding it takes 1 µs, using such a buffer far more
_buffer_ids = itertools.count(1)
_new = object.__new__


class _Warned(local):
    """Whether this thread was warned of allocations beside traces."""

    of_traces = False


_warned = _Warned()


def next_buffer_id() -> int:
    """A new id for a buffer."""
    return next(_buffer_ids)


class StepsUnfit(Exception):
    """A call's blocks must be taken one by one: somebody has to hear of them, or one does not fit."""


class Heap:
    """The memory of one mesh: allocates cells, frees them, lists live ones. Buffers refer to it, it refers to no buffer."""

    __slots__ = (
        "_allocator", "_freed_by_gc", "_lock", "allocation_high_water", "chips", "closed", "corruptible",
        "deletion_high_water", "device", "digest", "lane_axes", "live", "mesh_id", "traces_live", "version",
    )  # fmt: skip

    def __init__(
        self, mesh_id: int, space: Space, chips: tuple[int, ...], lane_axes: int, device: torch.device
    ) -> None:
        self.mesh_id = mesh_id
        self.chips = chips
        self.lane_axes = lane_axes
        self.device = device
        self.closed = False
        self.live: dict[BufferType, dict[int, Cell]] = {buffer_type: {} for buffer_type in BufferType}
        self.version = 0  # changes with every allocation and free: what traces bind to
        self.allocation_high_water = 0  # highest end of a DRAM buffer allocated since a capture began
        self.deletion_high_water = 0
        self.traces_live = 0
        self.corruptible: set[int] = set()  # ids of buffers that a replay may overwrite: the program said so
        self.digest: Digest | None = None  # only where several ranks must make the same allocations
        self._allocator = Allocator(space, chips)
        self._lock = Lock()
        self._freed_by_gc: deque[Cell] = deque()

    @property
    def map(self) -> MemoryMap:
        """The address range of each buffer type."""
        return self._allocator.map

    def allocate(
        self,
        buffer_type: BufferType,
        size_bytes: int,
        page_bytes: int,
        bank_bytes: int,
        banks: int,
        label: str = "",
        *,
        bottom_up: bool | None = None,
    ) -> Buffer:
        """A new buffer of `bank_bytes` in each bank; raises when no span is free on all chips."""
        return self.take(Room(buffer_type, size_bytes, page_bytes, bank_bytes, banks), label, bottom_up=bottom_up)

    def take(
        self,
        room: Room,
        label: str,
        steps: BlockSteps | None = None,
        bottom_up: bool | None = None,
        at: int | None = None,
        temporary: bool = False,
    ) -> Buffer:
        """A new buffer with this room: at the address `at` if given, or the result of a call's `steps` in DRAM.

        What is `temporary` is not in the digest that ranks compare: one that is tracked allocates it, another may not.

        Every result of every operation is allocated here. So the cell and the buffer are made without calling their
        classes, and a free list is called directly: 0.4 µs and three frames less for every result. Positional
        arguments, as keywords make a call slower.
        """
        if steps is not None and (
            signals.listening
            or len(self._allocator.lists[DRAM]) != 1
            or (self.traces_live and (trace_allocations.TRACE_ALLOC_TRACKING or not _warned.of_traces))
        ):  # as take_temporary asks it; a function for both would be one more frame
            raise StepsUnfit
        self._lock.acquire()  # `with` takes twice as long
        try:
            if self._freed_by_gc:
                self._drain()
            buffer_type, bank_bytes = room.buffer_type, room.bank_bytes
            lists = self._allocator.lists[buffer_type]
            if at is not None:
                address: int | None = at
            elif steps is not None:
                found = lists[0].run_steps(steps)
                if found is None:
                    raise StepsUnfit
                address, highest = found
                if highest > self.allocation_high_water:
                    self.allocation_high_water = highest
                if highest > self.deletion_high_water:
                    self.deletion_high_water = highest
            elif len(lists) == 1:  # no submesh: the free list itself answers
                address = lists[0].allocate(bank_bytes, BOTTOM_UP[buffer_type] if bottom_up is None else bottom_up)
            else:
                address = self._allocator.allocate(buffer_type, bank_bytes, bottom_up)
            if address is None:
                raise self._out_of_memory(room, label)
            if at is not None and not self._allocator.allocate_at(buffer_type, at, bank_bytes):
                raise OutOfMemoryError(
                    f"{buffer_type.name} address {at} is not free for {bank_bytes} B per bank",
                    expected="a free span on every chip of the mesh",
                    fix="Free the buffer at that address first, or let the allocator choose the address.",
                )
            cell = _new(Cell)
            cell.buffer_id = next(_buffer_ids)
            cell.room = room
            cell.address = address
            cell.label = label
            cell.lane_axes = self.lane_axes
            cell.device = self.device
            cell.site = find_call_site() if room.size_bytes >= LARGE else ""
            cell.values = cell.format = cell.raw = None
            cell.writes = 0
            self.live[buffer_type][address] = cell
            self.version += 1
            if buffer_type is DRAM and address + bank_bytes > self.allocation_high_water:
                self.allocation_high_water = address + bank_bytes
            if self.digest is not None and not temporary:
                self.digest.add(buffer_type, address, bank_bytes, label)
            if self.traces_live and (trace_allocations.TRACE_ALLOC_TRACKING or not _warned.of_traces):
                self._note_beside_traces(cell)
            if signals.listening:
                signals.emit(make_allocated_record(cell, self.mesh_id, self.chips))
        finally:
            self._lock.release()
        buffer = _new(Buffer)
        buffer._cell = cell
        buffer.heap = self
        return buffer

    def take_temporary(self, room: Room, label: str) -> Buffer | int:
        """Memory that one call takes and gives back: its address, where nobody has to hear of it.

        It is counted in the peak and can run out like any other. A buffer, for records, takes 3 µs more.
        """
        lists = self._allocator.lists[room.buffer_type]
        if (
            signals.listening
            or len(lists) != 1
            or (self.traces_live and (trace_allocations.TRACE_ALLOC_TRACKING or not _warned.of_traces))
        ):
            return self.take(room, label, temporary=True)
        self._lock.acquire()
        try:
            if self._freed_by_gc:
                self._drain()
            buffer_type, bank_bytes = room.buffer_type, room.bank_bytes
            address = lists[0].allocate(bank_bytes, bottom_up=BOTTOM_UP[buffer_type])
            if address is None:
                raise self._out_of_memory(room, label)
            if buffer_type is DRAM and address + bank_bytes > self.allocation_high_water:
                self.allocation_high_water = address + bank_bytes
        finally:
            self._lock.release()
        return address

    def free_temporary(self, room: Room, memory: Buffer | int) -> None:
        """Give back what take_temporary took."""
        if isinstance(memory, Buffer):
            memory.deallocate()
            return
        self._lock.acquire()
        try:
            self._allocator.lists[room.buffer_type][0].free(memory)
            if room.buffer_type is DRAM and memory + room.bank_bytes > self.deletion_high_water:
                self.deletion_high_water = memory + room.bank_bytes
        finally:
            self._lock.release()

    def allocate_at(
        self,
        buffer_type: BufferType,
        address: int,
        size_bytes: int,
        page_bytes: int,
        bank_bytes: int,
        banks: int,
        label: str,
    ) -> Buffer:
        """A new buffer at exactly this address."""
        return self.take(Room(buffer_type, size_bytes, page_bytes, bank_bytes, banks), label, at=address)

    def free(self, cell: Cell) -> None:
        """Free a cell's memory."""
        with self._lock:
            self._release(cell)

    def resolve(self, cell: Cell) -> Cell:
        """The live cell at the same address, else the cell itself: how a traced command finds its memory."""
        return self.live[cell.buffer_type].get(cell.address, cell)

    def is_live(self, cell: Cell) -> bool:
        """Whether a buffer that was not freed holds this cell."""
        return self.live[cell.buffer_type].get(cell.address) is cell

    def view(self, buffer_type: BufferType) -> MemoryView:
        """The allocated and free memory of one buffer type."""
        with self._lock:
            self._drain()
            return self._allocator.view(buffer_type)

    def peak_bank_bytes(self, buffer_type: BufferType) -> int:
        """The most bytes per bank ever in use."""
        return self._allocator.peak(buffer_type)

    def lowest_used(self, buffer_type: BufferType) -> int | None:
        """The lowest address in use."""
        with self._lock:
            if self._freed_by_gc:
                self._drain()
            return self._allocator.lowest_used(buffer_type)

    def cells(self) -> list[Cell]:
        """Every live cell, oldest first."""
        with self._lock:
            self._drain()
            return sorted((c for cells in self.live.values() for c in cells.values()), key=lambda c: c.buffer_id)

    def free_all(self) -> None:
        """Free every live cell without notifying its buffer, which frees what is at its address when it is collected."""
        for cell in self.cells():
            self.free(cell)

    def close(self) -> None:
        """Free every live cell; buffers that still refer to this heap cannot be used any more."""
        for cell in self.cells():
            self.free(cell)
            cell.clear()
        self.closed = True

    def _release(self, cell: Cell) -> None:
        if self.closed:
            return
        address, buffer_type = cell.address, cell.room.buffer_type
        held = self.live[buffer_type].pop(address, None)
        if held is None:  # free_all freed it
            return
        room = held.room
        for spans in self._allocator.lists[buffer_type]:
            spans.free(address)
        self.version += 1
        if buffer_type is DRAM and address + room.bank_bytes > self.deletion_high_water:
            self.deletion_high_water = address + room.bank_bytes
        if self.corruptible:
            self.corruptible.discard(held.buffer_id)
        if signals.listening:
            signals.emit(Freed(self.mesh_id, held.buffer_id))

    def _note_beside_traces(self, cell: Cell) -> None:
        if trace_allocations.TRACE_ALLOC_TRACKING:
            trace_allocations.note_allocation(self, cell.buffer_id)
        else:
            _warn_of_traces()

    def _drain(self) -> None:
        while self._freed_by_gc:
            self._release(self._freed_by_gc.popleft())

    def _out_of_memory(self, room: Room, label: str) -> OutOfMemoryError:
        buffer_type, bank_bytes = room.buffer_type, room.bank_bytes
        view = self._allocator.view(buffer_type)
        names = "; ".join(_describe_largest(self.live[buffer_type].values()))
        return OutOfMemoryError(
            f"Out of Memory: Not enough space to allocate {room.size_bytes} B {buffer_type.name} buffer across {room.banks} "
            f"banks, where each bank needs to store {bank_bytes} B, but bank size is {view.total_bytes_per_bank} B "
            f"(allocated: {view.total_bytes_allocated_per_bank} B, free: {view.total_bytes_free_per_bank} B, largest free "
            f"block: {view.largest_contiguous_bytes_free_per_bank} B)",
            expected=f"a free span of {bank_bytes} B in every {buffer_type.name} bank{f' for {label}' if label else ''}",
            fix=f"Deallocate a buffer; the largest live buffers are: {names}."
            if names
            else f"No {buffer_type.name} buffer is live: {_SMALLER[buffer_type is DRAM]}, or shard it over more chips.",
            label=label,
        )


_SMALLER = ("make the tensor smaller, move it to ttnn.DRAM_MEMORY_CONFIG", "make the tensor smaller")


def _describe_largest(cells: Iterable[Cell]) -> list[str]:
    """The three largest groups of buffers that one operation allocated in one line of the program."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.label or "unnamed", cell.site), []).append(cell)
    texts = []
    for (label, site), same in sorted(groups.items(), key=lambda item: -sum(c.size_bytes for c in item[1]))[:3]:
        total = sum(cell.size_bytes for cell in same)
        origin = f"{label} from {site}" if site else label
        texts.append(
            f"{origin} {total} B at {same[0].address}"
            if len(same) == 1
            else f"{origin} {total} B in {len(same)} buffers"
        )
    return texts


class Buffer:
    """Owns a cell: the memory is freed when the last tensor on it goes, or by `deallocate`."""

    __slots__ = ("_cell", "_last_writes", "heap")  # `_last_writes` is set when it is freed

    def __init__(self, cell: Cell, heap: Heap) -> None:
        self._cell: Cell | None = cell
        self.heap = heap

    @property
    def cell(self) -> Cell:
        """The buffer's cell; raises after the buffer was freed."""
        cell = self._cell
        if cell is None or self.heap.closed:
            raise DeallocatedError(
                "Input Tensor is not allocated: Buffer must be allocated on device: this tensor's memory was freed"
                if cell is None
                else "Buffer must be allocated on device: its mesh was closed",
                expected="a tensor that was not deallocated",
                fix="Use it before deallocate() or close_mesh_device(), or make a copy.",
            )
        return cell

    @property
    def writes(self) -> int:
        """How many commands were enqueued to write into it."""
        return self._last_writes if self._cell is None else self._cell.writes

    def is_allocated(self) -> bool:
        """Whether the memory is still held."""
        return self._cell is not None and not self.heap.closed

    def deallocate(self) -> None:
        """Free the memory now, for every tensor on it; a second call does nothing."""
        cell, self._cell = self._cell, None
        if cell is not None:
            self._last_writes: int = cell.writes
        if cell is not None and not self.heap.closed:
            self.heap.free(cell)

    def __reduce__(self) -> NoReturn:
        raise TypeError("memory on chips cannot be copied or pickled; bring the tensor to the host first: tensor.cpu()")

    def __del__(self) -> None:
        cell, heap = self._cell, self.heap
        if cell is not None and not heap.closed:
            self._cell = None
            if heap._lock.acquire(False):
                try:
                    heap._release(cell)
                finally:
                    heap._lock.release()
            else:  # an allocation has the lock; the next one frees the cell
                heap._freed_by_gc.append(cell)


def make_allocated_record(cell: Cell, mesh_id: int, chips: tuple[int, ...]) -> Allocated:
    """The record of a cell's allocation."""
    room = cell.room
    return Allocated(
        mesh_id, cell.buffer_id, chips, room.buffer_type._name_, cell.address, room.size_bytes, room.bank_bytes,
        room.banks, room.page_bytes, cell.label,
    )  # fmt: skip


def _warn_of_traces() -> None:
    """TT-Metal's warning, once per thread."""
    if not _warned.of_traces:
        _warned.of_traces = True
        log.warning(
            "Allocating device buffers is potentially unsafe due to the existence of an active trace. These buffers may "
            "be corrupted once a trace is executed if they are not released before then. Use the trace allocation "
            "tracker to verify."
        )
