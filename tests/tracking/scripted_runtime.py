"""A stand-in for the runtime: holds a table, changes it first and emits second, as base/records.py asks."""

from __future__ import annotations

import itertools
import time

from ttmesh.base.records import Allocated, ChipFacts, Closed, Freed, Opened, Record, Reserved
from ttmesh.base.signals import signals

CHIPS = (4, 0, 3, 7, 5, 1, 2, 6)  # a 2x4 T3000 in row-major order


def facts(physical_id: int, logical_id: int) -> ChipFacts:
    return ChipFacts(
        physical_id=physical_id,
        logical_id=logical_id,
        coord=(logical_id // 4, logical_id % 4),
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
        chips = tuple(facts(chip, i) for i, chip in enumerate(self.chips))
        self._add("mesh", Opened(self.mesh_id, None, (2, 4), "t3000", chips, time.time_ns()))

    def reserve(self, size: int, label: str = "dispatch") -> None:
        self._add(label, Reserved(self.mesh_id, self.chips, "L1", size, label, time.time_ns()))

    def allocate(self, size: int, *, kind: str = "DRAM", label: str = "", address: int | None = None) -> int:
        number = next(self._ids)
        at = number * 4096 if address is None else address
        row = Allocated(self.mesh_id, number, self.chips, kind, at, size, size // 8, 8, 2048, label)
        self._add(number, row)
        return number

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
