"""Checkpoints: full tensors in safetensors files, so that training can be resumed, also on another mesh shape."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from ttmesh.base.errors import MeshError
from ttmesh.nn.parameters import ParameterSet
from ttmesh.nn.weights.saved_state import SavedState
from ttmesh.tensor.transfer.safetensors_files import TensorFileError, read_tensors, write_tensors


class Resumable(Protocol):
    """What a checkpoint stores: an optimiser with its parameters, `Optimiser` or `Zero`."""

    parameters: ParameterSet

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Full tensors by name."""

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors of `state_dict`."""

    def restore(self, saved: SavedState) -> None:
        """Write these values into parameters and optimiser states."""


def save_checkpoint(path: str | Path, *optimisers: Resumable) -> None:
    """Write parameters and optimiser states (one optimiser per stage); a file is never left half-written.

    Where several ranks share a mesh, the first one writes and the others return once the file exists.
    """
    tensors: dict[str, torch.Tensor] = {}
    for optimiser in optimisers:
        found = optimiser.state_dict()
        twice = [name for name in found if name in tensors and name.startswith("parameter.")]
        if twice:
            raise MeshError(
                f"{twice[0]} is in several optimisers",
                expected="each parameter in one optimiser",
                fix="Give parameters of different layers different names.",
            )
        tensors |= found
    rank_block = next((p.mesh.rank_block for optimiser in optimisers for p in optimiser.parameters.values()), None)
    if rank_block is None or rank_block.is_first:
        _write(Path(path), tensors)
    if rank_block is not None:
        rank_block.host.barrier()


def _write(target: Path, tensors: dict[str, torch.Tensor]) -> None:
    try:
        write_tensors(target, tensors)
    except OSError as problem:
        raise MeshError(
            f"the checkpoint {target} cannot be written: {problem}",
            expected="an existing, writable folder with enough space",
            fix="Choose another path; an earlier checkpoint at this path is unchanged.",
        ) from None


def load_checkpoint(path: str | Path, *optimisers: Resumable) -> None:
    """Load parameters and optimiser states from a file, sharded for the meshes they are on now."""
    if not Path(path).exists():
        raise MeshError(f"no checkpoint at {path}", expected="a file of save_checkpoint()", fix="Check the path.")
    try:
        tensors, _ = read_tensors(Path(path))
    except TensorFileError as problem:
        raise MeshError(
            f"{path} is not a checkpoint: {problem.reason}",
            expected="a file of save_checkpoint()",
            fix="Check the path.",
        ) from None
    saved = SavedState(tensors, str(path))
    for optimiser in optimisers:  # check all shapes before anything is loaded
        for name, shape in optimiser.state_shapes().items():
            saved.take(name, shape)
    for optimiser in optimisers:
        optimiser.restore(saved)
