"""What four ranks run that tt-run split in two contexts of two: each has its own mesh 0, its own numbers and messages."""

from __future__ import annotations

import pytest
import torch

import ttmesh.ttnn as ttnn

rank, size = int(ttnn.distributed_context_get_rank()), int(ttnn.distributed_context_get_size())
world_rank = int(ttnn.distributed_context_world_rank())
context = ttnn.distributed_context_subcontext_id()
assert (size, int(ttnn.distributed_context_world_size())) == (2, 4)
assert (context, rank) == divmod(world_rank, 2)
assert ttnn.distributed_context_subcontext_count() == 2
assert ttnn.distributed_context_subcontext_sizes() == [2, 2]
assert int(ttnn.distributed_context_local_to_world_rank(1, 0)) == 2
with pytest.raises(IndexError, match="subcontext_id out of range: expected 0 <= subcontext_id < 2, got 2"):
    ttnn.distributed_context_subcontext_size(2)
with pytest.raises(IndexError, match="local_rank out of range for subcontext 0: expected 0 <= local_rank < 2, got 5"):
    ttnn.distributed_context_local_to_world_rank(0, 5)

assert ttnn.distributed_context_allgather_int(world_rank) == [2 * context, 2 * context + 1]
ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 4))
assert len(mesh.get_device_ids()) == 2
mapper = ttnn.ShardTensorToMesh(mesh, 0)
x = ttnn.from_torch(torch.full((4, 32), 1.0 + context), layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)
total = ttnn.to_torch(ttnn.all_reduce(x, cluster_axis=1), mesh_composer=ttnn.ConcatMeshToTensor(mesh, 0))
assert total.eq(4 * (1 + context)).all()
if rank == 0:
    ttnn.distributed_context_send_bytes(bytes([context]), 1)
else:
    assert ttnn.distributed_context_recv_bytes(1, 0) == bytes([context])
ttnn.distributed_context_barrier()
ttnn.close_mesh_device(mesh)
print(f"rank {rank} of context {context} is content", flush=True)
