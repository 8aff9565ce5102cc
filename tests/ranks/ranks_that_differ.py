"""What two ranks run that do not do the same: each difference is named on both, and they go on together."""

from __future__ import annotations

import pytest
import torch

import ttmesh.ttnn as ttnn

ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
rank = int(ttnn.distributed_context_get_rank())
SHAPES = r"rank 0: MeshShape\(\[2, 4\]\) of t3000 on .*; rank 1: MeshShape\(\[1, 8\]\) of t3000 on .*"
with pytest.raises(RuntimeError, match="ranks that present one mesh open it differently: " + SHAPES):
    ttnn.open_mesh_device(ttnn.MeshShape(2, 4) if rank == 0 else ttnn.MeshShape(1, 8))
with pytest.raises(
    RuntimeError, match=r"open it differently: .* 1 command queue\(s\); rank 1: .* 2 command queue\(s\)"
):
    ttnn.open_mesh_device(ttnn.MeshShape(2, 4), num_command_queues=1 + rank)

mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))


def tensor(columns: int) -> ttnn.Tensor:
    mapper = ttnn.ShardTensorToMesh(mesh, 0)
    return ttnn.from_torch(torch.ones(8, columns), layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)


small, large = tensor(32), tensor(64)
AXIS = r"ranks call different operations on group 'axis 1 of mesh 2x4, queue 0': "
with pytest.raises(RuntimeError, match=AXIS + r"rank 0: all_reduce \(sum\) of .*; rank 1: all_gather of "):
    ttnn.all_reduce(small, cluster_axis=1) if rank == 0 else ttnn.all_gather(small, 0, cluster_axis=1)
with pytest.raises(RuntimeError, match=AXIS + r"rank 0: .*32\] float32; rank 1: .*64\] float32"):
    ttnn.all_gather(large if rank else small, 0, cluster_axis=1)
total = ttnn.to_torch(ttnn.all_reduce(small, cluster_axis=1), mesh_composer=ttnn.ConcatMeshToTensor(mesh, 0))
assert total.eq(4).all()
ttnn.close_mesh_device(mesh)
print(f"rank {rank} is content", flush=True)
