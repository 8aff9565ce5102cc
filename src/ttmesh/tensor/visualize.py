"""Drawings of meshes and systems, and of which chip holds which slice of a tensor."""

from __future__ import annotations

import colorsys
from collections.abc import Callable

from rich import box
from rich.align import Align
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.errors import NotEmulatedError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.ranks.system_descriptor import SystemMeshDescriptor
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.tensor_html import tensor_slices

CELL_WIDTH = 30

Cell = Callable[[MeshCoordinate], tuple[str, str]]  # coordinate -> text, style


@name_wrong_types
def visualize_mesh_device(mesh_device: MeshDevice) -> None:
    """Print a mesh as a grid of chips."""
    Console().print(mesh_table(mesh_device))


@name_wrong_types
def visualize_tensor(tensor: Tensor) -> None:
    """Print which chip holds which slice of a tensor; equal slices have equal colours."""
    Console().print(draw_tensor(tensor))


def visualize_system_mesh() -> None:
    """Print the full system with its physical ids."""
    Console().print(system_table(SystemMeshDescriptor()))


def mesh_table(mesh: MeshDevice) -> Table:
    """A mesh as a grid of chips."""
    rows, columns = _two(mesh.shape)
    view = mesh.get_view()

    def cell(coord: MeshCoordinate) -> tuple[str, str]:
        if not view.is_local(coord):
            return f"Remote\nUnknown ID\n{_place(coord)}", ""
        return f"Dev. ID: {mesh.get_device_id(coord)}\n{_place(coord)}", ""

    return _grid(f"MeshDevice(rows={rows}, cols={columns})", rows, columns, cell)


def system_table(system: SystemMeshDescriptor) -> Table:
    """The full system; chips of another host have no id here."""
    (rows, columns), (own_rows, own_columns) = _two(system.shape()), _two(system.local_shape())

    def cell(coord: MeshCoordinate) -> tuple[str, str]:
        if not system.is_local(coord):
            return f"Remote\nUnknown\n{_place(coord)}", ""
        text = f"Dev. ID: {system.get_device_id(coord)}\n{_place(coord)}"
        return (text, "on dark_green") if system.all_local() else (f"Local\n{text}", "")

    title = f"SystemMesh Global Shape: ({rows}, {columns}) | Local Shape: ({own_rows}, {own_columns})"
    return _grid(title, rows, columns, cell)


def draw_tensor(tensor: Tensor) -> Group:
    """The placements of a tensor, and its slices on the grid."""
    mesh, (rows, columns) = tensor.device(), _two(tensor.mesh_shape)
    slices = tensor_slices(tensor)
    colours = _colours(sorted(set(slices.values())))
    about = [f"Shape: {list(tensor.shape)}", f"Dtype: {tensor.dtype.name}", f"Layout: {tensor.layout.name}"]

    def cell(coord: MeshCoordinate) -> tuple[str, str]:
        head = [] if mesh is None else [f"Dev. ID: {mesh.get_device_id(coord)}"]
        own = slices.get(coord.coords())
        if own is None:
            return "\n".join([*head, _place(coord)]), ""
        return "\n".join([*head, _place(coord), own, *about]), colours[own]

    placements = Panel(str(tensor.tensor_topology().placements()), title="Placement Configuration", border_style="blue")
    return Group(placements, _grid(f"Tensor(storage: {tensor.storage_type()})", rows, columns, cell))


def _grid(title: str, rows: int, columns: int, cell: Cell) -> Table:
    table = Table(title=title, show_header=False, box=box.SQUARE, show_lines=True, padding=(0, 0))
    for _ in range(columns):
        table.add_column(justify="center", vertical="middle", width=CELL_WIDTH)
    for row in range(rows):
        cells = []
        for column in range(columns):
            text, style = cell(MeshCoordinate(row, column))
            cells.append(Align(Text(text, justify="center"), "center", vertical="middle", style=style or None))
        table.add_row(*cells)
    return table


def _two(shape: MeshShape) -> tuple[int, int]:
    if shape.dims() > 2:
        raise NotEmulatedError(
            f"{shape!r} has more axes than a drawing can show",
            expected="one or two axes",
            fix="Reshape the mesh first.",
        )
    return (1, shape[0]) if shape.dims() == 1 else (shape[0], shape[1])


def _place(coord: MeshCoordinate) -> str:
    return f"({coord[0]}, {coord[1]})"


def _colours(slices: list[str]) -> dict[str, str]:
    """A muted colour for each distinct slice."""
    found = {}
    for i, name in enumerate(slices):
        red, green, blue = (int(255 * share) for share in colorsys.hsv_to_rgb(i / len(slices), 0.48, 0.80))
        found[name] = f"black on #{red:02x}{green:02x}{blue:02x}"
    return found
