"""A mesh as a notebook shows it: its chips on their grid, with what each holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ttmesh.base.dtypes import BufferType
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.base.sizes import size_text
from ttmesh.chip.html_drawing import GridCell, draw_chips, draw_facts

if TYPE_CHECKING:
    from ttmesh.mesh.device.mesh_device import MeshDevice

IN_DRAM = (BufferType.DRAM, BufferType.TRACE)


def draw_mesh(mesh: MeshDevice) -> str:
    """The HTML of a mesh."""
    shape = mesh.shape
    facts = {"shape": "x".join(map(str, shape)), "system": mesh.system.name}
    if not mesh.is_open():
        return draw_facts("MeshDevice", facts | {"state": "closed"})
    held = count_held_bytes(mesh)
    capacity = {
        kind: mesh.heap.map.banks[kind].size * mesh.heap.map.banks[kind].count
        for kind in (BufferType.DRAM, BufferType.L1)
    }
    cells = [_describe_chip(mesh, MeshCoordinate(coord), held, capacity) for coord in list_coords(tuple(shape))]
    columns = shape[shape.dims() - 1]
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    return draw_facts("MeshDevice", facts) + draw_chips(rows)


def count_held_bytes(mesh: MeshDevice) -> Counter[tuple[int, BufferType]]:
    """Bytes of DRAM and of L1 on each chip that the mesh and its submeshes hold."""
    held: Counter[tuple[int, BufferType]] = Counter()
    for part in (mesh, *mesh.get_submeshes()):
        for cell in part.heap.cells():
            memory = BufferType.DRAM if cell.buffer_type in IN_DRAM else BufferType.L1
            for chip in part.local_ids():
                held[chip, memory] += cell.size_bytes
    return held


def list_coords(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every coordinate, row by row."""
    if not shape:
        yield ()
        return
    for first in range(shape[0]):
        for rest in list_coords(shape[1:]):
            yield (first, *rest)


def _describe_chip(
    mesh: MeshDevice,
    coord: MeshCoordinate,
    held: Counter[tuple[int, BufferType]],
    capacity: dict[BufferType, int],
) -> GridCell:
    place = f"({', '.join(map(str, coord.coords()))})"
    if not mesh.is_local(coord):
        return GridCell(("on another rank", place))
    chip = mesh.get_device_id(coord)
    lines = [f"device {chip} {place}"]
    bars = []
    for memory, whole in capacity.items():
        used = held[chip, memory]
        lines.append(f"{memory.name} {size_text(used)}")
        bars.append((memory.name, used / whole))
    return GridCell(tuple(lines), tuple(bars))
