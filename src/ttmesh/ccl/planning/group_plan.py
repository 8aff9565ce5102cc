"""Where the members of a collective stand: their chips, the form they have, and the plan that serves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ttmesh.base import settings
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.base.placement import Placement, Replicate, Shard
from ttmesh.ccl.planning.algorithm_choice import algorithm, choose, plan_of
from ttmesh.ccl.planning.collective_call import Request
from ttmesh.ccl.planning.lane_groups import Arrangement, arrangement
from ttmesh.ccl.planning.plan_traffic import Loads, hop_by_hop_over_host, over_host, over_links
from ttmesh.ccl.planning.rank_sums import Crossing
from ttmesh.ccl.planning.transfer_plan import ChipGroup, TransferPlan
from ttmesh.fabric.chip_topology import Fabric
from ttmesh.fabric.fabric_config import (
    WRAP_AXES,
    Topology,
    convert_2d_to_1d_topology,
    get_usable_topology,
)
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor


@dataclass(frozen=True)
class Placed:
    """The groups of a collective on the chips of a mesh."""

    request: Request
    axis: int | None
    arrangement: Arrangement
    lines: tuple[tuple[int, ...], ...]  # physical ids, group by group
    group: ChipGroup

    @property
    def members(self) -> int:
        """How many chips take part in one group."""
        return self.group.size

    @property
    def across(self) -> tuple[int, ...] | None:
        """The mesh axes that `compute` needs whole (see Decision); None for all of them."""
        lanes = self.arrangement
        return (lanes.axis,) if lanes.axis is not None and len(lanes.mesh) == 2 else None

    @property
    def crossing(self) -> Crossing | None:
        """How sums cross ranks, where they do so along this axis alone and need not keep one process's order."""
        part, across = self.request.mesh.rank_block, self.across
        if part is None or across is None or self.request["algorithm"] or settings.get("TTMESH_ORDERED"):
            return None
        return Crossing(part, across[0]) if part.is_divided(across[0]) else None

    def plan(self, collective: str, size_bytes: int, *, root: int = 0) -> TransferPlan:
        """The plan that the request's algorithm, or the best one for this group, makes."""
        name = self.request["algorithm"] or choose(self.group, size_bytes, ring=self._ring_allowed())
        return plan_of(name, collective, self.group, root)

    def loads(self, plan: TransferPlan, size_bytes: int, *, up: list[int], down: list[int]) -> Loads:
        """What goes over links; over the host instead, per transfer where an algorithm was asked for, else at once."""
        if not self.request.over_host:
            return over_links(plan, size_bytes, self.lines, self.request.mesh.traffic.routes)
        if self.request["algorithm"]:
            return hop_by_hop_over_host(plan, size_bytes, self.lines)
        return over_host(self.lines, up=up, down=down)

    def _ring_allowed(self) -> bool:
        config, wanted = get_fabric_config(), self.request["topology"]
        if self.request.over_host:
            return True
        coords = [MeshCoordinate(c) for c in self.request.tensor.coords()]
        usable = get_usable_topology(
            self.request.mesh.shape, coords, topology=wanted, cluster_axis=self.axis, config=config
        )
        if convert_2d_to_1d_topology(usable) is not Topology.Ring:
            return False
        return wanted is not None or self.axis is None or self.axis in WRAP_AXES.get(config, ())


def find_groups(request: Request, axis: int | None) -> Placed:
    """The groups of a request along a mesh axis, or over all chips that hold its tensor."""
    mesh = request.mesh
    lanes = arrangement(mesh.shape.to_tuple(), axis, request.tensor.kind.presence)
    lines = tuple(tuple(mesh.physical_ids[i] for i in group) for group in lanes.groups)
    group = ChipGroup(lanes.grid, _closes(mesh.traffic.routes.fabric, lanes.grid, lines))
    return Placed(request, axis, lanes, lines, group)


def check_axis(mesh: MeshDevice, axis: int | None) -> None:
    """Refuse an axis that the mesh does not have."""
    if axis is not None and not 0 <= axis < mesh.shape.dims():
        raise MeshError(
            f"cluster axis {axis} is out of range for mesh shape rank {mesh.shape.dims()}",
            expected=f"None or 0 to {mesh.shape.dims() - 1}",
            fix="Choose an axis of the mesh.",
        )


def normal_dim(tensor: Tensor, dim: int, text: str) -> int:
    """A tensor dim counted from the front; `text` is TT-NN's for one that is not there."""
    rank = len(tensor.shape)
    if not -rank <= dim < rank:
        raise ShapeError(text, expected=f"{-rank} to {rank - 1}", fix="Choose a dim of the tensor.")
    return dim % rank


def by_axis(mesh: MeshDevice, axis: int | None, algorithm_name: str | None) -> list[int] | None:
    """The axes TT-NN goes through when none is given on a mesh with several; None where one group serves."""
    if axis is not None or mesh.shape.is_line_topology():
        return None
    if algorithm_name is not None and not algorithm(algorithm_name).ONE_LINE:
        return None
    return list(range(mesh.shape.dims()))


def replicated_topology(tensor: Tensor, axis: int | None) -> TensorTopology:
    """The input's topology with the axis (or all of them) replicated."""
    return _with_placements(tensor, lambda i, placement: Replicate() if axis is None or i == axis else placement)


def gathered_topology(tensor: Tensor, dim: int) -> TensorTopology:
    """The input's topology without the shards of a tensor dim."""
    rank = len(tensor.shape)

    def change(_: int, placement: Placement) -> Placement:
        cut = isinstance(placement, Shard) and -rank <= placement.dim < rank and placement.dim % rank == dim
        return Replicate() if cut else placement

    return _with_placements(tensor, change)


def scattered_topology(tensor: Tensor, dim: int, axis: int | None) -> TensorTopology:
    """The input's topology with the axis cutting a dim that nothing else cuts."""
    rank, extents = len(tensor.shape), tensor.tensor_topology().distribution_shape()
    if axis is not None and axis >= len(tensor.tensor_topology().placements()):
        return tensor.tensor_topology()

    def change(i: int, placement: Placement) -> Placement:
        if axis is None:
            return Shard(dim) if extents[i] > 1 else Replicate()
        if i == axis:
            return Shard(dim)
        return Replicate() if isinstance(placement, Shard) and placement.dim % rank == dim else placement

    return _with_placements(tensor, change)


def _with_placements(tensor: Tensor, change: Callable[[int, Placement], Placement]) -> TensorTopology:
    topology = tensor.tensor_topology()
    placements = [change(i, placement) for i, placement in enumerate(topology.placements())]
    return TensorTopology(topology.distribution_shape(), placements, topology.mesh_coords())


def _closes(fabric: Fabric, grid: tuple[int, int], lines: tuple[tuple[int, ...], ...]) -> tuple[bool, bool]:
    rows, cols = grid
    along = [line[r * cols : (r + 1) * cols] for line in lines for r in range(rows)]
    down = [line[c::cols] for line in lines for c in range(cols)]
    return _rings(fabric, down), _rings(fabric, along)


def _rings(fabric: Fabric, lines: list[tuple[int, ...]]) -> bool:
    """A link joins the ends of every line; two chips would close over the link they already use."""
    return all(len(line) > 2 and fabric.link_count(line[-1], line[0]) > 0 for line in lines)
