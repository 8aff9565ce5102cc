"""IPython's `%load_ext ttmesh`: the cell magic `%%ttmesh track` prints what a cell allocated and freed on each chip."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from ttmesh.base.errors import MeshError
from ttmesh.base.records import Allocated, Closed, Freed
from ttmesh.base.signals import signals
from ttmesh.base.sizes import size_text

IN_DRAM = ("DRAM", "TRACE")
Pool = tuple[int, str]  # a chip, and DRAM or L1


class CellTally:
    """What happened to the memory of every chip since it was made."""

    def __init__(self) -> None:
        held: Any = signals.ask("holdings") or ()
        self._buffers = {record.buffer_id: record for record in held if isinstance(record, Allocated)}
        self.allocated: Counter[Pool] = Counter()
        self.freed: Counter[Pool] = Counter()
        self.in_use: Counter[Pool] = Counter()
        self.peak: Counter[Pool] = Counter()
        for record in self._buffers.values():
            self._take(record)

    def listen(self) -> Callable[[], None]:
        """Count from now on; call what it returns to stop."""
        return signals.listen(self._hear)

    def format_report(self) -> str:
        """A table with one line for chips on which the same happened."""
        chips_of: dict[tuple[str, int, int, int, int], list[int]] = defaultdict(list)
        for pool in sorted(self.allocated.keys() | self.freed.keys()):
            chip, memory = pool
            line = (memory, self.allocated[pool], self.freed[pool], self.peak[pool], self.in_use[pool])
            chips_of[line].append(chip)
        if not chips_of:
            return "this cell allocated and freed nothing on a chip"
        rows: list[tuple[str, ...]] = [("memory", "allocated", "freed", "peak", "now", "chips")]
        for (memory, *counted), chips in sorted(chips_of.items()):
            rows.append((memory, *(size_text(number) for number in counted), ", ".join(map(str, chips))))
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in range(1, 5)), row[5]])
            for row in rows
        )

    def _hear(self, record: object) -> None:
        if isinstance(record, Allocated):
            self._buffers[record.buffer_id] = record
            self._take(record)
            for pool in _list_pools(record):
                self.allocated[pool] += record.size_bytes
        elif isinstance(record, Freed):
            self._drop(record.buffer_id)
        elif isinstance(record, Closed):
            for buffer_id in [i for i, known in self._buffers.items() if known.mesh_id == record.mesh_id]:
                self._drop(buffer_id)

    def _drop(self, buffer_id: int) -> None:
        known = self._buffers.pop(buffer_id, None)
        if known is None:  # of a mesh that is closed already
            return
        for pool in _list_pools(known):
            self.freed[pool] += known.size_bytes
            self.in_use[pool] -= known.size_bytes

    def _take(self, record: Allocated) -> None:
        for pool in _list_pools(record):
            self.in_use[pool] += record.size_bytes
            self.peak[pool] = max(self.peak[pool], self.in_use[pool])


def _list_pools(record: Allocated) -> list[Pool]:
    memory = "DRAM" if record.buffer_type in IN_DRAM else "L1"
    return [(chip, memory) for chip in record.chips]


def register(shell: Any) -> None:
    """Add the magic to an IPython shell."""

    def run_magic(line: str, cell: str) -> None:
        run_tracked_cell(line, lambda: shell.run_cell(cell))

    shell.register_magic_function(run_magic, magic_kind="cell", magic_name="ttmesh")


def run_tracked_cell(line: str, run: Callable[[], object]) -> None:
    """Run a cell and print what it did to the chips' memory."""
    if line.strip() != "track":
        raise MeshError(f"%%ttmesh {line.strip()!r}", expected="%%ttmesh track", fix="Write `%%ttmesh track`.")
    tally = CellTally()
    stop = tally.listen()
    try:
        run()
    finally:
        stop()
        print(tally.format_report())
