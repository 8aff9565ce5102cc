"""The block of a mesh that this rank holds where several ranks divide it, and its communication with the other ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import TypeVar

import torch

from ttmesh.base import settings
from ttmesh.base.errors import MeshError, NotEmulatedError, RankError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange, MeshShape
from ttmesh.chip.catalogue import current_system, load_system
from ttmesh.chip.system import System
from ttmesh.fabric.messaging.engines import bindings, world
from ttmesh.fabric.messaging.transport import Transport
from ttmesh.mesh.queue.command_queue import worker
from ttmesh.mesh.ranks.rank_division import compute_rank_grid, divide_box, read_host_topologies

Coord = tuple[int, ...]
T = TypeVar("T")


class RankBlock:
    """One of the equal blocks into which a grid of ranks divides a mesh.

    `position` is this rank's position in the grid, None when it holds no chip of the mesh. Along a divided axis, lanes
    of length 1 mean that all chips of this rank hold the same values; other ranks may hold other values.
    """

    __slots__ = ("_groups", "_host", "block_shape", "full_shape", "grid", "position", "ranks", "start")

    def __init__(self, full_shape: Coord, grid: Coord, position: Coord | None, ranks: tuple[int, ...]) -> None:
        self.full_shape, self.grid, self.position = full_shape, grid, position
        self.ranks = ranks  # world ranks by block, row-major
        self.block_shape = tuple(n // count for n, count in zip(full_shape, grid, strict=True))
        self.start = tuple(at * n for at, n in zip(position or (0,) * len(grid), self.block_shape, strict=True))
        self._groups: dict[tuple[int, int], Transport] = {}
        self._host: Transport | None = None

    @property
    def local_range(self) -> MeshCoordinateRange | None:
        """The coordinates of this rank's chips."""
        if self.position is None:
            return None
        last = [a + n - 1 for a, n in zip(self.start, self.block_shape, strict=True)]
        return MeshCoordinateRange(MeshCoordinate(self.start), MeshCoordinate(last))

    def has_chip(self, coord: Iterable[int]) -> bool:
        """Whether this rank holds the chip at a coordinate."""
        box = zip(self.start, coord, self.block_shape, strict=True)
        return self.position is not None and all(a <= at < a + n for a, at, n in box)

    def select_local(self, chips: Sequence[T]) -> tuple[T, ...]:
        """Of one item per chip of the mesh, given row-major, the items of this rank's chips."""
        coords = product(*map(range, self.full_shape))
        return tuple(chip for chip, coord in zip(chips, coords, strict=True) if self.has_chip(coord))

    def is_divided(self, axis: int) -> bool:
        """Whether chips along an axis belong to several ranks."""
        return self.grid[axis] > 1

    def find_rank(self, coord: Sequence[int]) -> int:
        """The world rank that holds the chip at a coordinate."""
        index = 0
        for at, n, ranks in zip(coord, self.block_shape, self.grid, strict=True):
            index = index * ranks + at // n
        return self.ranks[index]

    def is_same_block(self, other: RankBlock) -> bool:
        """Whether the other block has the same position and shape in a mesh of the same shape."""
        mine, theirs = ((b.full_shape, b.start, b.block_shape) for b in (self, other))
        return mine == theirs

    # ---- lanes

    def to_local(self, coord: Sequence[int]) -> Coord:
        """The position of a chip's lane among this rank's lanes; refuses another rank's chip with TT-Metal's text."""
        if not self.has_chip(coord):
            raise MeshError(
                "Attempted to access remote device from process that does not have it! "
                f"{MeshCoordinate(coord)!r} is held by rank {self.find_rank(coord)}",
                expected=f"a coordinate in {self.local_range!r}",
                fix="Ask is_local(coord) first, or gather all shards with a composer.",
            )
        return tuple(at - a for at, a in zip(coord, self.start, strict=True))

    def find_local_positions(self, coords: frozenset[Coord], gathered: Sequence[int] = ()) -> frozenset[Coord]:
        """The lane positions of those coordinates that this rank holds, or that lanes gathered along some axes hold."""
        spans = [
            (0, full) if axis in gathered else (start, start + count)
            for axis, (full, start, count) in enumerate(zip(self.full_shape, self.start, self.block_shape, strict=True))
        ]
        return frozenset(
            tuple(at - first for at, (first, _) in zip(coord, spans, strict=True))
            for coord in coords
            if all(first <= at < end for at, (first, end) in zip(coord, spans, strict=True))
        )

    def narrow_to_block(self, lanes: torch.Tensor, axes: Sequence[int] | None = None) -> torch.Tensor:
        """A view of this rank's lanes, given those of the full mesh (along some axes or all); an axis of length 1 stays."""
        for axis in range(len(self.grid)) if axes is None else axes:
            if self.is_divided(axis) and lanes.shape[axis] == self.full_shape[axis]:
                lanes = lanes.narrow(axis, self.start[axis], self.block_shape[axis])
        return lanes

    def gather_along(self, lanes: torch.Tensor, axes: Sequence[int] | None = None) -> torch.Tensor:
        """Gather the lanes of the ranks along some axes (all by default); called by a queue's command."""
        for axis in range(len(self.grid)) if axes is None else axes:
            if self.is_divided(axis):
                lanes = self._gather_axis(self.group(axis), lanes, axis)
        return lanes

    def gather_all(self, lanes: torch.Tensor) -> torch.Tensor:
        """Gather the lanes of the full mesh on every rank; called by the program, outside of queues."""
        rows = _all_gather(self.host, lanes)
        if self.host.ranks != self.ranks:
            rows = rows[[self.host.ranks.index(rank) for rank in self.ranks]]
        return self._merge_blocks(rows, lanes)

    def gather_on_first(self, lanes: torch.Tensor) -> torch.Tensor | None:
        """Gather the lanes of the full mesh on the first rank; None on the others."""
        index_of = self.host.ranks.index
        if lanes.is_meta:
            return self.gather_all(lanes) if self.is_first else None
        if not self.is_first:
            self.host.send(lanes, index_of(self.ranks[0]))
            return None
        others = [self.host.recv(torch.empty_like(lanes), index_of(rank)) for rank in self.ranks[1:]]
        return self._merge_blocks(torch.stack([lanes, *others]), lanes)

    def _merge_blocks(self, rows: torch.Tensor, lanes: torch.Tensor) -> torch.Tensor:
        """The lanes of the full mesh, given one row of lanes per block."""
        axes = len(self.grid)
        extents = [
            self.block_shape[axis] if self.is_divided(axis) else lanes.shape[axis] for axis in range(axes)
        ]  # a rank's single lane is the same on all of its chips
        blocks = rows.reshape(*self.grid, *lanes.shape).expand(*self.grid, *extents, *lanes.shape[axes:])
        order = [dim for axis in range(axes) for dim in (axis, axes + axis)]
        permuted = blocks.permute(*order, *range(2 * axes, blocks.dim()))
        return permuted.reshape(*(n * e for n, e in zip(self.grid, extents, strict=True)), *lanes.shape[axes:])

    def _gather_axis(self, group: Transport, lanes: torch.Tensor, axis: int) -> torch.Tensor:
        rows = _all_gather(group, lanes)
        line = self.list_ranks_along(axis)
        if group.ranks != line:
            rows = rows[[group.ranks.index(rank) for rank in line]]
        moved = rows.movedim(0, axis)
        if lanes.shape[axis] != self.block_shape[axis]:
            moved = moved.expand(*moved.shape[: axis + 1], self.block_shape[axis], *moved.shape[axis + 2 :])
        return moved.flatten(axis, axis + 1)

    def order_by_group(self, rows: torch.Tensor, axis: int) -> torch.Tensor:
        """Reorder one row per rank along an axis to the order in which the group counts its ranks."""
        group, line = self.group(axis), self.list_ranks_along(axis)
        return rows if group.ranks == line else rows[[line.index(rank) for rank in group.ranks]]

    def find_common_axis(self, source: Sequence[int], target: Sequence[int]) -> int | None:
        """The axis along which the ranks of two chips are in line (0 for one and the same rank), None for no axis."""
        pairs = zip(source, target, self.block_shape, strict=True)
        differ = [axis for axis, (a, b, n) in enumerate(pairs) if a // n != b // n]
        return differ[0] if len(differ) == 1 else None if differ else 0

    def send_lane(self, lane: torch.Tensor, source: Sequence[int], target: Sequence[int]) -> torch.Tensor:
        """Send a chip's lane to the rank of another chip in line with it, which gets it back; other ranks get `lane`."""
        axis, sender, receiver = self.find_common_axis(source, target), self.find_rank(source), self.find_rank(target)
        assert axis is not None, "the chips' ranks are in one line"
        if sender == receiver or lane.is_meta or not {sender, receiver} <= {*self.list_ranks_along(axis)}:
            return lane
        group = self.group(axis)
        if group.world_rank == sender:
            group.send(lane, group.ranks.index(receiver))
        elif group.world_rank == receiver:
            return group.recv(lane, group.ranks.index(sender))
        return lane

    # ---- ranks

    @property
    def host(self) -> Transport:
        """The group of all ranks of the mesh, for communication outside of command queues."""
        if self._host is None:
            raise self.make_absence_error()
        return self._host

    def group(self, axis: int) -> Transport:
        """The group of ranks along an axis, with the communicator of the current command queue."""
        return self._groups[worker.queue, axis]

    def create_groups(self, queues: int, opened: str) -> None:
        """Create the communicators: one per queue and divided axis, one for the program. Every rank of the mesh calls it.

        `opened` describes what is opened; the text must be the same on every rank.
        """
        job = world()
        assert job is not None, "a divided mesh has several ranks"
        if self.position is None:
            return
        name = "x".join(map(str, self.full_shape))
        self._host = job.subgroup(sorted(self.ranks), f"mesh {name}")
        self._check_same_on_all(f"{opened}, {queues} command queue(s)")
        for queue, axis in product(range(queues), range(len(self.grid))):
            if self.is_divided(axis):
                line = sorted(self.list_ranks_along(axis))
                self._groups[queue, axis] = job.subgroup(line, f"axis {axis} of mesh {name}, queue {queue}")

    def _check_same_on_all(self, opened: str) -> None:
        """Refuse a mesh that ranks open differently: later they would wait for each other, or mix up their data."""
        reported = [text.decode() for text in self.host.all_gather_bytes(opened.encode())]
        if any(text != opened for text in reported):
            what = "; ".join(f"rank {rank}: {text}" for rank, text in zip(self.host.ranks, reported, strict=True))
            raise RankError(
                f"ranks that present one mesh open it differently: {what}",
                expected="the same shape and sizes on every rank",
                fix="Open the same mesh on all of them, or give them different TT_MESH_IDs (--mesh-per-rank).",
                ranks=self.host.ranks,
            )

    @property
    def index(self) -> int:
        """The index of this rank among the ranks of the mesh."""
        assert self.position is not None, "a rank of the mesh"
        return self._compute_index(self.position)

    @property
    def is_first(self) -> bool:
        """Whether this rank has the first block."""
        return self.position is not None and not any(self.position)

    def is_true_everywhere(self, condition: bool) -> bool:
        """Whether every rank of the mesh passes True."""
        return all(row[0] for row in self.host.all_gather_ints([int(condition)]))

    def broadcast_number(self, number: int) -> int:
        """The number that the first rank of the mesh passes."""
        return int(
            self.host.broadcast(
                torch.tensor([number], dtype=torch.int64, device="cpu"), self.host.ranks.index(self.ranks[0])
            )
        )

    def make_submesh_block(self, start: Sequence[int], extent: Sequence[int]) -> RankBlock | None:
        """This rank's block of a submesh; None where this rank holds all of it."""
        division = divide_box(self.full_shape, self.grid, start, extent)
        if division is None:
            raise NotEmulatedError(
                f"a submesh of {list(extent)} at {list(start)} overlaps the ranks' blocks of "
                f"{list(self.block_shape)} unevenly",
                expected="a submesh inside one block, or one that covers equal parts of several blocks",
                fix="Choose a shape and an offset that are multiples of the blocks, or a submesh inside one block.",
            )
        first, count, _ = division
        if prod(count) == 1 and first == self.position:
            return None
        position = None
        if self.position is not None:
            relative = tuple(at - low for at, low in zip(self.position, first, strict=True))
            if all(0 <= at < n for at, n in zip(relative, count, strict=True)):
                position = relative
        spans = (range(low, low + n) for low, n in zip(first, count, strict=True))
        return RankBlock(
            tuple(extent), count, position, tuple(self.ranks[self._compute_index(at)] for at in product(*spans))
        )

    def make_absence_error(self) -> MeshError:
        """The error for an access to values of a mesh of which this rank holds no chip."""
        return MeshError(
            f"no chip of this {'x'.join(map(str, self.full_shape))} mesh is on this rank: "
            f"rank(s) {list(self.ranks)} have them",
            expected="a mesh with chips of this rank",
            fix="Ask is_local(coord) of its view first.",
        )

    def list_ranks_along(self, axis: int) -> tuple[int, ...]:
        """The world ranks in line with this rank along an axis."""
        assert self.position is not None, "a rank of the mesh"
        before, after = self.position[:axis], self.position[axis + 1 :]
        return tuple(self.ranks[self._compute_index((*before, i, *after))] for i in range(self.grid[axis]))

    def _compute_index(self, position: Coord) -> int:
        index = 0
        for at, ranks in zip(position, self.grid, strict=True):
            index = index * ranks + at
        return index


def _all_gather(group: Transport, lanes: torch.Tensor) -> torch.Tensor:
    """One row of lanes per rank; in a dry run (backend meta) there is nothing to send."""
    return lanes.new_empty((group.size, *lanes.shape)) if lanes.is_meta else group.all_gather(lanes)


def load_shared_system() -> System:
    """The system on which meshes are opened: the visible chips, or every chip where several ranks present one mesh."""
    return current_system() if len(_find_mesh_ranks()) == 1 else load_system(settings.get_str("TTMESH_SYSTEM"))


def make_rank_block(shape: MeshShape) -> RankBlock | None:
    """This rank's block of a mesh of some shape that is about to open; None where one rank holds all of it."""
    ranks = _find_mesh_ranks()
    if len(ranks) == 1:
        return None
    job = world()
    assert job is not None, "several ranks form a world"
    described = read_host_topologies(settings.get_str("TT_MESH_GRAPH_DESC_PATH"))
    grid = compute_rank_grid(shape.to_tuple(), len(ranks), described)
    position = [*product(*map(range, grid))][ranks.index(job.rank)]
    return RankBlock(shape.to_tuple(), grid, position, ranks)


def _find_mesh_ranks() -> tuple[int, ...]:
    """The world ranks that present this rank's mesh, in the order of TT_MESH_HOST_RANK."""
    job = world()
    if job is None:
        return (0,)
    every = bindings()
    own = every[job.rank]
    mesh = (own.mesh_id, own.context)
    peers = {
        binding.host_rank: rank for rank, binding in enumerate(every) if (binding.mesh_id, binding.context) == mesh
    }
    found = sorted(binding.host_rank for binding in every if (binding.mesh_id, binding.context) == mesh)
    count = len(found)
    if found != list(range(count)):
        raise RankError(
            "Not specifying both TT_MESH_ID and TT_MESH_HOST_RANK is only supported for single host systems: mesh "
            f"{own.mesh_id} has {count} ranks with TT_MESH_HOST_RANK {found}",
            expected=f"TT_MESH_HOST_RANK {list(range(count))}, each once",
            fix="Set both for every rank, or start them with `ttmesh launch`.",
        )
    return tuple(peers[i] for i in range(count))
