"""The memory of a whole mesh: reports, for programs and as files, and freeing it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.atomic_files import write_file
from ttmesh.base.dtypes import BufferType
from ttmesh.chip.cells import Cell
from ttmesh.chip.memory import MemoryView
from ttmesh.mesh.device.mesh_device import MeshDevice, list_open_meshes

REPORT_FOLDER = Path("generated") / "reports"  # where TT-NN puts them


class BufferInfo(NamedTuple):
    """One live buffer on one device, as TT-NN's reports list it."""

    device_id: int
    address: int
    max_size_per_bank: int
    buffer_type: BufferType
    buffer_layout: int


class BufferPageInfo(NamedTuple):
    """One page of a live buffer on one device, as TT-NN's reports list it."""

    device_id: int
    address: int
    core_y: int
    core_x: int
    bank_id: int
    page_index: int
    page_address: int
    page_size: int
    buffer_type: BufferType


@name_wrong_types
def get_memory_view(device: MeshDevice, buffer_type: BufferType) -> MemoryView:
    """The allocated and free memory of one buffer type."""
    device.check_open()
    return device.heap.view(buffer_type)


def peak_bytes(device: MeshDevice, buffer_type: BufferType) -> int:
    """The most bytes that were ever in use on one chip, over all banks."""
    return device.heap.peak_bank_bytes(buffer_type) * device.heap.map.banks[buffer_type].count


@name_wrong_types
def deallocate_buffers(device: MeshDevice) -> None:
    """Free all memory of a mesh, as TT-NN does: its tensors still say that they are allocated."""
    device.check_open()
    device.heap.free_all()


def get_buffers(devices: MeshDevice | list[MeshDevice] | None = None) -> list[BufferInfo]:
    """Every live buffer, once per device."""
    meshes = list_open_meshes() if devices is None else [devices] if isinstance(devices, MeshDevice) else devices
    return [
        BufferInfo(chip, cell.address, cell.bank_bytes, cell.buffer_type, 0)
        for mesh in meshes
        for cell in mesh.heap.cells()
        for chip in mesh.local_ids()
    ]


def get_buffer_pages(devices: MeshDevice | list[MeshDevice] | None = None) -> list[BufferPageInfo]:
    """Every page of every live buffer, once per device; pages go round robin over banks, banks row by row over cores."""
    meshes = list_open_meshes() if devices is None else [devices] if isinstance(devices, MeshDevice) else devices
    return [page for mesh in meshes for cell in mesh.heap.cells() for page in list_pages(mesh, cell)]


def list_pages(mesh: MeshDevice, cell: Cell) -> list[BufferPageInfo]:
    """Every page of a buffer, once per device."""
    count = cell.size_bytes // cell.page_bytes
    stride = cell.bank_bytes // max(1, -(-count // cell.banks))  # pages are aligned inside a bank
    columns = cell.banks if cell.buffer_type is BufferType.DRAM else mesh.compute_with_storage_grid_size().x
    pages = []
    for page in range(count):
        row, bank = divmod(page, cell.banks)
        y, x = divmod(bank, columns)
        fields = (cell.address, y, x, bank, page, cell.address + row * stride, cell.page_bytes, cell.buffer_type)
        pages += [BufferPageInfo(chip, *fields) for chip in mesh.local_ids()]
    return pages


@name_wrong_types
def dump_device_memory_state(device: MeshDevice, prefix: str = "") -> None:
    """Write three CSV files: a summary for L1, one for every buffer type, and every block."""
    REPORT_FOLDER.mkdir(parents=True, exist_ok=True)
    views = {
        kind: get_memory_view(device, kind)
        for kind in (BufferType.DRAM, BufferType.L1, BufferType.L1_SMALL, BufferType.TRACE)
    }
    header = ["buffer_type", "banks", "bank_bytes", "allocated", "free", "largest_free", "peak"]
    rows = {
        kind: [
            kind.name, view.num_banks, view.total_bytes_per_bank, view.total_bytes_allocated_per_bank,
            view.total_bytes_free_per_bank, view.largest_contiguous_bytes_free_per_bank, device.heap.peak_bank_bytes(kind),
        ]
        for kind, view in views.items()
    }  # fmt: skip
    _write(prefix + "l1_usage_summary.csv", [header, rows[BufferType.L1]])
    _write(prefix + "memory_usage_summary.csv", [header, *rows.values()])
    blocks = [[kind.name, b["address"], b["size"], b["allocated"]] for kind, v in views.items() for b in v.block_table]
    _write(prefix + "detailed_memory_usage.csv", [["buffer_type", "address", "size", "allocated"], *blocks])


def _write(name: str, rows: Iterable[Iterable[object]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    write_file(REPORT_FOLDER / name, text.getvalue())
