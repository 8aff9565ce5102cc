"""The description of a chip and of a system of chips: figures, ids on a grid, links, boards."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import Arch
from ttmesh.base.geometry import MeshShape
from ttmesh.base.link_notation import Links, Pair, pair


@dataclass(frozen=True)
class ChipSpec:
    """The figures of one chip (origin: data/chips.yaml)."""

    name: str
    arch: Arch
    compute_grid: CoreCoord
    l1_bytes: int
    l1_unreserved_base: int
    l1_bank_bytes: int
    l1_alignment: int
    max_worker_l1_bytes: int
    mem_map_end: int
    dram_banks: int
    dram_view_bytes: int
    dram_unreserved_base: int
    dram_bank_bytes: int
    dram_alignment: int
    pcie_alignment: int
    clock_mhz: int
    eth_ports: int
    eth_gbps: int
    noc_flit_bytes: int
    max_noc_packet_bytes: int

    @property
    def l1_banks(self) -> int:
        """One bank per worker core."""
        return self.compute_grid.x * self.compute_grid.y

    @property
    def l1_total_bytes(self) -> int:
        """The L1 bytes that the allocator manages, over all banks."""
        return self.l1_banks * self.l1_bank_bytes

    @property
    def dram_total_bytes(self) -> int:
        """The DRAM bytes that the allocator manages, over all banks."""
        return self.dram_banks * self.dram_bank_bytes


@dataclass(frozen=True)
class System:
    """Chips of one kind on a grid: physical ids by mesh coordinate, links, boards."""

    name: str
    chip: ChipSpec
    grid: tuple[tuple[int, ...], ...]
    links: Links = field(hash=False)
    boards: tuple[tuple[int, ...], ...]
    remote: frozenset[int]
    visible_by: str = "board"
    original_ids: tuple[int, ...] = ()  # of renumbered chips: the id of each in the full system

    @cached_property
    def shape(self) -> MeshShape:
        """Rows and columns of the system mesh."""
        return MeshShape(len(self.grid), len(self.grid[0]))

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """Every physical id, ascending."""
        return tuple(sorted(self._positions))

    @cached_property
    def mmio(self) -> tuple[int, ...]:
        """The chips with a PCIe endpoint; the others are reached through another chip of their board."""
        return tuple(i for i in self.ids if i not in self.remote)

    @cached_property
    def _positions(self) -> dict[int, Pair]:
        return {chip: (r, c) for r, row in enumerate(self.grid) for c, chip in enumerate(row)}

    def original_id(self, physical_id: int) -> int:
        """The chip's id in the full system, before TT_VISIBLE_DEVICES renumbered it."""
        return self.original_ids[physical_id] if self.original_ids else physical_id

    def find_position(self, physical_id: int) -> Pair:
        """Row and column of a chip."""
        return self._positions[physical_id]

    def link_count(self, a: int, b: int) -> int:
        """The number of direct links between two chips."""
        return self.links.get(pair(a, b), 0)

    def list_links(self, physical_id: int) -> tuple[Pair, ...]:
        """The neighbours of a chip, by their ids in the full system, each with the number of direct links."""
        near = ((a if b == physical_id else b, count) for (a, b), count in self.links.items() if physical_id in (a, b))
        return tuple(sorted((self.original_id(chip), count) for chip, count in near))

    def board_of(self, physical_id: int) -> tuple[int, ...]:
        """All chips on the board of a chip."""
        return next(board for board in self.boards if physical_id in board)

    @cached_property
    def wrap_axes(self) -> tuple[int, ...]:
        """The mesh axes whose every line closes into a ring; two chips never do."""
        lines = {0: tuple(zip(*self.grid, strict=True)), 1: self.grid}
        return tuple(
            axis
            for axis, along in lines.items()
            if len(along[0]) > 2 and all(self.link_count(line[-1], line[0]) for line in along)
        )
