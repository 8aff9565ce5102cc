"""Freed memory that views still read, until something else is allocated there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
from weakref import ref

from ttmesh.chip.cells import Cell


class DanglingView(Protocol):
    """A tensor's hold on memory that another tensor owns."""

    def is_allocated(self) -> bool:
        """Whether it can be read."""

    def lose(self, label: str) -> None:
        """From now on it cannot: the memory was taken by what is called so."""


Views = list["ref[DanglingView]"]
Dangling = list[tuple[Cell, Views]]


def readable(views: Iterable[ref[DanglingView]]) -> list[DanglingView]:
    """Those that are not gone, nor freed themselves."""
    return [view for view in (found() for found in views) if view is not None and view.is_allocated()]


def take_from_views(dangling: Dangling, cell: Cell) -> Dangling:
    """Views of freed memory lose it to a new cell; the ones that still dangle."""
    start, end, kept = cell.address, cell.address + cell.room.bank_bytes, []
    for held, views in dangling:
        left, first, last = readable(views), held.address, held.address + held.room.bank_bytes
        if held.room.buffer_type is cell.room.buffer_type and start < last and first < end:
            for view in left:
                view.lose(cell.label)
        elif left:
            kept.append((held, views))
    return kept
