"""Topologies: what TT-NN tells about a distributed tensor, and how an op's output gets one."""

from __future__ import annotations

import pytest

from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange, MeshShape
from ttmesh.base.placement import Replicate, Shard
from ttmesh.tensor.spec.tensor_topology import TensorTopology, merged_topology

COORDS = MeshCoordinateRange(MeshShape(2, 4)).coords()


def grid(*placements) -> TensorTopology:
    return TensorTopology(MeshShape(2, 4), placements, COORDS)


def line(placement) -> TensorTopology:
    return TensorTopology(MeshShape([8]), [placement], COORDS)


def test_parts_and_devices_map_both_ways() -> None:
    topology = line(Shard(0))

    assert topology.get_device_coord(MeshCoordinate([5])) == MeshCoordinate(1, 1)
    assert topology.get_tensor_coord(MeshCoordinate(1, 1)) == MeshCoordinate([5])
    assert topology.get_tensor_coord(MeshCoordinate(2, 0)) is None
    assert topology.get_next_neighbor(MeshCoordinate([7]), 0) == MeshCoordinate([0])
    assert topology.get_prev_neighbor(MeshCoordinate([0]), 0) == MeshCoordinate([7])


def test_a_part_no_device_holds_is_refused() -> None:
    short = TensorTopology(MeshShape([3]), [Shard(0)], COORDS[:2])

    with pytest.raises(RuntimeError, match="Flattened index 2 is out of bounds of mesh_coordinates 2"):
        short.get_device_coord(MeshCoordinate([2]))


def test_merging_keeps_the_first_shard_dim_of_an_axis() -> None:
    merged = merged_topology([grid(Shard(0), Replicate()), grid(Shard(1), Shard(3))], COORDS)

    assert merged.placements() == [Shard(0), Shard(3)]


def test_merging_uses_a_shard_dim_on_one_axis_only() -> None:
    merged = merged_topology([grid(Shard(2), Replicate()), grid(Replicate(), Shard(2))], COORDS)

    assert merged.placements() == [Shard(2), Replicate()]


def test_replicated_inputs_do_not_decide_the_rank() -> None:
    merged = merged_topology([grid(Replicate(), Replicate()), line(Shard(3))], COORDS)

    assert merged == line(Shard(3))


def test_all_replicated_inputs_keep_the_first_ones_rank() -> None:
    assert merged_topology([line(Replicate()), grid(Replicate(), Replicate())], COORDS) == line(Replicate())


def test_prints_as_in_ttnn() -> None:
    topology = TensorTopology(MeshShape(1, 2), [Replicate(), Shard(3)], COORDS[:2])

    assert repr(topology) == (
        "TensorTopology(distribution_shape=MeshShape([1, 2]), "
        "placements=SmallVector([PlacementReplicate(), PlacementShard(3)]), "
        "mesh_coords=MeshCoordinate([0, 0]), MeshCoordinate([0, 1]))"
    )
