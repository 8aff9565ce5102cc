"""Lanes on an NVIDIA GPU."""

from __future__ import annotations

import torch

from ttmesh.chip.backends.backend_protocol import Backend


class CudaBackend(Backend):
    """Torch's current CUDA device."""

    device = torch.device("cuda")

    def unavailable(self) -> str | None:
        """Torch must see a GPU."""
        return None if torch.cuda.is_available() else "torch sees no CUDA device"

    def start(self) -> None:
        """float32 convolutions are computed in float32: cuDNN takes 10 bits of mantissa by default."""
        torch.backends.cudnn.allow_tf32 = False

    def synchronize(self) -> None:
        """Wait for the GPU's current stream of every thread."""
        torch.cuda.synchronize()

    def release(self) -> None:
        """Empty torch's caching allocator."""
        torch.cuda.empty_cache()


BACKEND = CudaBackend()
