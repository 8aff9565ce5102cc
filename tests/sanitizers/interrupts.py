"""Interrupts at random moments of operations with 8 threads; what a program allocates next stays as it was written."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from types import FrameType

import torch
from sanitized import use_sanitized_kernels

import ttmesh
import ttmesh.ttnn as ttnn

WANTED, SEED = int(sys.argv[2]), int(sys.argv[3])
SHAPE = (1, 1, 256, 512)


def operate(mesh: ttnn.MeshDevice, values: torch.Tensor) -> None:
    """One of each: pack, unpack, tilize, untilize, quantise, sums over chips, matmuls and sums as the FPU has them."""
    mapper = ttnn.ShardTensorToMesh(mesh, dim=-1)
    for dtype in (ttnn.bfloat8_b, ttnn.bfloat4_b, ttnn.bfloat16):
        tensor = ttnn.from_torch(values, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)
        total = ttnn.all_reduce(ttnn.add(tensor, tensor))
        ttnn.to_torch(total, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=-1))
        ttnn.to_torch(
            ttnn.to_layout(tensor, ttnn.ROW_MAJOR_LAYOUT), mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=-1)
        )
    small = ttnn.from_torch(values[..., :64, :128], layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)
    for mode in ("realistic", "exact"):
        with ttmesh.numerics(mode):
            ttnn.matmul(small, small, transpose_b=True)
            ttnn.add(small, small)


class Alarm:
    """Raises one KeyboardInterrupt at a time, and says whether it was raised."""

    def __init__(self) -> None:
        self.armed = False
        signal.signal(signal.SIGINT, self._raise)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def prepare(self, delay_s: float) -> threading.Thread:
        """Arm it; the thread, once started, lets the signal come after a while."""
        main_thread = threading.main_thread().ident
        assert main_thread is not None
        self.armed = True

        def interrupt() -> None:
            time.sleep(delay_s)
            signal.pthread_kill(main_thread, signal.SIGINT)

        return threading.Thread(target=interrupt)


def main() -> None:
    use_sanitized_kernels()
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    values = torch.randn(SHAPE)
    operate(mesh, values)
    start = time.monotonic()
    operate(mesh, values)
    taken_s = time.monotonic() - start
    chance, alarm = random.Random(SEED), Alarm()
    caught = ignored = 0
    for _ in range(WANTED):
        thread = alarm.prepare(chance.uniform(0, taken_s))
        try:
            thread.start()
            while alarm.armed:
                operate(mesh, values)
            ignored += 1  # it came in a destructor, where Python reports exceptions and goes on
        except KeyboardInterrupt:
            caught += 1
        fresh = [torch.full((values.numel(),), 7, dtype=kind) for kind in (torch.float32, torch.bfloat16, torch.uint8)]
        thread.join()
        assert all(bool((tensor == 7).all()) for tensor in fresh), "an interrupted operation wrote into fresh memory"
    operate(mesh, values)
    ttnn.close_mesh_device(mesh)
    print(f"{caught + ignored} interrupts, {ignored} of them in destructors", flush=True)


main()
