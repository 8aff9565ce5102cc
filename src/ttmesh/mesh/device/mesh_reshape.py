"""Reshape an open mesh: the values that its chips hold move with them, also between the ranks that divide it."""

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
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.mesh.ranks.rank_division import compute_rank_grid, read_host_topologies

if TYPE_CHECKING:
    from ttmesh.mesh.device.mesh_device import MeshDevice

Move = Callable[[torch.Tensor], torch.Tensor]


def rearrange(mesh: MeshDevice, shape: MeshShape, physical_ids: tuple[int, ...]) -> None:
    """Give the mesh another shape and order of chips. Every rank that divides the mesh calls it and gets a new block."""
    for queue in mesh.queues:
        queue.finish()
    old, order = mesh.shape, [mesh.physical_ids.index(chip) for chip in physical_ids]
    block = None if mesh.rank_block is None else _make_new_block(mesh.rank_block, shape)
    if block is None:
        _move_lanes(mesh.heap.cells(), shape, lambda lanes: _reorder_lanes(lanes, old, shape, order))
    else:
        _check_claim(mesh, block, physical_ids)
        _move_between_ranks(mesh, shape, block, order)
    mesh.set_shape(shape, physical_ids, block)
    mesh.plans.clear()
    if signals.listening:
        if block is not None:  # this rank holds other chips now
            signals.emit(Closed(mesh.id(), time.time_ns()))
        for record in mesh.own_records() if block is None else mesh.holdings():
            signals.emit(record)


def _make_new_block(old: RankBlock, shape: MeshShape) -> RankBlock:
    """This rank's block of the new shape; ranks keep their order."""
    described = read_host_topologies(settings.get_str("TT_MESH_GRAPH_DESC_PATH"))
    grid = compute_rank_grid(shape.to_tuple(), len(old.ranks), described)
    positions = list(product(*map(range, grid)))
    return RankBlock(shape.to_tuple(), grid, None if old.position is None else positions[old.index], old.ranks)


def _check_claim(mesh: MeshDevice, block: RankBlock, physical_ids: tuple[int, ...]) -> None:
    """Refuse a new block with chips that this rank has not claimed."""
    hidden = sorted(set(block.select_local(physical_ids)) - set(mesh.local_ids())) if mesh.claim is not None else []
    if hidden:
        raise NotEmulatedError(
            f"reshaping {mesh!r} to {block.full_shape} gives this rank the chips {hidden}, which it has not claimed",
            expected="ranks that may use every chip",
            fix="Unset TT_VISIBLE_DEVICES, or open the mesh with the shape you need.",
        )


def _move_lanes(cells: list[Cell], shape: MeshShape, move: Move) -> None:
    for cell in cells:
        if cell.values is not None:
            cell.values = move(cell.values)
        if cell.raw is not None:
            cell.raw = move(cell.raw)
        cell.lane_axes = shape.dims()


def _move_between_ranks(mesh: MeshDevice, shape: MeshShape, new: RankBlock, order: list[int]) -> None:
    old, old_shape = mesh.rank_block, mesh.shape
    assert old is not None, "the mesh is divided"
    if old.position is None:
        _move_lanes(mesh.heap.cells(), shape, lambda lanes: lanes)
        return
    gc.collect()  # otherwise a rank could still hold a buffer that the others have freed and do not send
    cells = sorted(mesh.heap.cells(), key=lambda cell: (cell.buffer_type.value, cell.address))
    expand = _needs_every_lane(mesh, cells, old)

    def move(lanes: torch.Tensor) -> torch.Tensor:
        if expand:
            lanes = lanes.expand(*old.block_shape, *lanes.shape[len(old.block_shape) :])
        return new.narrow_to_block(_reorder_lanes(old.gather_all(lanes), old_shape, shape, order)).clone()

    # Before anything moves: it refuses ranks that ask for different shapes.
    new.create_groups(len(mesh.queues), f"{mesh!r} as {shape!r}")
    _move_lanes(cells, shape, move)


def _needs_every_lane(mesh: MeshDevice, cells: list[Cell], block: RankBlock) -> bool:
    """Whether ranks store different extents of lanes, so that each sends all of its lanes; refuses different buffers."""
    axes, host = len(block.grid), block.host

    def describe(tensor: torch.Tensor | None) -> list[object]:
        return [] if tensor is None else [str(tensor.dtype), list(tensor.shape[axes:])]

    def extents(tensor: torch.Tensor | None) -> list[int]:
        return [] if tensor is None else list(tensor.shape[:axes])

    held = [[c.buffer_type.name, c.address, describe(c.values), describe(c.raw)] for c in cells]
    lanes = [[extents(c.values), extents(c.raw)] for c in cells]
    reports = [json.loads(text) for text in host.all_gather_bytes(json.dumps([held, lanes]).encode())]
    if any(report[0] != held for report in reports):
        counts = ", ".join(f"rank {rank}: {len(report[0])}" for rank, report in zip(host.ranks, reports, strict=True))
        raise RankError(
            f"ranks hold different buffers while {mesh!r} is reshaped ({counts})",
            expected="the same tensors on every rank, so that values can move with the chips",
            fix="Deallocate the tensors that other ranks have already dropped, or reshape before you make them.",
            ranks=block.ranks,
        )
    return any(report[1] != lanes for report in reports)


def _reorder_lanes(lanes: torch.Tensor, old: MeshShape, new: MeshShape, order: list[int]) -> torch.Tensor:
    axes = old.dims()
    tail = lanes.shape[axes:]
    if all(extent == 1 for extent in lanes.shape[:axes]):
        return lanes.reshape(*[1] * new.dims(), *tail)
    flat = lanes.expand(*old, *tail).reshape(old.mesh_size(), *tail)
    return flat[order].reshape(*new, *tail)
