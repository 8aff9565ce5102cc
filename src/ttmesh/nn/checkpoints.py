"""Training states on disk: whole tensors in safetensors, so that a run can go on, also on another mesh shape."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from ttmesh.base.errors import MeshError
from ttmesh.nn.parameters import ParameterSet
from ttmesh.nn.weights.whole_tensors import Saved
from ttmesh.tensor.transfer.safetensors_files import TensorFileError, read_tensors, write_tensors


class Resumable(Protocol):
    """What a checkpoint is made of: an optimiser with its parameters, whole or cut (`Zero`)."""

    parameters: ParameterSet

    def saved(self) -> dict[str, torch.Tensor]:
        """Whole tensors by name."""

    def saved_shapes(self) -> dict[str, tuple[int, ...]]:
        """Their names and shapes."""

    def restore(self, saved: Saved) -> None:
        """Take them up again."""


def save_checkpoint(path: str | Path, *optimisers: Resumable) -> None:
    """Write parameters and optimiser states (one optimiser per stage); the file is complete or not there.

    Of ranks that divide a mesh the first one writes, and the others return when the file is there.
    """
    tensors: dict[str, torch.Tensor] = {}
    for optimiser in optimisers:
        found = optimiser.saved()
        twice = [name for name in found if name in tensors and name.startswith("parameter.")]
        if twice:
            raise MeshError(
                f"{twice[0]} is in several optimisers",
                expected="each parameter in one of them",
                fix="Give parameters of different layers different names.",
            )
        tensors |= found
    part = next((p.mesh.rank_block for optimiser in optimisers for p in optimiser.parameters.values()), None)
    if part is None or part.is_first:
        _write(Path(path), tensors)
    if part is not None:
        part.host.barrier()


def _write(target: Path, tensors: dict[str, torch.Tensor]) -> None:
    try:
        write_tensors(target, tensors)
    except OSError as problem:
        raise MeshError(
            f"the checkpoint {target} cannot be written: {problem}",
            expected="a folder that exists and may be written to, with room",
            fix="Choose another path; a checkpoint that was there before is whole.",
        ) from None


def load_checkpoint(path: str | Path, *optimisers: Resumable) -> None:
    """Fill parameters and optimiser states from a file, cut for the meshes they are on now."""
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
    saved = Saved(tensors, str(path))
    for optimiser in optimisers:  # all of it fits before any of it is taken
        for name, shape in optimiser.saved_shapes().items():
            saved.take(name, shape)
    for optimiser in optimisers:
        optimiser.restore(saved)
