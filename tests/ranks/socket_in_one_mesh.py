"""What two ranks run that present one mesh together: a socket from some chips of one to some of the other."""

from __future__ import annotations

import torch

import ttmesh.ttnn as ttnn

ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 8))
rank = int(ttnn.distributed_context_get_rank())
values = torch.arange(8 * 1024.0).reshape(8, 1, 32, 32)
split = ttnn.ShardTensorToMesh(mesh, dim=0)


def core(column: int) -> ttnn.MeshCoreCoord:
    return ttnn.MeshCoreCoord(ttnn.MeshCoordinate(0, column), ttnn.CoreCoord(0, 0))


def put(lanes: torch.Tensor) -> ttnn.Tensor:
    return ttnn.from_torch(lanes, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=split)


connections = [ttnn.SocketConnection(core(1), core(6)), ttnn.SocketConnection(core(3), core(5))]
memory = ttnn.SocketMemoryConfig(ttnn.BufferType.L1, 4096)
socket = ttnn.MeshSocket(mesh, ttnn.SocketConfig(connections, memory, sender_rank=0, receiver_rank=1))
tensor, output = put(values), put(torch.zeros_like(values))
if rank == 0:
    ttnn.experimental.send_async(tensor, socket)
else:
    ttnn.experimental.recv_async(output, socket)
ttnn.distributed_context_barrier()  # which also compares what the ranks have allocated

expected = torch.zeros_like(values)
expected[6], expected[5] = values[1], values[3]
got = ttnn.to_torch(output, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=0))
assert torch.equal(got, expected), got[:, 0, 0, 0]
ttnn.close_device(mesh)
print(f"rank {rank} of one mesh is content", flush=True)
