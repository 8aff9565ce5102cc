"""What kernels' bytes lie in while a workload runs: the L1 of cores and the contents of cells, for chips that run as one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ttmesh.base.cores import CoreCoord
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange
from ttmesh.chip.cells import Cell
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.programs.ordering import Actor, Shadow, Transfers
from ttmesh.programs.page_layout import PageLayout
from ttmesh.programs.rings import PageRing
from ttmesh.programs.scheduler import Task

GRANULE = 16384  # bytes that are looked at together: a few pages


class Diverged(BaseException):
    """Chips that run together must be told apart: the run is dropped and done again. Kernels must not catch it."""


class NocError(MeshError):
    """An access that hits no buffer."""


class Crosses(BaseException):
    """A kernel reaches for a chip of another rank: the run is dropped and done again with all lanes. Never caught there."""


@dataclass(frozen=True)
class Frame:
    """Which lanes a run works on: those of this rank, or, with `gathers`, those of the whole mesh, brought here."""

    shape: tuple[int, ...]
    start: tuple[int, ...]
    gathers: RankBlock | None = None

    @staticmethod
    def of(mesh: MeshDevice, *, whole: bool = False) -> Frame:
        """This rank's lanes, or everybody's."""
        part, shape = mesh.rank_block, mesh.shape.to_tuple()
        if part is None:
            return Frame(shape, (0,) * len(shape))
        return Frame(shape, (0,) * len(shape), part) if whole else Frame(part.block_shape, part.start)

    def read(self, cell: Cell) -> torch.Tensor:
        """The bytes of a cell."""
        own = cell.read_bytes()
        return own if self.gathers is None else self.gathers.gather_along(own)

    def write(self, cell: Cell, lanes: torch.Tensor) -> None:
        """What a run leaves in a cell."""
        cell.write_bytes(lanes if self.gathers is None else self.gathers.narrow_to_block(lanes).clone())


class Chips:
    """Chips that run one program as one: a box of the mesh. `lanes` is how much of it memory is kept for.

    An axis of the box on which every chip holds the same has one lane: those chips are computed once.
    """

    __slots__ = ("box", "cores", "covers", "index", "lanes")

    def __init__(self, box: MeshCoordinateRange, frame: Frame, lanes: tuple[int, ...]) -> None:
        self.box, self.lanes = box, lanes
        ends = zip(box.start_coord, box.end_coord, frame.start, strict=True)
        self.index = tuple(slice(a - first, b + 1 - first) for a, b, first in ends)
        self.covers = tuple(extent == n for extent, n in zip(box.shape, frame.shape, strict=True))
        self.cores: dict[int, CoreMemory] = {}  # by L1 bank

    def coord(self) -> MeshCoordinate:
        """The one chip this is; chips that run together have no coordinate in common."""
        if self.box.start_coord != self.box.end_coord:
            raise Diverged
        return self.box.start_coord


class CoreMemory:
    """The part of a core's L1 that a program holds: circular buffers as bytes, semaphores as numbers."""

    __slots__ = ("_shadow", "bank", "bytes", "core", "end", "rings", "semaphores", "start", "waiters")

    def __init__(self, core: CoreCoord, bank: int, start: int, data: torch.Tensor) -> None:
        self.core, self.bank, self.start, self.end = core, bank, start, start + data.shape[-1]
        self.bytes = data
        self._shadow = Shadow(self._name_of, GRANULE)
        self.rings: dict[int, PageRing] = {}
        self.semaphores: dict[int, int] = {}  # by address
        self.waiters: dict[int, list[Task]] = {}

    def shadow(self, chips: Chips) -> Shadow:
        """Who touched them."""
        return self._shadow

    def view(self, chips: Chips) -> torch.Tensor:
        """The bytes, to be read."""
        return self.bytes

    def writable(self, chips: Chips) -> torch.Tensor:
        """The bytes, to be changed."""
        return self.bytes

    def _name_of(self, offset: int) -> str:
        for ring in self.rings.values():
            if 0 <= self.start + offset - ring.placed.address < ring.placed.size_bytes:
                return f"cb {ring.placed.index} on core {self.core.str()}"
        return f"L1 of core {self.core.str()}"

    def offset(self, address: int, size: int) -> int:
        """Where an address lies in the bytes; an access must stay inside one circular buffer."""
        for ring in self.rings.values():
            placed = ring.placed
            if placed.address <= address < placed.address + placed.size_bytes:
                if address + size > placed.address + placed.size_bytes:
                    raise NocError(
                        f"{size} B at L1 address {address} of core {self.core.str()} run over the end of cb {placed.index}, "
                        f"{placed.address + placed.size_bytes}",
                        expected="an access inside the circular buffer",
                        fix="Use blocks that divide the buffer.",
                    )
                return address - self.start
        raise NocError(
            f"L1 address {address} of core {self.core.str()} lies in no circular buffer",
            expected="an address from get_write_ptr or get_read_ptr",
            fix="Create a circular buffer there.",
        )


class Contents:
    """The bytes of a cell during a run; the cell itself changes only when the run has ended well."""

    __slots__ = ("_blank", "_frame", "_lanes", "_shadows", "_views", "_writable", "cell", "changed", "layout")

    def __init__(self, cell: Cell, layout: PageLayout, frame: Frame) -> None:
        self.cell, self.layout, self.changed = cell, layout, False
        self._frame = frame
        self._blank = cell.values is None and cell.raw is None and frame.gathers is None
        self._lanes: torch.Tensor | None = None
        self._views: dict[Chips, torch.Tensor] = {}
        self._writable: dict[Chips, torch.Tensor] = {}
        self._shadows: dict[Chips, Shadow] = {}

    def shadow(self, chips: Chips) -> Shadow:
        """Who touched what these chips hold."""
        found = self._shadows.get(chips)
        if found is None:
            name = f"the buffer at {self.cell.buffer_type.name} address {self.cell.address}"
            found = self._shadows[chips] = Shadow(lambda offset: name, GRANULE)
        return found

    def view(self, chips: Chips) -> torch.Tensor:
        """What these chips hold, to be read."""
        seen = self._views.get(chips)
        if seen is None:
            seen = self._of(self._held(), chips)
            if any(have > lanes for have, lanes in zip(seen.shape, chips.lanes, strict=False)):
                raise Diverged
            self._views[chips] = seen
        return seen

    def writable(self, chips: Chips) -> torch.Tensor:
        """What these chips hold, to be changed; the first time a copy is made."""
        seen = self._writable.get(chips)
        if seen is not None:
            return seen
        axes = len(self._frame.shape)
        once = [n == 1 and all_of_it for n, all_of_it in zip(chips.lanes, chips.covers, strict=True)]
        have = (1,) * axes if self._lanes is None and self._blank else tuple(self._held().shape[:axes])
        need = tuple(h if same else n for h, same, n in zip(have, once, self._frame.shape, strict=True))
        if not self.changed or need != have:
            if self._blank and not self.changed:
                shape = (*need, self.cell.size_bytes)
                self._lanes = torch.zeros(shape, dtype=torch.uint8, device=self.cell.device)
            else:
                self._lanes = self._held().expand(*need, self.cell.size_bytes).clone()
            self.changed = True
            self._views.clear()
            self._writable.clear()
        seen = self._writable[chips] = self._of(self._held(), chips)
        return seen

    def commit(self) -> None:
        """Put the bytes into the cell."""
        if self.changed:
            self._frame.write(self.cell, self._held())

    def _held(self) -> torch.Tensor:
        if self._lanes is None:
            self._lanes = self._frame.read(self.cell)
        return self._lanes

    def _of(self, lanes: torch.Tensor, chips: Chips) -> torch.Tensor:
        return lanes[tuple(slice(None) if n == 1 else box for n, box in zip(lanes.shape, chips.index, strict=False))]


Owner = CoreMemory | Contents
Piece = tuple[Owner, int, int]  # where, offset in its bytes, size


def touch(owner: Owner, offset: int, size: int, chips: Chips, actor: Actor, *, writes: bool) -> None:
    """A kernel reads or writes bytes here and now."""
    clock = actor.clock
    owner.shadow(chips).touch(offset, size, clock, actor.id, clock[actor.id], writes, actor.site())


class NocTransfer:
    """Bytes under way: the copy is made at the barrier, and noted as an access of the moment it was asked for."""

    __slots__ = ("_known", "_noted", "arriving", "at", "leaving", "site", "size", "source", "start", "target", "told")

    def __init__(
        self,
        source: Owner,
        start: int,
        target: Owner,
        at: int,
        size: int,
        leaving: Transfers,
        arriving: Transfers,
        actor: Actor,
    ) -> None:
        self.source, self.start, self.target, self.at, self.size = source, start, target, at, size
        self.leaving, self.arriving, self.site = leaving, arriving, actor.site()
        self._known, self.told, self._noted = actor.clock.copy(), actor.told, 0

    def note(self, chips: Chips) -> None:
        """Let others' accesses be compared with it."""
        done, size, known, site = self._noted, self.size - self._noted, self._known, self.site
        if size:
            leaving, arriving, self._noted = self.leaving, self.arriving, self.size
            self.source.shadow(chips).touch(self.start + done, size, known, leaving.id, leaving.time, False, site)
            self.target.shadow(chips).touch(self.at + done, size, known, arriving.id, arriving.time, True, site)
