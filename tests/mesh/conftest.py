"""Small programs on raw bytes: what the mesh layer can do before there are tensors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ttmesh.base import settings
from ttmesh.base.dtypes import BufferType
from ttmesh.base.geometry import MeshShape
from ttmesh.chip.cells import Cell
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.device.mesh_device import MeshDevice, list_open_meshes
from ttmesh.mesh.device.opening import close_mesh_device, open_mesh_device
from ttmesh.mesh.queue.command_queue import Cells, Command

SIZE = 16


class Bytes:
    """Programs over buffers of 16 bytes."""

    def __init__(self, mesh: MeshDevice) -> None:
        self.mesh = mesh

    def buffer(self, buffer_type: BufferType = BufferType.DRAM) -> Buffer:
        return self.mesh.heap.allocate(buffer_type, SIZE, SIZE, 32, 12, "bytes")

    def write(self, buffer: Buffer, value: int, cq_id: int | None = None) -> None:
        def body(reads: Cells, writes: Cells) -> None:
            writes[0].write_bytes(torch.full((1, 1, SIZE), value, dtype=torch.uint8))

        self.mesh.queue(cq_id).enqueue(Command("write", body, (), (buffer.cell,)))

    def add(self, a: Buffer, b: Buffer, out: Buffer, cq_id: int | None = None) -> None:
        def body(reads: Cells, writes: Cells) -> None:
            writes[0].write_bytes(reads[0].read_bytes() + reads[1].read_bytes())

        cells: tuple[Cell, ...] = (a.cell, b.cell)
        self.mesh.queue(cq_id).enqueue(Command("add", body, cells, (out.cell,), programs=1))

    def read(self, buffer: Buffer, cq_id: int | None = None) -> int:
        seen: list[int] = []

        def body(reads: Cells, writes: Cells) -> None:
            seen.append(int(reads[0].read_bytes().flatten()[0]))

        command = Command("read", body, (buffer.cell,))
        queue = self.mesh.queue(cq_id)
        queue.enqueue(command)
        queue.finish_through(command)
        return seen[0]


@pytest.fixture
def mesh() -> Iterator[MeshDevice]:
    opened = open_mesh_device(MeshShape(2, 4), num_command_queues=2)
    yield opened
    if opened.is_open():
        close_mesh_device(opened)


@pytest.fixture
def program(mesh: MeshDevice) -> Bytes:
    return Bytes(mesh)


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    yield
    for variable in ("TTMESH_SCHEDULE", "TTMESH_SEED", "TTMESH_SYSTEM"):
        settings.override(variable, None)
    assert list_open_meshes() == []


@pytest.fixture
def bytes_on() -> type[Bytes]:
    """For tests that open their own mesh: `bytes_on(mesh)`."""
    return Bytes
