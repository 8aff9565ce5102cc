"""How many links a collective uses between two chips, and what TT-NN says of a number that it cannot use."""

from __future__ import annotations

from collections.abc import Sequence

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.mesh.device.mesh_device import MeshDevice

NO_LINKS = {  # of zero links; the other collectives say `_NONE`
    **dict.fromkeys(
        ("reduce_scatter", "all_reduce", "reduce_scatter_minimal_async", "all_reduce_async"),
        "num_links must be greater than 0",
    ),
    "all_to_all_async_generic": "all_to_all_async requires at least one fabric link",
    "high_bw_all_gather": "high_bw_all_gather num_links must be greater than 0 when specified, got {links}",
    "all_to_all_async": "Number of links must be greater than 0, but is {links}",
}
_NONE = "Error, num_links should be more than 0 but has {links}"
ROWS = {  # of more links than rows of cores
    **dict.fromkeys(("all_broadcast", "broadcast"), "Worker cores used by links are parallelized over rows"),
    **dict.fromkeys(
        ("all_gather_async", "all_gather_async_reversed"), "Worker cores used by links are parallelizaed over rows"
    ),
}
IGNORES_LINKS = ("all_gather", "all_to_all_async", "high_bw_all_gather")


@name_wrong_types
def get_num_links(mesh_device: MeshDevice, cluster_axis: int | None = None) -> int:
    """The links that a collective uses along an axis by default; the fewest of both axes without one."""
    axes = [axis for axis, length in enumerate(mesh_device.shape) if cluster_axis in (None, axis) and length > 1]
    counts = [_count_links(mesh_device, axis) for axis in axes]
    return min(counts, default=1)


def _count_links(mesh: MeshDevice, axis: int) -> int:
    step = [0] * mesh.shape.dims()
    step[axis] = 1
    found = count_channels(mesh, (0,) * mesh.shape.dims(), step)
    return max(1, found - bool(mesh.system.remote))  # dispatch to chips behind others takes one


def count_channels(mesh: MeshDevice, source: Sequence[int], target: Sequence[int]) -> int:
    """The links between the chips at two coordinates."""
    a, b = (mesh.physical_ids[_number(mesh, coord)] for coord in (source, target))
    return mesh.traffic.routes.fabric.link_count(a, b)


def _number(mesh: MeshDevice, coord: Sequence[int]) -> int:
    number = 0
    for position, length in zip(coord, mesh.shape, strict=True):
        number = number * length + position
    return number


def check_link_number(name: str, links: int | None) -> None:
    """Raise for fewer links than one."""
    if links is not None and links <= 0 and not name.endswith("reduce_scatter_minimal_direct"):
        text = NO_LINKS.get(name.rpartition(".")[2], _NONE)
        raise MeshError(text.format(links=links), expected="1 or more", fix="Change num_links.")


def check_links(name: str, mesh: MeshDevice, coords: Sequence[Sequence[int]], axis: int | None, links: int) -> None:
    """Raise for more links than there are between the first chip and the next along the axis."""
    short = name.rpartition(".")[2]
    if short in IGNORES_LINKS:
        return
    if short in ROWS and links > mesh.core_grid.y:
        raise MeshError(ROWS[short], expected=f"at most {mesh.core_grid.y} links", fix="Change num_links.")
    first = tuple(coords[0])
    along = [
        c for c in map(tuple, coords[1:]) if axis is None or all(c[i] == first[i] for i in range(len(c)) if i != axis)
    ]
    if not along:
        return
    available = count_channels(mesh, first, along[0])
    if 0 < available < links:
        source, target = (mesh.get_fabric_node_id(MeshCoordinate(c)).chip_id for c in (first, along[0]))
        raise MeshError(
            f"Requested link index {available} is out of bounds. {available} ethernet channels available to forward b/w "
            f"src (M0, D{source}) and dst (M0, D{target})",
            expected=f"at most {available} links",
            fix="Change num_links.",
        )
