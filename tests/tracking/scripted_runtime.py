"""A stand-in for the runtime: holds a table, changes it first and emits second, as base/records.py asks."""

from __future__ import annotations

import itertools
import time

from ttmesh.base.records import Allocated, ChipFacts, Closed, Freed, LinkTransfer, Opened, Record, Reserved
from ttmesh.base.signals import signals

CHIPS = (4, 0, 3, 7, 5, 1, 2, 6)  # a 2x4 T3000 in row-major order


def facts(chips: tuple[int, ...], logical_id: int) -> ChipFacts:
    """A chip of a system with four columns, linked to its neighbours."""
    row, column = position = divmod(logical_id, 4)
    near = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
    ids = [chips[4 * r + c] for r, c in near if 0 <= c < 4 and 0 <= r < len(chips) // 4]
    physical_id = chips[logical_id]
    return ChipFacts(
        physical_id=physical_id,
        logical_id=logical_id,
        coord=position,
        position=position,
        links=tuple((other, 2) for other in sorted(ids)),
        arch="wormhole_b0",
        dram_banks=12,
        dram_bank_bytes=1 << 30,
        l1_banks=64,
        l1_bank_bytes=1 << 20,
        is_remote=physical_id > 3,
        l1_base=0x10000,
    )


class Runtime:
    def __init__(self, chips: tuple[int, ...] = CHIPS, *, mesh_id: int = 1) -> None:
        self.table: dict[object, Record] = {}
        self.chips = chips
        self.mesh_id = mesh_id
        self._ids = itertools.count(1)
        signals.provide("holdings", lambda: list(self.table.values()))
        signals.provide("unused ids", lambda: (mesh_id + 1, next(self._ids)))

    def open(self) -> None:
        chips = tuple(facts(self.chips, i) for i in range(len(self.chips)))
        system = "t3000" if len(chips) == 8 else "galaxy"
        self._add("mesh", Opened(self.mesh_id, None, (len(chips) // 4, 4), system, chips, time.time_ns()))

    def reserve(self, size: int, label: str = "dispatch") -> None:
        self._add(label, Reserved(self.mesh_id, self.chips, "L1", size, label, time.time_ns()))

    def allocate(self, size: int, *, kind: str = "DRAM", label: str = "", address: int | None = None) -> int:
        number = next(self._ids)
        at = number * 4096 if address is None else address
        row = Allocated(self.mesh_id, number, self.chips, kind, at, size, size // 8, 8, 2048, label)
        self._add(number, row)
        return number

    def send(self, source: int, target: int, size: int) -> None:
        signals.emit_crossings([LinkTransfer(source, target, size, "t3000" if len(self.chips) == 8 else "galaxy")])

    def free(self, number: int) -> None:
        del self.table[number]
        signals.emit(Freed(self.mesh_id, number))

    def close(self) -> None:
        self.table.clear()
        signals.emit(Closed(self.mesh_id, time.time_ns()))

    def bytes_held(self) -> int:
        return sum(r.size_bytes for r in list(self.table.values()) if isinstance(r, Allocated))

    def _add(self, key: object, record: Record) -> None:
        self.table[key] = record
        signals.emit(record)
