"""The choices a program makes about the fabric, named and numbered as in tt-metal (fabric_types.hpp)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttmesh.base.dtypes import PrintedEnum
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshShape


class FabricConfig(PrintedEnum):
    """How packets are routed."""

    DISABLED = 0
    FABRIC_1D_NEIGHBOR_EXCHANGE = 1
    FABRIC_1D = 2
    FABRIC_1D_RING = 3
    FABRIC_2D = 4
    FABRIC_2D_TORUS_X = 5
    FABRIC_2D_TORUS_Y = 6
    FABRIC_2D_TORUS_XY = 7
    CUSTOM = 8


class Topology(PrintedEnum):
    """The form of the fabric that a collective uses."""

    NeighborExchange = 0
    Linear = 1
    Ring = 2
    Mesh = 3
    Torus = 4


class FabricType(PrintedEnum):
    """Which axes of a mesh close: X runs along rows (axis 1), Y down columns (axis 0)."""

    MESH = 1
    TORUS_X = 2
    TORUS_Y = 4
    TORUS_XY = 6


class FabricReliabilityMode(PrintedEnum):
    """What becomes of links that are down when the fabric starts."""

    STRICT_INIT = 0
    RELAXED_INIT = 1
    DYNAMIC_RECONFIG = 2


class FabricTensixConfig(PrintedEnum):
    """Whether worker cores are set aside to feed the routers."""

    DISABLED = 0
    MUX = 1


class FabricUDMMode(PrintedEnum):
    """Unified data movement."""

    DISABLED = 0
    ENABLED = 1


class FabricManagerMode(PrintedEnum):
    """Who starts and ends the fabric; ENABLED means another process does both."""

    ENABLED = 0
    INIT_FABRIC = 1
    TERMINATE_FABRIC = 2
    DEFAULT = 3


@dataclass
class FabricRouterConfig:
    """Settings of the routers; None is the architecture's default."""

    max_packet_payload_size_bytes: int | None = None


TOPOLOGY_OF_CONFIG = {
    FabricConfig.FABRIC_1D_NEIGHBOR_EXCHANGE: Topology.NeighborExchange,
    FabricConfig.FABRIC_1D: Topology.Linear,
    FabricConfig.FABRIC_1D_RING: Topology.Ring,
    FabricConfig.FABRIC_2D: Topology.Mesh,
    FabricConfig.FABRIC_2D_TORUS_X: Topology.Torus,
    FabricConfig.FABRIC_2D_TORUS_Y: Topology.Torus,
    FabricConfig.FABRIC_2D_TORUS_XY: Topology.Torus,
}

# Which axes a configuration lets close, where the links are there. 1D fabrics route along either axis.
WRAP_AXES = {
    FabricConfig.FABRIC_1D_RING: (0, 1),
    FabricConfig.FABRIC_2D_TORUS_X: (1,),
    FabricConfig.FABRIC_2D_TORUS_Y: (0,),
    FabricConfig.FABRIC_2D_TORUS_XY: (0, 1),
}


def is_2d(config: FabricConfig) -> bool:
    """Whether packets can turn from one axis to the other."""
    return TOPOLOGY_OF_CONFIG.get(config) in (Topology.Mesh, Topology.Torus)


def fabric_topology(config: FabricConfig) -> Topology:
    """The topology that a configuration sets up."""
    if config not in TOPOLOGY_OF_CONFIG:
        raise MeshError(
            f"Unsupported fabric config: {config.name}",
            expected=f"one of {[c.name for c in TOPOLOGY_OF_CONFIG]}",
            fix="Call set_fabric_config before the mesh is opened.",
        )
    return TOPOLOGY_OF_CONFIG[config]


def convert_2d_to_1d_topology(topology: Topology) -> Topology:
    """What a topology is along one axis."""
    return {Topology.Mesh: Topology.Linear, Topology.Torus: Topology.Ring}.get(topology, topology)


def axis_topology(config: FabricConfig, axis: int, *, closes: bool) -> Topology:
    """Ring where the configuration wraps this axis and links close it, else Linear."""
    return Topology.Ring if closes and axis in WRAP_AXES.get(config, ()) else Topology.Linear


def get_usable_topology(
    mesh_shape: MeshShape,
    coords: Sequence[MeshCoordinate],
    *,
    topology: Topology | None = None,
    cluster_axis: int | None = None,
    config: FabricConfig = FabricConfig.FABRIC_1D,
    closes: bool = True,
) -> Topology:
    """The topology asked for, or the fabric's; where it cannot close, silently Linear for Ring and Mesh for Torus."""
    wanted = fabric_topology(config) if topology is None else topology
    wraps = _wraps(mesh_shape, coords, cluster_axis) and (cluster_axis is None or closes)
    if wanted not in (Topology.Ring, Topology.Torus) or wraps:
        return wanted
    return Topology.Mesh if wanted is Topology.Torus else Topology.Linear


def _wraps(mesh_shape: MeshShape, coords: Sequence[MeshCoordinate], cluster_axis: int | None) -> bool:
    """TT-NN's rule: two devices never close; without an axis the tensor must span the mesh from corner to corner."""
    if cluster_axis is not None:
        return mesh_shape[cluster_axis] != 2
    first, last = coords[0], coords[-1]
    corners = all(c == 0 for c in first) and all(c == n - 1 for c, n in zip(last, mesh_shape, strict=True))
    return corners and 2 not in mesh_shape.to_tuple()[:2]
