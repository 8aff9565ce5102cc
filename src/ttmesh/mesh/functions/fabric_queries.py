"""TT-NN's queries about the fabric of the system."""

from __future__ import annotations

from ttmesh.base.errors import MeshError
from ttmesh.chip.catalogue import current_system
from ttmesh.chip.system import System
from ttmesh.fabric.fabric_config import FabricConfig, FabricType
from ttmesh.fabric.fabric_state import fabric_process
from ttmesh.fabric.nodes import FabricNodeId
from ttmesh.fabric.routes import Routes
from ttmesh.mesh.functions.process_fabric import fabric_setup

TYPES = {(): FabricType.MESH, (0,): FabricType.TORUS_Y, (1,): FabricType.TORUS_X, (0, 1): FabricType.TORUS_XY}


def get_all_mgd_fabric_types() -> list[FabricType]:
    """Which axes close into rings, one entry per mesh: a system here is one mesh."""
    return [TYPES[current_system().wrap_axes]]


def get_forwarding_link_indices(src_fabric_node_id: FabricNodeId, dst_fabric_node_id: FabricNodeId) -> list[int]:
    """The links of a chip over which data leaves towards another; none towards itself."""
    setup, system = fabric_setup(), current_system()
    if setup.config is FabricConfig.DISABLED and not fabric_process.has_routes:
        raise MeshError(
            "map::at: the fabric has no routes",
            expected="a configured fabric",
            fix="Call set_fabric_config(FabricConfig.FABRIC_1D) before the mesh is opened.",
        )
    source, target = (_find_chip(system, node) for node in (src_fabric_node_id, dst_fabric_node_id))
    if source == target:
        return []
    first = Routes(system.grid, system.links).route(source, target)[1]
    links = system.link_count(source, first)
    return list(range(links if setup.num_planes is None else min(links, setup.num_planes)))


def _find_chip(system: System, node: FabricNodeId) -> int:
    if not 0 <= node.chip_id < system.shape.mesh_size():
        raise MeshError(
            f"{node!r} is not in the fabric",
            expected=f"a chip of 0 to {system.shape.mesh_size() - 1}",
            fix="Ask a mesh for it with get_fabric_node_id().",
        )
    row, column = divmod(node.chip_id, system.shape[1])
    return system.grid[row][column]
