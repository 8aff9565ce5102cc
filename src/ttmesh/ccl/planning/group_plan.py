"""The groups of a collective: their chips, the shape they form, and the plan of their transfers."""

from __future__ import annotations

from dataclasses import dataclass

from ttmesh.base import settings
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.ccl.planning.algorithm_choice import algorithm, choose, make_plan
from ttmesh.ccl.planning.collective_call import Request
from ttmesh.ccl.planning.lane_groups import LaneGroups, make_lane_groups
from ttmesh.ccl.planning.plan_traffic import Loads, count_host_bytes, count_host_hop_bytes, count_link_bytes
from ttmesh.ccl.planning.rank_sums import RankReduction
from ttmesh.ccl.planning.transfer_plan import ChipGroup, TransferPlan
from ttmesh.fabric.chip_topology import Fabric
from ttmesh.fabric.fabric_config import (
    WRAP_AXES,
    FabricConfig,
    Topology,
    convert_2d_to_1d_topology,
    get_usable_topology,
)
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.tensor.tensor import Tensor


@dataclass(frozen=True)
class ChipGroups:
    """The groups of a collective on the chips of a mesh."""

    request: Request
    axis: int | None
    lane_groups: LaneGroups
    chip_ids: tuple[tuple[int, ...], ...]  # physical ids, group by group
    group: ChipGroup

    @property
    def group_size(self) -> int:
        """The number of chips in one group."""
        return self.group.size

    @property
    def exchange_axes(self) -> tuple[int, ...] | None:
        """The mesh axes along which chips exchange data (see Decision); None for all of them."""
        lanes = self.lane_groups
        return (lanes.axis,) if lanes.axis is not None and len(lanes.mesh) == 2 else None

    @property
    def rank_reduction(self) -> RankReduction | None:
        """How sums cross ranks, if they do so along this axis only and need not keep one process's order."""
        rank_block, exchange_axes = self.request.mesh.rank_block, self.exchange_axes
        if rank_block is None or exchange_axes is None or self.request["algorithm"] or settings.get("TTMESH_ORDERED"):
            return None
        return RankReduction(rank_block, exchange_axes[0]) if rank_block.is_divided(exchange_axes[0]) else None

    def plan(self, collective: str, size_bytes: int, *, root: int = 0) -> TransferPlan:
        """The plan by the request's algorithm, or by the default one for this group."""
        name = self.request["algorithm"] or choose(self.group, size_bytes, ring=self._ring_allowed())
        return make_plan(name, collective, self.group, root)

    def loads(self, plan: TransferPlan, size_bytes: int, *, up: list[int], down: list[int]) -> Loads:
        """Bytes over links; in host mode to and from the host, per transfer if an algorithm was chosen, else in total."""
        if not self.request.over_host:
            return count_link_bytes(plan, size_bytes, self.chip_ids, self.request.mesh.traffic.routes)
        if self.request["algorithm"]:
            return count_host_hop_bytes(plan, size_bytes, self.chip_ids)
        return count_host_bytes(self.chip_ids, up=up, down=down)

    def _ring_allowed(self) -> bool:
        config, topology = get_fabric_config(), self.request["topology"]
        if self.request.over_host:
            return True
        if find_usable_topology(self.request, self.axis) is not Topology.Ring:
            return False
        return topology is not None or self.axis is None or self.axis in WRAP_AXES.get(config, ())


def find_groups(request: Request, axis: int | None, *, whole_mesh: bool = False) -> ChipGroups:
    """The groups of a request along a mesh axis, or over all chips that hold its tensor (or all of the mesh)."""
    mesh = request.mesh
    presence = None if whole_mesh else request.tensor.kind.presence
    lane_groups = make_lane_groups(mesh.shape.to_tuple(), axis, presence)
    chip_ids = tuple(tuple(mesh.physical_ids[i] for i in group) for group in lane_groups.groups)
    group = ChipGroup(lane_groups.grid, _closes(mesh.traffic.routes.fabric, lane_groups.grid, chip_ids))
    return ChipGroups(request, axis, lane_groups, chip_ids, group)


def count_group(request: Request, axis: int | None) -> int:
    """The number of chips in one group of a request: what find_groups finds, without listing them where it can."""
    if request.tensor.kind.presence is not None:
        return find_groups(request, axis).group_size
    shape = request.mesh.shape
    return shape.mesh_size() if axis is None else shape[axis]


def axis_closes(mesh: MeshDevice, axis: int) -> bool:
    """Whether links join the ends of every line along an axis: on a mesh of two axes those of a ring fabric."""
    shape = mesh.shape.to_tuple()
    if not mesh.shape.is_line_topology() and axis not in WRAP_AXES.get(get_fabric_config(), ()):
        return False
    lines = make_lane_groups(shape, axis, None).groups
    return _are_rings(mesh.traffic.routes.fabric, [tuple(mesh.physical_ids[i] for i in line) for line in lines])


def find_usable_topology(request: Request, axis: int | None) -> Topology:
    """The topology that a collective's programs use: what was asked for where the chips allow it, in one dimension.

    Through the host it is a line: no fabric needs to be configured.
    """
    return convert_2d_to_1d_topology(find_fabric_topology(request, axis))


def find_fabric_topology(request: Request, axis: int | None) -> Topology:
    """The same in the terms of the fabric: a mesh or a torus stays one."""
    if request.over_host:
        return Topology.Linear
    mesh, coords = request.mesh, [MeshCoordinate(c) for c in request.tensor.coords()]
    config = get_fabric_config()
    return get_usable_topology(
        mesh.shape, coords, topology=request["topology"], cluster_axis=axis,
        config=FabricConfig.FABRIC_1D if config is FabricConfig.DISABLED else config,
        closes=axis is not None and axis_closes(mesh, axis),
    )  # fmt: skip


AXIS_TEXTS = {  # what TT-NN says of an axis that a mesh does not have, where it is not the text of most
    **dict.fromkeys(
        (
            "reduce_scatter", "all_reduce", "all_broadcast", "broadcast", "all_gather_async", "all_gather_async_reversed",
            "reduce_scatter_minimal_async", "all_reduce_async", "deepseek_moe_reduce_scatter", "all_to_all_dispatch",
            "all_to_all_combine",
        ),
        "Invalid cluster axis {axis}. Must be 0 or 1",
    ),
    "all_gather": "ShapeBase[] index out of range. {axis} not in [-4, {dims})",
    "ring_attention_all_gather_async": "cluster axis {axis} is out of range for physical coord rank {dims}",
    "high_bw_all_gather": "high_bw_all_gather cluster_axis must be 0, 1, or None; got {axis} for mesh shape {shape}",
    "reduce_scatter_minimal_direct": "reduce_scatter_minimal_direct cluster_axis {axis} is out of range; only axes 0 and "
    "1 exist",
}  # fmt: skip


def check_axis(mesh: MeshDevice, axis: int | None, name: str = "") -> None:
    """Raise for an axis that the mesh does not have, in the words of the operation."""
    dims = mesh.shape.dims()
    if axis is None or 0 <= axis < dims:
        return
    text = AXIS_TEXTS.get(name.rpartition(".")[2], "cluster axis {axis} is out of range for mesh shape rank {dims}")
    raise MeshError(
        text.format(axis=axis, dims=dims, shape=repr(mesh.shape)),
        expected=f"None or 0 to {dims - 1}",
        fix="Choose an axis of the mesh.",
    )


def normalize_tensor_dim(tensor: Tensor, dim: int, text: str) -> int:
    """A tensor dim as a nonnegative number; `text` is TT-NN's error for a dim out of range."""
    rank = len(tensor.shape)
    if not -rank <= dim < rank:
        raise ShapeError(text, expected=f"{-rank} to {rank - 1}", fix="Choose a dim of the tensor.")
    return dim % rank


def list_axes_in_turn(mesh: MeshDevice, axis: int | None, algorithm_name: str | None) -> list[int] | None:
    """The axes that TT-NN handles one after the other if none is given on a mesh with several; None for one group."""
    if axis is not None or mesh.shape.is_line_topology():
        return None
    if algorithm_name is not None and not algorithm(algorithm_name).LINE_ONLY:
        return None
    return list(range(mesh.shape.dims()))


def _closes(fabric: Fabric, grid: tuple[int, int], lines: tuple[tuple[int, ...], ...]) -> tuple[bool, bool]:
    rows, cols = grid
    row_lines = [line[r * cols : (r + 1) * cols] for line in lines for r in range(rows)]
    column_lines = [line[c::cols] for line in lines for c in range(cols)]
    return _are_rings(fabric, column_lines), _are_rings(fabric, row_lines)


def _are_rings(fabric: Fabric, lines: list[tuple[int, ...]]) -> bool:
    """Whether a link connects the ends of every line; for two chips that would be the link they already use."""
    return all(len(line) > 2 and fabric.link_count(line[-1], line[0]) > 0 for line in lines)
