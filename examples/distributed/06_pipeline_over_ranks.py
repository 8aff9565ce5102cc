"""A pipeline: every rank has a mesh of its own with one stage, and sockets carry the micro-batches between them.

    ttmesh launch -n 2 --mesh-per-rank examples/distributed/06_pipeline_over_ranks.py

More stages with -n 4, on several hosts with --hosts a,b. The last stage compares with one torch process.
"""

from __future__ import annotations

import sys

import torch

import ttmesh.ttnn as ttnn

CHIPS, ROWS, WIDTH, MICRO_BATCHES = 4, 32, 128, 8


def socket_between(device: ttnn.MeshDevice, sender: int, receiver: int) -> ttnn.MeshSocket:
    """Every chip of the sender's mesh to its like; two micro-batches fit between the stages."""
    cores = [ttnn.MeshCoreCoord(c, ttnn.CoreCoord(0, 0)) for c in ttnn.MeshCoordinateRange(device.shape)]
    memory = ttnn.SocketMemoryConfig(ttnn.BufferType.DRAM, fifo_size=2 * ROWS * WIDTH * 2)
    connections = [ttnn.SocketConnection(core, core) for core in cores]
    return ttnn.MeshSocket(device, ttnn.SocketConfig(connections, memory, sender_rank=sender, receiver_rank=receiver))


def main() -> int:
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_2D)  # 2D: between meshes
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, CHIPS))
    stage, stages = int(ttnn.distributed_context_get_rank()), int(ttnn.distributed_context_get_size())
    if stages < 2:
        print("Start several ranks: ttmesh launch -n 2 --mesh-per-rank examples/distributed/06_pipeline_over_ranks.py")
        return 2

    torch.manual_seed(0)  # the same numbers on every rank; each uses its own stage
    weights = torch.randn(stages, WIDTH, WIDTH) / WIDTH**0.5
    batches = torch.randn(MICRO_BATCHES, CHIPS * ROWS, WIDTH)
    split = ttnn.ShardTensorToMesh(device, dim=0)
    weight = ttnn.from_torch(weights[stage], dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)

    # Both ranks of a pair create their sockets in the same order.
    before = socket_between(device, stage - 1, stage) if stage else None
    after = socket_between(device, stage, stage + 1) if stage + 1 < stages else None
    results = []
    for batch in batches:
        if before is None:
            x = ttnn.from_torch(batch, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device, mesh_mapper=split)
        else:
            x = ttnn.allocate_tensor_on_device(ttnn.TensorSpec((ROWS, WIDTH), ttnn.bfloat16, ttnn.TILE_LAYOUT), device)
            ttnn.experimental.recv_async(x, before)
        y = ttnn.relu(ttnn.matmul(x, weight))
        if after is None:
            results.append(y)
        else:
            ttnn.experimental.send_async(y, after)
    ttnn.synchronize_device(device)
    print(f"stage {stage} of {stages}: {MICRO_BATCHES} micro-batches of {CHIPS * ROWS} rows went through", flush=True)

    if after is None:
        expected = batches
        for w in weights:
            expected = torch.relu(expected @ w)
        join = ttnn.ConcatMeshToTensor(device, dim=0)
        got = torch.stack([ttnn.to_torch(y, mesh_composer=join).float() for y in results])
        error = (got - expected).abs().max().item()
        print(f"largest difference to torch: {error:.3f} (bfloat16)", flush=True)
        if error > 0.1:
            return 1
    ttnn.close_device(device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
