"""One program for one process and for ranks that divide its mesh: every result under a name, whole, in a file per rank.

    python big_mesh.py OUT [host_topology]

Names that begin with "sum" add floats over ranks, so their last bits follow the order of additions; all others are exact.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.base import settings
from ttmesh.nn import layers
from ttmesh.nn.checkpoints import load_checkpoint, save_checkpoint
from ttmesh.nn.losses import cross_entropy
from ttmesh.nn.optimisers import SGD, AdamW
from ttmesh.nn.parameters import Parameter, ParameterSet
from ttmesh.nn.synchronise import clip_gradients, synchronize_gradients
from ttmesh.nn.tape import tape
from ttmesh.nn.zero import Zero

SHAPE = (2, 8)
Results = dict[str, torch.Tensor]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def cut(mesh: ttnn.MeshDevice, values: torch.Tensor, dims: tuple, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT):
    mapper = ttnn.ShardTensor2dMesh(mesh, SHAPE, dims)
    return ttnn.from_torch(values, dtype=dtype, layout=layout, device=mesh, mesh_mapper=mapper)


def whole(mesh: ttnn.MeshDevice, tensor: ttnn.Tensor) -> torch.Tensor:
    """What every chip holds, as [rows * first dim, cols * last dim]."""
    if len(tensor.shape) < 2:
        return ttnn.to_torch(tensor, mesh_composer=ttnn.ConcatMeshToTensor(mesh, 0))
    return ttnn.to_torch(tensor, mesh_composer=ttnn.ConcatMesh2dToTensor(mesh, SHAPE, (0, len(tensor.shape) - 1)))


def mlp(mesh: ttnn.MeshDevice, dtype: ttnn.DataType) -> Results:
    """Batch over rows, hidden over columns, as Megatron cuts it; sums along both axes; then the same from a trace."""
    x = cut(mesh, drawn(64, 64), (0, None), dtype)
    up = cut(mesh, drawn(64, 256, seed=1) / 8, (None, 1), dtype)
    down = cut(mesh, drawn(256, 64, seed=2) / 16, (None, 0), dtype)

    def forward() -> list[ttnn.Tensor]:
        hidden = ttnn.gelu(ttnn.matmul(x, up))
        out = ttnn.all_reduce(ttnn.matmul(hidden, down), cluster_axis=1)
        scattered = ttnn.reduce_scatter(ttnn.matmul(hidden, down), 0, cluster_axis=0)
        return [out, ttnn.all_reduce(out, cluster_axis=0), ttnn.all_gather(hidden, 1, cluster_axis=1), scattered]

    eager = forward()
    found = {f"sum mlp {dtype.name} {i}": whole(mesh, t) for i, t in enumerate(eager)}
    found[f"mlp {dtype.name} hidden"] = found.pop(f"sum mlp {dtype.name} 2")
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    traced = forward()
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    for again in range(2):
        fresh = ttnn.from_torch(drawn(64, 64, seed=5 + again), dtype=dtype, layout=ttnn.TILE_LAYOUT,
                                mesh_mapper=ttnn.ShardTensor2dMesh(mesh, SHAPE, (0, None)))  # fmt: skip
        ttnn.copy_host_to_device_tensor(fresh, x)
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=False)
        found |= {f"sum traced mlp {dtype.name} {again} {i}": whole(mesh, t) for i, t in enumerate(traced)}
    ttnn.release_trace(mesh, trace)
    return found


def reductions(mesh: ttnn.MeshDevice) -> Results:
    found: Results = {}
    values = drawn(2 * 32, 8 * 64)
    for dtype in (ttnn.float32, ttnn.bfloat16, ttnn.bfloat8_b):
        t = cut(mesh, values, (0, 1), dtype)
        for axis in (0, 1):
            found[f"sum {dtype.name} {axis}"] = whole(mesh, ttnn.all_reduce(t, cluster_axis=axis))
            for dim in (0, 1):
                part = ttnn.reduce_scatter(t, dim, cluster_axis=axis, mode="host")
                found[f"sum scattered {dtype.name} {axis} {dim}"] = whole(mesh, part)
            found[f"gathered {dtype.name} {axis}"] = whole(mesh, ttnn.all_gather(t, 0, cluster_axis=axis))
    t = cut(mesh, values, (0, 1))
    for kind in ("max", "min"):
        found[f"{kind} over columns"] = whole(mesh, ttnn.all_reduce(t, cluster_axis=1, reduction=kind))
    found["sum mean"] = whole(mesh, ttnn.all_reduce(t, cluster_axis=1, reduction="mean"))
    for name in ("direct", "line", "tree"):
        found[f"hop by hop {name}"] = whole(mesh, ttnn.all_reduce(t, cluster_axis=1, algorithm=name, mode="host"))
    found["sum both axes"] = whole(mesh, ttnn.all_reduce(t))
    same = cut(mesh, values[:32, :32], (None, None))
    found["sum of equals"] = whole(mesh, ttnn.all_reduce(same, cluster_axis=1))
    found["gathered equals"] = whole(mesh, ttnn.all_gather(same, 1, cluster_axis=1))
    numbers = torch.arange(2 * 32 * 8 * 32).reshape(64, 256)
    for dtype, mode in ((ttnn.int32, "fabric"), (ttnn.uint32, "host")):  # TT-NN refuses uint32 of one tile per chip
        found[f"count {dtype.name}"] = whole(
            mesh, ttnn.all_reduce(cut(mesh, numbers.int(), (0, 1), dtype), cluster_axis=1, mode=mode)
        )
    return found


def copies(mesh: ttnn.MeshDevice) -> Results:
    values = drawn(2 * 32, 8 * 64)
    t = cut(mesh, values, (0, 1))
    rows = ttnn.to_layout(t, ttnn.ROW_MAJOR_LAYOUT)  # mesh_partition takes whole tiles only
    at = ttnn.MeshCoordinate
    found = {
        "broadcast": ttnn.broadcast(t, at(1, 6), cluster_axis=1),
        "partition 0": ttnn.mesh_partition(rows, 0, 0),
        "partition 1": ttnn.mesh_partition(rows, 1, 1),
        "partition of equals": ttnn.mesh_partition(cut(mesh, values[:32, :256], (None, None)), 1, 1),
        "all to all": ttmesh.all_to_all(t, 0, 1, cluster_axis=1),
        "all to all rows": ttmesh.all_to_all(t, 1, 0, cluster_axis=0),
    }
    for name, sender, receiver in (("near", (0, 0), (0, 1)), ("far", (1, 1), (1, 7)), ("askew", (0, 2), (1, 6))):
        into = cut(mesh, drawn(2 * 32, 8 * 64, seed=9), (0, 1))
        found[f"sent {name}"] = ttnn.point_to_point(t, at(*sender), at(*receiver), output_tensor=into)
    done = {name: whole(mesh, tensor) for name, tensor in found.items()}
    for i, part in enumerate(ttnn.all_broadcast(t, cluster_axis=1)):
        done[f"all broadcast {i}"] = whole(mesh, part)
    into = ttnn.allocate_tensor_on_device(ttnn.TensorSpec([32, 512], ttnn.float32, ttnn.TILE_LAYOUT), mesh)
    semaphores = [ttnn.create_global_semaphore(mesh, ttnn.CoreRange((0, 0), (0, 0)), 0) for _ in range(2)]
    ttnn.experimental.all_gather_async(t, into, 1, semaphores, cluster_axis=1)
    done["all_gather_async"] = whole(mesh, into)
    return done


def experts(mesh: ttnn.MeshDevice) -> Results:
    tokens, k, hidden, count = 2, 3, 32, 32
    home = torch.randperm(count, generator=torch.Generator().manual_seed(0)) % 16
    table = ttnn.from_torch(
        torch.nn.functional.one_hot(home, 16).int()[None, None], dtype=ttnn.uint16, device=mesh,
        mesh_mapper=ttnn.ReplicateTensorToMesh(mesh),
    )  # fmt: skip
    chosen = torch.rand(16 * tokens, count, generator=torch.Generator().manual_seed(1)).argsort(-1)[:, :k]
    spread = ttnn.ShardTensorToMesh(mesh, 0)
    indices = ttnn.from_torch(
        chosen.reshape(16 * tokens, 1, 1, k).int(), dtype=ttnn.uint16, device=mesh, mesh_mapper=spread
    )
    x = ttnn.from_torch(drawn(16 * tokens, 1, 1, hidden), dtype=ttnn.bfloat16, device=mesh, mesh_mapper=spread)
    sent, metadata = ttnn.all_to_all_dispatch(x, indices, table, cluster_axis=1)
    made = ttnn.from_torch(drawn(2 * 16, 8 * tokens, 1, hidden), dtype=ttnn.bfloat16, device=mesh, mesh_mapper=spread)
    back = ttnn.all_to_all_combine(made, metadata, table, cluster_axis=1)
    compose = ttnn.ConcatMeshToTensor(mesh, 0)
    return {
        name: ttnn.to_torch(t, mesh_composer=compose)
        for name, t in (("sent", sent), ("metadata", metadata), ("back", back))
    }


def fused(mesh: ttnn.MeshDevice) -> Results:
    found: Results = {}
    x = cut(mesh, drawn(2 * 32, 8 * 32), (0, 1), ttnn.bfloat16)
    x4 = ttnn.reshape(x, (1, 1, 32, 32))
    semaphore = ttnn.create_global_semaphore(mesh, ttnn.CoreRangeSet([ttnn.CoreRange((0, 0), (0, 0))]), 0)
    config = ttnn.create_sharded_memory_config((32, 32), ttnn.CoreGrid(y=1, x=1), ttnn.ShardStrategy.WIDTH)
    normed = ttnn.fused_rms_minimal(
        x4, ttnn.LayerNormDefaultProgramConfig(), 1, mesh, semaphore, stats=x4, memory_config=config
    )
    found["sum rms"] = whole(mesh, ttnn.reshape(normed, (32, 32)))
    rows = ttnn.to_layout(x4, ttnn.ROW_MAJOR_LAYOUT)
    halo = ttnn.experimental.neighbor_pad_async(rows, [2], [2], [1], "zeros", [1], [semaphore], [semaphore])
    found["halo"] = whole(mesh, ttnn.reshape(halo, (35, 32)))
    return found


def made_here(mesh: ttnn.MeshDevice) -> Results:
    shard = ttnn.MeshMapperConfig([ttnn.PlacementShard(0), ttnn.PlacementShard(1)])
    kinds = {
        "rand": ttnn.rand([64, 256], mesh, dtype=ttnn.float32, seed=7, mesh_mapper=shard),
        "rand everywhere": ttnn.rand([32, 32], mesh, dtype=ttnn.float32, seed=8),
        "randn": ttnn.randn([32, 32], mesh, dtype=ttnn.float32, seed=9),
        "zeros": ttnn.zeros([32, 32], dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh),
        "full": ttnn.full([32, 32], 3.5, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh),
        "arange": ttnn.arange(0, 64, 1, dtype=ttnn.float32, device=mesh),
    }
    chance = cut(mesh, drawn(64, 256).sigmoid(), (0, 1))
    kinds["bernoulli"] = ttnn.bernoulli(chance, 5)
    kinds["uniform"] = ttnn.uniform(cut(mesh, drawn(64, 256), (0, 1)), 0.0, 1.0, 6)
    found = {name: whole(mesh, t) for name, t in kinds.items()}
    unseeded = whole(mesh, ttnn.rand([32, 32], mesh, dtype=ttnn.float32))
    assert torch.equal(unseeded[:32, :32], unseeded[-32:, -32:]), "ranks drew different numbers"
    return found


def transfers(mesh: ttnn.MeshDevice, folder: Path) -> Results:
    found: Results = {}
    values = drawn(3 * 32, 32)
    few = ttnn.from_torch(values, dtype=ttnn.float32, device=mesh, mesh_mapper=ttnn.ShardTensorToMesh(mesh, 0))
    found["three of sixteen"] = ttnn.to_torch(few, mesh_composer=ttnn.ConcatMeshToTensor(mesh, 0))
    found["three doubled"] = ttnn.to_torch(ttnn.multiply(few, 2.0), mesh_composer=ttnn.ConcatMeshToTensor(mesh, 0))
    t = cut(mesh, drawn(64, 256), (0, 1))
    for i, part in enumerate(ttnn.to_torch(t, mesh_composer=ttmesh.ttnn.ListMeshToTensor(mesh))):
        found[f"list {i}"] = part
    first = ttnn.to_torch(t, mesh_composer=ttmesh.on_first_rank(ttnn.ConcatMeshToTensor(mesh, 0)))
    assert (first is None) == (not mesh.is_local(ttnn.MeshCoordinate(0, 0)))
    if first is not None:
        found["on the first rank"] = first
    host = ttnn.from_device(t)
    found["host parts"] = torch.stack([ttnn.to_torch(part) for part in ttnn.get_device_tensors(host)])
    for part in ttnn.get_device_tensors(t):
        (coord,) = part.device_coords()
        assert mesh.is_local(coord)
        found[f"device part {tuple(coord)}"] = ttnn.to_torch(part)
    shards = [ttnn.from_torch(drawn(32, 32, seed=i), dtype=ttnn.float32) for i in range(16)]
    joined = ttnn.from_host_shards(shards, mesh.shape)
    found["from host shards"] = whole(mesh, ttnn.to_device(joined, mesh))
    plain = ttnn.from_host_shards(shards, ttnn.MeshShape(*SHAPE))
    found["from host shards of a plain shape"] = whole(mesh, ttnn.to_device(plain, mesh))
    cached = ttnn.as_tensor(drawn(64, 256), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh,
                            memory_config=ttnn.DRAM_MEMORY_CONFIG, cache_file_name=folder / "weights",
                            mesh_mapper=ttnn.ShardTensor2dMesh(mesh, SHAPE, (0, 1)))  # fmt: skip
    found["as_tensor"] = whole(mesh, cached)
    again = ttnn.as_tensor(torch.zeros(64, 256), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh,
                           memory_config=ttnn.DRAM_MEMORY_CONFIG, cache_file_name=folder / "weights",
                           mesh_mapper=ttnn.ShardTensor2dMesh(mesh, SHAPE, (0, 1)))  # fmt: skip
    found["as_tensor from its file"] = whole(mesh, again)
    assert repr(t).count("device_id") == len(mesh.get_device_ids())
    return found


def submeshes(mesh: ttnn.MeshDevice) -> Results:
    """Quarters of the mesh, each with a sum of its own; where ranks have a quarter each, nothing crosses."""
    found: Results = {}
    quarters = mesh.create_submeshes(ttnn.MeshShape(2, 2))
    for i, quarter in enumerate(quarters):
        mapper = ttnn.ShardTensor2dMesh(quarter, (2, 2), (0, 1))
        t = ttnn.from_torch(
            drawn(64, 64, seed=i), dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=quarter, mesh_mapper=mapper
        )
        total = ttnn.all_reduce(t, cluster_axis=1)
        if quarter.local_range is None:
            with pytest.raises(RuntimeError, match="no chip of this 2x2 mesh is on this rank"):
                ttnn.to_torch(total, mesh_composer=ttnn.ConcatMesh2dToTensor(quarter, (2, 2), (0, 1)))
            continue
        found[f"quarter {i}"] = ttnn.to_torch(total, mesh_composer=ttnn.ConcatMesh2dToTensor(quarter, (2, 2), (0, 1)))
    row = mesh.create_submesh(ttnn.MeshShape(1, 8), ttnn.MeshCoordinate(1, 0))
    mapper = ttnn.ShardTensor2dMesh(row, (1, 8), (None, 1))
    t = ttnn.from_torch(drawn(32, 256), dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=row, mesh_mapper=mapper)
    total = ttnn.all_reduce(t, cluster_axis=1)
    if row.local_range is not None:
        found["sum of a row"] = ttnn.to_torch(total, mesh_composer=ttnn.ConcatMesh2dToTensor(row, (1, 8), (0, 1)))
    return found


def training(mesh: ttnn.MeshDevice, folder: Path) -> Results:
    """Data over rows, hidden units over columns; AdamW, ZeRO and a checkpoint in between."""
    found: Results = {}
    for kind in ("adamw", "zero"):
        model = layers.MLP(mesh, drawn(32, 256) / 6, drawn(256, 32) / 16, ttnn.relu, axis=1, dtype=ttnn.float32)
        head = Parameter(drawn(32, 32) / 8, mesh, dtype=ttnn.float32)
        parameters = ParameterSet({**model.named_parameters(), "head": head})
        optimiser = AdamW(parameters, 1e-2) if kind == "adamw" else Zero(parameters, lambda p: SGD(p, 0.1), axis=0)
        for step in range(3):
            x = cut(mesh, drawn(64, 32, seed=step), (0, None))
            y = cut(mesh, torch.randint(0, 32, (64, 1), generator=torch.Generator().manual_seed(step)).int(), (0, None),
                    ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT)  # fmt: skip
            with tape() as t:
                loss = cross_entropy(ttnn.matmul(model(x), head.tensor), ttnn.reshape(y, (32,)))
            grads = t.backward(loss, [p.tensor for p in parameters.values()])
            for parameter, grad in zip(parameters.values(), grads, strict=True):
                parameter.accumulate(grad)
            if kind == "adamw":
                synchronize_gradients(parameters)
                clip_gradients(parameters, 1.0)
            optimiser.step()
            parameters.zero_grad()
            found[f"sum {kind} loss {step}"] = whole(mesh, ttnn.reshape(loss, (1, 1)))
            if kind == "adamw" and step == 1:
                save_checkpoint(folder / "run.safetensors", optimiser)
                load_checkpoint(folder / "run.safetensors", optimiser)
        found |= {f"sum {kind} {name}": p.to_torch() for name, p in parameters.items()}
    return found


def check_place(mesh: ttnn.MeshDevice) -> None:
    """What a rank says about its part of the mesh."""
    here = mesh.local_range
    assert mesh.shape == ttnn.MeshShape(*SHAPE)
    assert mesh.get_num_devices() == 16
    assert len(mesh.get_device_ids()) == here.shape.mesh_size() == ttnn.get_num_devices()
    view = mesh.get_view()
    remote = [c for c in ttnn.MeshCoordinateRange(mesh.shape) if not view.is_local(c)]
    assert len(remote) + here.shape.mesh_size() == 16
    for coord in remote[:1]:
        with pytest.raises(RuntimeError, match="Attempted to access remote device from process that does not have it!"):
            mesh.get_device_id(coord)


def check_digest(mesh: ttnn.MeshDevice) -> None:
    """Ranks that allocate differently are told at the next barrier which allocation it was."""
    spec = {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT, "device": mesh}
    held = [ttnn.zeros([32, 32], **spec)]
    if not mesh.is_local(ttnn.MeshCoordinate(0, 0)):
        held.append(ttnn.zeros([64, 1024], **spec))
    held += [ttnn.ones([32, 64], **spec) for _ in range(5)]
    words = (
        r"ranks allocated differently on MeshDevice\(2x8 grid, 16 devices\): allocation \d+ is rank 0: 2048 B per bank"
    )
    with pytest.raises(RuntimeError, match=words + r" in DRAM at \d+ for ttnn.full; rank 1: 12288 B per bank in DRAM"):
        ttnn.distributed_context_barrier()


def run(out: Path) -> Results:
    settings.override("TTMESH_SYSTEM", "2x8")
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_2D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(*SHAPE), trace_region_size=1 << 20, num_command_queues=2)
    check_place(mesh)
    folder = out / "shared"
    folder.mkdir(exist_ok=True)
    found: Results = {}
    found |= mlp(mesh, ttnn.float32) | mlp(mesh, ttnn.bfloat16)
    found |= reductions(mesh) | copies(mesh) | experts(mesh) | fused(mesh) | made_here(mesh) | transfers(mesh, folder)
    found |= training(mesh, folder)
    loads = sorted(mesh.traffic.counters.loads().items())
    found["link loads"] = torch.tensor([[*hop, size] for hop, size in loads])
    found |= submeshes(mesh)
    ttnn.distributed_context_barrier()
    found["programs"] = torch.tensor([mesh.num_program_cache_entries()])
    if len(mesh.get_device_ids()) < 16:
        check_digest(mesh)
    ttnn.close_mesh_device(mesh)
    return found | dry_run()


def dry_run() -> Results:
    """Shapes of collectives on a backend without values: ranks have nothing to send."""
    settings.override("TTMESH_BACKEND", "meta")
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_2D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(*SHAPE))
    t = cut(mesh, torch.empty(128, 1024, device="meta"), (0, 1))
    at = ttnn.MeshCoordinate
    made = [
        ttnn.all_reduce(t, cluster_axis=1), ttnn.reduce_scatter(t, 1, cluster_axis=1), ttnn.all_gather(t, 1, cluster_axis=1),
        ttnn.broadcast(t, at(0, 5), cluster_axis=1), ttnn.point_to_point(t, at(0, 0), at(0, 7)),
        ttnn.mesh_partition(ttnn.to_layout(t, ttnn.ROW_MAJOR_LAYOUT), 1, 1),
    ]  # fmt: skip
    return {"dry run": torch.tensor([list(tensor.shape) for tensor in made])}


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if len(sys.argv) > 2:
        settings.override("TT_MESH_GRAPH_DESC_PATH", sys.argv[2])
    results = run(target)
    rank = int(ttnn.distributed_context_get_rank())
    torch.save(results, target / f"rank{rank}.pt")
    print(f"rank {rank} of {int(ttnn.distributed_context_get_size())} has {len(results)} results", flush=True)
