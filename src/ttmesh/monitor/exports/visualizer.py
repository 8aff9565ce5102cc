"""A report folder that ttnn-visualizer opens: operations with their tensors, and the buffers live at each of them."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import yaml

from ttmesh.base.atomic_files import write_file
from ttmesh.base.records import Allocated, Called, Closed, Finished, Freed, Opened, Record, Returned, TensorFacts
from ttmesh.base.signals import signals
from ttmesh.monitor.exports.report_schema import (
    DATABASE_NAME,
    create_database_schema,
    insert_rows,
    save_database_schema_version,
)
from ttmesh.tracking.state import Buffers, DeviceState

BUFFER_TYPES = {"DRAM": 0, "L1": 1, "L1_SMALL": 3, "TRACE": 4, "CB": 1, "KERNEL": 1}
INTERLEAVED = 0
RANK = 0  # a report is of one process

# Commands that no named operation started -> TT-NN's functions that do.
FUNCTIONS = {"write": "ttnn.to_device", "read": "ttnn.from_device"}


class LiveBuffer(NamedTuple):
    """A buffer as the report lists it."""

    device_id: int
    address: int
    bank_bytes: int
    buffer_type: str


@dataclass
class Lifetime:
    """The operations that made, last used and freed a tensor."""

    produced: int | None = None
    last_used: int | None = None
    freed: int | None = None


@dataclass
class OpenCall:
    """A named operation that was called and has not returned."""

    name: str
    arguments: tuple[tuple[str, str], ...]
    duration_ns: int = 0
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


class Report:
    """A report folder being written."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / DATABASE_NAME
        path.unlink(missing_ok=True)
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._cursor = self._database.cursor()
        self._cursor.execute("BEGIN")
        create_database_schema(self._cursor)
        save_database_schema_version(self._cursor)
        self._cursor.execute("ALTER TABLE tensors ADD COLUMN size int")  # optional: bytes of the tensor on all banks
        self._operations = self._tensors = 0
        self._devices: set[int] = set()
        self._folder = folder
        self._lifetimes: dict[int, Lifetime] = {}

    def add_cluster(self, files: Mapping[str, object]) -> None:
        """The files from which the Topology page is drawn."""
        for name, contents in files.items():
            write_file(self._folder / name, yaml.safe_dump(contents, default_flow_style=None, sort_keys=False))

    def add_device(self, device_id: int, *, l1_banks: int, l1_base: int, l1_bank_bytes: int) -> None:
        """A chip. Records contain the number of L1 banks, one per core, but not the core grid: rows of eight are
        assumed, and only the product is right.
        """
        if device_id in self._devices:
            return
        self._devices.add(device_id)
        columns = 8 if l1_banks % 8 == 0 else 1
        rows, end, total = l1_banks // columns, l1_base + l1_bank_bytes, l1_banks * l1_bank_bytes
        values = (
            device_id, rows, columns, rows, columns, end, l1_banks, l1_bank_bytes, l1_base, l1_base, 1, l1_banks, 0,
            total, total, total, total, l1_bank_bytes, 0,
        )  # fmt: skip
        insert_rows(self._cursor, "devices", [values])

    def add_tensor(self, facts: TensorFacts, on: Allocated) -> int:
        """A tensor on a buffer; the number it has in the report."""
        self._tensors += 1
        number = self._tensors
        kind = BUFFER_TYPES[on.buffer_type]
        described = (facts.shape, facts.dtype, facts.layout, facts.memory_config)
        row = (number, *described, on.chips[0], on.address, kind, RANK, "DEVICE", on.size_bytes)
        insert_rows(self._cursor, "tensors", [row])
        insert_rows(self._cursor, "device_tensors", [(number, chip, on.address, RANK) for chip in on.chips])
        return number

    def add_operation(
        self,
        name: str,
        duration_s: float,
        live: Iterable[LiveBuffer],
        inputs: Iterable[int] = (),
        outputs: Iterable[int] = (),
        arguments: Iterable[tuple[str, str]] = (),
        frees: Iterable[int] = (),
    ) -> None:
        """An operation, its arguments, the numbers of its tensors, and what was live when it had run."""
        self._operations += 1
        number = self._operations
        inputs, outputs = list(inputs), list(outputs)
        for tensor in outputs:
            self._lifetimes.setdefault(tensor, Lifetime()).produced = number
        for tensor in (*inputs, *outputs):
            self._lifetimes.setdefault(tensor, Lifetime()).last_used = number
        for tensor in frees:
            self._lifetimes.setdefault(tensor, Lifetime()).freed = number
        insert_rows(self._cursor, "operation_arguments", [(number, name, value, RANK) for name, value in arguments])
        insert_rows(self._cursor, "operations", [(number, name, duration_s, RANK)])
        buffers = [
            (number, b.device_id, b.address, b.bank_bytes, BUFFER_TYPES[b.buffer_type], INTERLEAVED, RANK) for b in live
        ]
        insert_rows(self._cursor, "buffers", buffers)
        for uses, by_tensor, tensors in (
            ("input_tensors", "tensor_consumers", inputs),
            ("output_tensors", "tensor_producers", outputs),
        ):
            insert_rows(self._cursor, uses, [(number, i, tensor, RANK) for i, tensor in enumerate(tensors)])
            insert_rows(self._cursor, by_tensor, [(tensor, number, i, RANK) for i, tensor in enumerate(tensors)])

    def close(self) -> None:
        """Write the report's last tables and close the file."""
        nowhere = (None,) * 4  # source files and lines
        rows = [
            (tensor, life.produced, life.last_used, life.freed, *nowhere, RANK)
            for tensor, life in self._lifetimes.items()
        ]
        insert_rows(self._cursor, "tensor_lifetime", rows)
        self._database.execute("COMMIT")
        self._database.close()


class ReportRecorder:
    """Listens to the runtime and writes a report as the program runs."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._live: dict[tuple[int, int], Allocated] = {}
        self._tensors: dict[tuple[int, TensorFacts], int] = {}
        self._calls: list[OpenCall] = []  # outermost first: composites call other operations
        self._writing = threading.Lock()

    def hear(self, record: Record) -> None:
        """Update the report for one record."""
        with self._writing:
            if isinstance(record, Allocated):
                self._live[record.mesh_id, record.buffer_id] = record
            elif isinstance(record, Freed):
                self._free(record)
            elif isinstance(record, Closed):
                self._live = {key: held for key, held in self._live.items() if key[0] != record.mesh_id}
            elif isinstance(record, Opened):
                for chip in record.chips:
                    self._report.add_device(
                        chip.physical_id,
                        l1_banks=chip.l1_banks,
                        l1_base=chip.l1_base,
                        l1_bank_bytes=chip.l1_bank_bytes,
                    )
            elif isinstance(record, Called):
                self._calls.append(OpenCall(record.name, record.arguments))
            elif isinstance(record, Returned) and self._calls:
                self._end_call()
            elif isinstance(record, Finished):
                self._add_command(record)

    def _add_command(self, record: Finished) -> None:
        """A command of the operation that is being called, else a separate operation."""
        inputs = self._numbers(record.mesh_id, record.reads)
        outputs = self._numbers(record.mesh_id, record.writes)
        if not self._calls:
            name = FUNCTIONS.get(record.name, record.name)
            self._report.add_operation(name, record.duration_ns / 1e9, self._buffers(), inputs, outputs)
            return
        call = self._calls[0]
        call.duration_ns += record.duration_ns
        call.inputs += [n for n in inputs if n not in call.outputs]  # what it made itself is no input of it
        call.outputs = [n for n in call.outputs if n not in inputs] + outputs

    def _end_call(self) -> None:
        call = self._calls.pop()
        if not self._calls:
            self._report.add_operation(
                call.name, call.duration_ns / 1e9, self._buffers(), call.inputs, call.outputs, call.arguments
            )

    def _free(self, record: Freed) -> None:
        """A deallocation is an operation where a tensor of the report was on the buffer, and no operation did it."""
        key = record.mesh_id, record.buffer_id
        self._live.pop(key, None)
        gone = [number for (mesh, facts), number in self._tensors.items() if (mesh, facts.buffer_id) == key]
        if gone and not self._calls:
            self._report.add_operation("ttnn.deallocate", 0.0, self._buffers(), gone, frees=gone)

    def _numbers(self, mesh_id: int, tensors: Iterable[TensorFacts]) -> list[int]:
        """The tensors' numbers in the report; tensors whose buffer was freed already are left out."""
        numbers = []
        for facts in tensors:
            number = self._tensors.get((mesh_id, facts))
            on = self._live.get((mesh_id, facts.buffer_id))
            if number is None and on is not None:
                number = self._tensors[mesh_id, facts] = self._report.add_tensor(facts, on)
            if number is not None:
                numbers.append(number)
        return numbers

    def _buffers(self) -> Iterator[LiveBuffer]:
        for held in self._live.values():
            for chip in held.chips:
                yield LiveBuffer(chip, held.address, held.bank_bytes, held.buffer_type)


@contextlib.contextmanager
def record_report(folder: Path | str) -> Iterator[None]:
    """Write a report of everything that runs inside the block."""
    report = Report(Path(folder))
    recorder = ReportRecorder(report)
    held = signals.ask("holdings")
    for known in held if isinstance(held, list) else ():
        recorder.hear(known)
    stops = [signals.listen(recorder.hear, commands=True)]
    if callable(stop := signals.ask("report calls")):
        stops.append(stop)
    try:
        yield
    finally:
        for stop in stops:
            stop()
        if isinstance(cluster := signals.ask("cluster"), dict):
            report.add_cluster(cluster)
        report.close()


def write_live_report(
    folder: Path,
    devices: list[DeviceState],
    buffers_of: Callable[[DeviceState], Buffers],
    cluster: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """A report of what is held now: one operation per moment of allocation, in order; what was freed is not in it."""
    report = Report(folder)
    report.add_cluster(cluster)
    moments: dict[tuple[int, int, int, str], list[LiveBuffer]] = {}
    for device in devices:
        l1 = device.pools["L1"]
        report.add_device(device.physical_id, l1_banks=l1.banks, l1_base=l1.bank.start, l1_bank_bytes=l1.bank.length)
        for b in buffers_of(device).buffers:
            buffer = LiveBuffer(device.physical_id, b.address, b.bank_bytes, b.buffer_type)
            moments.setdefault((b.time_ns, b.pid, b.buffer_id, b.label), []).append(buffer)
    live: list[LiveBuffer] = []
    for (*_, label), came in sorted(moments.items()):
        live += came
        report.add_operation(label or "allocation", 0.0, live)
    report.close()
