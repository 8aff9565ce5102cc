"""The bank and the offset of each page of a buffer: interleaved over all banks, or sharded over cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ttmesh.base.cores import CoreRangeSet
from ttmesh.base.dtypes import ShardOrientation
from ttmesh.base.errors import ShapeError


@dataclass(frozen=True)
class BufferShardingArgs:
    """A buffer split into shards of pages, one shard per core."""

    cores: CoreRangeSet
    shard_pages: tuple[int, int]
    buffer_pages: tuple[int, int]
    orientation: ShardOrientation = ShardOrientation.ROW_MAJOR

    def compute_page_slots(self) -> list[tuple[int, int]]:
        """For every page, row by row: the index of its core and its slot in that core's shard."""
        (height, width), (rows, columns) = self.shard_pages, self.buffer_pages
        across, down = -(-columns // width), -(-rows // height)
        if across * down > self.cores.num_cores():
            raise ShapeError(
                f"{across * down} shards of {height}x{width} pages do not fit on {self.cores.num_cores()} cores",
                expected="at most one shard per core",
                fix="Enlarge the shards or the grid.",
            )
        pages = ((row, column) for row in range(rows) for column in range(columns))
        return [(r // height * across + c // width, r % height * width + c % width) for r, c in pages]


@dataclass(frozen=True)
class PageLayout:
    """The pages of one buffer on one chip: page p is stored at `locate(p)`; in the cell's bytes it begins at p * page_bytes.

    `banks` are bank numbers; in L1 the bank of a core is y * columns + x. `page_slots` (sharded only) has for every page an
    index into `banks` and a slot.
    """

    pages: int
    page_bytes: int
    slot_bytes: int  # the page and the padding up to the bank's alignment
    banks: tuple[int, ...]
    page_slots: tuple[tuple[int, int], ...] | None = None

    @property
    def bank_bytes(self) -> int:
        """Bytes in every bank."""
        if self.page_slots is None:
            return -(-self.pages // len(self.banks)) * self.slot_bytes
        return (max((slot for _, slot in self.page_slots), default=-1) + 1) * self.slot_bytes

    def locate(self, page: int) -> tuple[int, int]:
        """The bank of a page and its offset from the buffer's address there."""
        if self.page_slots is None:
            slot, index = divmod(page, len(self.banks))
        else:
            index, slot = self.page_slots[page]
        return self.banks[index], slot * self.slot_bytes

    def find(self, bank: int, offset: int) -> tuple[int, int] | None:
        """The page at an offset in a bank and the position inside it; None where there is no page."""
        slot, within = divmod(offset, self.slot_bytes)
        if self.page_slots is None:
            page: int | None = slot * len(self.banks) + bank if bank < len(self.banks) else None
        else:
            page = self._pages_by_slot.get((bank, slot))
        return None if page is None or page >= self.pages or within >= self.page_bytes else (page, within)

    @cached_property
    def _pages_by_slot(self) -> dict[tuple[int, int], int]:
        return {(self.banks[index], slot): page for page, (index, slot) in enumerate(self.page_slots or ())}


def make_interleaved_layout(pages: int, page_bytes: int, alignment: int, banks: int) -> PageLayout:
    """The layout of pages that go round robin over all banks."""
    return PageLayout(pages, page_bytes, -(-page_bytes // alignment) * alignment, tuple(range(banks)))


def make_sharded_layout(
    pages: int, page_bytes: int, alignment: int, args: BufferShardingArgs, columns: int, *, dram: bool
) -> PageLayout:
    """The layout of shards of pages on the cores of a set (in DRAM: on the banks given by their x)."""
    page_slots = args.compute_page_slots()
    if len(page_slots) != pages:
        raise ShapeError(
            f"sharding args describe {len(page_slots)} pages, the buffer has {pages}",
            expected="the same number of pages",
            fix="Correct shard_pages or buffer_pages of the sharding args.",
        )
    by_rows = args.orientation is ShardOrientation.ROW_MAJOR
    banks: Sequence[int] = [c.x if dram else c.y * columns + c.x for c in args.cores.cores(row_wise=by_rows)]
    return PageLayout(pages, page_bytes, -(-page_bytes // alignment) * alignment, tuple(banks), tuple(page_slots))
