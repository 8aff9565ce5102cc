"""What four ranks run: two meshes of two ranks each, joined by mesh ids, and socket pairs inside a divided mesh."""

from __future__ import annotations

import torch

import ttmesh.ttnn as ttnn

ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_2D)
mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 4))
rank = int(ttnn.distributed_context_get_rank())
MEMORY = ttnn.SocketMemoryConfig(ttnn.BufferType.L1, 16384)
VALUES = torch.arange(4 * 1024.0).reshape(4, 1, 32, 32)


def core(column: int) -> ttnn.MeshCoreCoord:
    return ttnn.MeshCoreCoord(ttnn.MeshCoordinate(0, column), ttnn.CoreCoord(0, 0))


def config(pairs: list[tuple[int, int]], **names: int) -> ttnn.SocketConfig:
    return ttnn.SocketConfig([ttnn.SocketConnection(core(a), core(b)) for a, b in pairs], MEMORY, **names)


def put(device: ttnn.MeshDevice, lanes: torch.Tensor) -> ttnn.Tensor:
    mapper = ttnn.ShardTensorToMesh(device, dim=0)
    return ttnn.from_torch(lanes, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=device, mesh_mapper=mapper)


def whole(tensor: ttnn.Tensor, device: ttnn.MeshDevice) -> torch.Tensor:
    return ttnn.to_torch(tensor, mesh_composer=ttnn.ConcatMeshToTensor(device, dim=0))


def check_mesh_ids_join_all_ranks_of_both_meshes() -> None:
    pairs = [(0, 3), (1, 0), (3, 1)]  # within the halves and across them; chip 2 gets nothing
    socket = ttnn.MeshSocket(mesh, config(pairs, sender_mesh_id=0, receiver_mesh_id=1))
    for step in range(3):
        if mesh.get_system_mesh_id() == 0:
            ttnn.experimental.send_async(put(mesh, VALUES + step), socket)
            continue
        output = put(mesh, torch.full_like(VALUES, -1))
        ttnn.experimental.recv_async(output, socket)
        wanted = torch.full_like(VALUES, -1)
        for start, end in pairs:
            wanted[end] = VALUES[start] + step
        assert torch.equal(whole(output, mesh), wanted)


def check_a_pair_joins_submeshes_of_different_ranks() -> None:
    left, right = mesh.create_submeshes(ttnn.MeshShape(1, 2))
    sender, receiver = ttnn.create_socket_pair(left, right, config([(0, 1), (1, 0)]))
    assert sender.get_socket_endpoint_type() is ttnn.SocketEndpoint.SENDER
    tensor, output = put(left, VALUES[:2]), put(right, torch.zeros_like(VALUES[:2]))
    ttnn.experimental.send_async(tensor, sender)
    ttnn.experimental.recv_async(output, receiver)
    ttnn.distributed_context_barrier()  # also compares what was allocated
    if right.is_local(ttnn.MeshCoordinate(0, 0)):
        assert torch.equal(whole(output, right), VALUES[:2].flip(0))


def check_a_pair_joins_a_divided_mesh_with_itself() -> None:
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0)]  # each rank sends to itself and to the other
    sender, receiver = ttnn.create_socket_pair(mesh, mesh, config(pairs))
    output = put(mesh, torch.zeros_like(VALUES))
    for step in range(2):
        ttnn.experimental.send_async(put(mesh, VALUES + step), sender)
    for step in range(2):
        ttnn.experimental.recv_async(output, receiver)
        assert torch.equal(whole(output, mesh), (VALUES + step).roll(1, 0))


for name, check in list(globals().items()):
    if name.startswith("check_"):
        check()
        ttnn.distributed_context_barrier()
ttnn.close_device(mesh)
print(f"rank {rank} is content", flush=True)
