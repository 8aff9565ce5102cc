"""A tensor as a notebook shows it: its spec, and which slice of it is on which chip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ttmesh.base.geometry import MeshCoordinate
from ttmesh.base.placement import Shard
from ttmesh.chip.html_drawing import GridCell, draw_chips, draw_facts
from ttmesh.mesh.device.mesh_html import list_coords
from ttmesh.tensor.spec.distribution_shape import Coord

if TYPE_CHECKING:
    from ttmesh.tensor.tensor import Tensor


def draw_tensor(tensor: Tensor) -> str:
    """The HTML of a tensor; reads no values, so nothing is waited for."""
    facts = {
        "shape on each chip": str(list(tensor.shape)),
        "dtype": tensor.dtype.name.lower(),
        "layout": tensor.layout.name.lower(),
    }
    if not tensor.is_allocated():
        return draw_facts("Tensor", facts | {"state": "deallocated"})
    mesh = tensor.device()
    if mesh is None:
        facts |= {"memory": "host"}
    else:
        memory = tensor.memory_config()
        facts |= {"memory": f"{memory.buffer_type.name} {memory.memory_layout.name.lower()}"}
        facts |= {"address": str(tensor.buffer_address())}
    placements = ", ".join(str(placement) for placement in tensor.tensor_topology().placements())
    slices = tensor_slices(tensor)
    colours = {name: place for place, name in enumerate(sorted(set(slices.values())))}
    shape = tuple(tensor.mesh_shape)
    cells = []
    for coord in list_coords(shape):
        own = slices.get(coord)
        is_here = mesh is not None and mesh.is_local(MeshCoordinate(coord))
        name = f"device {mesh.get_device_id(MeshCoordinate(coord))}" if mesh is not None and is_here else str(coord)
        cells.append(GridCell((name, own or "nothing"), colour=None if own is None else colours[own]))
    columns = shape[-1] if shape else 1
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    return draw_facts("Tensor", facts | {"placement": placements}) + draw_chips(rows)


def tensor_slices(tensor: Tensor) -> dict[Coord, str]:
    """For each coordinate that holds a shard, the slice of the global tensor it is, such as [:, 32:64]."""
    topology, shape = tensor.tensor_topology(), tensor.shape
    extents = topology.distribution_shape()
    axis_of: dict[int, int] = {}
    for axis, placement in enumerate(topology.placements()):
        if isinstance(placement, Shard):
            axis_of.setdefault(placement.dim % max(len(shape), 1), axis)
    held = set(tensor.coords())
    slices = {}
    for coord in topology.mesh_coords():
        shard = topology.get_tensor_coord(coord)
        if shard is None or coord.coords() not in held:
            continue
        ranges = [
            ":" if dim not in axis_of or extents[axis_of[dim]] == 1 else _range(shard[axis_of[dim]], size)
            for dim, size in enumerate(shape)
        ]
        slices[coord.coords()] = f"[{', '.join(ranges)}]"
    return slices


def _range(index: int, size: int) -> str:
    return f"{index * size}:{(index + 1) * size}"
