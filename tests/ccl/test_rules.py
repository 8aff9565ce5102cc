"""What collectives refuse, which topology results have, and what they count."""

from __future__ import annotations

import gc

import pytest
import torch
from ccl_meshes import lanes_of, on, opened, random_lanes

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.base import settings
from ttmesh.base.dtypes import DataType, bfloat16, float32, uint32
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.base.link_notation import HOST
from ttmesh.base.placement import Replicate, Shard
from ttmesh.ccl.planning.collective_call import collective_names
from ttmesh.ccl.sockets.mesh_sockets import create_socket_pair
from ttmesh.ccl.sockets.socket_config import MeshCoreCoord, SocketConfig, SocketConnection, SocketMemoryConfig
from ttmesh.fabric.fabric_config import FabricConfig, Topology
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.device.opening import open_mesh_device
from ttmesh.ops.catalogue.definition import catalogue
from ttmesh.ops.catalogue.parameter_tags import COMMON, PER_OPERATION
from ttmesh.ops.configs.refused_options import REFUSED

LOCAL = (1, 1, 32, 256)


def sent(mesh: MeshDevice) -> dict[tuple[int, int], int]:
    mesh.quiesce_devices()
    return mesh.traffic.counters.loads()


def hops(mesh: MeshDevice) -> list[tuple[int, int]]:
    ids = mesh.get_device_ids()
    return [(ids[i], ids[(i + 1) % len(ids)]) for i in range(len(ids))]


@pytest.mark.parametrize("name", collective_names)
def test_every_parameter_is_used_refused_or_said_to_have_no_effect(name: str) -> None:
    function = catalogue[name].function
    tags = PER_OPERATION[name] | {p: tag for p, tag in COMMON.items() if tag.kind == "no effect"}
    known = {*function.takes, *tags, *REFUSED.get(name, ())}

    assert [p for p in function.parameters() if p not in known] == []


def test_all_reduce_of_a_replicated_tensor_multiplies_by_the_number_of_devices() -> None:
    with opened((1, 8)) as mesh:
        values = random_lanes((1, 1), LOCAL, bfloat16)

        result = ttnn.all_reduce(on(mesh, values, bfloat16))

        assert torch.equal(lanes_of(result), (values * 8).expand(1, 8, *LOCAL))


def test_a_kept_plan_keeps_no_tensor_alive() -> None:
    with opened((1, 8)) as mesh:
        for call in (ttnn.all_gather, ttnn.reduce_scatter):
            call(on(mesh, random_lanes((1, 8), LOCAL, bfloat16), bfloat16), dim=3)
        ttnn.all_reduce(on(mesh, random_lanes((1, 8), LOCAL, bfloat16), bfloat16))
        gc.collect()

        assert [cell for cell in mesh.heap.cells() if cell.buffer_type is ttnn.BufferType.DRAM] == []


def test_without_an_axis_a_mesh_goes_through_its_axes() -> None:
    with opened((2, 4)) as mesh:
        values = random_lanes((2, 4), LOCAL, float32)
        tensor = on(mesh, values, float32)

        total, scattered = ttnn.all_reduce(tensor), ttnn.reduce_scatter(tensor, 3)

        exact = values.double().sum((0, 1))
        assert torch.allclose(lanes_of(total)[1, 2].double(), exact, atol=1e-5)
        for r in range(2):
            for c in range(4):
                shard = exact.chunk(8, 3)[r * 4 + c]
                assert torch.allclose(lanes_of(scattered)[r, c].double(), shard, atol=1e-5)


def test_a_one_dimensional_fabric_gathers_a_grid_only_along_an_axis() -> None:
    refused = pytest.raises(RuntimeError, match="1D fabric on a 2D mesh_device requires cluster_axis to be set")
    with opened((2, 4)) as mesh, refused:
        ttnn.all_gather(on(mesh, random_lanes((2, 4), LOCAL, bfloat16), bfloat16), 3)
    with opened((2, 4), config=FabricConfig.FABRIC_2D) as mesh:
        values = random_lanes((2, 4), LOCAL, bfloat16)
        for algorithm in (None, "mesh2d", "direct"):
            gathered = ttnn.all_gather(on(mesh, values, bfloat16), 3, algorithm=algorithm)
            expected = torch.cat(list(values.flatten(0, 1)), 3)
            assert torch.equal(lanes_of(gathered), expected.expand(2, 4, *expected.shape))


def test_refusals_carry_tt_nns_texts() -> None:
    with opened((1, 8)) as mesh:
        tensor = on(mesh, random_lanes((1, 8), LOCAL, bfloat16), bfloat16)
        for match, call in (
            ("all_gather collective will only work for num_devices > 1, got 1",
             lambda: ttnn.all_gather(tensor, 0, cluster_axis=0)),
            ("Invalid gather dim 4 for 4D input tensor", lambda: ttnn.all_gather(tensor, 4)),
            ("Invalid cluster axis 2. Must be 0 or 1", lambda: ttnn.all_reduce(tensor, cluster_axis=2)),
            ("num_links must be greater than 0", lambda: ttnn.all_reduce(tensor, num_links=0)),
            ("should be divisible by ring_size but is 1 and the ring_size is 8", lambda: ttnn.reduce_scatter(tensor, 0)),
            ("must be divisible by cluster axis size 8", lambda: ttnn.mesh_partition(tensor, 0)),
            ("no mode named 'hosts'; expected one of", lambda: ttnn.all_reduce(tensor, mode="hosts")),
            ("no reduction named 'sums'; expected one of", lambda: ttnn.all_reduce(tensor, reduction="sums")),
            ("broadcast op will only work for num_devices > 1",
             lambda: ttnn.broadcast(tensor, MeshCoordinate(0, 0), cluster_axis=0)),
            ("Mesh device must contain receiver coordinate device",
             lambda: ttnn.point_to_point(tensor, MeshCoordinate(0, 0), MeshCoordinate(1, 0))),
            ("Output tensor shape must be", lambda: ttnn.all_gather(tensor, 0, output_tensor=tensor)),
        ):  # fmt: skip
            with pytest.raises(RuntimeError, match=match):
                call()
        with pytest.raises(RuntimeError, match="Mesh device is required for all_reduce operation"):
            ttnn.all_reduce(tensor.cpu())


def test_without_a_fabric_links_cannot_be_used_but_the_host_can() -> None:
    mesh = open_mesh_device(MeshShape(1, 8))
    tensor = on(mesh, random_lanes((1, 8), LOCAL, bfloat16), bfloat16)

    with pytest.raises(RuntimeError, match=r"un-initialized fabric context; expected a fabric: set_fabric_config"):
        ttnn.all_reduce(tensor)

    size = tensor.spec.packed_size_bytes
    ttnn.all_reduce(tensor, mode="host")
    expected = {hop: size for chip in mesh.get_device_ids() for hop in ((chip, HOST), (HOST, chip))}
    assert sent(mesh) == expected
    ttnn.mesh_partition(tensor, 3)
    assert sent(mesh) == expected


@pytest.mark.parametrize("shape", [(1, 1, 32, 32), (1, 1, 64, 256), (1, 8, 64, 512)])
@pytest.mark.parametrize("dtype", [bfloat16, float32])
def test_every_collective_goes_through_the_host_without_a_fabric(shape: tuple[int, ...], dtype: DataType) -> None:
    mesh = open_mesh_device(MeshShape(2, 4))
    tensor = on(mesh, random_lanes((2, 4), shape, dtype), dtype)

    for axis in (0, 1):
        ttnn.all_reduce(tensor, cluster_axis=axis, mode="host")
        ttnn.all_gather(tensor, 3, cluster_axis=axis, mode="host")
        ttnn.broadcast(tensor, MeshCoordinate(0, 0), cluster_axis=axis, mode="host")
        ttnn.point_to_point(tensor, MeshCoordinate(0, 0), MeshCoordinate(1, 3), mode="host")
        if shape[3] == 512:
            ttnn.reduce_scatter(tensor, 3, cluster_axis=axis, mode="host")


def test_one_chip_needs_no_fabric() -> None:
    mesh = open_mesh_device(MeshShape(1, 1))
    values = random_lanes((1, 1), (1, 1, 32, 64), bfloat16)
    x = on(mesh, values, bfloat16, layout=ttnn.TILE_LAYOUT)

    normed = ttnn.experimental.dit_fused_distributed_layernorm(x, 0, mesh, [], epsilon=1e-5, dtype=ttnn.float32)

    expected = torch.nn.functional.layer_norm(values.float(), (64,), eps=1e-5)
    assert torch.allclose(lanes_of(normed), expected, atol=1e-5)


def test_links_carry_what_the_algorithm_says() -> None:
    with opened((1, 8), config=FabricConfig.FABRIC_1D_RING) as mesh:
        tensor = on(mesh, random_lanes((1, 8), LOCAL, bfloat16), bfloat16)
        size = tensor.spec.packed_size_bytes
        forward = hops(mesh)
        backward = [(b, a) for a, b in forward]

        ttnn.all_reduce(tensor, algorithm="ring")
        assert sent(mesh) == dict.fromkeys(forward, 2 * 7 * size // 8)

        mesh.traffic.counters.reset()
        ttnn.all_reduce(tensor, algorithm="bidirectional_ring")
        assert sent(mesh) == dict.fromkeys(forward + backward, 7 * size // 8)

        mesh.traffic.counters.reset()
        ttnn.all_reduce(tensor, algorithm="line")
        assert sent(mesh) == dict.fromkeys(forward[:-1] + backward[:-1], size)

        mesh.traffic.counters.reset()
        ttnn.all_gather(tensor, 3, algorithm="ring", mode="host")
        up, down = ([hop for hop in sent(mesh) if hop[end] == HOST] for end in (1, 0))
        assert len(up) == len(down) == 8
        assert set(sent(mesh).values()) == {7 * size}


def test_every_call_and_every_replay_counts() -> None:
    with opened((1, 8)) as mesh:
        tensor = on(mesh, random_lanes((1, 8), LOCAL, bfloat16), bfloat16)
        ttnn.all_reduce(tensor)
        once = sent(mesh)

        trace = ttnn.begin_trace_capture(mesh, cq_id=0)
        ttnn.all_reduce(tensor)
        ttnn.end_trace_capture(mesh, trace, cq_id=0)
        assert sent(mesh) == once
        for _ in range(3):
            ttnn.execute_trace(mesh, trace, blocking=True)

        assert sent(mesh) == {hop: 4 * size for hop, size in once.items()}
        ttnn.release_trace(mesh, trace)


def test_neighbours_that_no_link_joins_are_reached_over_several() -> None:
    with opened((1, 4), system="t3000") as line, pytest.raises(RuntimeError, match="the chips do not form"):
        ttnn.all_reduce(on(line, random_lanes((1, 4), LOCAL, bfloat16), bfloat16), algorithm="ring")
    with opened((1, 8), config=FabricConfig.FABRIC_2D) as mesh:
        mesh.reshape(MeshShape(2, 4))
        ids = mesh.get_device_ids()
        tensor = on(mesh, random_lanes((2, 4), LOCAL, bfloat16), bfloat16)
        ttnn.all_reduce(tensor, cluster_axis=0, algorithm="direct")
        pairs = [(ids[c], ids[4 + c]) for c in range(4)]
        links = sum(mesh.traffic.routes.hops(a, b) for a, b in pairs)

        assert sum(sent(mesh).values()) == 2 * links * tensor.spec.packed_size_bytes


def test_tt_nns_topologies_fall_back_silently() -> None:
    with opened((1, 4)) as mesh:
        tensor = on(mesh, random_lanes((1, 4), LOCAL, bfloat16), bfloat16)
        asked = ttnn.all_reduce(tensor, topology=Topology.Ring)
        ring_loads = sent(mesh)
        mesh.traffic.counters.reset()
        plain = ttnn.all_reduce(tensor, topology=Topology.Linear)

        assert torch.equal(lanes_of(asked), lanes_of(plain))
        assert ring_loads == sent(mesh)
        assert ttnn.get_usable_topology(tensor, topology=Topology.Torus) is Topology.Torus
        assert ttnn.get_usable_topology(tensor, topology=Topology.Linear, cluster_axis=1) is Topology.Linear


def test_results_tell_how_they_lie() -> None:
    with opened((2, 4)) as mesh:
        values = random_lanes((1, 1), (8, 1, 32, 64), bfloat16)[0, 0]
        mapper = ttnn.ShardTensor2dMesh(mesh, mesh_shape=(2, 4), dims=(0, 3))
        tensor = ttnn.from_torch(values, device=mesh, dtype=bfloat16, mesh_mapper=mapper)

        def placements_of(result: ttnn.Tensor) -> list[object]:
            return result.tensor_topology().placements()

        assert placements_of(tensor) == [Shard(0), Shard(3)]
        assert placements_of(ttnn.all_gather(tensor, 3, cluster_axis=1)) == [Shard(0), Replicate()]
        assert placements_of(ttnn.all_reduce(tensor, cluster_axis=0)) == [Replicate(), Shard(3)]
        assert placements_of(ttnn.reduce_scatter(tensor, 2, cluster_axis=1)) == [Shard(0), Shard(2)]
        turned_round = ttnn.reduce_scatter(tensor, 3, cluster_axis=0)  # axis 0 inside axis 1: no topology says so
        assert placements_of(turned_round) == [Shard(0), Shard(3)]
        both = ttnn.reduce_scatter(ttnn.all_reduce(tensor, cluster_axis=1), 0, cluster_axis=1).tensor_topology()
        assert both.placements() == [Shard(0)]
        assert both.distribution_shape() == ttnn.MeshShape([8])


def test_all_reduce_refuses_what_its_sum_refuses() -> None:
    with opened((2, 4)) as mesh:
        rows = ttnn.from_torch(torch.zeros(1, 1, 8, 32, dtype=torch.int32), device=mesh, dtype=uint32)
        with pytest.raises(RuntimeError, match="moreh_sum input only supports specific data types"):
            ttnn.all_reduce(rows, cluster_axis=1)
        tiles = ttnn.from_torch(
            torch.zeros(1, 1, 32, 128, dtype=torch.int32), device=mesh, dtype=uint32, layout=ttnn.TILE_LAYOUT
        )
        assert ttnn.all_reduce(tiles, cluster_axis=1).dtype is uint32


def test_a_ring_needs_a_link_between_the_ends() -> None:
    with opened((2, 4)) as mesh:
        tensor = ttnn.from_torch(torch.zeros(1, 1, 32, 128), device=mesh, dtype=bfloat16, layout=ttnn.TILE_LAYOUT)
        assert ttnn.get_usable_topology(tensor, topology=Topology.Ring, cluster_axis=1) is Topology.Linear
        with pytest.raises(RuntimeError, match="Multiple ethernet cores in the same direction"):
            ttnn.all_broadcast(tensor, cluster_axis=1, topology=Topology.Ring)
        with pytest.raises(RuntimeError, match="Could not find any forwarding direction"):
            ttnn.broadcast(tensor, ttnn.MeshCoordinate(0, 1))


def test_a_tensor_on_some_devices_is_reduced_over_those() -> None:
    with opened((1, 8)) as mesh:
        values = random_lanes((1, 1), (4, 1, 32, 64), float32)[0, 0]
        mapper = ttnn.create_mesh_mapper(
            mesh, ttnn.MeshMapperConfig([ttnn.PlacementReplicate(), ttnn.PlacementShard(0)], MeshShape(1, 4))
        )
        tensor = ttnn.from_torch(values, device=mesh, dtype=float32, mesh_mapper=mapper)
        assert len(tensor.coords()) == 4

        total, gathered = ttnn.all_reduce(tensor), ttnn.all_gather(tensor, 0)

        shown = ttnn.get_device_tensors(total)
        assert len(shown) == 4
        assert all(torch.allclose(ttnn.to_torch(shard)[0], values.sum(0), atol=1e-5) for shard in shown)
        assert all(torch.equal(ttnn.to_torch(shard), values) for shard in ttnn.get_device_tensors(gathered))


def test_point_to_point_leaves_the_other_devices_of_the_output_alone() -> None:
    with opened((1, 8)) as mesh:
        values, old = random_lanes((1, 8), LOCAL, bfloat16), random_lanes((1, 8), LOCAL, bfloat16, seed=1)
        output = on(mesh, old, bfloat16)

        ttnn.point_to_point(
            on(mesh, values, bfloat16), MeshCoordinate(0, 1), MeshCoordinate(0, 6), output_tensor=output
        )

        expected = old.clone()
        expected[0, 6] = values[0, 1]
        assert torch.equal(lanes_of(output), expected)


def test_a_device_that_sends_to_itself_needs_no_fabric() -> None:
    here = MeshCoordinate(0, 0)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    try:
        values = random_lanes((1, 1), LOCAL, bfloat16)
        tensor, output = on(mesh, values, bfloat16), on(mesh, torch.zeros_like(values), bfloat16)
        programs = mesh.num_program_cache_entries()

        same = ttnn.point_to_point(tensor, here, here, output_tensor=tensor)
        assert same.buffer_unique_id() == tensor.buffer_unique_id()
        assert mesh.num_program_cache_entries() == programs

        assert torch.equal(lanes_of(ttnn.point_to_point(tensor, here, here)), values)
        ttnn.point_to_point(tensor, here, here, output_tensor=output)
        assert torch.equal(lanes_of(output), values)
        assert mesh.num_program_cache_entries() > programs
        with pytest.raises(MeshError, match="must contain sender coordinate"):
            ttnn.point_to_point(tensor, MeshCoordinate(0, 1), MeshCoordinate(0, 1), output_tensor=tensor)
    finally:
        ttnn.close_mesh_device(mesh)


def test_a_persistent_buffer_takes_the_result() -> None:
    with opened((1, 8)) as mesh:
        values = random_lanes((1, 8), LOCAL, bfloat16)
        tensor = on(mesh, values, bfloat16, layout=ttnn.TILE_LAYOUT)
        gathered = on(mesh, random_lanes((1, 1), (8, 1, 32, 256), bfloat16), bfloat16, layout=ttnn.TILE_LAYOUT)
        shard = on(mesh, random_lanes((1, 1), (1, 1, 32, 32), bfloat16), bfloat16, layout=ttnn.TILE_LAYOUT)
        semaphores = [ttnn.create_global_semaphore(mesh, ttnn.CoreRange((0, 0), (0, 0)), 0) for _ in range(3)]

        result = ttnn.experimental.all_gather_async(tensor, gathered, 0, semaphores[:2])
        scattered = ttnn.experimental.reduce_scatter_minimal_async(tensor, [tensor, shard], 3, semaphores)

        assert result.buffer_unique_id() == gathered.buffer_unique_id()
        assert scattered.buffer_unique_id() == shard.buffer_unique_id()
        assert torch.equal(lanes_of(gathered)[0, 5], values[0, :, 0])


def test_the_report_draws_loads_and_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    with opened((1, 8)) as mesh:
        ttnn.all_reduce(on(mesh, random_lanes((1, 8), (1, 1, 1024, 512), bfloat16), bfloat16))
        ttnn.all_reduce(on(mesh, random_lanes((1, 8), LOCAL, bfloat16), bfloat16), mode="host")

        mesh.quiesce_devices()
        mesh.fabric_report()

        text = capsys.readouterr().out
        assert "[Dev 4]" in text
        assert "→ 1" in text
        assert "bytes per link" in text
        assert "host to chips 128" in text


def connections(shape: tuple[int, int]) -> list[SocketConnection]:
    cores = ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 1)
    coords = [MeshCoordinate(r, c) for r in range(shape[0]) for c in range(shape[1])]
    return [SocketConnection(MeshCoreCoord(c, cores[0]), MeshCoreCoord(c, cores[1])) for c in coords]


@pytest.mark.parametrize("fifo_size", [1024, 1 << 20])
@pytest.mark.parametrize("schedule", ["eager", "async", "adversarial"])
def test_a_send_goes_through_a_socket_whether_or_not_it_fits_its_fifo(fifo_size: int, schedule: str) -> None:
    settings.override("TTMESH_SCHEDULE", schedule)
    with opened((1, 8)) as mesh:
        sender, receiver = (mesh.create_submesh(MeshShape(1, 4), MeshCoordinate(0, at)) for at in (0, 4))
        config = SocketConfig(connections((1, 4)), SocketMemoryConfig(ttnn.BufferType.L1, fifo_size))
        ends = create_socket_pair(sender, receiver, config)
        values = random_lanes((1, 4), LOCAL, bfloat16)
        tensor, output = on(sender, values, bfloat16), on(receiver, torch.zeros_like(values), bfloat16)

        for _ in range(3):
            ttnn.experimental.send_async(tensor, ends[0])
            ttnn.experimental.recv_async(output, ends[1])
        ttnn.synchronize_device(receiver)

        assert torch.equal(lanes_of(output), values)
        assert sum(sent(mesh).values()) > 0


def test_a_send_without_a_receive_is_a_deadlock_that_names_both() -> None:
    with opened((1, 8)) as mesh:
        sender, receiver = (mesh.create_submesh(MeshShape(1, 4), MeshCoordinate(0, at)) for at in (0, 4))
        config = SocketConfig(connections((1, 4)), SocketMemoryConfig(ttnn.BufferType.DRAM, 1024))
        ends = create_socket_pair(sender, receiver, config)
        tensor = on(sender, random_lanes((1, 4), LOCAL, bfloat16), bfloat16)
        output = on(receiver, random_lanes((1, 4), LOCAL, bfloat16), bfloat16)
        ttnn.experimental.send_async(tensor, ends[0])

        with pytest.raises(RuntimeError, match=r"deadlock: .*send_async waits for a receive, or room in the FIFO"):
            ttnn.synchronize_device(sender)
        with pytest.raises(RuntimeError, match="recv_async op requires a RECEIVER socket"):
            ttnn.experimental.recv_async(output, ends[0])

        ttnn.experimental.recv_async(output, ends[1])
        ttnn.synchronize_device(sender)


def test_a_fifo_must_hold_a_page() -> None:
    with opened((1, 8)) as mesh:
        config = SocketConfig(connections((1, 8)), SocketMemoryConfig(ttnn.BufferType.L1, 64))
        ends = create_socket_pair(mesh, mesh, config)
        with pytest.raises(RuntimeError, match="send_async op requires a fifo size of at least 512 bytes, got 64"):
            ttnn.experimental.send_async(on(mesh, random_lanes((1, 8), LOCAL, bfloat16), bfloat16), ends[0])


def test_ttmeshs_own_names_take_a_tensor_and_a_mode() -> None:
    with opened((1, 8)) as mesh:
        values = random_lanes((1, 8), LOCAL, bfloat16)
        tensor = on(mesh, values, bfloat16)

        for mode in ("host", "fabric"):
            total, every = ttmesh.all_reduce(tensor, mode=mode), ttmesh.all_gather(tensor, mode=mode)

            assert torch.equal(lanes_of(total)[0, 3], values.float().sum(1)[0].bfloat16())
            assert torch.equal(lanes_of(every)[0, 5], values[0, :, 0])
        assert list(ttmesh.all_to_all(tensor, 2, 3).shape) == [1, 1, 256, 32]


def test_a_partition_of_one_chips_tensor_is_its_part_of_the_mesh() -> None:
    with opened((2, 4)) as mesh:
        lanes = random_lanes((2, 4), (1, 1, 256, 32), bfloat16)
        shard = ttnn.get_device_tensors(on(mesh, lanes, bfloat16))[5]

        along_axis, over_all = ttnn.mesh_partition(shard, 2, cluster_axis=1), ttnn.mesh_partition(shard, 2)

        assert along_axis.coords() == over_all.coords() == [(1, 1)]
        assert torch.equal(lanes_of(along_axis)[1, 1], lanes[1, 1, :, :, 64:128])
        assert torch.equal(lanes_of(over_all)[1, 1], lanes[1, 1, :, :, 160:192])


def test_the_topology_of_a_tensor_makes_no_other_program() -> None:
    with opened((2, 4)) as mesh:
        values = torch.zeros(8, 1, 32, 128)
        mappers = [ttnn.ShardTensorToMesh(mesh, dim=0), ttnn.ShardTensor2dMesh(mesh, (2, 4), (None, 0))]
        shapes = [values, values[:4]]
        tensors = [
            ttnn.from_torch(one, ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)
            for one, mapper in zip(shapes, mappers, strict=True)
        ]
        assert tensors[0].tensor_topology() != tensors[1].tensor_topology()
        calls = [
            lambda x: ttnn.broadcast(x, MeshCoordinate(0, 0), cluster_axis=1),
            lambda x: ttnn.all_broadcast(x, cluster_axis=1),
            lambda x: ttnn.all_gather(x, dim=3, cluster_axis=1),
            lambda x: ttnn.all_reduce(x, cluster_axis=1),
        ]
        for call in calls:
            call(tensors[0])
            programs = mesh.num_program_cache_entries()
            call(tensors[1])
            assert mesh.num_program_cache_entries() == programs


def test_the_host_converts_what_a_mapper_uploads_while_sub_devices_are_loaded() -> None:
    with opened((2, 4)) as mesh:
        cores = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(3, 3))])

        def upload() -> int:
            mapper = ttnn.ReplicateTensorToMesh(mesh)
            ttnn.from_torch(torch.ones(32, 32), ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)
            return mesh.num_program_cache_entries()

        mesh.load_sub_device_manager(mesh.create_sub_device_manager([ttnn.SubDevice([cores])], 0))
        assert upload() == 0
        mesh.clear_loaded_sub_device_manager()
        assert upload() == 2


def test_a_gather_over_the_whole_mesh_keeps_the_distribution_flat() -> None:
    with opened((2, 4), config=FabricConfig.FABRIC_2D) as mesh:
        mapper = ttnn.ShardTensorToMesh(mesh, dim=3)
        x = ttnn.from_torch(torch.zeros(1, 1, 32, 256), layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)

        topology = ttnn.all_gather(x, dim=3).tensor_topology()

        assert topology.distribution_shape() == MeshShape([8])
        assert topology.placements() == [Replicate()]


def test_a_direct_send_needs_no_fifo_for_a_page() -> None:
    with opened((1, 2)) as mesh:
        first, second = (mesh.create_submesh(MeshShape(1, 1), MeshCoordinate(0, i)) for i in range(2))
        core = MeshCoreCoord(MeshCoordinate(0, 0), ttnn.CoreCoord(0, 0))
        config = SocketConfig([SocketConnection(core, core)], SocketMemoryConfig(ttnn.BufferType.L1, 128))
        sender, receiver = create_socket_pair(first, second, config)
        values = torch.arange(2048.0).reshape(1, 1, 2, 1024).bfloat16()
        source = ttnn.from_torch(values, device=first)
        target = ttnn.from_torch(torch.zeros_like(values), device=second)

        ttnn.experimental.send_direct_async(source, sender)
        ttnn.experimental.recv_direct_async(target, receiver)

        assert torch.equal(ttnn.to_torch(target), values)
        with pytest.raises(RuntimeError, match="send_async op requires a fifo size of at least 2048 bytes, got 128"):
            ttnn.experimental.send_async(source, sender)
