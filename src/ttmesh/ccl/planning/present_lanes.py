"""Collectives of tensors on some chips of their mesh: what the other chips hold cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import torch

Coord = tuple[int, ...]
Compute = Callable[..., Sequence[torch.Tensor]]


def hide_absent_lanes(compute: Compute, presences: Sequence[frozenset[Coord] | None]) -> Compute:
    """The same function of lanes; in an input with a presence, the other chips show the values of its first chip.

    Rules that read "the table" of a mesh take it from any chip, so any chip must show the tensor's own values.
    """
    if all(presence is None for presence in presences):
        return compute

    def compute_on_present(*lanes: torch.Tensor) -> Sequence[torch.Tensor]:
        return compute(*map(_hide_absent, lanes, presences))

    return compute_on_present


def _hide_absent(lanes: torch.Tensor, presence: frozenset[Coord] | None) -> torch.Tensor:
    if not presence:  # every chip holds it, or none of this process
        return lanes
    axes = len(next(iter(presence)))
    stored = lanes.shape[:axes]  # an axis of length 1: all along it hold the same
    if all(length == 1 for length in stored):
        return lanes
    present = {tuple(min(c, n - 1) for c, n in zip(coord, stored, strict=True)) for coord in presence}
    first = min(present)
    coords = [coord if coord in present else first for coord in product(*map(range, stored))]
    index = tuple(
        torch.tensor(positions, device=lanes.device, dtype=torch.int64) for positions in zip(*coords, strict=True)
    )
    return lanes[index].reshape(lanes.shape)
