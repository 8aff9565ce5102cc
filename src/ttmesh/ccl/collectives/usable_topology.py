"""The topology that a tensor's chips support, as TT-NN decides it."""

from __future__ import annotations

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.ccl.planning.group_plan import axis_closes
from ttmesh.fabric import fabric_config
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.tensor.tensor import Tensor


@name_wrong_types
def get_usable_topology(
    tensor: Tensor, topology: fabric_config.Topology | None = None, cluster_axis: int | None = None
) -> fabric_config.Topology:
    """The requested topology, or the fabric's; Linear instead of a Ring and Mesh instead of a Torus that cannot close."""
    mesh = tensor.device()
    if mesh is None:
        raise MeshError(
            "get_usable_topology requires a device tensor; got a host tensor whose mesh placement is unknown",
            expected="a tensor on a device",
            fix="Move it with to_device() first.",
        )
    coords = [MeshCoordinate(coord) for coord in tensor.coords()]
    return fabric_config.get_usable_topology(
        mesh.shape,
        coords,
        topology=topology,
        cluster_axis=cluster_axis,
        config=get_fabric_config(),
        closes=cluster_axis is not None and axis_closes(mesh, cluster_axis),
    )
