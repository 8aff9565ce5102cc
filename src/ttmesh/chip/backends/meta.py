"""Lanes without values: shapes and addresses only, for dry runs of models larger than memory."""

from __future__ import annotations

import torch

from ttmesh.chip.backends.backend_protocol import Backend


class MetaBackend(Backend):
    """Torch's meta device."""

    device = torch.device("meta")

    def generator(self, seed: int) -> torch.Generator:
        """A host stream: meta tensors draw nothing."""
        return torch.Generator().manual_seed(seed)


BACKEND = MetaBackend()
