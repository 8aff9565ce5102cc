"""A tensor's hold on memory that another tensor owns: what a reshape without a copy returns."""

from __future__ import annotations

from typing import Any
from weakref import ref

from ttmesh.base.errors import DeallocatedError
from ttmesh.chip.cells import Cell
from ttmesh.mesh.allocation.heap import Buffer

MANY = 8  # weak references on one buffer from which those to views that are gone are dropped
_new = object.__new__


class BufferView(Buffer):
    """Keeps the owner's memory, and frees it for all; freed through another tensor, it still reads what is there.

    TT-NN does not refuse that either: a view has an address of its own. It is refused from when something else was
    allocated there.
    """

    __slots__ = ("__weakref__", "_owner", "_taker")  # `_taker` is set when the memory was taken by something else

    _owner: Buffer
    _taker: str

    @staticmethod
    def of(buffer: Buffer) -> BufferView:
        """A view of a buffer's memory, or of what a view of it views."""
        view = _new(BufferView)
        view._cell, view.heap, view._owner = buffer._cell, buffer.heap, buffer.root
        _remember(view._owner, view)
        return view

    @property
    def root(self) -> Buffer:
        """The buffer that owns the memory."""
        return self._owner

    @property
    def cell(self) -> Cell:
        """The cell; raises after the memory was freed through this view, or taken by another buffer."""
        if self._cell is None and hasattr(self, "_taker"):
            raise DeallocatedError(
                "Input Tensor is not allocated: Buffer must be allocated on device: this tensor is a view of memory that "
                f"was freed through another tensor, and now belongs to {self._taker or 'another buffer'}",
                expected="a tensor that was not deallocated",
                fix="Deallocate the tensor behind a view after the last use of the view.",
            )
        return super().cell

    def deallocate(self) -> None:
        """Free the memory for the owner too; other views read on."""
        cell, self._cell = self._cell, None
        if cell is not None:
            self._last_writes = cell.writes
            self._owner.deallocate()

    def lose(self, label: str) -> None:
        """The freed memory was taken by what is called so."""
        cell, self._cell = self._cell, None
        if cell is not None:
            self._last_writes, self._taker = cell.writes, label

    def is_only_view(self, count: Any) -> bool:
        """Whether neither the owner nor another view is held elsewhere; `count` is sys.getrefcount."""
        return bool(count(self._owner) == 2)  # this attribute and the argument

    def __del__(self) -> None:
        """The owner frees the memory, when the last view of it goes as well."""


def _remember(owner: Buffer, view: BufferView) -> None:
    try:
        views = owner._views
    except AttributeError:
        owner._views = [ref(view)]
        return
    if len(views) >= MANY and not len(views) & (len(views) - 1):  # at 8, 16, 32, …
        views[:] = [found for found in views if found() is not None]
    views.append(ref(view))
