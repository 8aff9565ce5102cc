"""The configuration of circular buffers; programs/execution/rings.py runs them on a core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ttmesh.base.cores import CoreRangeSet
from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import MeshError
from ttmesh.chip.formats.tiles import tile_bytes
from ttmesh.mesh.allocation.heap import Buffer

MAX_CIRCULAR_BUFFERS = 32  # per core, on both chip generations (tt-metal e4f9f0b, circular_buffer_constants.h)


class CircularBufferError(MeshError):
    """A wrong configuration or use of a circular buffer."""


@dataclass
class CircularBufferConfig:
    """Its bytes on every core, and the format of each index that uses them; pages are tiles unless set."""

    total_size: int
    data_formats: Mapping[int, DataType]
    page_sizes: dict[int, int] = field(default_factory=dict)
    buffer: Buffer | None = None  # an L1 buffer whose shards hold it
    address_offset: int = 0  # from that buffer's address

    def set_globally_allocated_address(self, buffer: Buffer, address_offset: int = 0) -> CircularBufferConfig:
        """Use the shards of an L1 buffer, which has a shard on every core of it; returns itself."""
        self.buffer, self.address_offset = buffer, address_offset
        return self

    def set_page_size(self, index: int, page_size: int) -> CircularBufferConfig:
        """Bytes of one page; returns itself, as TT-Metal's does."""
        if page_size <= 0 or self.total_size % page_size:
            raise CircularBufferError(
                f"Total circular buffer size {self.total_size} B must be divisible by page size {page_size} B",
                expected="a total size of whole pages",
                fix="Make total_size a multiple of the page size.",
            )
        self.page_sizes[index] = page_size
        return self

    def page_size(self, index: int) -> int:
        """Bytes of one page."""
        return self.page_sizes.get(index) or tile_bytes(self.data_formats[index])


@dataclass(frozen=True)
class BufferPlacement:
    """A circular buffer with its address in L1."""

    index: int
    cores: CoreRangeSet
    address: int
    size_bytes: int
    page_bytes: int
    dtype: DataType
    backed: bool = False  # by an L1 buffer


def check_config(config: CircularBufferConfig) -> None:
    """Refuse impossible sizes and indices."""
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
                expected="a total size of whole pages",
                fix="Make total_size a multiple of the page size.",
            )
    if config.buffer is not None and config.address_offset + config.total_size > config.buffer.cell.bank_bytes:
        raise CircularBufferError(
            f"Requested to set circular buffer size to {config.total_size} B at offset {config.address_offset} of an L1 "
            f"buffer with {config.buffer.cell.bank_bytes} B on a core",
            expected="a circular buffer inside its buffer",
            fix="Use fewer pages.",
        )
