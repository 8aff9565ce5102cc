"""Memory that programs use on the chips of a mesh besides buffers: circular buffers and kernels, as trackers see them."""

from __future__ import annotations

from collections.abc import Iterable

from ttmesh.base.records import Allocated, Freed
from ttmesh.base.signals import signals
from ttmesh.mesh.allocation.heap import next_buffer_id


class Residents:
    """Memory of the programs launched last. It is reported, not allocated: programs use the same L1 one after another."""

    __slots__ = ("_held", "_mesh_id")

    def __init__(self, mesh_id: int) -> None:
        self._mesh_id = mesh_id
        self._held: dict[int, Allocated] = {}

    def hold(
        self, kind: str, chips: Iterable[int], address: int, bank_bytes: int, banks: int, page_bytes: int, label: str
    ) -> int:
        """Report a program on these chips with this many bytes on each of its cores; returns a number for `release`."""
        number = next_buffer_id()
        record = Allocated(
            self._mesh_id, number, tuple(chips), kind, address, bank_bytes * banks, bank_bytes, banks, page_bytes, label
        )  # fmt: skip
        self._held[number] = record
        if signals.listening:
            signals.emit(record)
        return number

    def release(self, number: int) -> None:
        """Report that a program is gone; a second call, or one after the mesh was closed, does nothing."""
        if self._held.pop(number, None) is not None and signals.listening:
            signals.emit(Freed(self._mesh_id, number))

    def evict(self, chips: Iterable[int], keep: Iterable[int]) -> None:
        """Release every program on these chips except `keep`: a new program takes over their L1."""
        taken, kept = frozenset(chips), frozenset(keep)
        for number, record in list(self._held.items()):
            if number not in kept and not taken.isdisjoint(record.chips):
                self.release(number)

    def has_program(self, number: int) -> bool:
        """Whether a program was neither released nor evicted."""
        return number in self._held

    def records(self) -> list[Allocated]:
        """The record of every program held now, oldest first."""
        return list(self._held.values())

    def clear(self) -> None:
        """Drop all records without reporting: the record that the mesh was closed covers them."""
        self._held.clear()
