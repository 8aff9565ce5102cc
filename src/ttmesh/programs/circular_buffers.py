"""Circular buffers: what a program asks for, and the ring that a producer and a consumer share on a core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ttmesh.base.cores import CoreCoord, CoreRangeSet
from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import MeshError
from ttmesh.chip.formats.tiles import tile_bytes
from ttmesh.mesh.allocation.buffer import Buffer
from ttmesh.programs.scheduler import Task, Wait

MAX_CIRCULAR_BUFFERS = 32  # per core, on both chip generations (tt-metal e4f9f0b, circular_buffer_constants.h)


class CircularBufferError(MeshError):
    """A circular buffer is described or used wrongly."""


@dataclass
class CircularBufferConfig:
    """So many bytes on every core, and the format of each index that uses them; pages are tiles unless set."""

    total_size: int
    data_formats: Mapping[int, DataType]
    page_sizes: dict[int, int] = field(default_factory=dict)
    buffer: Buffer | None = None  # an L1 buffer whose shards it lies in
    address_offset: int = 0  # from that buffer's address

    def set_globally_allocated_address(self, buffer: Buffer, address_offset: int = 0) -> CircularBufferConfig:
        """Lie in the shards of an L1 buffer, which has a shard on every core of it; returns itself."""
        self.buffer, self.address_offset = buffer, address_offset
        return self

    def set_page_size(self, index: int, page_size: int) -> CircularBufferConfig:
        """Bytes of one page; returns itself, as TT-Metal's does."""
        if page_size <= 0 or self.total_size % page_size:
            raise CircularBufferError(
                f"Total circular buffer size {self.total_size} B must be divisible by page size {page_size} B",
                expected="whole pages",
                fix="Correct one of them.",
            )
        self.page_sizes[index] = page_size
        return self

    def page_size(self, index: int) -> int:
        """Bytes of one page."""
        return self.page_sizes.get(index) or tile_bytes(self.data_formats[index])


@dataclass(frozen=True)
class PlacedBuffer:
    """A circular buffer with its place in L1."""

    index: int
    cores: CoreRangeSet
    address: int
    size_bytes: int
    page_bytes: int
    dtype: DataType
    backed: bool = False  # by an L1 buffer


def check_config(config: CircularBufferConfig) -> None:
    """Refuse sizes and indices that no core can have."""
    for index in config.data_formats:
        if not 0 <= index < MAX_CIRCULAR_BUFFERS:
            raise CircularBufferError(
                f"circular buffer index {index}",
                expected=f"0 to {MAX_CIRCULAR_BUFFERS - 1}",
                fix="Choose another index.",
            )
        page = config.page_size(index)
        if config.total_size <= 0 or config.total_size % page:
            raise CircularBufferError(
                f"Total circular buffer size {config.total_size} B must be divisible by page size {page} B",
                expected="whole pages",
                fix="Correct one of them.",
            )
    if config.buffer is not None and config.address_offset + config.total_size > config.buffer.cell.bank_bytes:
        raise CircularBufferError(
            f"Requested to set circular buffer size to {config.total_size} B at offset {config.address_offset} of an L1 "
            f"buffer with {config.buffer.cell.bank_bytes} B on a core",
            expected="a circular buffer inside its buffer",
            fix="Use fewer pages.",
        )


class PageRing:
    """A circular buffer on one core while a program runs: how many pages are reserved, filled and where they lie."""

    __slots__ = (
        "_capacity", "_consumers", "_core", "_filled", "_head", "_packed", "_producers", "_reserved", "_seen", "_tail",
        "_wake", "placed",
    )  # fmt: skip

    def __init__(self, placed: PlacedBuffer, core: CoreCoord, wake: Callable[[list[Task]], None]) -> None:
        self.placed = placed
        self._core, self._wake = core, wake
        self._capacity = placed.size_bytes // placed.page_bytes
        self._head = self._tail = self._filled = self._reserved = 0
        self._seen = 0  # filled pages that the consumer waited for: others it must not touch, the chip may lag behind
        self._packed = 0  # pages that the packer filled since the last push
        self._producers: list[Task] = []
        self._consumers: list[Task] = []

    def reserve_back(self, pages: int) -> Wait:
        """Await room for so many pages."""
        if not 0 < pages <= self._capacity:
            raise self._error(f"cb_reserve_back of {pages} pages never ends", f"at most {self._capacity} pages")

        def arrived() -> None:
            self._reserved = max(self._reserved, pages)

        return Wait(
            lambda: self._capacity - self._filled >= pages,
            self._producers,
            lambda: f"{pages} free pages in cb {self.placed.index} ({self._filled} of {self._capacity} filled)",
            arrived,
        )

    def wait_front(self, pages: int) -> Wait:
        """Await so many filled pages."""
        if not 0 < pages <= self._capacity:
            raise self._error(f"cb_wait_front of {pages} pages never ends", f"at most {self._capacity} pages")

        def arrived() -> None:
            self._seen = max(self._seen, pages)

        return Wait(
            lambda: self._filled >= pages,
            self._consumers,
            lambda: f"{pages} pages in cb {self.placed.index} ({self._filled} of {self._capacity} filled)",
            arrived,
        )

    def push_back(self, pages: int) -> None:
        """Hand reserved pages to the consumer."""
        if pages > self._reserved:
            raise self._error(
                f"cb_push_back of {pages} pages overflows: {self._reserved} are reserved",
                "pages that an awaited cb_reserve_back gave",
            )
        self._reserved -= pages
        self._packed = 0
        self._filled += pages
        self._tail = (self._tail + pages) % self._capacity
        if self._consumers:
            self._wake(self._consumers)

    def pop_front(self, pages: int) -> None:
        """Give filled pages back to the producer."""
        if pages > self._seen:
            raise self._error(
                f"cb_pop_front of {pages} pages underflows: {self._filled} are filled, {self._seen} were waited for",
                "pages that an awaited cb_wait_front saw",
            )
        self._filled -= pages
        self._seen -= pages
        self._head = (self._head + pages) % self._capacity
        if self._producers:
            self._wake(self._producers)

    def pages_available(self, pages: int) -> bool:
        """Whether so many pages are filled now; if so, they need no waiting."""
        if self._filled < pages:
            return False
        self._seen = max(self._seen, pages)
        return True

    def pages_reservable(self, pages: int) -> bool:
        """Whether so many pages are free now."""
        return self._capacity - self._filled >= pages

    def read_address(self) -> int:
        """Where the oldest filled page lies in L1."""
        return self.placed.address + self._head * self.placed.page_bytes

    def write_address(self) -> int:
        """Where the next page to be filled lies in L1."""
        return self.placed.address + self._tail * self.placed.page_bytes

    def packed(self, pages: int) -> int:
        """Where the packer goes on after what it filled since the last push, counted from the write pointer."""
        first = self._packed
        self._packed += pages
        return first

    def span(self, first: int, pages: int, *, to_write: bool) -> int:
        """The L1 address of some waited-for (or reserved) pages counted from the ring's own end; they must not wrap."""
        have, at, verb = (
            (self._reserved, self._tail, "reserved") if to_write else (self._seen, self._head, "waited for")
        )
        if first < 0 or first + pages > have:
            raise self._error(f"tiles {first} to {first + pages - 1} are used but {have} are {verb}", f"{verb} pages")
        start = (at + first) % self._capacity
        if start + pages > self._capacity:
            raise self._error(
                f"{pages} pages from page {start} run over the end of the buffer", "a size that blocks divide"
            )
        return self.placed.address + start * self.placed.page_bytes

    def _error(self, wrong: str, expected: str) -> CircularBufferError:
        core, index = self._core, self.placed.index
        return CircularBufferError(
            f"core {core.str()}, cb {index} of {self._capacity} pages: {wrong}",
            expected=expected,
            fix="Check the pages per call, `await` before waits and reservations, or enlarge the buffer.",
        )
