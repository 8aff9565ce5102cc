"""What collectives refuse in TT-NN's words, and what a tensor that takes a result says of itself afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ccl_meshes import opened

import ttmesh.ttnn as ttnn

LINE = ttnn.Topology.Linear
SHAPE = (1, 2, 128, 512)
E = ttnn.experimental


def make(mesh: Any, shape: tuple[int, ...] = SHAPE, dtype: Any = ttnn.bfloat16, layout: Any = ttnn.TILE_LAYOUT) -> Any:
    mapper = ttnn.ReplicateTensorToMesh(mesh)
    return ttnn.from_torch(torch.zeros(shape), dtype=dtype, layout=layout, device=mesh, mesh_mapper=mapper)


def semaphores(mesh: Any, count: int) -> list[Any]:
    return [ttnn.create_global_semaphore(mesh, ttnn.CoreRange((0, 0), (0, 0)), 0) for _ in range(count)]


Call = Callable[[Any, Any], Any]
REFUSED: list[tuple[str, Call]] = [
    ("ShapeBase[] index out of range. 2 not in [-4, 2)", lambda m, x: ttnn.all_gather(x, 3, cluster_axis=2)),
    ("Invalid cluster axis 5. Must be 0 or 1", lambda m, x: ttnn.broadcast(x, ttnn.MeshCoordinate(0, 0), cluster_axis=5)),
    ("however is 7", lambda m, x: ttnn.reduce_scatter(x, 7, cluster_axis=1)),
    ("however is 18446744073709551615", lambda m, x: ttnn.reduce_scatter(x, -5, cluster_axis=1)),
    ("ShapeBase[] index out of range. 4 not in [-4, 4)", lambda m, x: ttnn.mesh_partition(x, 4, cluster_axis=1)),
    (
        "Dimension input should be in between -4 and 3, but has 4",
        lambda m, x: E.all_gather_async(x, None, 4, semaphores(m, 2), cluster_axis=1, topology=LINE),
    ),
    (
        "Invalid scatter dim 4294967295 for rank 4 tensor",
        lambda m, x: E.reduce_scatter_minimal_async(x, None, -5, semaphores(m, 3), cluster_axis=1, topology=LINE),
    ),
    (
        "out of bounds. 2 ethernet channels available to forward b/w src (M0, D0) and dst (M0, D1)",
        lambda m, x: ttnn.reduce_scatter(x, 3, cluster_axis=1, num_links=3),
    ),
    (
        "2 ethernet channels available to forward b/w src (M0, D0) and dst (M0, D4)",
        lambda m, x: ttnn.all_broadcast(x, cluster_axis=0, num_links=4),
    ),
    ("num_links must be greater than 0", lambda m, x: ttnn.reduce_scatter(x, 3, cluster_axis=1, num_links=0)),
    (
        "Default implementation requires 2 semaphores",
        lambda m, x: E.all_gather_async(x, None, 3, semaphores(m, 3), cluster_axis=1, topology=LINE),
    ),
    (
        "Expected 3 semaphores but got 1",
        lambda m, x: E.reduce_scatter_minimal_async(x, None, 3, semaphores(m, 1), cluster_axis=1, topology=LINE),
    ),
    (
        "Topology must be either Ring or Linear",
        lambda m, x: E.reduce_scatter_minimal_async(
            x, None, 3, semaphores(m, 3), cluster_axis=1, topology=ttnn.Topology.Mesh
        ),
    ),
    (
        "bad optional access",
        lambda m, x: ttnn.all_gather(x, 3, cluster_axis=1, memory_config=ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG),
    ),
    (
        "Output tensor shape must be Shape([1, 2, 128, 2048]), got Shape([1, 2, 128, 512])",
        lambda m, x: ttnn.all_gather(x, 3, cluster_axis=1, output_tensor=x),
    ),
    (
        "Output tensor spec TensorSpec(logical_shape=Shape([1, 2, 128, 512])",
        lambda m, x: ttnn.reduce_scatter(x, 3, cluster_axis=1, output_tensor=x),
    ),
    (
        "Error, Output tensor dtype should be same as input tensor dtype but has DataType::FLOAT32",
        lambda m, x: E.all_gather_async(
            x, make(m, (1, 2, 128, 2048), ttnn.float32), 3, semaphores(m, 2), cluster_axis=1, topology=LINE
        ),
    ),
    ("Mesh device is required for all_reduce operation", lambda m, x: ttnn.all_reduce(ttnn.from_device(x), cluster_axis=1)),
    (
        "requires TILE layout",
        lambda m, x: E.reduce_scatter_minimal_direct(ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT), 3, cluster_axis=1),
    ),
    (
        "is hardcoded for tt::tt_fabric::Topology::Ring",
        lambda m, x: E.deepseek_moe_reduce_scatter([x] * 8, x.memory_config(), 3, cluster_axis=1),
    ),
    (
        "Unsupported memory layout for input tensorTensorMemoryLayout::INTERLEAVED.",
        lambda m, x: E.all_reduce_async(x, x, 1, m, semaphores(m, 1)[0]),
    ),
    (
        "1D fabric on a 2D mesh_device requires cluster_axis to be set",
        lambda m, x: E.all_reduce_async(x, cluster_axis=None, mesh_device=m, math_op=ttnn.ReduceType.Sum),
    ),
]  # fmt: skip


def test_collectives_refuse_in_the_words_of_ttnn() -> None:
    with opened((2, 4)) as mesh:
        x = make(mesh)

        for text, call in REFUSED:
            with pytest.raises(RuntimeError) as refused:
                call(mesh, x)
            assert text in str(refused.value)


def test_a_freed_tensor_is_named_by_the_collective() -> None:
    with opened((2, 4)) as mesh:
        x, y = make(mesh), make(mesh)
        ttnn.all_reduce(x, cluster_axis=1)
        ttnn.deallocate(y)

        with pytest.raises(RuntimeError, match="Mesh device is required for all_reduce operation"):
            ttnn.all_reduce(y, cluster_axis=1)


def test_a_given_output_takes_the_topology_of_the_result() -> None:
    with opened((2, 4)) as mesh:
        x, part, total = make(mesh), make(mesh, (1, 2, 128, 128)), make(mesh)

        ttnn.reduce_scatter(x, 3, cluster_axis=1, output_tensor=part)
        sharded = ttnn.from_torch(
            torch.zeros(2, 2, 128, 2048), layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat16, device=mesh,
            mesh_mapper=ttnn.ShardTensor2dMesh(mesh, mesh_shape=(2, 4), dims=(0, -1)),
        )  # fmt: skip
        ttnn.add(sharded, sharded, output_tensor=total)

        assert str(part.tensor_topology().placements()) == "[PlacementReplicate(), PlacementShard(3)]"
        assert total.tensor_topology() == sharded.tensor_topology()


def test_two_forms_of_a_program_count_twice() -> None:
    with opened((2, 4)) as mesh:
        x = make(mesh)
        counts = []
        for options in ({}, {"num_links": 1}, {"num_links": 2}, {"num_workers_per_link": 2}):
            before = mesh.num_program_cache_entries()
            ttnn.reduce_scatter(x, 3, cluster_axis=1, **options)
            counts.append(mesh.num_program_cache_entries() - before)

        assert counts == [1, 0, 1, 1]
        assert ttnn.get_num_links(mesh, 1) == 1


def test_a_reopened_mesh_has_no_routers_until_the_fabric_is_set_again() -> None:
    with opened((2, 4)):
        pass
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    ttnn.close_mesh_device(ttnn.open_mesh_device(ttnn.MeshShape(2, 4)))
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    try:
        x = make(mesh)

        assert ttnn.get_fabric_config() is ttnn.FabricConfig.DISABLED
        assert tuple(ttnn.all_gather(x, 3, cluster_axis=1).shape) == (1, 2, 128, 2048)
        with pytest.raises(RuntimeError, match="Unsupported fabric config"):
            ttnn.reduce_scatter(x, 3, cluster_axis=1)
    finally:
        ttnn.close_mesh_device(mesh)
        ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
