"""Addresses on a chip's network: a DRAM bank or a core's L1, and an offset there."""

from __future__ import annotations

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import ShapeError
from ttmesh.programs.buffers.mesh_buffer import MeshBuffer
from ttmesh.programs.buffers.page_layout import PageLayout


class NocAddress:
    """A byte in a bank; the bank of a core's L1 is y * columns + x in logical coordinates."""

    __slots__ = ("address", "bank", "kind")

    def __init__(self, buffer_type: BufferType, bank: int, address: int) -> None:
        self.kind, self.bank, self.address = buffer_type, bank, address

    @property
    def l1_bank(self) -> int | None:
        """The core whose L1 it is, by its bank; None for DRAM."""
        return None if self.kind is BufferType.DRAM else self.bank

    def __add__(self, offset: int) -> NocAddress:
        return NocAddress(self.kind, self.bank, self.address + offset)

    def __repr__(self) -> str:
        return f"{self.kind.name} bank {self.bank} address {self.address}"


class MulticastAddress:
    """The same L1 address on every core of a rectangle."""

    __slots__ = ("address", "cores")

    def __init__(self, cores: list[CoreCoord], address: int) -> None:
        self.cores, self.address = cores, address

    def __add__(self, offset: int) -> MulticastAddress:
        return MulticastAddress(self.cores, self.address + offset)


class TensorAccessorArgs:
    """A compile-time argument: the memory, page size and banks of a buffer, without its address."""

    __slots__ = ("kind", "pages")

    def __init__(self, buffer: MeshBuffer) -> None:
        self.kind, self.pages = buffer.buffer_type, buffer.pages

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorAccessorArgs) and (self.kind, self.pages) == (other.kind, other.pages)

    def __hash__(self) -> int:
        return hash((self.kind, self.pages))


class TensorAccessor:
    """Pages of a buffer by number."""

    __slots__ = ("address", "kind", "pages")

    def __init__(self, buffer_type: BufferType, pages: PageLayout, address: int) -> None:
        self.kind, self.pages, self.address = buffer_type, pages, address

    @property
    def page_size(self) -> int:
        """Bytes of a page."""
        return self.pages.page_bytes

    def get_noc_addr(self, page: int, offset: int = 0) -> NocAddress:
        """The address of a page."""
        if not 0 <= page < self.pages.pages:
            raise ShapeError(
                f"page {page} of a buffer of {self.pages.pages} pages at {self.kind.name} address {self.address} lies "
                "outside a buffer",
                expected=f"pages 0 to {self.pages.pages - 1}",
                fix="Check the page numbers and the runtime arguments.",
            )
        bank, start = self.pages.locate(page)
        return NocAddress(self.kind, bank, self.address + start + offset)
