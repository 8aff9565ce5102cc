"""What a backend is: the torch device that holds the lanes, and how to prepare, wait for and tidy it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ttmesh.chip.cells import Cell

# A command of a trace: what it does, and the cells it reads and writes.
Step = tuple[Callable[[Sequence[Cell], Sequence[Cell]], None], Sequence[Cell], Sequence[Cell]]


class Backend:
    """One torch device; subclasses override what differs. A backend file holds one as `BACKEND`."""

    device: torch.device

    def unavailable(self) -> str | None:
        """Why this backend cannot be used here, or None when it can."""
        return None

    def start(self) -> None:
        """Prepare the process; called when a mesh opens, harmless when repeated."""

    def start_thread(self) -> None:
        """Prepare the calling thread, which will run commands."""

    def synchronize(self) -> None:
        """Return when everything enqueued so far has run."""

    def release(self) -> None:
        """Give freed memory back to the system; called when a mesh closes."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Lanes with unspecified values."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def guard_indices(self, lane: Callable[..., Any], trial: Callable[[], object]) -> Callable[..., Any]:
        """A lane function whose indices cannot harm the device; `trial` runs it on meta tensors."""
        return lane

    def check_indices(self) -> None:
        """Raise the error of an index out of range that a guarded function met."""

    def make_replay(self, steps: Sequence[Step], is_live: Callable[[Cell], bool]) -> Callable[[], None] | None:
        """A faster way to run these commands of a trace again and again, or None; `is_live`: a program can reach it."""
        return None

    def use_threads(self, size_bytes: int) -> None:
        """Choose how many host threads the next op of this size uses."""

    def generator(self, seed: int) -> torch.Generator:
        """A separate random stream for ops that draw numbers."""
        return torch.Generator(self.device).manual_seed(seed)
