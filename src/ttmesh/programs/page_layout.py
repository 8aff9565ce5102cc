"""Which bank holds which page of a buffer, and at which offset: interleaved over all banks, or sharded over cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ttmesh.base.cores import CoreRangeSet
from ttmesh.base.dtypes import ShardOrientation
from ttmesh.base.errors import ShapeError


@dataclass(frozen=True)
class BufferShardingArgs:
    """A buffer cut into shards of pages, one shard per core."""

    cores: CoreRangeSet
    shard_pages: tuple[int, int]
    buffer_pages: tuple[int, int]
    orientation: ShardOrientation = ShardOrientation.ROW_MAJOR

    def homes(self) -> list[tuple[int, int]]:
        """For every page, row by row: the number of its core and its slot in that core's shard."""
        (high, wide), (rows, columns) = self.shard_pages, self.buffer_pages
        across, down = -(-columns // wide), -(-rows // high)
        if across * down > self.cores.num_cores():
            raise ShapeError(
                f"{across * down} shards of {high}x{wide} pages do not fit on {self.cores.num_cores()} cores",
                expected="at most one shard per core",
                fix="Enlarge the shards or the grid.",
            )
        places = ((row, column) for row in range(rows) for column in range(columns))
        return [(r // high * across + c // wide, r % high * wide + c % wide) for r, c in places]


@dataclass(frozen=True)
class PageLayout:
    """The pages of one buffer on one chip: page p lies in `place(p)`; in the cell's bytes it begins at p * page_bytes.

    `banks` are bank numbers; in L1 the bank of a core is y * columns + x. `homes` (sharded only) has for every page an
    index into `banks` and a slot.
    """

    pages: int
    page_bytes: int
    slot_bytes: int  # the page and the padding up to the bank's alignment
    banks: tuple[int, ...]
    homes: tuple[tuple[int, int], ...] | None = None

    @property
    def bank_bytes(self) -> int:
        """What every bank reserves."""
        if self.homes is None:
            return -(-self.pages // len(self.banks)) * self.slot_bytes
        return (max((slot for _, slot in self.homes), default=-1) + 1) * self.slot_bytes

    def place(self, page: int) -> tuple[int, int]:
        """The bank of a page and its offset from the buffer's address there."""
        if self.homes is None:
            slot, index = divmod(page, len(self.banks))
        else:
            index, slot = self.homes[page]
        return self.banks[index], slot * self.slot_bytes

    def find(self, bank: int, offset: int) -> tuple[int, int] | None:
        """The page at an offset in a bank and the position inside it; None where no page lies."""
        slot, within = divmod(offset, self.slot_bytes)
        if self.homes is None:
            page: int | None = slot * len(self.banks) + bank if bank < len(self.banks) else None
        else:
            page = self._pages_by_place.get((bank, slot))
        return None if page is None or page >= self.pages or within >= self.page_bytes else (page, within)

    @cached_property
    def _pages_by_place(self) -> dict[tuple[int, int], int]:
        return {(self.banks[index], slot): page for page, (index, slot) in enumerate(self.homes or ())}


def interleaved(pages: int, page_bytes: int, alignment: int, banks: int) -> PageLayout:
    """Page after page, round and round over all banks."""
    return PageLayout(pages, page_bytes, -(-page_bytes // alignment) * alignment, tuple(range(banks)))


def sharded(
    pages: int, page_bytes: int, alignment: int, args: BufferShardingArgs, columns: int, *, dram: bool
) -> PageLayout:
    """Shards of pages on the cores of a set (in DRAM: on the banks that their x names)."""
    homes = args.homes()
    if len(homes) != pages:
        raise ShapeError(
            f"sharding args describe {len(homes)} pages, the buffer has {pages}",
            expected="equal numbers",
            fix="Correct the shard shape or the buffer's size.",
        )
    by_rows = args.orientation is ShardOrientation.ROW_MAJOR
    banks: Sequence[int] = [c.x if dram else c.y * columns + c.x for c in args.cores.cores(row_wise=by_rows)]
    return PageLayout(pages, page_bytes, -(-page_bytes // alignment) * alignment, tuple(banks), tuple(homes))
