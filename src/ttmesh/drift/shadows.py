"""Float32 shadows of what cells hold: what would be there had nothing ever been rounded."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ref

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, FLOATS
from ttmesh.chip.cells import Cell
from ttmesh.tensor.spec.tensor_spec import TensorSpec

_Memory = tuple[torch.device, int]


def _find_memory(values: torch.Tensor) -> _Memory:
    """Where values lie; no two tensors that are kept lie at one place unless they share it."""
    return values.device, values.data_ptr()


class _Shadow:
    """Float32 lanes, valid while the cell holds the values that they were made for."""

    __slots__ = ("lanes", "leaf", "values")

    def __init__(self, lanes: torch.Tensor, values: torch.Tensor | None, leaf: bool) -> None:
        self.lanes, self.values, self.leaf = lanes, None if values is None else ref(values), leaf

    def fits(self, cell: Cell) -> bool:
        """Whether nobody else wrote the cell since."""
        return self.values is not None and cell.values is not None and self.values() is cell.values


class Shadows:
    """Shadows by cell, and the unrounded values of what came from the host, by the memory that holds the rounded ones.

    That memory is kept, so nothing else can ever lie there.
    """

    def __init__(self) -> None:
        self._by_cell: dict[int, tuple[Cell, _Shadow]] = {}
        self._originals: dict[_Memory, tuple[torch.Tensor, torch.Tensor]] = {}

    def remember_original(self, lanes: torch.Tensor, original: torch.Tensor) -> None:
        """Keep what a host tensor was before it was rounded."""
        self._originals[_find_memory(lanes)] = (lanes, original)

    def follow_transfer(self, lanes: torch.Tensor, sent: torch.Tensor) -> None:
        """Lanes of the host are on a device: in other memory there, as on a GPU, or in the same."""
        found = self._originals.get(_find_memory(lanes))
        if found is not None and found[1].numel() == sent.numel():
            self._originals.setdefault(_find_memory(sent), (sent, found[1].reshape(sent.shape)))

    def find(self, cell: Cell, spec: TensorSpec) -> tuple[torch.Tensor, bool]:
        """The shadow of a cell in a shape, and whether it is a leaf: nothing that an operation made.

        What nobody knows of, such as bytes of kernels, is its own shadow.
        """
        held = cell.read(spec)
        known = self._by_cell.get(id(cell))
        entry = known[1] if known is not None and known[1].fits(cell) else None
        if entry is not None:
            lanes, leaf = entry.lanes, entry.leaf
        else:
            lanes, leaf = self._original_of(held), True
        if lanes.shape[cell.lane_axes :] != held.shape[cell.lane_axes :]:
            if lanes.numel() // _lanes(lanes, cell) != held.numel() // _lanes(held, cell):
                return widen(held, spec), True
            lanes = lanes.reshape(*lanes.shape[: cell.lane_axes], *held.shape[cell.lane_axes :])
        return (lanes if lanes.is_floating_point() else widen(held, spec)), leaf

    def keep(self, cell: Cell, lanes: torch.Tensor) -> None:
        """Make lanes the shadow of what a cell holds now."""
        self._by_cell[id(cell)] = (cell, _Shadow(lanes, cell.values, False))

    def _original_of(self, held: torch.Tensor) -> torch.Tensor:
        found = self._originals.get(_find_memory(held)) if not held.is_meta and held.numel() else None
        if found is not None and found[0].shape == held.shape:
            return found[1].to(held.device)
        return held.float() if held.is_floating_point() else held


def _lanes(values: torch.Tensor, cell: Cell) -> int:
    count = 1
    for size in values.shape[: cell.lane_axes]:
        count *= size
    return max(count, 1)


def widen(held: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Values of a float format in float32; integers as they are."""
    return held.float() if spec.dtype in FLOATS or spec.dtype in BLOCK_FLOATS else held


def widen_all(cells: Sequence[Cell], specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
    """What cells hold, in float32."""
    return [widen(cell.read(spec), spec) for cell, spec in zip(cells, specs, strict=True)]
