"""Lanes on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ttmesh.chip.backends.backend_protocol import Backend, Step
from ttmesh.chip.backends.cuda_graphs import TraceReplay
from ttmesh.chip.backends.index_guard import IndexGuard, uses_indices
from ttmesh.chip.cells import Cell


class CudaBackend(Backend):
    """Torch's current CUDA device."""

    device = torch.device("cuda")

    def unavailable(self) -> str | None:
        """Torch must see a GPU."""
        return None if torch.cuda.is_available() else "torch sees no CUDA device"

    def start(self) -> None:
        """float32 convolutions are computed in float32: cuDNN takes 10 bits of mantissa by default."""
        torch.backends.cudnn.allow_tf32 = False

    def start_thread(self) -> None:
        """A thread has no CUDA context before its first call, and cuBLAS warns when that call is its own."""
        torch.cuda.set_device(torch.cuda.current_device())

    def __init__(self) -> None:
        self._guard = IndexGuard()

    def synchronize(self) -> None:
        """Wait for the GPU's current stream of every thread."""
        torch.cuda.synchronize()
        self.check_indices()

    def guard_indices(self, lane: Callable[..., Any], trial: Callable[[], object]) -> Callable[..., Any]:
        """Functions that index get a guard; others run as they are."""
        return self._guard.run(lane) if uses_indices(trial) else lane

    def check_indices(self) -> None:
        """Look at what the guard kept; waits for the GPU where it kept something."""
        self._guard.check()

    def make_replay(self, steps: Sequence[Step], is_live: Callable[[Cell], bool]) -> Callable[[], None]:
        """Replays become launches of a CUDA graph."""
        return TraceReplay(steps, is_live, self._guard)

    def release(self) -> None:
        """Empty torch's caching allocator."""
        torch.cuda.empty_cache()


BACKEND = CudaBackend()
