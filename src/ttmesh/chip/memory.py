"""The memory of a chip: its banks, and an allocator for the chips of a mesh in lock step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError
from ttmesh.base.sizes import size_text
from ttmesh.chip.catalogue import ChipSpec
from ttmesh.chip.free_list import Block, FreeList
from ttmesh.chip.html_drawing import draw_facts, draw_spans

# A trace region is divided over banks in pages of this size (tt-metal e4f9f0b, trace buffers' largest page).
TRACE_REGION_PAGE_BYTES = 8192

BOTTOM_UP = {BufferType.DRAM: True, BufferType.L1: False, BufferType.L1_SMALL: False, BufferType.TRACE: False}


@dataclass(frozen=True)
class Banks:
    """One buffer type on one chip: this many banks, each with this address range for buffers."""

    count: int
    start: int
    size: int
    page_alignment: int
    alignment: int


@dataclass(frozen=True, eq=False)
class MemoryMap:
    """The address range of each buffer type, after the options of `open_mesh_device`; one per opened mesh."""

    banks: dict[BufferType, Banks]
    l1_bytes: int
    trace_region_bytes: int
    compute_grid: CoreCoord  # columns and rows of cores that have an L1 bank

    @staticmethod
    def of(chip: ChipSpec, *, l1_small_size: int = 0, trace_region_size: int = 0, worker_l1_size: int = 0) -> MemoryMap:
        """The map of a chip with these regions reserved (tt-metal e4f9f0b, l1_banking_allocator.cpp, allocator.cpp)."""
        _check_not_negative(
            l1_small_size=l1_small_size, trace_region_size=trace_region_size, worker_l1_size=worker_l1_size
        )
        align = chip.dram_alignment
        l1_base = chip.l1_unreserved_base
        if worker_l1_size:
            if worker_l1_size > chip.max_worker_l1_bytes:
                raise MeshError(
                    f"Worker L1 size {worker_l1_size} is larger than max size {chip.max_worker_l1_bytes}",
                    expected="a size that leaves room for the kernels",
                    fix="Ask for less, or leave worker_l1_size out.",
                )
            l1_base = align_up(chip.l1_bytes - worker_l1_size, align)
        small = align_up(l1_small_size, align)
        if small >= chip.l1_bytes - l1_base:
            raise MeshError(
                f"Reserved size must be less than bank size (l1_small_size={l1_small_size})",
                expected=f"less than {chip.l1_bytes - l1_base} B",
                fix="Ask for a smaller l1_small_size.",
            )
        l1_room = chip.l1_bytes - l1_base - small
        dram_room = chip.dram_bank_bytes
        per_bank = -(-align_up(trace_region_size, align) // chip.dram_banks)
        trace = align_up(per_bank, TRACE_REGION_PAGE_BYTES) if trace_region_size else 0
        if trace >= dram_room:
            raise MeshError(
                f"trace_region_size={trace_region_size} does not fit into DRAM",
                expected=f"at most {dram_room * chip.dram_banks} B over {chip.dram_banks} banks",
                fix="Ask for a smaller trace region.",
            )
        dram_base = chip.dram_unreserved_base
        return MemoryMap(
            banks={
                BufferType.DRAM: Banks(chip.dram_banks, dram_base, dram_room - trace, align, align),
                BufferType.L1: Banks(chip.l1_banks, l1_base, l1_room, chip.l1_alignment, align),
                BufferType.L1_SMALL: Banks(chip.l1_banks, l1_base + l1_room, small, chip.l1_alignment, align),
                BufferType.TRACE: Banks(chip.dram_banks, dram_base + dram_room - trace, trace, align, align),
            },
            l1_bytes=chip.l1_bytes,
            trace_region_bytes=trace_region_size,
            compute_grid=chip.compute_grid,
        )


@dataclass(frozen=True)
class MemoryView:
    """The result of TT-NN's `get_memory_view` for one buffer type."""

    num_banks: int
    total_bytes_per_bank: int
    total_bytes_allocated_per_bank: int
    total_bytes_free_per_bank: int
    largest_contiguous_bytes_free_per_bank: int
    block_table: list[dict[str, str]]

    def _repr_html_(self) -> str:
        """What a notebook shows: the totals of all banks, and one bank as a bar."""
        totals = {
            "allocated": self.total_bytes_allocated_per_bank,
            "free": self.total_bytes_free_per_bank,
            "largest free block": self.largest_contiguous_bytes_free_per_bank,
        }
        facts = {"banks": str(self.num_banks)} | {name: f"{size_text(size)} a bank" for name, size in totals.items()}
        spans = sorted((int(b["address"]), int(b["size"]), b["allocated"] == "yes") for b in self.block_table)
        return draw_facts("MemoryView", facts) + draw_spans((size, taken) for _, size, taken in spans)


class Space:
    """The address space of some chips: one set of free lists per group of chips with the same history."""

    __slots__ = ("_allocators", "_groups", "map")

    def __init__(self, chips: Iterable[int], memory_map: MemoryMap) -> None:
        self.map = memory_map
        self._allocators: weakref.WeakSet[Allocator] = weakref.WeakSet()
        lists = {buffer_type: FreeList(b.start, b.size, b.alignment) for buffer_type, b in memory_map.banks.items()}
        self._groups: list[tuple[frozenset[int], dict[BufferType, FreeList]]] = [(frozenset(chips), lists)]

    def split(self, chips: Iterable[int]) -> None:
        """Let these chips differ from the others from now on: groups with chips of both become two."""
        inside = frozenset(chips)
        groups = []
        for group, lists in self._groups:
            common = group & inside
            if common and common != group:
                groups.append((group - common, {buffer_type: spans.copy() for buffer_type, spans in lists.items()}))
                groups.append((common, lists))
            else:
                groups.append((group, lists))
        self._groups = groups
        for allocator in self._allocators:
            allocator.lists = self.lists(allocator.chips)

    def attach(self, allocator: Allocator) -> None:
        """Give an allocator its free lists, now and whenever a split changes them."""
        allocator.lists = self.lists(allocator.chips)
        self._allocators.add(allocator)

    def lists(self, chips: frozenset[int]) -> dict[BufferType, list[FreeList]]:
        """The free lists that together cover these chips."""
        return {
            buffer_type: [lists[buffer_type] for group, lists in self._groups if group & chips]
            for buffer_type in self.map.banks
        }


class Allocator:
    """Lock-step allocation for the chips of one mesh: one address, free on all of them."""

    __slots__ = ("__weakref__", "chips", "lists", "map")

    lists: dict[BufferType, list[FreeList]]  # kept up to date by the space

    def __init__(self, space: Space, chips: Iterable[int]) -> None:
        self.chips = frozenset(chips)
        self.map = space.map
        space.attach(self)

    def allocate(self, buffer_type: BufferType, bank_bytes: int, bottom_up: bool | None = None) -> int | None:
        """The address of a new block in every bank of every chip, or None when there is none."""
        lists = self.lists[buffer_type]
        upwards = BOTTOM_UP[buffer_type] if bottom_up is None else bottom_up
        if len(lists) == 1:
            return lists[0].allocate(bank_bytes, bottom_up=upwards)
        address = _find_common_fit(lists, bank_bytes, bottom_up=upwards)
        if address is not None:
            for spans in lists:
                taken = spans.allocate_at(address, bank_bytes)
                assert taken, "a common fit is free in every group"
        return address

    def allocate_at(self, buffer_type: BufferType, address: int, bank_bytes: int) -> bool:
        """Take exactly this address on every chip; False (and nothing taken) when it is not free."""
        lists = self.lists[buffer_type]
        if any(spans.fit_at_or_above(address, bank_bytes) != address for spans in lists):
            return False
        return all(spans.allocate_at(address, bank_bytes) for spans in lists)

    def free(self, buffer_type: BufferType, address: int) -> None:
        """Free a block on every chip."""
        for spans in self.lists[buffer_type]:
            spans.free(address)

    def view(self, buffer_type: BufferType) -> MemoryView:
        """What this mesh could still allocate; with submeshes, what all of its chips have in common."""
        banks = self.map.banks[buffer_type]
        lists = self.lists[buffer_type]
        blocks = lists[0].blocks() if len(lists) == 1 else _find_common_blocks(lists)
        free = sum(block.size for block in blocks if not block.allocated)
        return MemoryView(
            num_banks=banks.count if banks.size else 0,
            total_bytes_per_bank=banks.size,
            total_bytes_allocated_per_bank=banks.size - free,
            total_bytes_free_per_bank=free,
            largest_contiguous_bytes_free_per_bank=max((b.size for b in blocks if not b.allocated), default=0),
            block_table=[
                {
                    "blockID": str(i),
                    "address": str(block.address),
                    "size": str(block.size),
                    "prevID": str(i - 1),
                    "nextID": str(i + 1 if i + 1 < len(blocks) else -1),
                    "allocated": "yes" if block.allocated else "no",
                }
                for i, block in enumerate(blocks)
            ],
        )

    def peak(self, buffer_type: BufferType) -> int:
        """The most bytes per bank that were ever taken at once on one of the chips."""
        return max(spans.peak for spans in self.lists[buffer_type])

    def lowest_used(self, buffer_type: BufferType) -> int | None:
        """The lowest taken address on any of the chips."""
        lowest: int | None = None
        for spans in self.lists[buffer_type]:
            low = spans.lowest_used()
            if low is not None and (lowest is None or low < lowest):
                lowest = low
        return lowest


def _find_common_fit(lists: list[FreeList], size: int, *, bottom_up: bool) -> int | None:
    """The lowest (or highest) address that is free in all lists: move the candidate until it fits in every list."""
    candidate: int | None = lists[0].start if bottom_up else lists[0].end
    while candidate is not None:
        settled = candidate
        for spans in lists:
            candidate = (spans.fit_at_or_above if bottom_up else spans.fit_at_or_below)(candidate, size)
            if candidate is None:
                return None
        if candidate == settled:
            return candidate
    return None


def _find_common_blocks(lists: list[FreeList]) -> list[Block]:
    """Spans that are free in every list, and the rest as taken."""
    free = lists[0].spans()
    for spans in lists[1:]:
        pairs = ((max(a, c), min(b, d)) for a, b in free for c, d in spans.spans())
        free = [(low, high) for low, high in pairs if low < high]
    edges = [lists[0].start, *(edge for span in free for edge in span), lists[0].end]
    gaps = zip(edges[0::2], edges[1::2], strict=True)
    blocks = [Block(low, high - low, False) for low, high in free]
    return sorted(blocks + [Block(low, high - low, True) for low, high in gaps if high > low])


def align_up(size: int, alignment: int) -> int:
    """The next multiple of the alignment."""
    return -(-size // alignment) * alignment


def _check_not_negative(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 0:
            raise MeshError(f"{name}={size} is negative", expected="0 or more bytes", fix=f"Pass {name}=0 for none.")
