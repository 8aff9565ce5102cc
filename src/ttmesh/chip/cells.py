"""Cells: the contents of an address, as values with their format or as raw bytes; reads convert between them."""

from __future__ import annotations

import sys
from threading import Lock
from typing import Protocol

import torch

from ttmesh.base.dtypes import BufferType
from ttmesh.base.records import TensorFacts

Chips = frozenset[tuple[int, ...]]  # positions of chips among the lanes
_merging = Lock()  # commands of several queues may write different chips of one cell at the same time


class Format(Protocol):
    """How values are stored in memory: what a cell needs of a tensor's spec. Compared with ==."""

    def to_bytes(self, values: torch.Tensor, lane_axes: int) -> torch.Tensor:
        """Lanes of values → lanes of uint8, the pages of one chip in the last dimension."""

    def from_bytes(self, raw: torch.Tensor, lane_axes: int) -> torch.Tensor:
        """Lanes of uint8 (possibly longer than needed) → lanes of values."""

    def blank(self, lane_axes: int, device: torch.device) -> torch.Tensor:
        """Values of memory that was never written: one lane, to be broadcast."""

    def describe(self) -> tuple[str, str, str, str]:
        """Shape, number format, layout and memory configuration, as TT-NN's reports write them."""

    def view_of(self, values: torch.Tensor, other: Format, lane_axes: int) -> torch.Tensor | None:
        """Values of another format seen through this one without going through bytes, or None."""


class Room:
    """The memory a buffer takes: its type, bytes per chip, page and bank, and the number of banks."""

    __slots__ = ("bank_bytes", "banks", "buffer_type", "page_bytes", "size_bytes")

    def __init__(self, buffer_type: BufferType, size_bytes: int, page_bytes: int, bank_bytes: int, banks: int) -> None:
        self.buffer_type = buffer_type
        self.size_bytes = size_bytes
        self.page_bytes = page_bytes
        self.bank_bytes = bank_bytes
        self.banks = banks


class Cell:
    """The memory of one buffer on all chips of its mesh. Values are never changed, only replaced.

    `values` has one leading dimension per mesh axis; an axis of length 1 means every chip along it holds the same.
    """

    __slots__ = (
        "address",
        "buffer_id",
        "device",
        "format",
        "label",
        "lane_axes",
        "raw",
        "room",
        "site",
        "values",
        "writes",
    )

    def __init__(
        self, buffer_id: int, room: Room, address: int, label: str, lane_axes: int, device: torch.device
    ) -> None:
        self.buffer_id = buffer_id
        self.room = room
        self.address = address
        self.label = label
        self.lane_axes = lane_axes
        self.device = device
        self.site = ""  # the user's line, of large buffers
        self.values: torch.Tensor | None = None
        self.format: Format | None = None
        self.raw: torch.Tensor | None = None
        self.writes = (
            0  # commands that were enqueued to write into it after it was made; a tape distinguishes versions by it
        )

    @property
    def buffer_type(self) -> BufferType:
        """The type of its memory."""
        return self.room.buffer_type

    @property
    def size_bytes(self) -> int:
        """Bytes on one chip."""
        return self.room.size_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.room.page_bytes

    @property
    def bank_bytes(self) -> int:
        """Bytes in each bank."""
        return self.room.bank_bytes

    @property
    def banks(self) -> int:
        """The number of banks that hold it."""
        return self.room.banks

    def read(self, wanted: Format) -> torch.Tensor:
        """The contents as values of this format. Never change what you get."""
        values = self.values
        if values is not None:
            held = self.format
            if held is wanted or held == wanted:
                return values
            assert held is not None, "values always have a format"
            seen = wanted.view_of(values, held, self.lane_axes)
            if seen is not None:
                return seen
            return wanted.from_bytes(self.read_bytes(), self.lane_axes)
        if self.raw is not None:
            return wanted.from_bytes(self.raw, self.lane_axes)
        return wanted.blank(self.lane_axes, self.device)

    def write(self, values: torch.Tensor, form: Format) -> None:
        """Replace the contents by values."""
        self.values = values
        self.format = form
        self.raw = None

    def read_bytes(self) -> torch.Tensor:
        """The contents as bytes, `size_bytes` long in the last dimension."""
        if self.values is not None:
            assert self.format is not None, "values always have a format"
            return _fit_bytes(self.format.to_bytes(self.values, self.lane_axes), self.size_bytes)
        if self.raw is not None:
            return self.raw
        return torch.zeros([1] * self.lane_axes + [self.size_bytes], dtype=torch.uint8, device=self.device)

    def write_bytes(self, raw: torch.Tensor) -> None:
        """Replace the contents by bytes; they stay authoritative until values are written."""
        self.raw = _fit_bytes(raw, self.size_bytes)
        self.values = None
        self.format = None

    def describe(self) -> TensorFacts | None:
        """The tensor it holds; None for raw bytes and for memory that was never written."""
        return TensorFacts(self.buffer_id, *self.format.describe()) if self.format is not None else None

    def take(self, other: Cell) -> None:
        """Take over the contents of another cell."""
        self.values, self.format, self.raw = other.values, other.format, other.raw

    def copy(self) -> Cell:
        """Another cell with the same contents, for a result that only some chips get."""
        other = Cell(self.buffer_id, self.room, self.address, self.label, self.lane_axes, self.device)
        other.take(self)
        return other

    def is_empty(self) -> bool:
        """Whether it was never written."""
        return self.values is None and self.raw is None

    def merge(self, result: Cell, chips: Chips, lane_shape: tuple[int, ...]) -> None:
        """Take over the contents of another cell on some chips; the others keep their contents, to the bit."""
        if not chips:
            return
        with _merging:
            form = result.format
            if form is not None and result.values is not None:
                old = self._view_as(form)
                if old is not None:
                    self.write(merge_lanes(old, result.values, chips, lane_shape), form)
                    return
            self.write_bytes(merge_lanes(self.read_bytes(), result.read_bytes(), chips, lane_shape))

    def _view_as(self, form: Format) -> torch.Tensor | None:
        """The contents as values of this format where that loses no bit, else None."""
        if self.values is not None:
            assert self.format is not None, "values always have a format"
            return self.values if self.format == form else form.view_of(self.values, self.format, self.lane_axes)
        return None if self.raw is not None else form.blank(self.lane_axes, self.device)

    def take_out(self, form: Format) -> torch.Tensor:
        """The contents, to be changed in place and written back; the cell is empty meanwhile.

        A copy only when another cell or tensor holds the same storage: a kv cache is updated without being copied.
        """
        values = self.read(form)
        self.clear()
        storage = values.untyped_storage()
        tensors: int = torch._C._storage_Use_Count(storage._cdata) - 1  # type: ignore[attr-defined]  # less the wrapper
        whole = storage.nbytes() == values.numel() * values.element_size()
        sole = tensors == 1 and whole and sys.getrefcount(values) == 2  # the local name and the argument
        return values if sole else values.clone()

    def clear(self) -> None:
        """Drop the contents and the host memory they use."""
        self.values = self.format = self.raw = None


def merge_lanes(old: torch.Tensor, new: torch.Tensor, chips: Chips, lane_shape: tuple[int, ...]) -> torch.Tensor:
    """Lanes with the new values on these chips and the old ones elsewhere."""
    local = old.shape[len(lane_shape) :]
    lanes, every = old.expand(*lane_shape, *local).clone(), new.expand(*lane_shape, *local)
    for chip in chips:
        lanes[chip] = every[chip]
    return lanes


def _fit_bytes(raw: torch.Tensor, size: int) -> torch.Tensor:
    if raw.shape[-1] >= size:
        return raw[..., :size]
    return torch.nn.functional.pad(raw, (0, size - raw.shape[-1]))
