"""What every rank runs: sums over ranks that keep their lanes differently, or have no compiled kernels."""

from __future__ import annotations

import os

if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    os.environ["TTMESH_KERNELS"] = "0"  # before ttmesh reads it: this rank adds with torch

import torch

import ttmesh.ttnn as ttnn

ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
rank = int(ttnn.distributed_context_get_rank())
mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 8))
for columns in (64, 20_000):
    values = torch.arange(8.0)[:, None] + torch.arange(columns) % 7
    tensor = ttnn.from_torch(values, device=mesh, mesh_mapper=ttnn.ShardTensorToMesh(mesh, 0))
    for lanes_as_one in (False, True):
        if lanes_as_one and rank == 0:  # four chips that hold the same are one lane here, four on the other rank
            same = tensor.buffer.cell.values[:, :1].clone()
            tensor.buffer.cell.write(same, tensor.buffer.cell.format)
        for _ in range(2):
            total = ttnn.to_torch(ttnn.get_device_tensors(ttnn.all_reduce(tensor, cluster_axis=1))[0])
            expected = (values[:1] * 4 + values[4:].sum(0)) if lanes_as_one else values.sum(0, keepdim=True)
            assert torch.equal(total.float().reshape(-1), expected.reshape(-1)), (columns, lanes_as_one)
ttnn.close_mesh_device(mesh)
print(f"rank {rank} has every sum")
