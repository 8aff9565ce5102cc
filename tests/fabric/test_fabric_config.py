"""Fabric settings print as TT-NN's, and the usable topology follows TT-NN's rule."""

from __future__ import annotations

import pytest

from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange, MeshShape
from ttmesh.fabric.fabric_config import (
    FabricConfig,
    FabricManagerMode,
    FabricRouterConfig,
    Topology,
    axis_topology,
    convert_2d_to_1d_topology,
    fabric_topology,
    get_usable_topology,
    is_2d,
)
from ttmesh.fabric.nodes import FabricNodeId, MeshId


def test_names_print_as_in_tt_nn() -> None:
    assert str(FabricConfig.FABRIC_1D_RING) == "FabricConfig.FABRIC_1D_RING"
    assert repr(FabricNodeId(MeshId(0), 3)) == "FabricNodeId(M0, D3)"
    assert repr(MeshId(2)) == "MeshId(2)"
    assert int(MeshId(2)) == 2
    assert FabricManagerMode.DEFAULT == FabricManagerMode.INIT_FABRIC | FabricManagerMode.TERMINATE_FABRIC
    assert FabricRouterConfig().max_packet_payload_size_bytes is None


def _usable(dims: tuple[int, int], topology: Topology | None, axis: int | None, config: FabricConfig) -> Topology:
    shape = MeshShape(dims)
    coords = MeshCoordinateRange(shape).coords()
    return get_usable_topology(shape, coords, topology=topology, cluster_axis=axis, config=config)


@pytest.mark.parametrize(
    ("dims", "topology", "axis", "config", "usable"),
    [
        ((1, 8), Topology.Ring, None, FabricConfig.FABRIC_1D_RING, Topology.Ring),
        ((1, 8), None, None, FabricConfig.FABRIC_1D_RING, Topology.Ring),
        ((1, 8), None, None, FabricConfig.FABRIC_1D, Topology.Linear),
        ((1, 2), Topology.Ring, None, FabricConfig.FABRIC_1D_RING, Topology.Linear),
        ((2, 4), Topology.Ring, None, FabricConfig.FABRIC_1D_RING, Topology.Linear),
        ((2, 4), Topology.Ring, 0, FabricConfig.FABRIC_1D_RING, Topology.Linear),
        ((2, 4), Topology.Ring, 1, FabricConfig.FABRIC_1D_RING, Topology.Ring),
        ((8, 4), None, None, FabricConfig.FABRIC_2D_TORUS_XY, Topology.Torus),
        ((2, 4), None, 0, FabricConfig.FABRIC_2D_TORUS_XY, Topology.Mesh),
        ((2, 4), Topology.Mesh, 0, FabricConfig.FABRIC_2D, Topology.Mesh),
        ((2, 4), Topology.Linear, 0, FabricConfig.DISABLED, Topology.Linear),
    ],
)
def test_what_cannot_close_falls_back(
    dims: tuple[int, int], topology: Topology | None, axis: int | None, config: FabricConfig, usable: Topology
) -> None:
    assert _usable(dims, topology, axis, config) is usable


def test_a_tensor_on_part_of_the_mesh_does_not_close() -> None:
    coords = [MeshCoordinate(0, c) for c in range(1, 4)]

    assert get_usable_topology(MeshShape(1, 4), coords, topology=Topology.Ring) is Topology.Linear


def test_an_unset_fabric_has_no_topology() -> None:
    with pytest.raises(MeshError, match="Unsupported fabric config: DISABLED; expected one of"):
        fabric_topology(FabricConfig.DISABLED)


def test_one_axis_of_a_fabric() -> None:
    assert axis_topology(FabricConfig.FABRIC_2D_TORUS_X, 1, closes=True) is Topology.Ring
    assert axis_topology(FabricConfig.FABRIC_2D_TORUS_X, 0, closes=True) is Topology.Linear
    assert axis_topology(FabricConfig.FABRIC_1D_RING, 0, closes=True) is Topology.Ring
    assert axis_topology(FabricConfig.FABRIC_1D_RING, 0, closes=False) is Topology.Linear
    assert convert_2d_to_1d_topology(Topology.Torus) is Topology.Ring
    assert convert_2d_to_1d_topology(Topology.Mesh) is Topology.Linear
    assert convert_2d_to_1d_topology(Topology.Ring) is Topology.Ring
    assert is_2d(FabricConfig.FABRIC_2D_TORUS_Y)
    assert not is_2d(FabricConfig.FABRIC_1D_RING)
