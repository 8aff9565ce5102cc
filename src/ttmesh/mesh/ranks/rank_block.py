"""The part of a mesh that this process holds when several ranks present it as one, and the ways to the other ranks."""

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
from ttmesh.mesh.ranks.rank_division import cut_box, described_grids, rank_grid

Coord = tuple[int, ...]
T = TypeVar("T")


class RankBlock:
    """One block of a mesh that is divided in equal blocks over a grid of ranks.

    `place` is this rank's in the grid, None when it holds no chip of the mesh. Along an axis that is cut, lanes of
    length 1 say that the chips of this rank hold the same; other ranks may hold something else.
    """

    __slots__ = ("_groups", "_host", "block", "grid", "place", "ranks", "start", "whole")

    def __init__(self, whole: Coord, grid: Coord, place: Coord | None, ranks: tuple[int, ...]) -> None:
        self.whole, self.grid, self.place = whole, grid, place
        self.ranks = ranks  # world ranks by block, row-major
        self.block = tuple(n // cuts for n, cuts in zip(whole, grid, strict=True))
        self.start = tuple(at * n for at, n in zip(place or (0,) * len(grid), self.block, strict=True))
        self._groups: dict[tuple[int, int], Transport] = {}
        self._host: Transport | None = None

    @property
    def local_range(self) -> MeshCoordinateRange | None:
        """The coordinates of this rank's chips."""
        if self.place is None:
            return None
        last = [a + n - 1 for a, n in zip(self.start, self.block, strict=True)]
        return MeshCoordinateRange(MeshCoordinate(self.start), MeshCoordinate(last))

    def holds(self, coord: Iterable[int]) -> bool:
        """Whether the chip there is this rank's."""
        box = zip(self.start, coord, self.block, strict=True)
        return self.place is not None and all(a <= at < a + n for a, at, n in box)

    def among(self, chips: Sequence[T]) -> tuple[T, ...]:
        """This rank's among what the chips of the mesh have, given row-major."""
        coords = product(*map(range, self.whole))
        return tuple(chip for chip, coord in zip(chips, coords, strict=True) if self.holds(coord))

    def is_cut(self, axis: int) -> bool:
        """Whether chips along an axis belong to several ranks."""
        return self.grid[axis] > 1

    def rank_of(self, coord: Sequence[int]) -> int:
        """The world rank that holds the chip at a coordinate."""
        index = 0
        for at, n, cuts in zip(coord, self.block, self.grid, strict=True):
            index = index * cuts + at // n
        return self.ranks[index]

    def same(self, other: RankBlock | None) -> bool:
        """Whether the other part is the same block of a mesh of the same shape."""
        return other is not None and (self.whole, self.start, self.block) == (other.whole, other.start, other.block)

    # ---- lanes

    def locally(self, coord: Sequence[int]) -> Coord:
        """Where the lane of a chip is among this rank's; refused for another rank's chip, with TT-Metal's words."""
        if not self.holds(coord):
            raise MeshError(
                "Attempted to access remote device from process that does not have it! "
                f"{MeshCoordinate(coord)!r} is held by rank {self.rank_of(coord)}",
                expected=f"a coordinate in {self.local_range!r}",
                fix="Ask is_local(coord) first, or bring everything with a composer.",
            )
        return tuple(at - a for at, a in zip(coord, self.start, strict=True))

    def own(self, coords: frozenset[Coord]) -> frozenset[Coord]:
        """This rank's among some coordinates, as lane positions."""
        return frozenset(self.locally(coord) for coord in coords if self.holds(coord))

    def own_block(self, lanes: torch.Tensor, axes: Sequence[int] | None = None) -> torch.Tensor:
        """This rank's lanes of a whole mesh's (along some axes only), a view; an axis of length 1 stays."""
        for axis in range(len(self.grid)) if axes is None else axes:
            if self.is_cut(axis) and lanes.shape[axis] == self.whole[axis]:
                lanes = lanes.narrow(axis, self.start[axis], self.block[axis])
        return lanes

    def over_ranks(self, lanes: torch.Tensor, axes: Sequence[int] | None = None) -> torch.Tensor:
        """Lanes with those of the other ranks along some axes (all by default); called by a queue's command."""
        for axis in range(len(self.grid)) if axes is None else axes:
            if self.is_cut(axis):
                lanes = self._joined(self.group(axis), lanes, axis)
        return lanes

    def gathered(self, lanes: torch.Tensor) -> torch.Tensor:
        """The lanes of the whole mesh on every rank; called by the program, outside of queues."""
        rows = _all_gather(self.host, lanes)
        if self.host.ranks != self.ranks:
            rows = rows[[self.host.ranks.index(rank) for rank in self.ranks]]
        return self._whole(rows, lanes)

    def gathered_on_first(self, lanes: torch.Tensor) -> torch.Tensor | None:
        """The same on the first rank only; None on the others."""
        number = self.host.ranks.index
        if lanes.is_meta:
            return self.gathered(lanes) if self.is_first else None
        if not self.is_first:
            self.host.send(lanes, number(self.ranks[0]))
            return None
        others = [self.host.recv(torch.empty_like(lanes), number(rank)) for rank in self.ranks[1:]]
        return self._whole(torch.stack([lanes, *others]), lanes)

    def _whole(self, rows: torch.Tensor, lanes: torch.Tensor) -> torch.Tensor:
        """One row of lanes per block, put together."""
        axes = len(self.grid)
        extents = [
            self.block[axis] if self.is_cut(axis) else lanes.shape[axis] for axis in range(axes)
        ]  # a rank's single lane stands for all of its chips
        blocks = rows.reshape(*self.grid, *lanes.shape).expand(*self.grid, *extents, *lanes.shape[axes:])
        order = [dim for axis in range(axes) for dim in (axis, axes + axis)]
        turned = blocks.permute(*order, *range(2 * axes, blocks.dim()))
        return turned.reshape(*(n * e for n, e in zip(self.grid, extents, strict=True)), *lanes.shape[axes:])

    def _joined(self, group: Transport, lanes: torch.Tensor, axis: int) -> torch.Tensor:
        rows = _all_gather(group, lanes)
        wanted = self.along(axis)
        if group.ranks != wanted:
            rows = rows[[group.ranks.index(rank) for rank in wanted]]
        moved = rows.movedim(0, axis)
        if lanes.shape[axis] != self.block[axis]:
            moved = moved.expand(*moved.shape[: axis + 1], self.block[axis], *moved.shape[axis + 2 :])
        return moved.flatten(axis, axis + 1)

    def in_group_order(self, rows: torch.Tensor, axis: int) -> torch.Tensor:
        """One row per rank along an axis, in the order in which the group counts them."""
        group, along = self.group(axis), self.along(axis)
        return rows if group.ranks == along else rows[[along.index(rank) for rank in group.ranks]]

    def way(self, source: Sequence[int], target: Sequence[int]) -> int | None:
        """The axis along which the ranks of two chips lie (0 when they are one rank), None when along none."""
        pairs = zip(source, target, self.block, strict=True)
        differ = [axis for axis, (a, b, n) in enumerate(pairs) if a // n != b // n]
        return differ[0] if len(differ) == 1 else None if differ else 0

    def sent(self, lane: torch.Tensor, source: Sequence[int], target: Sequence[int]) -> torch.Tensor:
        """A chip's lane on the rank of another chip of the same line; other ranks give back what they came with."""
        axis, sender, receiver = self.way(source, target), self.rank_of(source), self.rank_of(target)
        assert axis is not None, "the chips' ranks lie in one line"
        if sender == receiver or lane.is_meta or not {sender, receiver} <= {*self.along(axis)}:
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
        """The group of all ranks of the mesh, for what the program itself does."""
        if self._host is None:
            raise self.elsewhere()
        return self._host

    def group(self, axis: int) -> Transport:
        """The ranks along an axis, with a communicator of the queue's own."""
        return self._groups[worker.queue, axis]

    def join(self, queues: int, opened: str) -> None:
        """Make the communicators: one per queue and cut axis, and one for the program. Every rank of the mesh calls it.

        `opened`: what is opened, in words that must be the same on every rank.
        """
        joined = world()
        assert joined is not None, "a divided mesh has several ranks"
        if self.place is None:
            return
        name = "x".join(map(str, self.whole))
        self._host = joined.subgroup(sorted(self.ranks), f"mesh {name}")
        self._compare(f"{opened}, {queues} command queue(s)")
        for queue, axis in product(range(queues), range(len(self.grid))):
            if self.is_cut(axis):
                members = sorted(self.along(axis))
                self._groups[queue, axis] = joined.subgroup(members, f"axis {axis} of mesh {name}, queue {queue}")

    def _compare(self, opened: str) -> None:
        """Refuse a mesh that ranks open differently: later they would wait for each other, or mix up their data."""
        told = [text.decode() for text in self.host.all_gather_bytes(opened.encode())]
        if any(text != opened for text in told):
            what = "; ".join(f"rank {rank}: {text}" for rank, text in zip(self.host.ranks, told, strict=True))
            raise RankError(
                f"ranks that present one mesh open it differently: {what}",
                expected="the same shape and sizes on every rank",
                fix="Open the same mesh on all of them, or give them different TT_MESH_IDs (--mesh-per-rank).",
                ranks=self.host.ranks,
            )

    @property
    def number(self) -> int:
        """This rank's among the ranks of the mesh."""
        assert self.place is not None, "a rank of the mesh"
        return self._index(self.place)

    @property
    def is_first(self) -> bool:
        """Whether this rank has the first block."""
        return self.place is not None and not any(self.place)

    def all_say(self, yes: bool) -> bool:
        """Whether every rank of the mesh says yes."""
        return all(row[0] for row in self.host.all_gather_ints([int(yes)]))

    def agree(self, number: int) -> int:
        """The number that the first rank of the mesh has."""
        return int(self.host.broadcast(torch.tensor([number], dtype=torch.int64), self.host.ranks.index(self.ranks[0])))

    def box(self, start: Sequence[int], extent: Sequence[int]) -> RankBlock | None:
        """This rank's part of a submesh; None where the whole submesh is this rank's."""
        cut = cut_box(self.whole, self.grid, start, extent)
        if cut is None:
            raise NotEmulatedError(
                f"a submesh of {list(extent)} at {list(start)} lies unevenly on the ranks' blocks of {list(self.block)}",
                expected="a submesh inside one block, or of equal parts of several",
                fix="Choose another shape or offset.",
            )
        first, count, _ = cut
        if prod(count) == 1 and first == self.place:
            return None
        place = None
        if self.place is not None:
            relative = tuple(at - low for at, low in zip(self.place, first, strict=True))
            if all(0 <= at < n for at, n in zip(relative, count, strict=True)):
                place = relative
        spans = (range(low, low + n) for low, n in zip(first, count, strict=True))
        return RankBlock(tuple(extent), count, place, tuple(self.ranks[self._index(at)] for at in product(*spans)))

    def elsewhere(self) -> MeshError:
        """The error for values of a mesh that other ranks hold."""
        return MeshError(
            f"no chip of this {'x'.join(map(str, self.whole))} mesh is on this rank: rank(s) {list(self.ranks)} have them",
            expected="a mesh with chips of this rank",
            fix="Ask is_local(coord) of its view first.",
        )

    def along(self, axis: int) -> tuple[int, ...]:
        """The world ranks of this rank's line along an axis."""
        assert self.place is not None, "a rank of the mesh"
        place = self.place
        return tuple(self.ranks[self._index((*place[:axis], i, *place[axis + 1 :]))] for i in range(self.grid[axis]))

    def _index(self, place: Coord) -> int:
        index = 0
        for at, cuts in zip(place, self.grid, strict=True):
            index = index * cuts + at
        return index


def _all_gather(group: Transport, lanes: torch.Tensor) -> torch.Tensor:
    """One row of lanes per rank; in a dry run (backend meta) there is nothing to send."""
    return lanes.new_empty((group.size, *lanes.shape)) if lanes.is_meta else group.all_gather(lanes)


class DividedShape(MeshShape):
    """The shape of a mesh that ranks divide: equal to a plain one, and what is cut for it knows the part."""

    __slots__ = ("part",)

    def __init__(self, part: RankBlock) -> None:
        super().__init__(part.whole)
        self.part = part


def shared_system() -> System:
    """The system that meshes are opened on: the visible part, but all of it where several ranks present one mesh."""
    return current_system() if len(_fellows()) == 1 else load_system(settings.get_str("TTMESH_SYSTEM"))


def part_here(shape: MeshShape) -> RankBlock | None:
    """This rank's part of a mesh of some shape that is about to open; None where one rank has it all."""
    fellows = _fellows()
    if len(fellows) == 1:
        return None
    joined = world()
    assert joined is not None, "several ranks are joined"
    grid = rank_grid(shape.to_tuple(), len(fellows), described_grids(settings.get_str("TT_MESH_GRAPH_DESC_PATH")))
    place = [*product(*map(range, grid))][fellows.index(joined.rank)]
    return RankBlock(shape.to_tuple(), grid, place, fellows)


def _fellows() -> tuple[int, ...]:
    """The world ranks that present this rank's mesh, by TT_MESH_HOST_RANK."""
    joined = world()
    if joined is None:
        return (0,)
    places = bindings()
    own = places[joined.rank]
    mine = (own.mesh_id, own.context)
    fellows = {place.host_rank: rank for rank, place in enumerate(places) if (place.mesh_id, place.context) == mine}
    found = sorted(place.host_rank for place in places if (place.mesh_id, place.context) == mine)
    count = len(found)
    if found != list(range(count)):
        raise RankError(
            "Not specifying both TT_MESH_ID and TT_MESH_HOST_RANK is only supported for single host systems: mesh "
            f"{own.mesh_id} has {count} ranks with TT_MESH_HOST_RANK {found}",
            expected=f"TT_MESH_HOST_RANK {list(range(count))}, each once",
            fix="Set both for every rank, or start them with `ttmesh launch`.",
        )
    return tuple(fellows[i] for i in range(count))
