"""Giving an open mesh another shape: what its chips hold moves with them, also between the ranks that divide it."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING

import torch

from ttmesh.base import settings
from ttmesh.base.errors import NotEmulatedError, RankError
from ttmesh.base.geometry import MeshShape
from ttmesh.base.records import Closed
from ttmesh.base.signals import signals
from ttmesh.chip.cells import Cell
from ttmesh.mesh.ranks.rank_block import DividedShape, RankBlock
from ttmesh.mesh.ranks.rank_division import described_grids, rank_grid

if TYPE_CHECKING:
    from ttmesh.mesh.device.mesh_device import MeshDevice

Move = Callable[[torch.Tensor], torch.Tensor]


def rearrange(mesh: MeshDevice, shape: MeshShape, physical_ids: tuple[int, ...]) -> None:
    """The chips in this order and shape. All ranks that divide the mesh call it: each gets a block of the new one."""
    for queue in mesh.queues:
        queue.finish()
    old, order = mesh.shape, [mesh.physical_ids.index(chip) for chip in physical_ids]
    part = None if mesh.part is None else _part(mesh.part, shape)
    if part is None:
        _move(mesh.heap.cells(), shape, lambda lanes: _reordered(lanes, old, shape, order))
    else:
        _check_claim(mesh, part, physical_ids)
        _move_between_ranks(mesh, shape, part, order)
    mesh.set_shape(shape if part is None else DividedShape(part), physical_ids, part)
    mesh.plans.clear()
    if signals.listening:
        if part is not None:  # other chips are this rank's now
            signals.emit(Closed(mesh.id(), time.time_ns()))
        for record in mesh.standing() if part is None else mesh.holdings():
            signals.emit(record)


def _part(old: RankBlock, shape: MeshShape) -> RankBlock:
    """This rank's part of the new shape: the same ranks, in the same order."""
    described = described_grids(settings.get_str("TT_MESH_GRAPH_DESC_PATH"))
    grid = rank_grid(shape.to_tuple(), len(old.ranks), described)
    places = list(product(*map(range, grid)))
    part = RankBlock(shape.to_tuple(), grid, None if old.place is None else places[old.number], old.ranks)
    return part


def _check_claim(mesh: MeshDevice, part: RankBlock, physical_ids: tuple[int, ...]) -> None:
    """A rank that owns some chips only cannot be given others."""
    hidden = sorted(set(part.among(physical_ids)) - set(mesh.local_ids())) if mesh.claim is not None else []
    if hidden:
        raise NotEmulatedError(
            f"reshaping {mesh!r} to {part.whole} gives this rank the chips {hidden}, which it has not claimed",
            expected="ranks that may use every chip",
            fix="Unset TT_VISIBLE_DEVICES, or open the mesh with the shape you need.",
        )


def _move(cells: list[Cell], shape: MeshShape, moved: Move) -> None:
    for cell in cells:
        if cell.values is not None:
            cell.values = moved(cell.values)
        if cell.raw is not None:
            cell.raw = moved(cell.raw)
        cell.lane_axes = shape.dims()


def _move_between_ranks(mesh: MeshDevice, shape: MeshShape, new: RankBlock, order: list[int]) -> None:
    old, whole = mesh.part, MeshShape(mesh.shape.to_tuple())
    assert old is not None, "the mesh is divided"
    if old.place is None:
        _move(mesh.heap.cells(), shape, lambda lanes: lanes)
        return
    gc.collect()  # what one rank has not collected yet the others would not send
    cells = sorted(mesh.heap.cells(), key=lambda cell: (cell.buffer_type.value, cell.address))
    whole_lanes = _agreed(mesh, cells, old)

    def moved(lanes: torch.Tensor) -> torch.Tensor:
        if whole_lanes:
            lanes = lanes.expand(*old.block, *lanes.shape[len(old.block) :])
        return new.own_block(_reordered(old.gathered(lanes), whole, shape, order)).clone()

    new.join(len(mesh.queues), f"{mesh!r} as {shape!r}")  # before anything moves: it refuses what ranks do not agree on
    _move(cells, shape, moved)


def _agreed(mesh: MeshDevice, cells: list[Cell], part: RankBlock) -> bool:
    """Whether ranks store lanes differently, so that every lane must be sent; ranks with different buffers are told so."""
    axes = len(part.grid)

    def described(tensor: torch.Tensor | None) -> list[object]:
        return [] if tensor is None else [str(tensor.dtype), list(tensor.shape[axes:])]

    def extents(tensor: torch.Tensor | None) -> list[int]:
        return [] if tensor is None else list(tensor.shape[:axes])

    held = [[c.buffer_type.name, c.address, described(c.values), described(c.raw)] for c in cells]
    lanes = [[extents(c.values), extents(c.raw)] for c in cells]
    told = [json.loads(text) for text in part.host.all_gather_bytes(json.dumps([held, lanes]).encode())]
    if any(row[0] != held for row in told):
        counts = ", ".join(f"rank {rank}: {len(row[0])}" for rank, row in zip(part.host.ranks, told, strict=True))
        raise RankError(
            f"ranks hold different buffers while {mesh!r} is reshaped ({counts})",
            expected="the same tensors on every rank, so that what chips hold can move with them",
            fix="Deallocate what some ranks have already dropped, or reshape first.",
            ranks=part.ranks,
        )
    return any(row[1] != lanes for row in told)


def _reordered(lanes: torch.Tensor, old: MeshShape, new: MeshShape, order: list[int]) -> torch.Tensor:
    axes = old.dims()
    tail = lanes.shape[axes:]
    if all(extent == 1 for extent in lanes.shape[:axes]):
        return lanes.reshape(*[1] * new.dims(), *tail)
    flat = lanes.expand(*old, *tail).reshape(old.mesh_size(), *tail)
    return flat[order].reshape(*new, *tail)
