"""What TT-NN refuses where the neighbours of a collective are not linked, or are both in one direction."""

from __future__ import annotations

from itertools import pairwise

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import MeshError, ShapeError, require
from ttmesh.ccl.collectives.collective_semaphores import compile_before_refusal
from ttmesh.ccl.collectives.collective_stages import list_broadcast_axes, run_all_broadcast
from ttmesh.ccl.planning.collective_call import Request
from ttmesh.ccl.planning.group_plan import axis_closes, find_usable_topology
from ttmesh.ccl.planning.link_limits import get_num_links
from ttmesh.fabric.fabric_config import Topology, is_2d
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor

DIRECTIONS = ("SOUTH", "EAST")
SHORTEST_RING = 3  # two chips are neighbours in both directions


def check_routes(request: Request) -> None:
    """Raise if a line over all chips of a mesh of two axes jumps from the end of a row to the next."""
    shape = tuple(request.mesh.shape)
    if request.over_host or request["axis"] is not None or min(shape) == 1 or is_2d(get_fabric_config()):
        return
    coords = request.tensor.coords()
    pairs = list(pairwise(coords))
    if find_usable_topology(request, None) is Topology.Ring:
        pairs = [(coords[0], coords[-1]), *pairs]
    columns = shape[1]
    for source, target in pairs:
        if all(a != b for a, b in zip(source, target, strict=True)):
            numbers = [row * columns + column for row, column in (source, target)]
            raise MeshError(
                f"Could not find any forwarding direction from src (M0, D{numbers[0]}) to dst (M0, D{numbers[1]})",
                expected="cluster_axis: over a fabric of one dimension chips reach those of their row or column only",
                fix="Pass cluster_axis, or configure FABRIC_2D before opening the mesh.",
            )


def check_ring(request: Request) -> None:
    """Raise for what reduce_scatter_minimal_direct refuses, in TT-NN's order; last, for an axis that is not a ring."""
    shape, axis, dim, spec = request.mesh.shape, request["axis"], request["dim"], request.tensor.spec
    require(
        axis is not None or shape.is_line_topology(),
        f"reduce_scatter_minimal_direct requires an explicit cluster_axis on a {shape!r} mesh: with both extents above "
        "one the ring is not defined",
        "0 or 1",
        "Pass cluster_axis.",
    )
    n = shape.mesh_size() if axis is None else shape[axis]
    links, most = request["num_links"], get_num_links(request.mesh, axis)
    require(
        links is None or 1 <= links <= most,
        f"reduce_scatter_minimal_direct num_links {links} must be in [1, {most}] (links available on axis {axis or 0})",
        f"1 to {most}",
        "Change num_links.",
    )
    part = list(spec.shape)
    part[dim] = max(1, part[dim] // n)
    request.result_spec(part)
    require(
        spec.layout is Layout.TILE,
        "reduce_scatter_minimal_direct requires TILE layout",
        "tiles",
        "Convert it with ttnn.to_layout.",
    )
    padded, own = spec.padded_shape[dim - len(spec.shape)], spec.shape[dim]
    require(
        dim < len(spec.shape) - 2 or padded == own,
        f"scatter dim {dim} is tile-padded (logical {own} vs padded {padded}); slice boundaries would not line up with the "
        "logical tensor",
        "whole tiles",
        "Scatter another dim or pad the tensor.",
    )
    pages = padded // spec.tile.tile_shape[dim - len(spec.shape)] if dim >= len(spec.shape) - 2 else padded
    if pages % n:
        raise ShapeError(
            f"scatter dim {dim} (padded size {padded}, {pages} pages) must split into {n} whole-page slices",
            expected=f"a multiple of {n} pages",
            fix="Scatter another dim or pad the tensor.",
        )
    if find_usable_topology(request, axis) is not Topology.Ring:
        raise MeshError(
            "reduce_scatter_minimal_direct supports Ring topology only (a line would need per-destination direction "
            "clamping)",
            expected="a ring fabric, and a link between the ends of the axis",
            fix="Use ttnn.reduce_scatter, or configure FABRIC_1D_RING before opening the mesh.",
        )


def check_directions(request: Request, n: int) -> None:
    """Raise if a ring is requested along an axis whose ends no link joins: both neighbours are in one direction."""
    if request.over_host or request["topology"] not in (Topology.Ring, Topology.Torus):
        return
    axes = list_broadcast_axes(request, n)
    for i, (axis, length) in enumerate(axes):
        if axis is None or length < 3 or axis_closes(request.mesh, axis):
            continue
        c, spec = Composition(), request.tensor.spec
        run_all_broadcast(c, request, PlannedTensor(spec), request.result_spec(spec.shape), axes[:i])
        compile_before_refusal(request, c)
        raise MeshError(
            f"Multiple ethernet cores in the same direction (eth_chan_directions::{DIRECTIONS[axis]}) are not currently "
            "supported",
            expected="Topology.Linear: no link joins the ends of this axis",
            fix="Pass topology=ttnn.Topology.Linear or leave it out.",
        )


def require_ring(topology: Topology, text: str) -> None:
    """Raise for another topology than a ring: these forms know no other."""
    require(topology is Topology.Ring, text, "Topology.Ring", "Pass topology=ttnn.Topology.Ring.")


def check_closed_ring(mesh: MeshDevice, axis: int | None, topology: Topology | None) -> None:
    """Raise if a ring is asked for along an axis whose ends no link joins; fused forms do not fall back to a line."""
    if topology is not Topology.Ring or axis is None or mesh.shape[axis] < SHORTEST_RING or axis_closes(mesh, axis):
        return
    last = (mesh.shape[axis] - 1) * (mesh.shape[1] if axis == 0 else 1)
    raise MeshError(
        f"Could not find any forwarding direction from src (M0, D0) to dst (M0, D{last})",
        expected="Topology.Linear: no link joins the ends of this axis",
        fix="Pass topology=ttnn.Topology.Linear, or configure a ring fabric before opening the mesh.",
    )
