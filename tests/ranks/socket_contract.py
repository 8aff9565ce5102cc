"""What both ranks of a socket launch run: everything a socket between ranks promises, in one process start."""

from __future__ import annotations

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.mesh.functions.queue_functions import event_query

LOCAL = (1, 1, 32, 64)
BYTES = 32 * 64 * 2

ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_2D)
mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 4), trace_region_size=1 << 20, num_command_queues=2)
rank, barrier = int(ttnn.distributed_context_get_rank()), ttnn.distributed_context_barrier
other = 1 - rank


def values(seed: int, lanes: int = 4) -> torch.Tensor:
    return torch.randn(lanes, *LOCAL[1:], generator=torch.Generator().manual_seed(seed)).bfloat16()


def on(device: ttnn.MeshDevice, seed: int) -> ttnn.Tensor:
    mapper = ttnn.ShardTensorToMesh(device, dim=0)
    return ttnn.from_torch(values(seed), layout=ttnn.TILE_LAYOUT, device=device, mesh_mapper=mapper)


def empty(device: ttnn.MeshDevice = mesh) -> ttnn.Tensor:
    spec = ttnn.TensorSpec(LOCAL, ttnn.bfloat16, ttnn.TILE_LAYOUT)
    return ttnn.allocate_tensor_on_device(spec, device)


def on_host(tensor: ttnn.Tensor, device: ttnn.MeshDevice = mesh) -> torch.Tensor:
    return ttnn.to_torch(tensor, mesh_composer=ttnn.ConcatMeshToTensor(device, dim=0))


def config(sender: int, receiver: int, fifo: int = 4 * BYTES, pairs: list[tuple[int, int]] | None = None, **names: int):
    ends = [(c, c) for c in range(4)] if pairs is None else pairs

    def core(column: int) -> ttnn.MeshCoreCoord:
        return ttnn.MeshCoreCoord(ttnn.MeshCoordinate(0, column), ttnn.CoreCoord(0, 0))

    connections = [ttnn.SocketConnection(core(a), core(b)) for a, b in ends]
    memory = ttnn.SocketMemoryConfig(ttnn.BufferType.L1, fifo)
    if names:
        return ttnn.SocketConfig(connections, memory, **names)
    return ttnn.SocketConfig(connections, memory, sender, receiver)


def check_order_over_several_sockets_in_both_directions() -> None:
    forth, again, back = (ttnn.MeshSocket(mesh, config(*ends)) for ends in ((0, 1), (0, 1), (1, 0)))
    mine = forth if rank == 0 else back
    assert mine.get_socket_endpoint_type() is ttnn.SocketEndpoint.SENDER
    node = forth.get_fabric_node_id(ttnn.SocketEndpoint.RECEIVER, ttnn.MeshCoordinate(0, 2))
    assert (int(node.mesh_id), node.chip_id) == (1, mesh.get_fabric_node_id(ttnn.MeshCoordinate(0, 2)).chip_id)
    got = {socket: [empty() for _ in range(3)] for socket in (forth, again, back)}
    for step in range(3):
        for socket, seed in ((forth, 10), (again, 20), (back, 30)):
            if (socket is back) == (rank == 1):
                ttnn.experimental.send_async(on(mesh, seed + step), socket)
    for socket in (back,) if rank == 0 else (again, forth):  # not in the order of the sends
        for tensor in got[socket]:
            ttnn.experimental.recv_async(tensor, socket)
    ttnn.synchronize_device(mesh)
    for socket, seed in ((back, 30),) if rank == 0 else ((forth, 10), (again, 20)):
        assert all(torch.equal(on_host(t), values(seed + step)) for step, t in enumerate(got[socket]))


def check_a_full_fifo_holds_the_sender_back() -> None:
    socket = ttnn.MeshSocket(mesh, config(0, 1, fifo=2 * BYTES))
    if rank == 0:
        events = []
        for step in range(4):
            ttnn.experimental.send_async(on(mesh, step), socket)
            events.append(ttnn.record_event(mesh, 0))
        ttnn.event_synchronize(events[1])
        assert not event_query(events[2])
        barrier()  # from here the receiver takes them, while this rank stands in a barrier
        barrier()
        ttnn.synchronize_device(mesh)
        assert all(map(event_query, events))
    else:
        barrier()
        tensor = empty()
        for step in range(4):
            ttnn.experimental.recv_async(tensor, socket)
            assert torch.equal(on_host(tensor), values(step))
        barrier()


def check_a_message_larger_than_the_fifo_goes_when_it_is_asked_for() -> None:
    socket = ttnn.MeshSocket(mesh, config(1, 0, fifo=2048))
    if rank == 1:
        for step in range(3):
            ttnn.experimental.send_async(on(mesh, step), socket)
    else:
        tensors = [empty() for _ in range(3)]
        for tensor in tensors:
            ttnn.experimental.recv_async(tensor, socket)
        assert all(torch.equal(on_host(t), values(step)) for step, t in enumerate(tensors))
    barrier()  # the sender's commands run behind its back
    ttnn.synchronize_device(mesh)


def check_traces_send_and_receive() -> None:
    socket = ttnn.MeshSocket(mesh, config(0, 1, fifo=BYTES))
    tensor = on(mesh, 5) if rank == 0 else empty()
    result = empty()
    ttnn.neg(tensor, output_tensor=result)
    ttnn.synchronize_device(mesh)
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    if rank == 0:
        ttnn.neg(tensor, output_tensor=result)
        ttnn.experimental.send_async(result, socket)
    else:
        ttnn.experimental.recv_async(tensor, socket)
        ttnn.neg(tensor, output_tensor=result)
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    for step in range(3):
        if rank == 0:
            fresh = ttnn.from_torch(
                values(40 + step), layout=ttnn.TILE_LAYOUT, mesh_mapper=ttnn.ShardTensorToMesh(mesh, 0)
            )
            ttnn.copy_host_to_device_tensor(fresh, tensor)
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=rank == 1)
        if rank == 1:
            assert torch.equal(on_host(result), values(40 + step))
    ttnn.synchronize_device(mesh)
    ttnn.release_trace(mesh, trace)


def check_some_chips_and_meshes_of_other_shapes() -> None:
    crossed = ttnn.MeshSocket(mesh, config(0, 1, pairs=[(0, 3), (2, 1)]))
    part = mesh.create_submesh(ttnn.MeshShape(1, 2), ttnn.MeshCoordinate(0, 1)) if rank == 1 else mesh
    smaller = ttnn.MeshSocket(part, config(0, 1, pairs=[(3, 0), (1, 1)]))
    if rank == 0:
        ttnn.experimental.send_async(on(mesh, 50), crossed)
        ttnn.experimental.send_async(on(mesh, 51), smaller)
        return
    tensor, half = on(mesh, 60), empty(part)
    ttnn.experimental.recv_async(tensor, crossed)
    ttnn.experimental.recv_async(half, smaller)
    want = values(60)
    want[3], want[1] = values(50)[0], values(50)[2]
    assert torch.equal(on_host(tensor), want)
    assert torch.equal(on_host(half, part), torch.stack([values(51)[3], values(51)[1]]))


def check_mesh_ids_and_replicated_values() -> None:
    socket = ttnn.MeshSocket(mesh, config(0, 0, sender_mesh_id=1, receiver_mesh_id=0))
    if rank == 1:
        same = ttnn.from_torch(
            torch.arange(2048.0).reshape(LOCAL), dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh
        )
        ttnn.experimental.send_async(same, socket)
    else:
        tensor = ttnn.allocate_tensor_on_device(ttnn.TensorSpec(LOCAL, ttnn.float32, ttnn.TILE_LAYOUT), mesh)
        ttnn.experimental.recv_async(tensor, socket)
        assert torch.equal(on_host(tensor), torch.arange(2048.0).reshape(LOCAL).expand(4, *LOCAL[1:]))


def check_what_differs_is_named_on_both_sides() -> None:
    live = len(list(mesh.heap.cells()))
    with pytest.raises(
        RuntimeError, match=rf"Mismatch in socket FIFO size during handshake\. Rank {rank} has {4096 << rank}, "
    ):
        ttnn.MeshSocket(mesh, config(0, 1, fifo=4096 << rank))
    with pytest.raises(
        RuntimeError, match=rf"Mismatch in sender rank during handshake\. Rank {rank} has {rank}, rank {other}"
    ):
        ttnn.MeshSocket(mesh, config(rank, other))
    with pytest.raises(RuntimeError, match="Mismatch in receiver core during handshake"):
        ttnn.MeshSocket(mesh, config(0, 1, pairs=[(0, rank)]))
    text = (
        "out of bounds|out of range|outside"
        if rank == 1
        else r"rank 1 could not make its end of socket #\d+ \(rank 0 → rank 1\)"
    )
    with pytest.raises(RuntimeError, match=text):
        ttnn.MeshSocket(mesh, config(0, 1, pairs=[(0, 7)]))
    for wrong, words in (
        (config(0, 5), "Invalid socket sender rank 0 or receiver rank 5 specified"),
        (config(1, 1), "sender and receiver are both rank 1"),
        (config(0, 0, sender_mesh_id=0, receiver_mesh_id=9), "no rank is bound to mesh 9"),
        (config(0, 0, sender_mesh_id=0), "must specify both sender and receiver mesh IDs or neither"),
        (config(0, 1, pairs=[]), "Socket connection config cannot be empty"),
        (config(0, 1, pairs=[(0, 1), (1, 1)]), "Cannot reuse receiver cores in a single socket"),
    ):
        with pytest.raises(RuntimeError, match=words):
            ttnn.MeshSocket(mesh, wrong)
    assert len(list(mesh.heap.cells())) == live, "an error leaves no memory behind"
    socket = ttnn.MeshSocket(mesh, config(0, 1))
    if rank == 0:
        ttnn.experimental.send_async(on(mesh, 1), socket)
        with pytest.raises(RuntimeError, match="recv_async op requires a RECEIVER socket"):
            ttnn.experimental.recv_async(empty(), socket)
    else:
        wide = ttnn.allocate_tensor_on_device(ttnn.TensorSpec(LOCAL, ttnn.float32, ttnn.TILE_LAYOUT), mesh)
        with pytest.raises(
            RuntimeError, match=r"delivered \[1, 1, 32, 64\] BFLOAT16 TILE; expected \[1, 1, 32, 64\] FLOAT32"
        ):
            ttnn.experimental.recv_async(wide, socket)
            ttnn.synchronize_device(mesh)


for name, check in list(globals().items()):
    if name.startswith("check_"):
        check()
        barrier()
sent = mesh.traffic.counters.host_bytes()
ttnn.close_device(mesh)
print(f"rank {rank} kept the contract and moved {'something' if sent else 'nothing'}", flush=True)
