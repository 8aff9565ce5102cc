"""What every rank of a pipeline launch runs: one stage of an MLP, micro-batches forth and gradients back over sockets."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

import ttmesh.ttnn as ttnn
from ttmesh.base.errors import RankError
from ttmesh.fabric.messaging import engines
from ttmesh.nn.tape import tape

ROWS, WIDTH, CHIPS, MICRO, RATE = 32, 64, 2, 4, 0.01
mode = sys.argv[1]

ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_2D)
mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, CHIPS))
rank, stages = int(ttnn.distributed_context_get_rank()), int(ttnn.distributed_context_get_size())
last = stages - 1
generator = torch.Generator().manual_seed(0)
weights = [torch.randn(WIDTH, WIDTH, generator=generator) / 8 for _ in range(stages)]
batches = torch.randn(MICRO, CHIPS * ROWS, WIDTH, generator=generator)
targets = torch.randn(MICRO, CHIPS * ROWS, WIDTH, generator=generator)
SPEC = ttnn.TensorSpec((ROWS, WIDTH), ttnn.float32, ttnn.TILE_LAYOUT)


def joined(sender: int, receiver: int) -> ttnn.MeshSocket | None:
    """A socket whose FIFO holds one micro-batch; None past the ends of the pipeline."""
    if not (0 <= sender <= last and 0 <= receiver <= last):
        return None
    coords = [ttnn.MeshCoreCoord(ttnn.MeshCoordinate(0, c), ttnn.CoreCoord(0, 0)) for c in range(CHIPS)]
    memory = ttnn.SocketMemoryConfig(ttnn.BufferType.DRAM, ROWS * WIDTH * 4)
    return ttnn.MeshSocket(
        mesh, ttnn.SocketConfig([ttnn.SocketConnection(c, c) for c in coords], memory, sender, receiver)
    )


def put(values: torch.Tensor, *, split: bool) -> ttnn.Tensor:
    mapper = ttnn.ShardTensorToMesh(mesh, dim=0) if split else ttnn.ReplicateTensorToMesh(mesh)
    return ttnn.from_torch(values, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)


if mode != "train":
    with tape() as warm:  # first calls take long, and are not what is timed here
        y = ttnn.relu(ttnn.matmul(put(batches[0], split=True), put(weights[0], split=False)))
        y = ttnn.sum(ttnn.multiply(ttnn.subtract(y, y), y))
    warm.backward(y, [])
    ttnn.distributed_context_barrier()
    engines.world().timeout_s = float(sys.argv[2])
# Both ranks of a pair make their sockets in one order: forth, then back.
x_in, g_out = joined(rank - 1, rank), joined(rank, rank - 1)
x_out, g_in = joined(rank, rank + 1), joined(rank + 1, rank)
weight = put(weights[rank], split=False)


def received(socket: ttnn.MeshSocket) -> ttnn.Tensor:
    return ttnn.experimental.recv_async(ttnn.allocate_tensor_on_device(SPEC, mesh), socket)[0]


def step() -> ttnn.Tensor:
    """All micro-batches forwards, then all backwards; the sum of the weight's gradients."""
    walked, total = [], None
    for batch, target in zip(batches, targets, strict=True):
        x = received(x_in) if x_in else put(batch, split=True)
        with tape() as record:
            y = ttnn.relu(ttnn.matmul(x, weight))
            if x_out is None:
                off = ttnn.subtract(y, put(target, split=True))
                y = ttnn.sum(ttnn.multiply(off, off))
        if x_out:
            ttnn.experimental.send_async(y, x_out)
        walked.append((record, x, y))
    for record, x, y in walked:
        seed = received(g_in) if g_in else 1.0
        slope, x_slope = record.backward(y, [weight, x], seed=seed)
        if g_out:
            ttnn.experimental.send_async(x_slope, g_out)
        total = slope if total is None else ttnn.add(total, slope)
    return total


def reference() -> torch.Tensor:
    """This stage's weight after the same step, in one process."""
    leaves = [w.clone().requires_grad_() for w in weights]
    y = batches
    for leaf in leaves:
        y = torch.relu(y @ leaf)
    ((y - targets) ** 2).sum().backward()
    return (leaves[rank] - RATE * leaves[rank].grad).detach()


if mode in ("train", "cut"):
    total = ttnn.all_reduce(step(), cluster_axis=1)
    trained = ttnn.subtract(weight, ttnn.multiply(total, RATE))
    got = ttnn.to_torch(trained, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=0))
    for chip in got.split(WIDTH):
        torch.testing.assert_close(chip, reference(), rtol=1e-4, atol=1e-5)  # sums of 256 rows in another order
    print(f"stage {rank} of {stages} is trained", flush=True)
if mode == "train":
    ttnn.close_device(mesh)
    sys.exit()

folder = Path(sys.argv[3])
tellers = stages - (mode in ("kill", "stop"))
try:
    if mode == "both receive":
        received(x_in or g_in)
        ttnn.synchronize_device(mesh)
    if mode == "both send":
        for batch in batches:
            ttnn.experimental.send_async(put(batch, split=True), x_out or g_out)
        ttnn.synchronize_device(mesh)
    for number in range(1_000_000):
        step()
        ttnn.synchronize_device(mesh)
        if number == 2 and mode == "cut":
            (folder / f"going{rank}").touch()
        if number == 2 and rank == last:
            if mode == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if mode == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
except RankError as error:
    print(f"rank {rank} was told: {error}", flush=True)
    (folder / f"part{rank}").write_text(str(error))
    (folder / f"part{rank}").rename(folder / f"told{rank}")
# Until everybody has printed: an early exit would look like a second fault.
deadline = time.monotonic() + 120
while time.monotonic() < deadline and len(list(folder.glob("told*"))) < tellers:
    time.sleep(0.02)
os._exit(1)
