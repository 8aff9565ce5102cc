"""A map of one bank's addresses: which class of memory is stored where, and which addresses are free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttmesh.tracking.spans import Span, holes
from ttmesh.tracking.state import POOLS, Buffers, BufferState, DeviceState

HOLE = "free"


@dataclass(frozen=True)
class Piece:
    """A span of addresses that one buffer uses, or that is free."""

    span: Span
    memory_class: str
    label: str


@dataclass(frozen=True)
class AddressMap:
    """One bank of one pool, its pieces in order of address; all banks of a pool have the same map."""

    pool: str
    bank: Span
    pieces: tuple[Piece, ...]
    holes: tuple[Span, ...]

    def cells(self, count: int) -> list[str]:
        """The bank in `count` equal cells, each with the class that uses most of it, or free."""
        if self.bank.length <= 0 or count <= 0:
            return []
        shares: list[dict[str, int]] = [{} for _ in range(count)]
        for piece in self.pieces:
            first = (piece.span.start - self.bank.start) * count // self.bank.length
            last = (piece.span.end - 1 - self.bank.start) * count // self.bank.length
            for i in range(max(first, 0), min(last, count - 1) + 1):
                start, end = self._cell(i, count)
                overlap = min(piece.span.end, end) - max(piece.span.start, start)
                shares[i][piece.memory_class] = shares[i].get(piece.memory_class, 0) + overlap
        # A small buffer in a large free cell is drawn too, as it may be what fragments the bank.
        return [max(found, key=lambda kind: found[kind]) if found else HOLE for found in shares]

    def _cell(self, i: int, count: int) -> tuple[int, int]:
        length = self.bank.length
        return self.bank.start + i * length // count, self.bank.start + -(-(i + 1) * length // count)


def address_maps(device: DeviceState, buffers: Buffers) -> list[AddressMap]:
    """The maps of a device's DRAM and L1."""
    return [_map(name, device.pools[name].bank, buffers.buffers) for name in POOLS]


def _map(pool: str, bank: Span, buffers: Sequence[BufferState]) -> AddressMap:
    pieces = [
        Piece(Span(b.address, b.address + b.bank_bytes), b.buffer_type, b.label)
        for b in buffers
        if b.buffer_type in POOLS[pool] and b.bank_bytes
    ]
    pieces.sort(key=lambda piece: piece.span)
    return AddressMap(pool, bank, tuple(pieces), tuple(holes(bank, (p.span for p in pieces))))
